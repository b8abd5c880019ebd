"""The exchanges of one virtual host: which queues a message goes to. Queues and storage are elsewhere."""

from collections.abc import Mapping, Sequence
from typing import Final, final

from headrace.core.properties import frozen
from headrace.core.routing.exchange import (
    CONSISTENT_HASH,
    HEADERS,
    PREDECLARED,
    RESERVED_PREFIX,
    Binding,
    Dropped,
    Exchange,
    HashRouter,
    Router,
    check_new_name,
    check_not_default,
    hashed_header,
    router_for,
)
from headrace.errors import AccessRefused, NotFound, PreconditionFailed

# The cache of routes is bounded by what it holds: a route weighs its queues and a constant for its key.
_MAX_CACHED: Final = 200_000
_ENTRY_WEIGHT: Final = 8
_MAX_CACHED_KEY: Final = 255


@final
class _Hub:
    """One exchange at work: its definition, its bindings by identity, the router that picks among them."""

    __slots__ = ("bindings", "exchange", "reads_headers", "router")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.reads_headers = exchange.kind == HEADERS
        if exchange.kind == CONSISTENT_HASH:
            header = hashed_header(exchange)
            self.router: Router = HashRouter(header)
            self.reads_headers = header != ""
        else:
            self.router = router_for(exchange.kind)
        self.bindings: dict[object, Binding] = {}


@final
class Exchanges:
    """All exchanges and bindings of one virtual host, and the routes they make.

    Nothing is stored here: each change says what it made or took away. Nor is it known which queues exist:
    the default exchange names the queue of its key in any case, and bindings stay until `remove_queue`.
    """

    __slots__ = ("_cached", "_host", "_hubs", "_routes", "_sources", "_to_exchange", "_to_queue")

    def __init__(self, host: str = "/") -> None:
        self._host = host
        self._hubs: dict[str, _Hub] = {}
        self._to_queue: dict[str, dict[Binding, None]] = {}
        self._to_exchange: dict[str, dict[Binding, None]] = {}
        self._routes: dict[str, dict[str, tuple[str, ...]]] = {}
        self._cached = 0
        self._sources: dict[str, set[str]] = {}
        for name, kind in PREDECLARED:
            self._hubs[name] = _Hub(Exchange(name, kind, durable=True))

    def declare(self, definition: Exchange, passive: bool = False) -> bool:
        """Have an exchange as defined; True when it is new. Passive only asks whether the name exists.

        Raises AccessRefused for names the server keeps, NotFound (passive), and PreconditionFailed when the
        exchange exists and differs, or is of an unknown kind.
        """
        name = definition.name
        check_not_default(name)
        hub = self._hubs.get(name)
        if passive:
            self.get(name)
            return False
        if hub is not None:
            hub.exchange.check_equivalent(definition)
            return False
        check_new_name(name)
        frozen(definition.arguments)
        self._hubs[name] = _Hub(definition)
        self._forget_routes()  # it may be another's alternate that was missing so far
        return True

    def delete(self, name: str, if_unused: bool = False) -> Dropped:
        """Remove the exchange with all bindings from it and to it.

        Raises NotFound, AccessRefused for predeclared exchanges, PreconditionFailed when `if_unused` and it
        is the source of a binding.
        """
        check_not_default(name)
        hub = self._hub(name)
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefused(f"deletion of system exchange '{name}' not allowed")
        if if_unused and hub.bindings:
            raise PreconditionFailed(f"exchange '{name}' in use: {len(hub.bindings)} bindings from it")
        return self._drop([name], [])

    def get(self, name: str) -> Exchange:
        """The definition of the exchange. Raises NotFound."""
        return self._hub(name).exchange

    def check_publish(self, name: str) -> None:
        """Accept an exchange that clients may publish to. Raises NotFound, AccessRefused when internal."""
        if self._hub(name).exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{name}'")

    def bind(self, binding: Binding) -> bool:
        """Have the binding; True when it is new. Its queue, if it leads to one, must exist: the caller knows.

        Raises AccessRefused for the default exchange, NotFound, PreconditionFailed for arguments that make no
        sense.
        """
        hub = self._ends(binding)
        if binding.identity in hub.bindings:
            return False
        hub.router.add(binding)
        hub.bindings[binding.identity] = binding
        self._destinations(binding).setdefault(binding.destination, {})[binding] = None
        self._forget_routes()
        return True

    def unbind(self, binding: Binding) -> Dropped:
        """Have the binding no more, nor an auto-delete exchange that this was the last one of.

        When there is none nothing changes. Raises AccessRefused for the default exchange, NotFound.
        """
        found = self._ends(binding).bindings.get(binding.identity)
        return self._drop([], [] if found is None else [found])

    def remove_queue(self, queue: str) -> Dropped:
        """Have no bindings to this queue any more, nor auto-delete exchanges that had no others."""
        return self._drop([], list(self._to_queue.get(queue, ())))

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """The queues that the message goes to, each once; the same topology gives the same order.

        `extra_keys` count as further routing keys (CC, BCC). Raises NotFound.
        """
        if not extra_keys:
            if not exchange:
                return (routing_key,)
            routes = self._routes.get(exchange)
            if routes is not None:
                route = routes.get(routing_key)
                if route is not None:
                    return route
        self._hub(exchange)
        queues: dict[str, None] = {}
        by_key = self._walk(exchange, (routing_key, *extra_keys), headers, queues, {exchange})
        route = tuple(queues)
        if by_key and not extra_keys:
            self._remember(exchange, routing_key, route)
        return route

    def passes(
        self, exchange: str, routing_key: str, headers: Mapping[str, object] | None, extra_keys: Sequence[str], by: str
    ) -> bool:
        """Whether the message comes by another exchange, too, on its way to queues."""
        if exchange not in self._upstream(by):
            return False
        seen = {exchange}
        self._walk(exchange, (routing_key, *extra_keys), headers, {}, seen)
        return by in seen

    def _upstream(self, exchange: str) -> set[str]:
        """The exchanges from which this one can be reached at all, known until the topology changes."""
        found = self._sources.get(exchange)
        if found is None:
            found = self._sources[exchange] = set()
            ahead = [exchange]
            while ahead:
                name = ahead.pop()
                sources = {binding.source for binding in self._to_exchange.get(name, ())}
                sources.update([hub.exchange.name for hub in self._hubs.values() if hub.exchange.alternate == name])
                ahead += sources - found
                found |= sources
        return found

    def looks_at_headers(self, exchange: str) -> bool:
        """Whether more than the routing key may decide where messages of this exchange go."""
        hubs = self._hubs.items()
        return any([hub.reads_headers and (bool(hub.bindings) or name == exchange) for name, hub in hubs])

    def _walk(
        self,
        start: str,
        keys: tuple[str, ...],
        headers: Mapping[str, object] | None,
        queues: dict[str, None],
        seen: set[str],
    ) -> bool:
        """Collect the queues and the exchanges; True when the keys alone decide. Each is visited once: cycles end."""
        by_key = True
        ahead = [start]
        while ahead:
            name = ahead.pop()
            if not name:
                queues.update(dict.fromkeys(keys))
                continue
            hub = self._hubs.get(name)
            if hub is None:
                continue  # an alternate exchange need not exist
            if hub.reads_headers:
                by_key = False
            onward: list[str] = []
            is_matched = False
            for key in keys:
                for binding in hub.router.match(key, headers):
                    is_matched = True
                    if binding.to_exchange:
                        onward.append(binding.destination)
                    else:
                        queues[binding.destination] = None
            if not is_matched and hub.exchange.alternate is not None:
                onward.append(hub.exchange.alternate)
            for other in onward:
                if other not in seen:
                    seen.add(other)
                    ahead.append(other)
        return by_key

    def _remember(self, exchange: str, key: str, route: tuple[str, ...]) -> None:
        weight = len(route) + _ENTRY_WEIGHT
        if weight > _MAX_CACHED or len(key) > _MAX_CACHED_KEY:
            return
        if self._cached + weight > _MAX_CACHED:
            self._forget_routes()
        self._cached += weight
        self._routes.setdefault(exchange, {})[key] = route

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._sources.clear()
        self._cached = 0

    def exchanges(self) -> list[Exchange]:
        """All exchanges, the predeclared ones first."""
        return [hub.exchange for hub in self._hubs.values()]

    def bindings(self) -> list[Binding]:
        """All bindings; those of the default exchange are not counted as such."""
        return [binding for hub in self._hubs.values() for binding in hub.bindings.values()]

    def bindings_from(self, exchange: str) -> list[Binding]:
        """The bindings of this source. Raises NotFound."""
        return list(self._hub(exchange).bindings.values())

    def bindings_to(self, destination: str, to_exchange: bool = False) -> list[Binding]:
        """The bindings that lead to this queue, or to this exchange."""
        return list((self._to_exchange if to_exchange else self._to_queue).get(destination, ()))

    def _hub(self, name: str) -> _Hub:
        hub = self._hubs.get(name)
        if hub is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self._host}'")
        return hub

    def _ends(self, binding: Binding) -> _Hub:
        """The source's hub, when client operations may touch both ends of the binding."""
        check_not_default(binding.source)
        hub = self._hub(binding.source)
        if binding.to_exchange:
            check_not_default(binding.destination)
            self._hub(binding.destination)
        return hub

    def _destinations(self, binding: Binding) -> dict[str, dict[Binding, None]]:
        return self._to_exchange if binding.to_exchange else self._to_queue

    def _drop(self, names: list[str], bindings: list[Binding]) -> Dropped:
        """Remove exchanges and bindings, and what must go with them. No recursion: chains may be long."""
        dropped = Dropped()
        while names or bindings:
            if names:
                hub = self._hubs.pop(names.pop())
                dropped.exchanges.append(hub.exchange)
                bindings.extend(hub.bindings.values())
                bindings.extend(self._to_exchange.get(hub.exchange.name, ()))
                continue
            binding = bindings.pop()
            if self._take_out(binding):
                dropped.bindings.append(binding)
                source = self._hubs.get(binding.source)
                if source is not None and source.exchange.auto_delete and not source.bindings:
                    names.append(binding.source)
        if dropped.bindings or dropped.exchanges:
            self._forget_routes()
        return dropped

    def _take_out(self, binding: Binding) -> bool:
        destinations = self._destinations(binding)
        bindings = destinations.get(binding.destination)
        if bindings is None or binding not in bindings:
            return False  # an exchange bound to itself comes up from both of its ends
        del bindings[binding]
        if not bindings:
            del destinations[binding.destination]
        source = self._hubs.get(binding.source)
        if source is not None:
            source.router.remove(binding)
            del source.bindings[binding.identity]
        return True

"""The exchanges of one virtual host: how each kind picks bindings, and which queues a message reaches through chains.

exchange.py defines exchanges and bindings. Queues and storage are elsewhere.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Final, TypeAlias, final

from headrace.config.kinds import Choice, Unfit, shown
from headrace.core.routing.address import MAX_CACHED_KEY
from headrace.core.routing.delays import Later, delay_of, delayed
from headrace.core.routing.exchange import (
    CONSISTENT_HASH,
    DELAYED,
    DIRECT,
    FANOUT,
    HASH_HEADER,
    HASH_PROPERTY,
    HEADERS,
    KINDS,
    MODULUS_HASH,
    PREDECLARED,
    RANDOM,
    RESERVED_PREFIX,
    TOPIC,
    Binding,
    Dropped,
    Exchange,
    check_new_name,
    check_not_default,
    routed_as,
)
from headrace.core.routing.topics import KeyTrie
from headrace.errors import AccessRefused, NotFound, PreconditionFailed, Refused
from headrace.model import Message
from headrace.wire.encodings import properties_of
from headrace.wire.properties import frozen

X_MATCH: Final = "x-match"

# A header that a binding asks for: its name, and its frozen value or None for any value.
Need: TypeAlias = tuple[str, Hashable]


class Router(ABC):
    """The bindings of one exchange, indexed for matching. Each binding is added once and removed once."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Add a binding. Raises PreconditionFailed, changing nothing, for wrong arguments."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Remove a binding that was added."""

    @abstractmethod
    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        """The bindings that a message matches, each once."""


def router_for(kind: str) -> Router:
    """An empty router for a kind that needs nothing but its bindings. Raises PreconditionFailed for an unknown one."""
    if kind == DIRECT:
        return DirectRouter()
    if kind == FANOUT:
        return FanoutRouter()
    if kind == TOPIC:
        return TopicRouter()
    if kind == HEADERS:
        return HeadersRouter()
    if kind == MODULUS_HASH:
        return ModulusRouter()
    raise PreconditionFailed(f"unknown exchange type '{kind}': use {', '.join(KINDS[:-1])} or {KINDS[-1]}")


@final
class DirectRouter(Router):
    """Matches bindings whose key equals the message's."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: dict[str, dict[Binding, None]] = {}

    def add(self, binding: Binding) -> None:
        self._by_key.setdefault(binding.key, {})[binding] = None

    def remove(self, binding: Binding) -> None:
        bindings = self._by_key[binding.key]
        del bindings[binding]
        if not bindings:
            del self._by_key[binding.key]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._by_key.get(key, ())


@final
class FanoutRouter(Router):
    """Matches all bindings."""

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: dict[Binding, None] = {}

    def add(self, binding: Binding) -> None:
        self._bindings[binding] = None

    def remove(self, binding: Binding) -> None:
        del self._bindings[binding]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._bindings


@final
class TopicRouter(Router):
    """Matches bindings whose key is a pattern of words that fits the message's key."""

    __slots__ = ("_tree",)

    def __init__(self) -> None:
        self._tree: KeyTrie[Binding] = KeyTrie()

    def add(self, binding: Binding) -> None:
        self._tree.add(binding.key, binding)

    def remove(self, binding: Binding) -> None:
        self._tree.remove(binding.key, binding)

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._tree.match(key)


@final
class HeadersRouter(Router):
    """Matches bindings whose arguments are among the message's headers: all of them, or any.

    A binding for any header is indexed under each of its headers, one for all under its rarest; so a message is
    compared only with bindings that want something it has.
    """

    __slots__ = ("_all", "_always", "_any", "_names")

    def __init__(self) -> None:
        self._all: dict[Need, dict[Binding, tuple[Need, ...]]] = {}
        self._any: dict[Need, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}  # bindings without header arguments that want all
        self._names: dict[str, int] = {}  # number of bindings by header name

    def add(self, binding: Binding) -> None:
        wants_any, needs = _needs(binding)
        for name, _ in needs:
            self._names[name] = self._names.get(name, 0) + 1
        if wants_any:
            for need in needs:
                self._any.setdefault(need, {})[binding] = None
        elif needs:
            rarest = min(needs, key=self._popularity)
            self._all.setdefault(rarest, {})[binding] = needs
        else:
            self._always[binding] = None

    def remove(self, binding: Binding) -> None:
        wants_any, needs = _needs(binding)
        self._always.pop(binding, None)
        for need in needs:
            name = need[0]
            self._names[name] -= 1
            if not self._names[name]:
                del self._names[name]
            if wants_any:
                self._any[need].pop(binding, None)
                if not self._any[need]:
                    del self._any[need]
            elif need in self._all:
                self._all[need].pop(binding, None)
                if not self._all[need]:
                    del self._all[need]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        if not headers:
            return self._always
        offered = self._offered(headers)
        found = dict(self._always)
        for need in offered:
            if need in self._any:
                found.update(self._any[need])
            if need in self._all:
                for binding, needs in self._all[need].items():
                    if _has_all(offered, needs):
                        found[binding] = None
        return found

    def _popularity(self, need: Need) -> int:
        return len(self._all.get(need, ()))

    def _offered(self, headers: Mapping[str, object]) -> dict[Need, None]:
        """The message's headers that some binding asks for."""
        offered: dict[Need, None] = {}
        for name, value in headers.items():
            if name in self._names:
                offered[name, None] = None
                try:
                    offered[name, frozen(value)] = None
                except Refused:
                    continue  # no binding can hold such a value, so it is present and equals none
        return offered


_MATCH: Final = Choice("all", "any", "all-with-x", "any-with-x")


def _needs(binding: Binding) -> tuple[bool, tuple[Need, ...]]:
    """True if any one header suffices, and the headers asked for."""
    given = binding.arguments.get(X_MATCH, "all")
    try:
        mode = _MATCH.read(given)
    except Unfit as error:
        raise PreconditionFailed(
            f"invalid arg '{X_MATCH}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"{error}, not {shown(given)}"
        ) from error
    with_x = mode in ("all-with-x", "any-with-x")
    needs: list[Need] = []
    for name, value in binding.arguments.items():
        if name != X_MATCH and (with_x or not name.startswith("x-")):
            needs.append((name, frozen(value)))
    return mode in ("any", "any-with-x"), tuple(needs)


def _has_all(offered: dict[Need, None], needs: tuple[Need, ...]) -> bool:
    for need in needs:
        if need not in offered:
            return False
    return True


_PROPERTIES: Final = ("correlation_id", "message_id", "timestamp")
_PROPERTY: Final = "\0"
"""Begins the name of a property among headers: see `Exchanges.details`."""
_BYTES: Final = 6  # a float holds so many bytes exactly
_RANGE: Final = float(1 << 8 * _BYTES)
_MAX_WEIGHT: Final = 1_000_000


def hashed_header(exchange: Exchange) -> str:
    """The hashed header or property, "" for the routing key. Raises PreconditionFailed for invalid arguments."""
    header, name = exchange.argument(HASH_HEADER), exchange.argument(HASH_PROPERTY)
    if name is None:
        return header or ""
    if header is not None:
        raise PreconditionFailed(f"{HASH_HEADER} and {HASH_PROPERTY} are mutually exclusive")
    if name not in _PROPERTIES:
        raise PreconditionFailed(f"Unsupported property: {name[:64]}")
    return _PROPERTY + name


@final
class HashRouter(Router):
    """Matches one binding per key, in proportion to the bindings' weights: their own keys, whole numbers.

    The binding with the highest score for a key gets it (rendezvous hashing). So a new or removed binding moves only
    its own keys, and the same bindings give the same answer after every restart.
    """

    __slots__ = ("_header", "_weights")

    def __init__(self, header: str) -> None:
        self._header = header
        self._weights: dict[Binding, tuple[bytes, int]] = {}
        """Hash prefix and weight of each binding."""

    def add(self, binding: Binding) -> None:
        kind = "exchange" if binding.to_exchange else "queue"
        self._weights[binding] = (f"{kind} {binding.destination}\0".encode(), _weight(binding))

    def remove(self, binding: Binding) -> None:
        del self._weights[binding]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        hashed = (str(headers.get(self._header, "")) if headers else "") if self._header else key
        wanted = hashed.encode(errors="surrogateescape")
        best: Binding | None = None
        highest = -1.0
        for binding, (name, weight) in self._weights.items():
            digest = blake2b(name + wanted, digest_size=_BYTES).digest()
            score = -weight / math.log((int.from_bytes(digest, "big") + 0.5) / _RANGE)
            if score > highest:
                best, highest = binding, score
        return () if best is None else (best,)


@final
class ModulusRouter(Router):
    """Matches one binding per key, by the key's hash; bindings may have any keys of their own.

    They are in the order of their destinations, so the same bindings give the same answer after every restart.
    """

    __slots__ = ("_bindings",)

    def __init__(self) -> None:
        self._bindings: list[Binding] = []

    def add(self, binding: Binding) -> None:
        self._bindings.append(binding)
        self._bindings.sort(key=_place)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        if not self._bindings:
            return ()
        digest = blake2b(key.encode(errors="surrogateescape"), digest_size=_BYTES).digest()
        return (self._bindings[int.from_bytes(digest, "big") % len(self._bindings)],)


def _place(binding: Binding) -> tuple[bool, str, str]:
    return binding.to_exchange, binding.destination, binding.key


@final
class RandomRouter(Router):
    """Matches one binding by chance: the same one until `draw`, so that all looks at a message agree."""

    __slots__ = ("_bindings", "_chance", "_drawn")

    def __init__(self, chance: Random) -> None:
        self._bindings: list[Binding] = []
        self._chance = chance
        self._drawn = 0.0

    def add(self, binding: Binding) -> None:
        self._bindings.append(binding)

    def remove(self, binding: Binding) -> None:
        self._bindings.remove(binding)

    def draw(self) -> None:
        """Choose anew, for the next message."""
        self._drawn = self._chance.random()

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        bindings = self._bindings
        return (bindings[int(self._drawn * len(bindings))],) if bindings else ()


def _weight(binding: Binding) -> int:
    text = binding.key
    weight = int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else 0
    if not 1 <= weight <= _MAX_WEIGHT:
        raise PreconditionFailed(
            f"invalid routing key '{text[:40]}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"it is the binding's weight there, a number from 1 to {_MAX_WEIGHT}"
        )
    return weight


# Bounds of the route cache: a route weighs its queues and a constant for its key.
_MAX_CACHED: Final = 200_000
_ENTRY_WEIGHT: Final = 8


@final
class _Hub:
    """One exchange with its bindings by identity and its router."""

    __slots__ = ("alternate", "bindings", "exchange", "hashes", "is_delaying", "picks_one", "router", "routes_each")

    def __init__(self, exchange: Exchange, chance: Random) -> None:
        self.exchange = exchange
        self.alternate = exchange.alternate
        """The exchange for messages that it cannot route: its own, or that of a policy; None if there is none."""
        kind = routed_as(exchange.kind, exchange.arguments)
        self.is_delaying = exchange.kind == DELAYED
        self.hashes = hashed_header(exchange) if kind == CONSISTENT_HASH else ""
        """The header or property that decides instead of the key."""
        self.picks_one = kind in (CONSISTENT_HASH, MODULUS_HASH, RANDOM)
        """True if each message goes one way, however many keys it has."""
        self.routes_each = kind in (HEADERS, RANDOM) or self.is_delaying or self.hashes != ""
        """True if messages with the same key may go different ways."""
        if kind == CONSISTENT_HASH:
            self.router: Router = HashRouter(self.hashes)
        elif kind == RANDOM:
            self.router = RandomRouter(chance)
        else:
            self.router = router_for(kind)
        self.bindings: dict[object, Binding] = {}

    @property
    def reads_messages(self) -> bool:
        """True if more than keys and headers decides."""
        return self.is_delaying or self.hashes.startswith(_PROPERTY) or isinstance(self.router, RandomRouter)


def _own_alternate(exchange: Exchange) -> str | None:
    return exchange.alternate


@final
class Exchanges:
    """All exchanges and bindings of one virtual host, and the routes through them.

    Nothing is stored here: each change returns what it made or removed. Queues may be missing: the default exchange
    names the queue of any key, and bindings stay until `remove_queue`.
    """

    __slots__ = (
        "_alternate_of",
        "_cached",
        "_chance",
        "_each",
        "_host",
        "_hubs",
        "_message_readers",
        "_routes",
        "_sources",
        "_to_exchange",
        "_to_queue",
        "reads_messages",
    )

    def __init__(
        self,
        host: str = "/",
        alternate_of: Callable[[Exchange], str | None] | None = None,
        chance: Random | None = None,
    ) -> None:
        """`alternate_of` gives the exchange for what another cannot route, by its policy, too."""
        self._chance = chance or Random()
        self._host = host
        self._alternate_of = alternate_of or _own_alternate
        self._hubs: dict[str, _Hub] = {}
        self._to_queue: dict[str, dict[Binding, None]] = {}
        self._to_exchange: dict[str, dict[Binding, None]] = {}
        self._routes: dict[str, dict[str, tuple[str, ...]]] = {}
        self._cached = 0
        self._sources: dict[str, set[str]] = {}
        self._each: set[str] | None = None
        """The exchanges whose messages are routed one by one; None until somebody asks."""
        self._message_readers: dict[str, _Hub] = {}
        """The exchanges for which more than keys and headers decides."""
        self.reads_messages = False
        """True if there are such exchanges."""
        for name, kind in PREDECLARED:
            self._hubs[name] = _Hub(Exchange(name, kind, durable=True), self._chance)
        self.govern()

    def govern(self) -> None:
        """Apply changed policies to all exchanges."""
        for hub in self._hubs.values():
            hub.alternate = self._alternate_of(hub.exchange)
        self._forget_routes()

    def declare(self, definition: Exchange, passive: bool = False) -> bool:
        """Declare an exchange; True if it is new. A passive declaration only checks that the name exists.

        Raises AccessRefused for reserved names, NotFound (passive), and PreconditionFailed when the exchange exists and
        differs, or is of an unknown kind.
        """
        name = definition.name
        check_not_default(name)
        hub = self._hubs.get(name)
        if passive:
            self.get(name)
            return False
        if hub is not None:
            hub.exchange.check_equivalent(definition, self._host)
            return False
        check_new_name(name)
        frozen(definition.arguments)
        hub = self._hubs[name] = _Hub(definition, self._chance)
        hub.alternate = self._alternate_of(definition)
        if hub.reads_messages:
            self._message_readers[name] = hub
            self.reads_messages = True
        self._forget_routes()  # the exchange may be the missing alternate of another
        return True

    def delete(self, name: str, if_unused: bool = False) -> Dropped:
        """Remove the exchange with all its bindings, in both directions.

        Raises NotFound, AccessRefused for predeclared exchanges, PreconditionFailed when `if_unused` and it is the
        source of a binding.
        """
        check_not_default(name)
        if name.startswith(RESERVED_PREFIX):
            raise AccessRefused(f"deletion of system exchange '{name}' in vhost '{self._host}' not allowed")
        hub = self._hub(name)
        if if_unused and hub.bindings:
            raise PreconditionFailed(f"exchange '{name}' in vhost '{self._host}' in use")
        return self._drop([name], [])

    def get(self, name: str) -> Exchange:
        """The exchange of this name. Raises NotFound."""
        return self._hub(name).exchange

    def check_publish(self, name: str) -> None:
        """Check that clients may publish to the exchange. Raises NotFound, AccessRefused when internal."""
        if self._hub(name).exchange.internal:
            raise AccessRefused(f"cannot publish to internal exchange '{name}' in vhost '{self._host}'")

    def check_ends(self, binding: Binding) -> None:
        """Raise AccessRefused for the default exchange, NotFound for an exchange that is not there."""
        self._ends(binding)

    def has(self, binding: Binding) -> bool:
        """True if there is this binding. Raises AccessRefused for the default exchange, NotFound."""
        return binding.identity in self._ends(binding).bindings

    def bind(self, binding: Binding) -> bool:
        """Add a binding; True if it is new. The caller checks that its queue exists.

        Raises AccessRefused for the default exchange, NotFound, PreconditionFailed for invalid arguments.
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
        """Remove a binding, and its auto-delete exchange after the last one; a missing binding changes nothing.

        Raises AccessRefused for the default exchange, NotFound.
        """
        found = self._ends(binding).bindings.get(binding.identity)
        return self._drop([], [] if found is None else [found])

    def remove_queue(self, queue: str) -> Dropped:
        """Remove all bindings to this queue, and auto-delete exchanges that lose their last one."""
        return self._drop([], list(self._to_queue.get(queue, ())))

    def route(
        self,
        exchange: str,
        routing_key: str,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """The queues of a message, each once and in a stable order.

        `extra_keys` are further routing keys (CC, BCC). If `reads_messages`, `headers` are those of `details`. Raises
        NotFound.
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
        if self.reads_messages:
            self._draw()
        queues: dict[str, None] = {}
        by_key = self._walk(exchange, (routing_key, *extra_keys), headers, queues, {exchange})
        route = tuple(queues)
        if by_key and not extra_keys:
            self._remember(exchange, routing_key, route)
        return route

    def passes(
        self, exchange: str, routing_key: str, headers: Mapping[str, object] | None, extra_keys: Sequence[str], by: str
    ) -> bool:
        """True if the message that was routed last passes the exchange `by` on its way to queues."""
        if exchange not in self._upstream(by):
            return False
        seen = {exchange}
        self._walk(exchange, (routing_key, *extra_keys), headers, {}, seen)
        return by in seen

    def details(self, message: Message, headers: Mapping[str, object] | None) -> Mapping[str, object] | None:
        """The headers of a message, with those properties that an exchange of this host hashes."""
        hashed = {hub.hashes for hub in self._message_readers.values() if hub.hashes.startswith(_PROPERTY)}
        if not hashed:
            return headers
        try:
            properties = properties_of(message)
        except Refused:
            return headers
        found = dict(headers) if headers else {}
        for name in hashed:
            field = name[len(_PROPERTY) :]
            found[name] = properties.timestamp_s if field == "timestamp" else getattr(properties, field)
        return found

    def later(
        self,
        exchange: str,
        message: Message,
        headers: Mapping[str, object] | None,
        extra_keys: Sequence[str],
        now_us: int,
    ) -> Later | None:
        """The message that was routed last, for those of its queues that get it later; None if none does."""
        delay_ms = delay_of(headers)
        delaying = {name for name, hub in self._message_readers.items() if hub.is_delaying} if delay_ms else set()
        if not any([name == exchange or exchange in self._upstream(name) for name in delaying]):
            return None
        at_once: dict[str, None] = {}
        if exchange not in delaying:
            self._walk(exchange, (message.source.topic, *extra_keys), headers, at_once, {exchange} | delaying)
        return Later(delayed(message, delay_ms, now_us), at_once)

    def _draw(self) -> None:
        for hub in self._message_readers.values():
            if isinstance(hub.router, RandomRouter):
                hub.router.draw()

    def leads_to(self, exchange: str, other: str) -> bool:
        """True if messages may get from an exchange to another one."""
        return exchange in self._upstream(other)

    def _upstream(self, exchange: str) -> set[str]:
        """All exchanges that lead to this one, cached until the topology changes."""
        found = self._sources.get(exchange)
        if found is None:
            found = self._sources[exchange] = set()
            ahead = [exchange]
            while ahead:
                name = ahead.pop()
                sources = {binding.source for binding in self._to_exchange.get(name, ())}
                sources.update([hub.exchange.name for hub in self._hubs.values() if hub.alternate == name])
                ahead += sources - found
                found |= sources
        return found

    def routes_each(self, exchange: str) -> bool:
        """True if more than the key may decide about messages of this exchange: each is routed by itself."""
        if self._each is None:
            names = [name for name, hub in self._hubs.items() if hub.routes_each]
            self._each = set(names).union(*[self._upstream(name) for name in names])
        return exchange in self._each

    def _walk(
        self,
        start: str,
        keys: tuple[str, ...],
        headers: Mapping[str, object] | None,
        queues: dict[str, None],
        seen: set[str],
    ) -> bool:
        """Collect queues and exchanges; True when the keys alone decide. Each is visited once, so cycles end."""
        by_key = True
        ahead = [start]
        while ahead:
            name = ahead.pop()
            if not name:
                queues.update(dict.fromkeys(keys))
                continue
            hub = self._hubs.get(name)
            if hub is None:
                continue  # an alternate exchange may be missing
            if hub.routes_each:
                by_key = False
            onward: list[str] = []
            is_matched = False
            for key in keys[:1] if hub.picks_one else keys:
                for binding in hub.router.match(key, headers):
                    is_matched = True
                    if binding.to_exchange:
                        onward.append(binding.destination)
                    else:
                        queues[binding.destination] = None
            if not is_matched and hub.alternate is not None:
                onward.append(hub.alternate)
            for other in onward:
                if other not in seen:
                    seen.add(other)
                    ahead.append(other)
        return by_key

    def _remember(self, exchange: str, key: str, route: tuple[str, ...]) -> None:
        weight = len(route) + _ENTRY_WEIGHT
        if weight > _MAX_CACHED or len(key) > MAX_CACHED_KEY:
            return
        if self._cached + weight > _MAX_CACHED:
            self._forget_routes()
        self._cached += weight
        self._routes.setdefault(exchange, {})[key] = route

    def _forget_routes(self) -> None:
        self._routes.clear()
        self._sources.clear()
        self._each = None
        self._cached = 0

    def exchanges(self) -> list[Exchange]:
        """All exchanges, the predeclared ones first."""
        return [hub.exchange for hub in self._hubs.values()]

    def bindings(self) -> list[Binding]:
        """All bindings, without those of the default exchange, which are implicit."""
        return [binding for hub in self._hubs.values() for binding in hub.bindings.values()]

    def bindings_from(self, exchange: str) -> list[Binding]:
        """The bindings from this exchange. Raises NotFound."""
        return list(self._hub(exchange).bindings.values())

    def bindings_to(self, destination: str, to_exchange: bool = False) -> list[Binding]:
        """The bindings to this queue, or to this exchange."""
        return list((self._to_exchange if to_exchange else self._to_queue).get(destination, ()))

    def _hub(self, name: str) -> _Hub:
        hub = self._hubs.get(name)
        if hub is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self._host}'")
        return hub

    def _ends(self, binding: Binding) -> _Hub:
        """The hub of the source, after a check that clients may change both ends of the binding."""
        check_not_default(binding.source)
        hub = self._hub(binding.source)
        if binding.to_exchange:
            check_not_default(binding.destination)
            self._hub(binding.destination)
        return hub

    def _destinations(self, binding: Binding) -> dict[str, dict[Binding, None]]:
        return self._to_exchange if binding.to_exchange else self._to_queue

    def _drop(self, names: list[str], bindings: list[Binding]) -> Dropped:
        """Remove exchanges and bindings with their dependents. A loop, because chains may be long."""
        dropped = Dropped()
        while names or bindings:
            if names:
                hub = self._hubs.pop(names.pop())
                dropped.exchanges.append(hub.exchange)
                if self._message_readers.pop(hub.exchange.name, None) is not None:
                    self.reads_messages = bool(self._message_readers)
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
            return False  # a binding of an exchange to itself comes up twice
        del bindings[binding]
        if not bindings:
            del destinations[binding.destination]
        source = self._hubs.get(binding.source)
        if source is not None:
            source.router.remove(binding)
            del source.bindings[binding.identity]
        return True

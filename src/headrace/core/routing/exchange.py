"""Exchanges and bindings as stored, and how each kind of exchange picks its bindings. Chains are in exchanges.py."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping
from hashlib import blake2b
from typing import Final, TypeAlias, final

from headrace.core.properties import frozen, table_from_json, table_to_json
from headrace.core.routing.key_trie import WordTree
from headrace.errors import AccessRefused, PreconditionFailed, Refused

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
CONSISTENT_HASH: Final = "x-consistent-hash"
KINDS: Final = (DIRECT, FANOUT, TOPIC, HEADERS, CONSISTENT_HASH)

DEFAULT: Final = ""  # the name of the exchange that routes to the queue named by the key
RESERVED_PREFIX: Final = "amq."
MAX_NAME_BYTES: Final = 255  # what a short string of AMQP 0-9-1 can hold
ALTERNATE: Final = "alternate-exchange"


PREDECLARED: Final = (
    (DEFAULT, DIRECT),
    ("amq.direct", DIRECT),
    ("amq.fanout", FANOUT),
    ("amq.topic", TOPIC),
    ("amq.headers", HEADERS),
    ("amq.match", HEADERS),
)


@final
class Exchange:
    """One exchange as declared. Never changed once it is made.

    `alternate` is the exchange that gets what this one has no binding for, None when there is none; it comes
    from the argument `alternate-exchange`.
    """

    __slots__ = ("alternate", "arguments", "auto_delete", "durable", "internal", "kind", "name")

    def __init__(
        self,
        name: str,
        kind: str,
        durable: bool = False,
        auto_delete: bool = False,
        internal: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.durable = durable
        self.auto_delete = auto_delete
        self.internal = internal
        self.arguments: dict[str, object] = dict(arguments) if arguments else {}
        self.alternate = self._alternate()

    def __repr__(self) -> str:
        return f"Exchange({self.name!r}, {self.kind!r})"

    def _alternate(self) -> str | None:
        value = self.arguments.get(ALTERNATE)
        if value is None or isinstance(value, str):
            return value
        raise PreconditionFailed(
            f"invalid arg '{ALTERNATE}' for exchange '{self.name}': "
            f"expected the name of an exchange, received {value!r}"
        )

    def check_equivalent(self, declared: "Exchange") -> None:
        """Accept a declaration that says what this exchange is. Raises PreconditionFailed when it differs.

        Of the arguments only the alternate exchange counts: it alone changes what the exchange does.
        """
        self._check("type", declared.kind, self.kind)
        self._check("durable", _lower(declared.durable), _lower(self.durable))
        self._check("auto_delete", _lower(declared.auto_delete), _lower(self.auto_delete))
        self._check("internal", _lower(declared.internal), _lower(self.internal))
        self._check(ALTERNATE, declared.alternate, self.alternate)

    def _check(self, argument: str, received: str | None, current: str | None) -> None:
        if received != current:
            raise PreconditionFailed(
                f"inequivalent arg '{argument}' for exchange '{self.name}': "
                f"received {_shown(received)} but current is {_shown(current)}"
            )

    def to_json(self) -> dict[str, object]:
        """The definition as JSON can hold it."""
        return {
            "name": self.name,
            "type": self.kind,
            "durable": self.durable,
            "auto_delete": self.auto_delete,
            "internal": self.internal,
            "arguments": table_to_json(self.arguments),
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Exchange":
        """The exchange that `to_json` wrote; unknown members are ignored. Raises Refused if it is none."""
        return Exchange(
            _text(data, "name"),
            _text(data, "type"),
            _flag(data, "durable"),
            _flag(data, "auto_delete"),
            _flag(data, "internal"),
            table_from_json(data.get("arguments", {})),
        )


@final
class Binding:
    """One way out of an exchange: from `source` to the queue, or the exchange, named `destination`.

    Two bindings with equal `identity` are the same binding. Raises Refused when the arguments hold what no
    table can hold.
    """

    __slots__ = ("arguments", "destination", "identity", "key", "source", "to_exchange")

    def __init__(
        self,
        source: str,
        destination: str,
        key: str = "",
        arguments: Mapping[str, object] | None = None,
        to_exchange: bool = False,
    ) -> None:
        self.source = source
        self.destination = destination
        self.key = key
        self.arguments: dict[str, object] = dict(arguments) if arguments else {}
        self.to_exchange = to_exchange
        content = frozen(self.arguments) if self.arguments else None
        self.identity: Hashable = (source, destination, to_exchange, key, content)

    def __repr__(self) -> str:
        return f"Binding({self.source!r}, {self.destination!r}, {self.key!r})"

    def to_json(self) -> dict[str, object]:
        """The binding as JSON can hold it."""
        return {
            "source": self.source,
            "destination": self.destination,
            "destination_type": "exchange" if self.to_exchange else "queue",
            "routing_key": self.key,
            "arguments": table_to_json(self.arguments),
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Binding":
        """The binding that `to_json` wrote; unknown members are ignored. Raises Refused if it is none."""
        kind = _text(data, "destination_type")
        if kind not in ("queue", "exchange"):
            raise Refused(f"a binding's 'destination_type' is 'queue' or 'exchange', not {kind!r}")
        return Binding(
            _text(data, "source"),
            _text(data, "destination"),
            _text(data, "routing_key"),
            table_from_json(data.get("arguments", {})),
            kind == "exchange",
        )


def check_not_default(name: str) -> None:
    """Accept every exchange but the default one. Raises AccessRefused."""
    if name == DEFAULT:
        raise AccessRefused("operation not permitted on the default exchange")


def check_new_name(name: str) -> None:
    """Accept a name for a new exchange. Raises AccessRefused when reserved, Refused when too long."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"exchange name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")
    size = len(name.encode(errors="replace"))
    if size > MAX_NAME_BYTES:
        raise Refused(f"exchange name '{name[:40]}...' has {size} bytes, {MAX_NAME_BYTES} is the most")


def _text(data: Mapping[str, object], member: str) -> str:
    value = data.get(member)
    if isinstance(value, str):
        return value
    raise Refused(f"a definition needs {member!r} to be a string, not {value!r}")


def _flag(data: Mapping[str, object], member: str) -> bool:
    value = data.get(member, False)
    if isinstance(value, bool):
        return value
    raise Refused(f"a definition needs {member!r} to be true or false, not {value!r}")


def _lower(flag: bool) -> str:
    return "true" if flag else "false"


def _shown(value: str | None) -> str:
    return "none" if value is None else f"'{value}'"


@final
class Dropped:
    """What an operation took away, so that the caller can forget it in storage too."""

    __slots__ = ("bindings", "exchanges")

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.bindings: list[Binding] = []


X_MATCH: Final = "x-match"

# A header that a binding asks for: its name, and its frozen value or None where any value will do.
Need: TypeAlias = tuple[str, Hashable]


class Router(ABC):
    """The bindings of one exchange, ready to be picked. Each binding is added once and removed once."""

    @abstractmethod
    def add(self, binding: Binding) -> None:
        """Take the binding in. Raises PreconditionFailed, changing nothing, when its arguments are wrong."""

    @abstractmethod
    def remove(self, binding: Binding) -> None:
        """Let go of a binding that was added."""

    @abstractmethod
    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        """The bindings that a message takes, each once."""


def router_for(kind: str) -> Router:
    """An empty router for an exchange of one of AMQP's own kinds. Raises PreconditionFailed for any other."""
    if kind == DIRECT:
        return DirectRouter()
    if kind == FANOUT:
        return FanoutRouter()
    if kind == TOPIC:
        return TopicRouter()
    if kind == HEADERS:
        return HeadersRouter()
    raise PreconditionFailed(f"unknown exchange type '{kind}': use {', '.join(KINDS[:-1])} or {KINDS[-1]}")


@final
class DirectRouter(Router):
    """Bindings whose key is the message's."""

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
    """All bindings, whatever the key."""

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
    """Bindings whose key is a pattern of words that matches the message's key."""

    __slots__ = ("_tree",)

    def __init__(self) -> None:
        self._tree: WordTree[Binding] = WordTree()

    def add(self, binding: Binding) -> None:
        self._tree.add(binding.key, binding)

    def remove(self, binding: Binding) -> None:
        self._tree.remove(binding.key, binding)

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        return self._tree.match(key)


@final
class HeadersRouter(Router):
    """Bindings whose arguments are among the message's headers: all of them, or any.

    A binding that wants any header is indexed under each, one that wants all under the one that fewest others
    share; so a message is held only against bindings that want something it has.
    """

    __slots__ = ("_all", "_always", "_any", "_names")

    def __init__(self) -> None:
        self._all: dict[Need, dict[Binding, tuple[Need, ...]]] = {}
        self._any: dict[Need, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}  # those that want all of nothing
        self._names: dict[str, int] = {}  # how many bindings ask for a header of this name

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
        """What the message has of what any binding asks for."""
        offered: dict[Need, None] = {}
        for name, value in headers.items():
            if name in self._names:
                offered[name, None] = None
                try:
                    offered[name, frozen(value)] = None
                except Refused:
                    continue  # no binding can hold such a value, so it is present and equals none
        return offered


def _needs(binding: Binding) -> tuple[bool, tuple[Need, ...]]:
    """Whether any one header will do, and which headers are asked for."""
    mode = binding.arguments.get(X_MATCH, "all")
    if mode not in ("all", "any", "all-with-x", "any-with-x"):
        raise PreconditionFailed(
            f"invalid arg '{X_MATCH}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"received {mode!r} but expected 'all', 'any', 'all-with-x' or 'any-with-x'"
        )
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


HASH_HEADER: Final = "hash-header"
_HASH_PROPERTY: Final = "hash-property"
_BYTES: Final = 6  # as much as a float holds exactly
_RANGE: Final = float(1 << 8 * _BYTES)
_MAX_WEIGHT: Final = 1_000_000


def hashed_header(exchange: Exchange) -> str:
    """The header whose value is hashed, "" for the routing key. Raises PreconditionFailed for what makes no sense."""
    if _HASH_PROPERTY in exchange.arguments:
        raise PreconditionFailed(
            f"invalid arg '{_HASH_PROPERTY}' for exchange '{exchange.name}': "
            f"only the routing key and headers ('{HASH_HEADER}') are hashed"
        )
    header = exchange.arguments.get(HASH_HEADER, "")
    if not isinstance(header, str):
        raise PreconditionFailed(
            f"invalid arg '{HASH_HEADER}' for exchange '{exchange.name}': expected a header's name, received {header!r}"
        )
    return header


@final
class HashRouter(Router):
    """One binding for each key, as many keys for each binding as its weight says: its own key, a whole number.

    The binding that scores highest for a key has it (rendezvous hashing), so a binding that comes or goes moves only
    the keys that it gets or had, and the same bindings give the same answer after every restart.
    """

    __slots__ = ("_header", "_weights")

    def __init__(self, header: str) -> None:
        self._header = header
        self._weights: dict[Binding, tuple[bytes, int]] = {}
        """What makes a binding's score its own, and its weight."""

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


def _weight(binding: Binding) -> int:
    text = binding.key
    weight = int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else 0
    if not 1 <= weight <= _MAX_WEIGHT:
        raise PreconditionFailed(
            f"invalid routing key '{text[:40]}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"it is the binding's weight there, a number from 1 to {_MAX_WEIGHT}"
        )
    return weight

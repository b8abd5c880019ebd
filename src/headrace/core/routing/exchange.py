"""Exchanges and bindings as declared and stored. exchanges.py routes by them."""

from collections.abc import Hashable, Mapping
from typing import Any, Final, final

from headrace.config.kinds import Choice, Flag, Text, Unchecked
from headrace.config.table import Key, Table, read_arguments
from headrace.errors import AccessRefused, PreconditionFailed, Refused
from headrace.wire.properties import frozen, table_from_json, table_to_json
from headrace.wire.types import shown_argument

DIRECT: Final = "direct"
FANOUT: Final = "fanout"
TOPIC: Final = "topic"
HEADERS: Final = "headers"
CONSISTENT_HASH: Final = "x-consistent-hash"
MODULUS_HASH: Final = "x-modulus-hash"
RANDOM: Final = "x-random"
DELAYED: Final = "x-delayed-message"
"""Routes as another kind does, which the argument `x-delayed-type` names, and delays messages: see delays.py."""
KINDS: Final = (DIRECT, FANOUT, TOPIC, HEADERS, CONSISTENT_HASH, MODULUS_HASH, RANDOM, DELAYED)

DEFAULT: Final = ""  # this exchange routes to the queue named by the key
RESERVED_PREFIX: Final = "amq."
MAX_NAME_BYTES: Final = 255  # limit of an AMQP 0-9-1 short string
ALTERNATE: Final = "alternate-exchange"
HASH_HEADER: Final = "hash-header"
HASH_PROPERTY: Final = "hash-property"
DELAYED_TYPE: Final = "x-delayed-type"


PREDECLARED: Final = (
    (DEFAULT, DIRECT),
    ("amq.direct", DIRECT),
    ("amq.fanout", FANOUT),
    ("amq.topic", TOPIC),
    ("amq.headers", HEADERS),
    ("amq.match", HEADERS),
)


_ARGUMENTS: Final = {
    ALTERNATE: Table(Key(ALTERNATE, Text("must be the name of an exchange"), None, "")),
    HASH_HEADER: Table(Key(HASH_HEADER, Text("must be the name of a header"), None, "")),
    HASH_PROPERTY: Table(Key(HASH_PROPERTY, Text("must be the name of a property"), None, "")),
}
"""The tables of arguments: each kind of exchange reads its own."""
_TABLE: Final = Unchecked(type="object")
_EXCHANGE: Final = Table(
    Key("name", Text(), "", ""),
    Key("type", Text(), "", ""),
    Key("durable", Flag(), False, ""),
    Key("auto_delete", Flag(), False, ""),
    Key("internal", Flag(), False, ""),
    Key("arguments", _TABLE, {}, ""),
    required=("name", "type"),
)
_BINDING: Final = Table(
    Key("source", Text(), "", ""),
    Key("destination", Text(), "", ""),
    Key("destination_type", Choice("queue", "exchange"), "", ""),
    Key("routing_key", Text(), "", ""),
    Key("arguments", _TABLE, {}, ""),
    required=("source", "destination", "destination_type", "routing_key"),
)


@final
class Exchange:
    """One exchange as declared. Immutable.

    `alternate` is the exchange for unroutable messages, from the argument `alternate-exchange`; None if there is none.
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
        self.alternate = self.argument(ALTERNATE)

    def __repr__(self) -> str:
        return f"Exchange({self.name!r}, {self.kind!r})"

    def argument(self, name: str) -> str | None:
        """Return an argument that routing depends on; None if it is absent. Raises PreconditionFailed."""
        value = read_arguments(_ARGUMENTS[name], self.arguments, f" for exchange '{self.name}'")[name]
        return value if isinstance(value, str) else None

    def check_equivalent(self, declared: "Exchange", host: str = "/") -> None:
        """Check a repeated declaration. Raises PreconditionFailed when it differs.

        Of the arguments only the alternate exchange counts, as it alone changes the routing.
        """
        for argument, received, current in (
            ("type", _quoted(declared.kind), _quoted(self.kind)),
            ("durable", _quoted(declared.durable), _quoted(self.durable)),
            ("auto_delete", _quoted(declared.auto_delete), _quoted(self.auto_delete)),
            ("internal", _quoted(declared.internal), _quoted(self.internal)),
            (ALTERNATE, shown_argument(declared.alternate), shown_argument(self.alternate)),
        ):
            if received != current:
                raise PreconditionFailed(
                    f"inequivalent arg '{argument}' for exchange '{self.name}' in vhost '{host}': "
                    f"received {received} but current is {current}"
                )

    def to_json(self) -> dict[str, object]:
        """The exchange as JSON."""
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
        """Read an exchange from `to_json`, ignoring unknown members. Raises Refused for other JSON."""
        values: dict[str, Any] = _EXCHANGE.read(data, "an exchange", is_lenient=True)
        flags = values["durable"], values["auto_delete"], values["internal"]
        return Exchange(values["name"], values["type"], *flags, table_from_json(values["arguments"]))


@final
class Binding:
    """One way out of an exchange: from `source` to the queue, or the exchange, named `destination`.

    Bindings with equal `identity` are the same. Raises Refused for arguments that no table can hold.
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
        """The binding as JSON."""
        return {
            "source": self.source,
            "destination": self.destination,
            "destination_type": "exchange" if self.to_exchange else "queue",
            "routing_key": self.key,
            "arguments": table_to_json(self.arguments),
        }

    @staticmethod
    def from_json(data: Mapping[str, object]) -> "Binding":
        """Read a binding from `to_json`, ignoring unknown members. Raises Refused for other JSON."""
        values: dict[str, Any] = _BINDING.read(data, "a binding", is_lenient=True)
        return Binding(
            values["source"],
            values["destination"],
            values["routing_key"],
            table_from_json(values["arguments"]),
            values["destination_type"] == "exchange",
        )


def routed_as(kind: str, arguments: Mapping[str, object]) -> str:
    """Return the kind by which such an exchange routes, which may be unknown. Raises PreconditionFailed."""
    if kind != DELAYED:
        return kind
    inner = arguments.get(DELAYED_TYPE)
    if not isinstance(inner, str) or inner == DELAYED:
        raise PreconditionFailed(f"Invalid argument, '{DELAYED_TYPE}' must be an existing exchange type")
    return inner


def check_not_default(name: str) -> None:
    """Raise AccessRefused for the default exchange."""
    if name == DEFAULT:
        raise AccessRefused("operation not permitted on the default exchange")


def check_new_name(name: str) -> None:
    """Check the name of a new exchange. Raises AccessRefused when reserved, Refused when too long."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"exchange name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")
    size = len(name.encode(errors="replace"))
    if size > MAX_NAME_BYTES:
        raise Refused(f"exchange name '{name[:40]}...' has {size} bytes, {MAX_NAME_BYTES} is the most")


def _quoted(value: str | bool) -> str:
    return f"'{str(value).lower() if isinstance(value, bool) else value}'"


@final
class Dropped:
    """Exchanges and bindings that an operation removed, for the caller to remove from storage."""

    __slots__ = ("bindings", "exchanges")

    def __init__(self) -> None:
        self.exchanges: list[Exchange] = []
        self.bindings: list[Binding] = []

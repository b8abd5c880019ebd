"""Sources, targets and coordinators: the two ends of a link as attach describes them. Values; nothing is looked up."""

from typing import Final, final

from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.fields import Fields, symbol, symbols, uint
from headrace.protocols.amqp10.states import State, state_of
from headrace.protocols.amqp10.types import Described, Map, Symbol, ULong

LINK_DETACH: Final = "link-detach"
SESSION_END: Final = "session-end"
CONNECTION_CLOSE: Final = "connection-close"
NEVER: Final = "never"

NOT_DURABLE: Final = 0
CONFIGURATION: Final = 1
UNSETTLED_STATE: Final = 2


class Terminus:
    """What both ends of a link have in common."""

    __slots__ = ("address", "capabilities", "durable", "dynamic", "expiry_policy", "node_properties", "timeout")

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.durable = NOT_DURABLE
        self.expiry_policy = SESSION_END
        self.timeout = 0
        """Seconds that the terminus is kept after its expiry policy says that it is over."""
        self.dynamic = False
        self.node_properties = Map()
        self.capabilities: list[str] = []

    @property
    def stays(self) -> bool:
        """Whether anything is left of the link when it is detached."""
        return self.expiry_policy != LINK_DETACH or self.timeout > 0

    @property
    def lasts(self) -> bool:
        """Whether anything is left of the link when its connection is lost."""
        return self.expiry_policy == NEVER or self.timeout > 0

    def read(self, fields: Fields) -> None:
        """Take the first fields, which sources and targets share, from a list. Raises ProtocolError."""
        self.address = fields.text(0, "address")
        self.durable = fields.number(1, "durable")
        self.expiry_policy = fields.text(2, "expiry-policy") or SESSION_END
        self.timeout = fields.number(3, "timeout")
        self.dynamic = fields.flag(4, "dynamic")
        self.node_properties = fields.table(5, "dynamic-node-properties")

    def values(self) -> list[object]:
        """Those fields."""
        return [
            self.address,
            uint(self.durable),
            Symbol(self.expiry_policy),
            uint(self.timeout),
            self.dynamic,
            self.node_properties if self.node_properties.pairs else None,
        ]


@final
class Source(Terminus):
    """Where messages of a link come from."""

    __slots__ = ("default_outcome", "distribution_mode", "filter", "outcomes")

    def __init__(self, address: str | None = None) -> None:
        super().__init__(address)
        self.distribution_mode = ""
        self.filter = Map()
        self.default_outcome: State | None = None
        self.outcomes: list[str] = []

    def described(self) -> Described:
        fields: list[object] = [
            *self.values(),
            symbol(self.distribution_mode or None),
            self.filter if self.filter.pairs else None,
            None if self.default_outcome is None else self.default_outcome.described(),
            symbols(self.outcomes),
            symbols(self.capabilities),
        ]
        return Described(ULong(frames.SOURCE), fields)


@final
class Target(Terminus):
    """Where messages of a link go to."""

    __slots__ = ()

    @property
    def is_exact(self) -> bool:
        """Whether it is stored by its tag what was accepted here."""
        return self.durable == UNSETTLED_STATE and self.lasts

    def described(self) -> Described:
        return Described(ULong(frames.TARGET), [*self.values(), symbols(self.capabilities)])


@final
class Coordinator:
    """The target of a link that controls transactions."""

    __slots__ = ("capabilities",)

    def __init__(self, capabilities: list[str]) -> None:
        self.capabilities = capabilities

    def described(self) -> Described:
        return Described(ULong(frames.COORDINATOR), [symbols(self.capabilities)])


def source_of(value: Described | None) -> Source | None:
    """Raises ProtocolError when a field is not what it must be."""
    values = _list(value, frames.SOURCE, "amqp:source:list")
    if values is None:
        return None
    fields = Fields("a source", values)
    source = Source()
    source.read(fields)
    source.distribution_mode = fields.text(6, "distribution-mode") or ""
    source.filter = fields.table(7, "filter")
    source.default_outcome = state_of(fields.described(8, "default-outcome"))
    source.outcomes = fields.symbols(9, "outcomes")
    source.capabilities = fields.symbols(10, "capabilities")
    return source


def target_of(value: Described | None) -> Target | Coordinator | None:
    """Raises ProtocolError when a field is not what it must be."""
    coordinator = _list(value, frames.COORDINATOR, "amqp:coordinator:list")
    if coordinator is not None:
        return Coordinator(Fields("a coordinator", coordinator).symbols(0, "capabilities"))
    values = _list(value, frames.TARGET, "amqp:target:list")
    if values is None:
        return None
    fields = Fields("a target", values)
    target = Target()
    target.read(fields)
    target.capabilities = fields.symbols(6, "capabilities")
    return target


def _list(value: Described | None, number: int, name: str) -> list[object] | None:
    if value is None or value.descriptor not in (number, name) or not isinstance(value.value, list):
        return None
    return value.value

"""The performatives, delivery states and termini, as values. codec.py knows the frames around them."""

from collections.abc import Callable
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.frames import DECODE_ERROR, MAX_UINT, Fields, symbol, symbols, uint
from headrace.protocols.amqp10.types import Array, Described, Map, Symbol, UByte, UInt, ULong, UShort
from headrace.protocols.amqp10.writing import encode_described


@final
class Error:
    """Why something ended: a condition by its standard name, and a sentence."""

    __slots__ = ("condition", "description", "info")

    def __init__(self, condition: str, description: str = "", info: Map | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def described(self) -> Described:
        fields: list[object] = [Symbol(self.condition), self.description or None, self.info]
        return Described(ULong(frames.ERROR), fields)

    def __repr__(self) -> str:
        return f"Error({self.condition!r}, {self.description!r})"


@final
class Received:
    """How far a delivery has come; nothing is decided."""

    __slots__ = ("offset", "section")

    def __init__(self, section: int, offset: int) -> None:
        self.section = section
        self.offset = offset

    def described(self) -> Described:
        return Described(ULong(frames.RECEIVED), [UInt(self.section), ULong(self.offset)])


@final
class Accepted:
    __slots__ = ()

    def described(self) -> Described:
        return Described(ULong(frames.ACCEPTED), [])


@final
class Rejected:
    __slots__ = ("error",)

    def __init__(self, error: Error | None = None) -> None:
        self.error = error

    def described(self) -> Described:
        fields: list[object] = [] if self.error is None else [self.error.described()]
        return Described(ULong(frames.REJECTED), fields)


@final
class Released:
    __slots__ = ()

    def described(self) -> Described:
        return Described(ULong(frames.RELEASED), [])


@final
class Modified:
    __slots__ = ("annotations", "delivery_failed", "undeliverable_here")

    def __init__(
        self, delivery_failed: bool = False, undeliverable_here: bool = False, annotations: Map | None = None
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.annotations = annotations

    def described(self) -> Described:
        fields: list[object] = [self.delivery_failed, self.undeliverable_here, self.annotations]
        return Described(ULong(frames.MODIFIED), fields)


@final
class Declared:
    """A transaction was begun."""

    __slots__ = ("transaction",)

    def __init__(self, transaction: bytes) -> None:
        self.transaction = transaction

    def described(self) -> Described:
        return Described(ULong(frames.DECLARED), [self.transaction])


@final
class Transactional:
    """A state that holds once its transaction does."""

    __slots__ = ("outcome", "transaction")

    def __init__(self, transaction: bytes, outcome: "Outcome | None" = None) -> None:
        self.transaction = transaction
        self.outcome = outcome

    def described(self) -> Described:
        fields: list[object] = [self.transaction]
        if self.outcome is not None:
            fields.append(self.outcome.described())
        return Described(ULong(frames.TRANSACTIONAL_STATE), fields)


Outcome = Accepted | Rejected | Released | Modified
State = Outcome | Received | Declared | Transactional

ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


def state_of(value: Described | None) -> State | None:
    """The state that a described list says; None for one that is not known, which then counts as not given."""
    if value is None:
        return None
    number = value.descriptor
    if isinstance(number, Symbol):
        number = _NUMBERS.get(number)
    if not isinstance(number, int) or not isinstance(value.value, list):
        return None
    fields = Fields("a delivery state", value.value)
    if number == frames.ACCEPTED:
        return ACCEPTED
    if number == frames.RELEASED:
        return RELEASED
    if number == frames.REJECTED:
        return Rejected(error_of(fields.described(0, "error")))
    if number == frames.MODIFIED:
        return Modified(
            fields.flag(0, "delivery-failed"),
            fields.flag(1, "undeliverable-here"),
            fields.optional_table(2, "message-annotations"),
        )
    if number == frames.RECEIVED:
        return Received(fields.number(0, "section-number"), fields.number(1, "section-offset"))
    return _of_transactions(number, fields)


def outcome_in(state: State | None) -> Outcome | None:
    """The outcome that a state says, also one that a transaction has yet to make true."""
    if isinstance(state, Transactional):
        return state.outcome
    return None if isinstance(state, Received | Declared) else state


def _of_transactions(number: int, fields: Fields) -> State | None:
    if number == frames.DECLARED:
        return Declared(_transaction(fields))
    if number == frames.TRANSACTIONAL_STATE:
        return Transactional(_transaction(fields), outcome_in(state_of(fields.described(1, "outcome"))))
    return None


def _transaction(fields: Fields) -> bytes:
    transaction = fields.binary(0, "txn-id")
    if transaction is None:
        raise ProtocolError(DECODE_ERROR, "a state of a transaction lacks its field 'txn-id'")
    return transaction


def error_of(value: Described | None) -> Error | None:
    if value is None or not isinstance(value.value, list):
        return None
    fields = Fields("an error", value.value)
    return Error(
        fields.text(0, "condition") or "", fields.text(1, "description") or "", fields.optional_table(2, "info")
    )


_NUMBERS: Final = {
    "amqp:received:list": frames.RECEIVED,
    "amqp:accepted:list": frames.ACCEPTED,
    "amqp:rejected:list": frames.REJECTED,
    "amqp:released:list": frames.RELEASED,
    "amqp:modified:list": frames.MODIFIED,
    "amqp:declared:list": frames.DECLARED,
    "amqp:transactional-state:list": frames.TRANSACTIONAL_STATE,
}


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
    def ends_with_session(self) -> bool:
        """Whether nothing is left of the link when its session is over."""
        return self.expiry_policy == SESSION_END and not self.timeout

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


@final
class Open:
    __slots__ = (
        "channel",
        "channel_max",
        "container_id",
        "desired",
        "hostname",
        "idle_timeout",
        "max_frame_size",
        "offered",
        "properties",
    )

    def __init__(self, container_id: str, hostname: str | None = None) -> None:
        self.channel = 0
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = MAX_UINT
        self.channel_max = 0xFFFF
        self.idle_timeout = 0
        self.offered: list[str] = []
        self.desired: list[str] = []
        self.properties = Map()

    def encode(self) -> bytes:
        fields: list[object] = [
            self.container_id,
            self.hostname,
            uint(self.max_frame_size),
            UShort(self.channel_max),
            uint(self.idle_timeout or None),
            None,
            None,
            symbols(self.offered),
            symbols(self.desired),
            self.properties if self.properties.pairs else None,
        ]
        return encode_described(frames.OPEN, fields)


@final
class Begin:
    __slots__ = ("channel", "handle_max", "incoming_window", "next_outgoing_id", "outgoing_window", "remote_channel")

    def __init__(self, remote_channel: int | None, next_outgoing_id: int, incoming: int, outgoing: int) -> None:
        self.channel = 0
        self.remote_channel = remote_channel
        self.next_outgoing_id = next_outgoing_id
        self.incoming_window = incoming
        self.outgoing_window = outgoing
        self.handle_max = MAX_UINT

    def encode(self) -> bytes:
        fields: list[object] = [
            None if self.remote_channel is None else UShort(self.remote_channel),
            uint(self.next_outgoing_id),
            uint(self.incoming_window),
            uint(self.outgoing_window),
            uint(self.handle_max),
        ]
        return encode_described(frames.BEGIN, fields)


@final
class Attach:
    """`is_receiver` is the role of whoever sends it."""

    __slots__ = (
        "channel",
        "handle",
        "incomplete_unsettled",
        "initial_delivery_count",
        "is_receiver",
        "max_message_size",
        "name",
        "offered_capabilities",
        "properties",
        "receiver_settles",
        "sender_settles",
        "source",
        "target",
        "unsettled",
    )

    def __init__(self, name: str, handle: int, is_receiver: bool) -> None:
        self.channel = 0
        self.name = name
        self.handle = handle
        self.is_receiver = is_receiver
        self.sender_settles = frames.SENDER_MIXED
        self.receiver_settles = frames.RECEIVER_FIRST
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.unsettled: Map | None = None
        self.incomplete_unsettled = False
        self.initial_delivery_count = 0
        self.max_message_size = 0
        self.offered_capabilities: list[str] = []
        self.properties = Map()

    def encode(self) -> bytes:
        fields: list[object] = [
            self.name,
            uint(self.handle),
            self.is_receiver,
            UByte(self.sender_settles),
            UByte(self.receiver_settles),
            None if self.source is None else self.source.described(),
            None if self.target is None else self.target.described(),
            self.unsettled,
            self.incomplete_unsettled or None,
            None if self.is_receiver else uint(self.initial_delivery_count),
            ULong(self.max_message_size) if self.max_message_size else None,
            symbols(self.offered_capabilities),
            None,
            self.properties if self.properties.pairs else None,
        ]
        return encode_described(frames.ATTACH, fields)


@final
class Flow:
    __slots__ = (
        "available",
        "channel",
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "incoming_window",
        "link_credit",
        "next_incoming_id",
        "next_outgoing_id",
        "outgoing_window",
    )

    def __init__(self) -> None:
        self.channel = 0
        self.next_incoming_id: int | None = None
        self.incoming_window = 0
        self.next_outgoing_id = 0
        self.outgoing_window = 0
        self.handle: int | None = None
        self.delivery_count: int | None = None
        self.link_credit: int | None = None
        self.available: int | None = None
        self.drain = False
        self.echo = False

    def encode(self) -> bytes:
        fields: list[object] = [
            uint(self.next_incoming_id),
            uint(self.incoming_window),
            uint(self.next_outgoing_id),
            uint(self.outgoing_window),
            uint(self.handle),
            uint(self.delivery_count),
            uint(self.link_credit),
            uint(self.available),
            self.drain or None,
            self.echo or None,
        ]
        return encode_described(frames.FLOW, fields)


@final
class Transfer:
    """A piece of a delivery: `payload` is what stands behind the performative in its frame."""

    __slots__ = (
        "aborted",
        "batchable",
        "channel",
        "handle",
        "id",
        "message_format",
        "more",
        "payload",
        "receiver_settles",
        "resume",
        "settled",
        "state",
        "tag",
    )

    def __init__(self, channel: int, handle: int) -> None:
        self.channel = channel
        self.handle = handle
        self.id = -1
        """-1 where it is not said, as after the first piece."""
        self.tag: bytes | None = None
        self.message_format = 0
        self.settled: bool | None = None
        self.more = False
        self.receiver_settles: int | None = None
        self.state: State | None = None
        self.resume = False
        self.aborted = False
        self.batchable = False
        self.payload = b""

    def encode(self) -> bytes:
        fields: list[object] = [
            uint(self.handle),
            uint(self.id) if self.id >= 0 else None,
            self.tag,
            uint(self.message_format),
            self.settled,
            self.more or None,
            None if self.receiver_settles is None else UByte(self.receiver_settles),
            None if self.state is None else self.state.described(),
            self.resume or None,
            self.aborted or None,
            self.batchable or None,
        ]
        return encode_described(frames.TRANSFER, fields)


@final
class Disposition:
    __slots__ = ("channel", "first", "is_receiver", "last", "settled", "state")

    def __init__(
        self, channel: int, is_receiver: bool, first: int, last: int, settled: bool, state: State | None
    ) -> None:
        self.channel = channel
        self.is_receiver = is_receiver
        self.first = first
        self.last = last
        self.settled = settled
        self.state = state

    def encode(self) -> bytes:
        fields: list[object] = [
            self.is_receiver,
            uint(self.first),
            None if self.last == self.first else uint(self.last),
            self.settled,
            None if self.state is None else self.state.described(),
        ]
        return encode_described(frames.DISPOSITION, fields)


@final
class Detach:
    __slots__ = ("channel", "closed", "error", "handle")

    def __init__(self, handle: int, closed: bool, error: Error | None = None) -> None:
        self.channel = 0
        self.handle = handle
        self.closed = closed
        self.error = error

    def encode(self) -> bytes:
        return encode_described(frames.DETACH, [uint(self.handle), self.closed, _described(self.error)])


@final
class End:
    __slots__ = ("channel", "error")

    def __init__(self, error: Error | None = None) -> None:
        self.channel = 0
        self.error = error

    def encode(self) -> bytes:
        return encode_described(frames.END, [_described(self.error)])


@final
class Close:
    __slots__ = ("channel", "error")

    def __init__(self, error: Error | None = None) -> None:
        self.channel = 0
        self.error = error

    def encode(self) -> bytes:
        return encode_described(frames.CLOSE, [_described(self.error)])


@final
class SaslMechanisms:
    __slots__ = ("mechanisms",)

    def __init__(self, mechanisms: list[str]) -> None:
        self.mechanisms = mechanisms

    def encode(self) -> bytes:
        array = Array(0xB3, [Symbol(name) for name in self.mechanisms])
        return encode_described(frames.SASL_MECHANISMS, [array])


@final
class SaslInit:
    __slots__ = ("channel", "hostname", "mechanism", "response")

    def __init__(self, mechanism: str, response: bytes | None, hostname: str | None = None) -> None:
        self.channel = 0
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname

    def encode(self) -> bytes:
        return encode_described(frames.SASL_INIT, [Symbol(self.mechanism), self.response, self.hostname])


@final
class SaslOutcome:
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        self.code = code

    def encode(self) -> bytes:
        return encode_described(frames.SASL_OUTCOME, [UByte(self.code)])


Performative = Open | Begin | Attach | Flow | Transfer | Disposition | Detach | End | Close | SaslInit


def decode_performative(descriptor: int, values: list[object]) -> Performative:
    """The performative of this number with these fields. Raises ProtocolError when it is none."""
    decode = _DECODERS.get(descriptor)
    if decode is None:
        raise ProtocolError(DECODE_ERROR, f"there is no performative {descriptor:#x}")
    return decode(values)


def _open(values: list[object]) -> Open:
    fields = Fields("open", values)
    found = Open(fields.required_text(0, "container-id"), fields.text(1, "hostname"))
    found.max_frame_size = fields.number(2, "max-frame-size", MAX_UINT)
    found.channel_max = fields.number(3, "channel-max", 0xFFFF)
    found.idle_timeout = fields.number(4, "idle-time-out")
    found.offered = fields.symbols(7, "offered-capabilities")
    found.desired = fields.symbols(8, "desired-capabilities")
    found.properties = fields.table(9, "properties")
    return found


def _begin(values: list[object]) -> Begin:
    fields = Fields("begin", values)
    found = Begin(
        fields.optional_number(0, "remote-channel"),
        fields.required_number(1, "next-outgoing-id"),
        fields.required_number(2, "incoming-window"),
        fields.required_number(3, "outgoing-window"),
    )
    found.handle_max = fields.number(4, "handle-max", MAX_UINT)
    return found


def _attach(values: list[object]) -> Attach:
    fields = Fields("attach", values)
    found = Attach(
        fields.required_text(0, "name"), fields.required_number(1, "handle"), fields.required_flag(2, "role")
    )
    found.sender_settles = fields.number(3, "snd-settle-mode", frames.SENDER_MIXED)
    found.receiver_settles = fields.number(4, "rcv-settle-mode", frames.RECEIVER_FIRST)
    found.source = source_of(fields.described(5, "source"))
    found.target = target_of(fields.described(6, "target"))
    found.unsettled = fields.optional_table(7, "unsettled")
    found.incomplete_unsettled = fields.flag(8, "incomplete-unsettled")
    found.initial_delivery_count = fields.number(9, "initial-delivery-count")
    found.max_message_size = fields.number(10, "max-message-size")
    found.offered_capabilities = fields.symbols(11, "offered-capabilities")
    found.properties = fields.table(13, "properties")
    return found


def _flow(values: list[object]) -> Flow:
    fields = Fields("flow", values)
    found = Flow()
    found.next_incoming_id = fields.optional_number(0, "next-incoming-id")
    found.incoming_window = fields.required_number(1, "incoming-window")
    found.next_outgoing_id = fields.required_number(2, "next-outgoing-id")
    found.outgoing_window = fields.required_number(3, "outgoing-window")
    found.handle = fields.optional_number(4, "handle")
    found.delivery_count = fields.optional_number(5, "delivery-count")
    found.link_credit = fields.optional_number(6, "link-credit")
    found.available = fields.optional_number(7, "available")
    found.drain = fields.flag(8, "drain")
    found.echo = fields.flag(9, "echo")
    return found


def _transfer(values: list[object]) -> Transfer:
    fields = Fields("transfer", values)
    found = Transfer(0, fields.required_number(0, "handle"))
    found.id = fields.number(1, "delivery-id", -1)
    found.tag = fields.binary(2, "delivery-tag")
    found.message_format = fields.number(3, "message-format")
    found.settled = None if fields.get(4) is None else fields.flag(4, "settled")
    found.more = fields.flag(5, "more")
    found.receiver_settles = fields.optional_number(6, "rcv-settle-mode")
    found.state = state_of(fields.described(7, "state"))
    found.resume = fields.flag(8, "resume")
    found.aborted = fields.flag(9, "aborted")
    found.batchable = fields.flag(10, "batchable")
    return found


def _disposition(values: list[object]) -> Disposition:
    fields = Fields("disposition", values)
    first = fields.required_number(1, "first")
    return Disposition(
        0,
        fields.required_flag(0, "role"),
        first,
        fields.number(2, "last", first),
        fields.flag(3, "settled"),
        state_of(fields.described(4, "state")),
    )


def _detach(values: list[object]) -> Detach:
    fields = Fields("detach", values)
    return Detach(fields.required_number(0, "handle"), fields.flag(1, "closed"), error_of(fields.described(2, "error")))


def _sasl_init(values: list[object]) -> SaslInit:
    fields = Fields("sasl-init", values)
    return SaslInit(
        fields.required_text(0, "mechanism"), fields.binary(1, "initial-response"), fields.text(2, "hostname")
    )


def _described(error: Error | None) -> object:
    return None if error is None else error.described()


_DECODERS: Final[dict[int, Callable[[list[object]], Performative]]] = {
    frames.OPEN: _open,
    frames.BEGIN: _begin,
    frames.ATTACH: _attach,
    frames.FLOW: _flow,
    frames.TRANSFER: _transfer,
    frames.DISPOSITION: _disposition,
    frames.DETACH: _detach,
    frames.END: lambda values: End(error_of(Fields("end", values).described(0, "error"))),
    frames.CLOSE: lambda values: Close(error_of(Fields("close", values).described(0, "error"))),
    frames.SASL_INIT: _sasl_init,
}

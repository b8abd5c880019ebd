"""Performatives, delivery states, termini and errors as values, with one table of fields each.

One encoder and one decoder work over the tables. codec.py knows the frames around performatives, and has faster ways
for transfers and dispositions. No sockets, no broker.
"""

from collections.abc import Callable
from typing import Final, final

from headrace.errors import HeadraceError, ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.frames import DECODE_ERROR, MAX_UINT, condition_of
from headrace.wire.amqp10_values import descriptor_number, encode_described
from headrace.wire.types import Array, Described, Map, Symbol, UByte, UInt, ULong, UShort

# -- values ----------------------------------------------------------------------------------------------------------


class Composite:
    """A list of typed fields under a descriptor. The table of its class names the fields."""

    __slots__ = ()

    def described(self) -> Described:
        """Return the value as it stands inside another one."""
        table = _TABLES[type(self)]
        fields = table.values(self)
        while table.trims_nulls and fields and fields[-1] is None:
            fields.pop()
        return Described(ULong(table.descriptor), fields)

    def encode(self) -> bytes:
        """Return the bytes, without the nulls at the end of the list."""
        table = _TABLES[type(self)]
        return encode_described(table.descriptor, table.values(self))


@final
class Error(Composite):
    """The reason why something ended: a condition by its standard name, and a sentence."""

    def __init__(self, condition: str, description: str = "", info: Map | None = None) -> None:
        self.condition = condition
        self.description = description
        self.info = info

    def __repr__(self) -> str:
        return f"Error({self.condition!r}, {self.description!r})"


class State(Composite):
    """The state of a delivery."""


class Outcome(State):
    """A state that ends a delivery."""


@final
class Accepted(Outcome):
    """The delivery is done."""


@final
class Rejected(Outcome):
    def __init__(self, error: Error | None = None) -> None:
        self.error = error


@final
class Released(Outcome):
    """The delivery goes back in line, untried."""


@final
class Modified(Outcome):
    def __init__(
        self, delivery_failed: bool = False, undeliverable_here: bool = False, annotations: Map | None = None
    ) -> None:
        self.delivery_failed = delivery_failed
        self.undeliverable_here = undeliverable_here
        self.annotations = annotations


@final
class Received(State):
    """The progress of a delivery that nobody has decided on."""

    def __init__(self, section: int, offset: int) -> None:
        self.section = section
        self.offset = offset


@final
class Declared(State):
    """The answer to `declare`: a transaction has begun."""

    def __init__(self, transaction: bytes) -> None:
        self.transaction = transaction


@final
class Transactional(State):
    """A state that takes effect when its transaction commits."""

    def __init__(self, transaction: bytes, outcome: Outcome | None = None) -> None:
        self.transaction = transaction
        self.outcome = outcome


ACCEPTED: Final = Accepted()
RELEASED: Final = Released()


@final
class Declare(Composite):
    """A request to a coordinator: begin a transaction."""


@final
class Discharge(Composite):
    """A request to a coordinator: end a transaction, with a rollback if `fail` is set."""

    def __init__(self, transaction: bytes = b"", fail: bool = False) -> None:
        self.transaction = transaction
        self.fail = fail


LINK_DETACH: Final = "link-detach"
SESSION_END: Final = "session-end"
CONNECTION_CLOSE: Final = "connection-close"
NEVER: Final = "never"

NOT_DURABLE: Final = 0
CONFIGURATION: Final = 1
UNSETTLED_STATE: Final = 2


class Terminus(Composite):
    """The fields that sources and targets share."""

    def __init__(self, address: str | None = None) -> None:
        self.address = address
        self.durable = NOT_DURABLE
        self.expiry_policy = SESSION_END
        self.timeout = 0
        """Seconds from the event that `expiry_policy` names until the terminus expires."""
        self.dynamic = False
        self.node_properties = Map()
        self.capabilities: list[str] = []

    @property
    def lasts(self) -> bool:
        """True if the terminus outlives its connection."""
        return self.expiry_policy == NEVER or self.timeout > 0


@final
class Source(Terminus):
    """The node that a link's messages come from."""

    def __init__(self, address: str | None = None) -> None:
        super().__init__(address)
        self.distribution_mode = ""
        self.filter = Map()
        self.default_outcome: State | None = None
        self.outcomes: list[str] = []


@final
class Target(Terminus):
    """The node that a link's messages go to."""


@final
class Coordinator(Composite):
    """The target of a link that controls transactions."""

    def __init__(self, capabilities: list[str]) -> None:
        self.capabilities = capabilities


# -- performatives ---------------------------------------------------------------------------------------------------


class Performative(Composite):
    """The content of one frame."""

    __slots__ = ("channel",)

    def __init__(self) -> None:
        self.channel = 0


@final
class Open(Performative):
    def __init__(self, container_id: str, hostname: str | None = None) -> None:
        super().__init__()
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = MAX_UINT
        self.channel_max = 0xFFFF
        self.idle_timeout = 0
        self.offered: list[str] = []
        self.desired: list[str] = []
        self.properties = Map()


@final
class Begin(Performative):
    def __init__(self, remote_channel: int | None, next_outgoing_id: int, incoming: int, outgoing: int) -> None:
        super().__init__()
        self.remote_channel = remote_channel
        self.next_outgoing_id = next_outgoing_id
        self.incoming_window = incoming
        self.outgoing_window = outgoing
        self.handle_max = MAX_UINT


@final
class Attach(Performative):
    """`is_receiver` is the role of the side that sends it."""

    def __init__(self, name: str, handle: int, is_receiver: bool) -> None:
        super().__init__()
        self.name = name
        self.handle = handle
        self.is_receiver = is_receiver
        self.sender_settles = frames.SENDER_MIXED
        self.receiver_settles = frames.RECEIVER_FIRST
        self.source: Source | None = None
        self.target: Target | Coordinator | None = None
        self.unsettled: Map | None = None
        """Deliveries that the peer wants to resume. The broker resumes none: it neither reads nor writes this field."""
        self.incomplete_unsettled = False
        self.initial_delivery_count: int | None = None if is_receiver else 0
        self.max_message_size = 0
        self.offered_capabilities: list[str] = []
        self.properties = Map()


@final
class Flow(Performative):
    def __init__(self) -> None:
        super().__init__()
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


@final
class Transfer(Performative):
    """A piece of a delivery. `payload` holds the bytes behind the performative in its frame."""

    __slots__ = (
        "aborted",
        "batchable",
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
        """-1 if the piece does not carry it, as after the first piece."""
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


@final
class Disposition(Performative):
    __slots__ = ("first", "is_receiver", "range_end", "settled", "state")

    def __init__(
        self, channel: int, is_receiver: bool, first: int, last: int, settled: bool, state: State | None
    ) -> None:
        self.channel = channel
        self.is_receiver = is_receiver
        self.first = first
        self.range_end: int | None = None if last == first else last
        """The last delivery; None if the disposition is about one delivery."""
        self.settled = settled
        self.state = state

    @property
    def last(self) -> int:
        return self.first if self.range_end is None else self.range_end


@final
class Detach(Performative):
    def __init__(self, handle: int, closed: bool, error: Error | None = None) -> None:
        super().__init__()
        self.handle = handle
        self.closed = closed
        self.error = error


@final
class End(Performative):
    def __init__(self, error: Error | None = None) -> None:
        super().__init__()
        self.error = error


@final
class Close(Performative):
    def __init__(self, error: Error | None = None) -> None:
        super().__init__()
        self.error = error


@final
class SaslMechanisms(Performative):
    def __init__(self, mechanisms: list[str]) -> None:
        super().__init__()
        self.mechanisms = mechanisms


@final
class SaslInit(Performative):
    def __init__(self, mechanism: str, response: bytes | None, hostname: str | None = None) -> None:
        super().__init__()
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


@final
class SaslOutcome(Performative):
    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


# -- tables ----------------------------------------------------------------------------------------------------------


@final
class _Kind:
    """One type of field: its name in errors, the types that it takes, and how it is read and written."""

    __slots__ = ("expected", "read", "types", "write")

    def __init__(
        self,
        expected: str,
        types: tuple[type, ...],
        read: Callable[..., object] | None = None,
        write: Callable[..., object] | None = None,
    ) -> None:
        self.expected = expected
        self.types = types
        self.read = read
        """Makes the attribute of the field; None if they are the same. Raises TypeError."""
        self.write = write


@final
class _Field:
    """One field of a table."""

    __slots__ = ("attribute", "is_required", "kind", "name", "omits_empty")

    def __init__(self, name: str, kind: _Kind, attribute: str, is_required: bool, omits_empty: bool) -> None:
        self.name = name
        self.kind = kind
        self.attribute = attribute
        self.is_required = is_required
        self.omits_empty = omits_empty
        """True if zero, false and empty values are written as null."""


@final
class _Table:
    """The fields of one class in their order; None for a field that is neither read nor written."""

    __slots__ = ("descriptor", "fields", "make", "name", "trims_nulls")

    def __init__(
        self,
        descriptor: int,
        name: str,
        make: Callable[[], Composite],
        *fields: _Field | None,
        trims_nulls: bool = False,
    ) -> None:
        self.descriptor = descriptor
        self.name = name
        self.make = make
        """Makes a value with the default of each field."""
        self.fields = fields
        self.trims_nulls = trims_nulls
        """True if the value loses the nulls at its end inside another one. Stored termini keep them."""

    def values(self, composite: Composite) -> list[object]:
        """Return the fields of a value, as AMQP has them."""
        found: list[object] = []
        for field in self.fields:
            value = None if field is None else getattr(composite, field.attribute)
            if value is None or field is None or (field.omits_empty and _is_empty(value)):
                found.append(None)
            else:
                write = field.kind.write
                found.append(value if write is None else write(value))
        return found

    def decode(self, values: list[object]) -> Composite:
        """Make a value of a list. Fields beyond the end of the list are null.

        Raises ProtocolError with the name and the type of a wrong field.
        """
        found = self.make()
        for index, field in enumerate(self.fields):
            if field is None:
                continue
            value = values[index] if index < len(values) else None
            if value is not None:
                setattr(found, field.attribute, self._read(field, value))
            elif field.is_required:
                raise ProtocolError(DECODE_ERROR, f"{self.name} lacks its field '{field.name}'")
        return found

    def _read(self, field: _Field, value: object) -> object:
        kind = field.kind
        try:
            if isinstance(value, kind.types):
                return value if kind.read is None else kind.read(value)
        except TypeError:
            pass  # an array of something else
        text = f"must be {kind.expected}, not {type(value).__name__.lower()}"
        raise ProtocolError(DECODE_ERROR, f"the field '{field.name}' of {self.name} {text}")


def _is_empty(value: object) -> bool:
    return not value.pairs if isinstance(value, Map) else not value


def _field(name: str, kind: _Kind, attribute: str = "", omits_empty: bool = False) -> _Field:
    return _Field(name, kind, attribute or name.replace("-", "_"), False, omits_empty)


def _required(name: str, kind: _Kind, attribute: str = "") -> _Field:
    return _Field(name, kind, attribute or name.replace("-", "_"), True, False)


def _read_symbols(value: str | Array) -> list[str]:
    """Take one symbol or an array of symbols."""
    items = value.items if isinstance(value, Array) else [value]
    if not all([isinstance(item, str) for item in items]):
        raise TypeError
    return [str(item) for item in items]


def _write_symbols(names: list[str]) -> Array | None:
    return Array(0xB3, [Symbol(name) for name in names]) if names else None


def _write_uint(value: int) -> UInt | None:
    """Write a number; a negative one stands for null."""
    return UInt(value) if value >= 0 else None


def _read_error(value: Described) -> Composite | None:
    return _ERROR.decode(value.value) if isinstance(value.value, list) else None


def _read_outcome(value: Described) -> "Outcome | None":
    return outcome_in(state_of(value))


def _write_nested(value: Composite) -> Described:
    return value.described()


_NUMBERS: Final = (UInt, UShort, UByte, ULong)
_TEXT: Final = _Kind("a string", (str,), str)
_SYMBOL: Final = _Kind("a string", (str,), str, Symbol)
_SYMBOLS: Final = _Kind("symbols", (str, Array), _read_symbols, _write_symbols)
_BINARY: Final = _Kind("binary", (bytes,))
_UBYTE: Final = _Kind("an unsigned number", _NUMBERS, int, UByte)
_USHORT: Final = _Kind("an unsigned number", _NUMBERS, int, UShort)
_UINT: Final = _Kind("an unsigned number", _NUMBERS, int, _write_uint)
_ULONG: Final = _Kind("an unsigned number", _NUMBERS, int, ULong)
_FLAG: Final = _Kind("true or false", (bool,))
_MAP: Final = _Kind("a map", (Map,))
_NESTED: Final = "a described value"
_AN_ERROR: Final = _Kind(_NESTED, (Described,), _read_error, _write_nested)
_A_STATE: Final = _Kind(_NESTED, (Described,), lambda value: state_of(value), _write_nested)
_AN_OUTCOME: Final = _Kind(_NESTED, (Described,), _read_outcome, _write_nested)
_A_SOURCE: Final = _Kind(_NESTED, (Described,), lambda value: source_of(value), _write_nested)
_A_TARGET: Final = _Kind(_NESTED, (Described,), lambda value: target_of(value), _write_nested)

_TERMINUS_FIELDS: Final = (
    _field("address", _TEXT),
    _field("durable", _UINT),
    _field("expiry-policy", _SYMBOL),
    _field("timeout", _UINT),
    _field("dynamic", _FLAG),
    _field("dynamic-node-properties", _MAP, "node_properties", omits_empty=True),
)
_ERROR: Final = _Table(
    frames.ERROR,
    "an error",
    lambda: Error(""),
    _field("condition", _SYMBOL),
    _field("description", _TEXT, omits_empty=True),
    _field("info", _MAP),
)

_TABLES: Final[dict[type, _Table]] = {
    Error: _ERROR,
    Received: _Table(
        frames.RECEIVED,
        "a delivery state",
        lambda: Received(0, 0),
        _field("section-number", _UINT, "section"),
        _field("section-offset", _ULONG, "offset"),
    ),
    Accepted: _Table(frames.ACCEPTED, "a delivery state", lambda: ACCEPTED),
    Rejected: _Table(frames.REJECTED, "a delivery state", Rejected, _field("error", _AN_ERROR), trims_nulls=True),
    Released: _Table(frames.RELEASED, "a delivery state", lambda: RELEASED),
    Modified: _Table(
        frames.MODIFIED,
        "a delivery state",
        Modified,
        _field("delivery-failed", _FLAG),
        _field("undeliverable-here", _FLAG),
        _field("message-annotations", _MAP, "annotations"),
    ),
    Declared: _Table(
        frames.DECLARED,
        "a state of a transaction",
        lambda: Declared(b""),
        _required("txn-id", _BINARY, "transaction"),
    ),
    Transactional: _Table(
        frames.TRANSACTIONAL_STATE,
        "a state of a transaction",
        lambda: Transactional(b""),
        _required("txn-id", _BINARY, "transaction"),
        _field("outcome", _AN_OUTCOME),
        trims_nulls=True,
    ),
    Declare: _Table(frames.DECLARE, "declare", Declare),
    Discharge: _Table(
        frames.DISCHARGE, "discharge", Discharge, _field("txn-id", _BINARY, "transaction"), _field("fail", _FLAG)
    ),
    Source: _Table(
        frames.SOURCE,
        "a source",
        Source,
        *_TERMINUS_FIELDS,
        _field("distribution-mode", _SYMBOL, omits_empty=True),
        _field("filter", _MAP, omits_empty=True),
        _field("default-outcome", _A_STATE),
        _field("outcomes", _SYMBOLS),
        _field("capabilities", _SYMBOLS),
    ),
    Target: _Table(frames.TARGET, "a target", Target, *_TERMINUS_FIELDS, _field("capabilities", _SYMBOLS)),
    Coordinator: _Table(frames.COORDINATOR, "a coordinator", lambda: Coordinator([]), _field("capabilities", _SYMBOLS)),
    Open: _Table(
        frames.OPEN,
        "open",
        lambda: Open(""),
        _required("container-id", _TEXT),
        _field("hostname", _TEXT),
        _field("max-frame-size", _UINT),
        _field("channel-max", _USHORT),
        _field("idle-time-out", _UINT, "idle_timeout", omits_empty=True),
        None,  # outgoing-locales
        None,  # incoming-locales
        _field("offered-capabilities", _SYMBOLS, "offered"),
        _field("desired-capabilities", _SYMBOLS, "desired"),
        _field("properties", _MAP, omits_empty=True),
    ),
    Begin: _Table(
        frames.BEGIN,
        "begin",
        lambda: Begin(None, 0, 0, 0),
        _field("remote-channel", _USHORT),
        _required("next-outgoing-id", _UINT),
        _required("incoming-window", _UINT),
        _required("outgoing-window", _UINT),
        _field("handle-max", _UINT),
    ),
    Attach: _Table(
        frames.ATTACH,
        "attach",
        lambda: Attach("", 0, True),
        _required("name", _TEXT),
        _required("handle", _UINT),
        _required("role", _FLAG, "is_receiver"),
        _field("snd-settle-mode", _UBYTE, "sender_settles"),
        _field("rcv-settle-mode", _UBYTE, "receiver_settles"),
        _field("source", _A_SOURCE),
        _field("target", _A_TARGET),
        _field("unsettled", _MAP),
        _field("incomplete-unsettled", _FLAG, omits_empty=True),
        _field("initial-delivery-count", _UINT),
        _field("max-message-size", _ULONG, omits_empty=True),
        _field("offered-capabilities", _SYMBOLS),
        None,  # desired-capabilities
        _field("properties", _MAP, omits_empty=True),
    ),
    Flow: _Table(
        frames.FLOW,
        "flow",
        Flow,
        _field("next-incoming-id", _UINT),
        _required("incoming-window", _UINT),
        _required("next-outgoing-id", _UINT),
        _required("outgoing-window", _UINT),
        _field("handle", _UINT),
        _field("delivery-count", _UINT),
        _field("link-credit", _UINT),
        _field("available", _UINT),
        _field("drain", _FLAG, omits_empty=True),
        _field("echo", _FLAG, omits_empty=True),
    ),
    Transfer: _Table(
        frames.TRANSFER,
        "transfer",
        lambda: Transfer(0, 0),
        _required("handle", _UINT),
        _field("delivery-id", _UINT, "id"),
        _field("delivery-tag", _BINARY, "tag"),
        _field("message-format", _UINT),
        _field("settled", _FLAG),
        _field("more", _FLAG, omits_empty=True),
        _field("rcv-settle-mode", _UBYTE, "receiver_settles"),
        _field("state", _A_STATE),
        _field("resume", _FLAG, omits_empty=True),
        _field("aborted", _FLAG, omits_empty=True),
        _field("batchable", _FLAG, omits_empty=True),
    ),
    Disposition: _Table(
        frames.DISPOSITION,
        "disposition",
        lambda: Disposition(0, False, 0, 0, False, None),
        _required("role", _FLAG, "is_receiver"),
        _required("first", _UINT),
        _field("last", _UINT, "range_end"),
        _field("settled", _FLAG),
        _field("state", _A_STATE),
    ),
    Detach: _Table(
        frames.DETACH,
        "detach",
        lambda: Detach(0, False),
        _required("handle", _UINT),
        _field("closed", _FLAG),
        _field("error", _AN_ERROR),
    ),
    End: _Table(frames.END, "end", End, _field("error", _AN_ERROR)),
    Close: _Table(frames.CLOSE, "close", Close, _field("error", _AN_ERROR)),
    SaslMechanisms: _Table(
        frames.SASL_MECHANISMS,
        "sasl-mechanisms",
        lambda: SaslMechanisms([]),
        _required("sasl-server-mechanisms", _SYMBOLS, "mechanisms"),
    ),
    SaslInit: _Table(
        frames.SASL_INIT,
        "sasl-init",
        lambda: SaslInit("", None),
        _required("mechanism", _SYMBOL),
        _field("initial-response", _BINARY, "response"),
        _field("hostname", _TEXT),
    ),
    SaslOutcome: _Table(frames.SASL_OUTCOME, "sasl-outcome", lambda: SaslOutcome(0), _required("code", _UBYTE)),
}


# -- reading ---------------------------------------------------------------------------------------------------------


def _by_number(*kinds: type[Composite]) -> dict[int, _Table]:
    return {_TABLES[kind].descriptor: _TABLES[kind] for kind in kinds}


_FROM_CLIENTS: Final = _by_number(Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close, SaslInit)
_STATES: Final = _by_number(Received, Accepted, Rejected, Released, Modified, Declared, Transactional)
_SOURCES: Final = _by_number(Source)
_TARGETS: Final = _by_number(Target, Coordinator)
_REQUESTS: Final = _by_number(Declare, Discharge)


def decode_performative(descriptor: int, values: list[object]) -> Performative:
    """Decode a performative that clients send. Raises ProtocolError."""
    table = _FROM_CLIENTS.get(descriptor)
    if table is None:
        raise ProtocolError(DECODE_ERROR, f"there is no performative {descriptor:#x}")
    found = table.decode(values)
    assert isinstance(found, Performative)
    return found


def state_of(value: Described | None) -> State | None:
    """Return the state of a described list; None if it is unknown, as if it were absent. Raises ProtocolError."""
    found = _nested(_STATES, value)
    return found if isinstance(found, State) else None


def outcome_in(state: State | None) -> Outcome | None:
    """Return the outcome of a state, also of one that waits for its transaction."""
    if isinstance(state, Transactional):
        return state.outcome
    return state if isinstance(state, Outcome) else None


def source_of(value: Described | None) -> Source | None:
    """Raises ProtocolError if a field has the wrong type."""
    found = _nested(_SOURCES, value)
    return found if isinstance(found, Source) else None


def target_of(value: Described | None) -> Target | Coordinator | None:
    """Raises ProtocolError if a field has the wrong type."""
    found = _nested(_TARGETS, value)
    return found if isinstance(found, Target | Coordinator) else None


def request_of(value: Described) -> Declare | Discharge:
    """Return a request to a coordinator. Raises ProtocolError if a field has the wrong type."""
    found = _nested(_REQUESTS, value)
    assert isinstance(found, Declare | Discharge)
    return found


def _nested(tables: dict[int, _Table], value: Described | None) -> Composite | None:
    if value is None or not isinstance(value.value, list):
        return None
    table = tables.get(descriptor_number(value.descriptor))
    return None if table is None else table.decode(value.value)


MAX_CHARACTERS: Final = 400
"""Longest text of an error: it fits into the smallest frame."""


def error_for(error: HeadraceError) -> Error:
    """Return the error as the peer gets it."""
    is_in_use = isinstance(error, ProtocolError) and error.code == frames.CONTAINER_IN_USE
    info = Map([(Symbol("invalid-field"), Symbol("container-id"))]) if is_in_use else None  # clients look at it
    return Error(condition_of(error), str(error)[:MAX_CHARACTERS], info)

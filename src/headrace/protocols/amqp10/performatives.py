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


SESSION_END: Final = "session-end"
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

    def extends_to(self, other: "Disposition") -> bool:
        """Take over another one, if it accepts the deliveries right behind these; returns whether it did."""
        if self.state is not ACCEPTED or other.state is not ACCEPTED or other.first != self.last + 1:
            return False
        if other.settled != self.settled or other.is_receiver != self.is_receiver or other.channel != self.channel:
            return False
        self.range_end = other.last
        return True


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
    """One field of a table, from a word `<name>:<kind>`, then perhaps `!`, `?` and `><attribute>`."""

    __slots__ = ("attribute", "is_required", "kind", "name", "omits_empty")

    def __init__(self, word: str) -> None:
        self.name, _, rest = word.partition(":")
        kind, _, attribute = rest.partition(">")
        self.attribute = attribute or self.name.replace("-", "_")
        self.kind = _KINDS[kind.rstrip("!?")]
        self.is_required = kind.endswith("!")
        self.omits_empty = kind.endswith("?")
        """True if zero, false and empty values are written as null."""


@final
class _Table:
    """The fields of one class in their order; None for a field that is neither read nor written, `-` in the words."""

    __slots__ = ("descriptor", "fields", "make", "name", "trims_nulls")

    def __init__(
        self, descriptor: int, name: str, make: Callable[[], Composite], words: str = "", trims_nulls: bool = False
    ) -> None:
        self.descriptor = descriptor
        self.name = name
        self.make = make
        """Makes a value with the default of each field."""
        self.fields = [None if word == "-" else _Field(word) for word in words.split()]
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


def _number(write: Callable[..., object]) -> _Kind:
    return _Kind("an unsigned number", (UInt, UShort, UByte, ULong), int, write)


def _nested_kind(read: Callable[..., object]) -> _Kind:
    return _Kind("a described value", (Described,), read, lambda value: value.described())


def _read_error(value: Described) -> Composite | None:
    return _TABLES[Error].decode(value.value) if isinstance(value.value, list) else None


_KINDS: Final = {
    "text": _Kind("a string", (str,), str),
    "symbol": _Kind("a string", (str,), str, Symbol),
    "symbols": _Kind("symbols", (str, Array), _read_symbols, _write_symbols),
    "binary": _Kind("binary", (bytes,)),
    "ubyte": _number(UByte),
    "ushort": _number(UShort),
    "uint": _number(_write_uint),
    "ulong": _number(ULong),
    "flag": _Kind("true or false", (bool,)),
    "map": _Kind("a map", (Map,)),
    "error": _nested_kind(_read_error),
    "state": _nested_kind(lambda value: state_of(value)),
    "outcome": _nested_kind(lambda value: outcome_in(state_of(value))),
    "source": _nested_kind(lambda value: source_of(value)),
    "target": _nested_kind(lambda value: target_of(value)),
}
_TERMINUS: Final = (
    "address:text durable:uint expiry-policy:symbol timeout:uint dynamic:flag"
    " dynamic-node-properties:map?>node_properties"
)
_SOURCE: Final = "distribution-mode:symbol? filter:map? default-outcome:state outcomes:symbols capabilities:symbols"
_OPEN: Final = (
    "container-id:text! hostname:text max-frame-size:uint channel-max:ushort idle-time-out:uint?>idle_timeout"
    " - - offered-capabilities:symbols>offered desired-capabilities:symbols>desired properties:map?"
)
_BEGIN: Final = (
    "remote-channel:ushort next-outgoing-id:uint! incoming-window:uint! outgoing-window:uint! handle-max:uint"
)
_ATTACH: Final = (
    "name:text! handle:uint! role:flag!>is_receiver"
    " snd-settle-mode:ubyte>sender_settles rcv-settle-mode:ubyte>receiver_settles source:source target:target"
    " unsettled:map incomplete-unsettled:flag? initial-delivery-count:uint max-message-size:ulong?"
    " offered-capabilities:symbols - properties:map?"
)
_FLOW: Final = (
    "next-incoming-id:uint incoming-window:uint! next-outgoing-id:uint! outgoing-window:uint! handle:uint"
    " delivery-count:uint link-credit:uint available:uint drain:flag? echo:flag?"
)
_TRANSFER: Final = (
    "handle:uint! delivery-id:uint>id delivery-tag:binary>tag message-format:uint settled:flag more:flag?"
    " rcv-settle-mode:ubyte>receiver_settles state:state resume:flag? aborted:flag? batchable:flag?"
)
_DISPOSITION: Final = "role:flag!>is_receiver first:uint! last:uint>range_end settled:flag state:state"
_MODIFIED: Final = "delivery-failed:flag undeliverable-here:flag message-annotations:map>annotations"
_STATE: Final = "a delivery state"
_OF_TRANSACTION: Final = "a state of a transaction"

_TABLES: Final[dict[type, _Table]] = {
    Error: _Table(frames.ERROR, "an error", lambda: Error(""), "condition:symbol description:text? info:map"),
    Received: _Table(
        frames.RECEIVED, _STATE, lambda: Received(0, 0), "section-number:uint>section section-offset:ulong>offset"
    ),
    Accepted: _Table(frames.ACCEPTED, _STATE, lambda: ACCEPTED),
    Rejected: _Table(frames.REJECTED, _STATE, Rejected, "error:error", trims_nulls=True),
    Released: _Table(frames.RELEASED, _STATE, lambda: RELEASED),
    Modified: _Table(frames.MODIFIED, _STATE, Modified, _MODIFIED),
    Declared: _Table(frames.DECLARED, _OF_TRANSACTION, lambda: Declared(b""), "txn-id:binary!>transaction"),
    Transactional: _Table(
        frames.TRANSACTIONAL_STATE,
        _OF_TRANSACTION,
        lambda: Transactional(b""),
        "txn-id:binary!>transaction outcome:outcome",
        trims_nulls=True,
    ),
    Declare: _Table(frames.DECLARE, "declare", Declare),
    Discharge: _Table(frames.DISCHARGE, "discharge", Discharge, "txn-id:binary>transaction fail:flag"),
    Source: _Table(frames.SOURCE, "a source", Source, f"{_TERMINUS} {_SOURCE}"),
    Target: _Table(frames.TARGET, "a target", Target, f"{_TERMINUS} capabilities:symbols"),
    Coordinator: _Table(frames.COORDINATOR, "a coordinator", lambda: Coordinator([]), "capabilities:symbols"),
    Open: _Table(frames.OPEN, "open", lambda: Open(""), _OPEN),
    Begin: _Table(frames.BEGIN, "begin", lambda: Begin(None, 0, 0, 0), _BEGIN),
    Attach: _Table(frames.ATTACH, "attach", lambda: Attach("", 0, True), _ATTACH),
    Flow: _Table(frames.FLOW, "flow", Flow, _FLOW),
    Transfer: _Table(frames.TRANSFER, "transfer", lambda: Transfer(0, 0), _TRANSFER),
    Disposition: _Table(
        frames.DISPOSITION, "disposition", lambda: Disposition(0, False, 0, 0, False, None), _DISPOSITION
    ),
    Detach: _Table(frames.DETACH, "detach", lambda: Detach(0, False), "handle:uint! closed:flag error:error"),
    End: _Table(frames.END, "end", End, "error:error"),
    Close: _Table(frames.CLOSE, "close", Close, "error:error"),
    SaslMechanisms: _Table(
        frames.SASL_MECHANISMS,
        "sasl-mechanisms",
        lambda: SaslMechanisms([]),
        "sasl-server-mechanisms:symbols!>mechanisms",
    ),
    SaslInit: _Table(
        frames.SASL_INIT,
        "sasl-init",
        lambda: SaslInit("", None),
        "mechanism:symbol! initial-response:binary>response hostname:text",
    ),
    SaslOutcome: _Table(frames.SASL_OUTCOME, "sasl-outcome", lambda: SaslOutcome(0), "code:ubyte!"),
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

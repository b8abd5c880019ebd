"""The performatives: open to close, and SASL's. Values with the channel they came on; codec.py knows the frames."""

from collections.abc import Callable
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10 import frames
from headrace.protocols.amqp10.fields import MAX_UINT, Fields, symbols, uint
from headrace.protocols.amqp10.frames import DECODE_ERROR
from headrace.protocols.amqp10.states import Error, State, error_of, state_of
from headrace.protocols.amqp10.termini import Coordinator, Source, Target, source_of, target_of
from headrace.protocols.amqp10.types import Array, Map, Symbol, UByte, ULong, UShort
from headrace.protocols.amqp10.writing import encode_described


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

"""Bytes to performatives and back. No sockets, no clock, no broker: see connection.py for those.

Transfers and dispositions in their usual forms have faster ways here. The tables of performatives.py do the rest.
"""

import struct
from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i32_be
from mypy_extensions import i32, i64

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import (
    ACCEPTED,
    AMQP,
    AMQP_HEADER,
    DISPOSITION,
    FRAMING_ERROR,
    HEADER_BYTES,
    MAX_FRAME_SIZE,
    SASL,
    SASL_HEADER,
    SASL_INIT,
    SASL_MECHANISMS,
    SASL_OUTCOME,
    TRANSFER,
)
from headrace.protocols.amqp10.performatives import ACCEPTED as ACCEPTED_STATE
from headrace.protocols.amqp10.performatives import Disposition, Performative, Transfer, decode_performative
from headrace.wire.amqp10_values import Reader

_FRAME: Final = struct.Struct(">IBBH")
_DELIVERY: Final = struct.Struct(">IHH7sIBI2sIBBB")
_DELIVERY_BYTES: Final = 33
_BEFORE_NUMBER: Final = struct.Struct(">HH7sIB")
_ACCEPTED_FRAME: Final = struct.Struct(">IBBH4sBBBBIBIB4s")
_TRANSFER: Final = bytes((0x00, 0x53, TRANSFER, 0xC0, 20, 6, 0x70))
"""The start of a transfer with six fields in 20 bytes, up to the value of its handle."""
_TYPE: Final = 0x0200 | AMQP
"""Data offset and frame type."""
_TAG: Final = b"\xa0\x04"
_SETTLED: Final = b"\x43\x41\x42"
_UNSETTLED: Final = b"\x43\x42\x42"
"""The end of a transfer in one frame: message-format 0, settled or not, no more pieces."""
_DISPOSITION: Final = bytes((0x00, 0x53, DISPOSITION, 0xC0))
_START: Final = b"\x00\x53"
_ACCEPTED: Final = bytes((0x00, 0x53, ACCEPTED, 0x45))
_SMALL_REST_BYTES: Final = 4096
_QUICK_BYTES: Final = 24
"""Length of a frame that holds all bytes up to a transfer's tag."""


def _flags() -> dict[bytes, tuple[int, bool | None, bool]]:
    """Return the bytes that may follow a transfer's tag, with the number and meaning of their fields.

    The fields are message-format (0 or null), settled and more.
    """
    format_zero, settled = b"\x43\x40", {0x41: True, 0x42: False, 0x40: None}
    found: dict[bytes, tuple[int, bool | None, bool]] = {b"": (0, None, False)}
    for zero in format_zero:
        found[bytes([zero])] = (1, None, False)
        for code, is_settled in settled.items():
            found[bytes((zero, code))] = (2, is_settled, False)
            for more in settled:
                found[bytes((zero, code, more))] = (3, is_settled, more == 0x41)
    return found


_FLAGS: Final = _flags()


@final
class Hello:
    """A protocol header. `is_sasl` tells which of the two layers it opens, `is_known` whether it is one of them."""

    __slots__ = ("is_known", "is_sasl")

    def __init__(self, is_known: bool, is_sasl: bool) -> None:
        self.is_known = is_known
        self.is_sasl = is_sasl


Event = Performative | Hello


@final
class Decoder:
    """Turns bytes into events. Raises ProtocolError and nothing else, and takes no bytes after that.

    Events before an error are returned first: the next call raises `failure` then.
    """

    def __init__(self) -> None:
        self.frame_max = MAX_FRAME_SIZE
        self._rest = b""
        self._is_refused = False
        self._expects_header = True
        self.failure: ProtocolError | None = None

    @property
    def held_bytes(self) -> int:
        """Memory of an incomplete frame. Small rests do not count: every read may leave one."""
        rest = len(self._rest)
        return rest if rest > _SMALL_REST_BYTES else 0

    def clear(self) -> None:
        """Free the memory: the connection is over."""
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that end in these bytes. The rest waits for the next call."""
        if self.failure is not None:
            raise self.failure
        events: list[Event] = []
        data = self._rest + data if self._rest else data
        try:
            at = self._frames(data, events)
        except ProtocolError as error:
            self.failure = error
            if not events:
                raise
            return events
        self._rest = data[at:] if at else data
        return events

    def _frames(self, data: bytes, events: list[Event]) -> int:
        """Read whole frames and headers. Return the start of the first incomplete one."""
        size = len(data)
        at = 0
        while size - at >= HEADER_BYTES and not self._is_refused:
            if self._expects_header:
                self._header(data[at : at + HEADER_BYTES], events)
                at += HEADER_BYTES
                continue
            length = int(i64(read_i32_be(data, at)) & 0xFFFFFFFF)
            doff, kind = data[at + 4], data[at + 5]
            channel = int(i64(read_i16_be(data, at + 6)) & 0xFFFF)
            if length > self.frame_max:
                raise ProtocolError(FRAMING_ERROR, f"a frame of {length} bytes is larger than {self.frame_max}")
            start = at + doff * 4
            end = at + length
            if length < HEADER_BYTES or doff < 2 or start > end:
                raise ProtocolError(FRAMING_ERROR, f"a frame of {length} bytes cannot begin its body at {doff * 4}")
            if end > size:
                break
            at = end
            if kind == AMQP:
                if start != end:
                    events.append(self._performative(data, start, end, channel))
            elif kind == SASL:
                self._sasl(data, start, end, events)
            else:
                raise ProtocolError(FRAMING_ERROR, f"there is no frame type {kind}")
        return size if self._is_refused else at

    def _header(self, header: bytes, events: list[Event]) -> None:
        is_known = header in (AMQP_HEADER, SASL_HEADER)
        self._is_refused = not is_known
        self._expects_header = False
        events.append(Hello(is_known, header == SASL_HEADER))

    def _sasl(self, data: bytes, start: int, end: int, events: list[Event]) -> None:
        reader = Reader(data, start, end)
        descriptor = reader.descriptor()
        if descriptor < SASL_MECHANISMS:
            raise ProtocolError(FRAMING_ERROR, "a SASL frame holds a performative of AMQP frames")
        events.append(decode_performative(descriptor, reader.fields()))
        if descriptor == SASL_INIT:
            # Each offered mechanism takes one response. AMQP's header follows, perhaps before the outcome.
            self._expects_header = True

    def _performative(self, data: bytes, start: int, end: int, channel: int) -> Performative:
        if data[start : start + 2] == _START and end - start > 5:
            code = data[start + 2]
            if code == TRANSFER and data[start + 3] == 0xC0:
                transfer = _quick_transfer(data, start, end, channel)
                if transfer is not None:
                    return transfer
            elif code == DISPOSITION and data[start + 3] == 0xC0:
                disposition = _quick_disposition(data, start, end, channel)
                if disposition is not None:
                    return disposition
        reader = Reader(data, start, end)
        descriptor = reader.descriptor()
        if SASL_MECHANISMS <= descriptor <= SASL_OUTCOME:
            raise ProtocolError(FRAMING_ERROR, "an AMQP frame holds a performative of SASL frames")
        found = decode_performative(descriptor, reader.fields())
        found.channel = channel
        if isinstance(found, Transfer):
            found.payload = data[reader.at : end]
        elif not reader.is_at_end:
            raise ProtocolError(FRAMING_ERROR, "there are bytes behind a performative that has no payload")
        return found


def _quick_transfer(data: bytes, start: int, end: int, channel: int) -> Transfer | None:
    """Return a transfer that has at most its first six fields, in their usual forms; else None.

    The tables take five times as long.
    """
    stop = start + 5 + data[start + 4]
    count = data[start + 5]
    if stop > end or end - start < _QUICK_BYTES or not 1 <= count <= 6:
        return None
    at = start + 6
    if data[at] == 0x43:
        transfer = Transfer(channel, 0)
        at += 1
    elif data[at] == 0x52:
        transfer = Transfer(channel, data[at + 1])
        at += 2
    else:
        return None
    if count > 1:
        transfer.id, at = _quick_uint(data, at)
    if count > 2 and at < stop:
        if data[at] == 0xA0:
            tag, at = at + 2, at + 2 + data[at + 1]
            if at > stop:
                return None
            transfer.tag = data[tag:at]
        elif data[at] == 0x40:
            at += 1
        else:
            return None
    if at > stop:  # compiled, a slice that ends before it begins is an error: docs/design/compiled.md
        return None
    flags = _FLAGS.get(data[at:stop])
    if flags is None or flags[0] != (count - 3 if count > 3 else 0):
        return None
    _, transfer.settled, transfer.more = flags
    transfer.payload = data[stop:end]
    return transfer


def _quick_disposition(data: bytes, start: int, end: int, channel: int) -> Disposition | None:
    """Return a disposition with the state accepted and numbers in their usual forms; else None."""
    if data[end - 4 : end] != _ACCEPTED or data[start + 5] < 5:
        return None
    at = start + 6
    role = data[at]
    if role != 0x41 and role != 0x42:
        return None
    at += 1
    first, at = _quick_uint(data, at)
    if first < 0 or end - at < 5:
        return None
    last, at = _quick_uint(data, at)
    if end - at < 5 or data[at] not in (0x41, 0x42, 0x40):
        return None
    settled = data[at] == 0x41
    if at + 5 != end or start + 5 + data[start + 4] != end or data[start + 5] != 5:
        return None
    return Disposition(channel, role == 0x41, first, first if last < 0 else last, settled, ACCEPTED_STATE)


def _quick_uint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number (-1 for null) and its end. The end is behind the data if there is no number."""
    code = data[at]
    if code == 0x52:
        return data[at + 1], at + 2
    if code == 0x70:
        return int(i64(read_i32_be(data, at + 1)) & 0xFFFFFFFF), at + 5
    if code == 0x43:
        return 0, at + 1
    return -1, at + 1 if code == 0x40 else len(data) + 1


def encode_frame(channel: int, performative: bytes, payload: bytes = b"") -> bytes:
    """Return an AMQP frame."""
    return _FRAME.pack(8 + len(performative) + len(payload), 2, AMQP, channel) + performative + payload


def encode_sasl(performative: bytes) -> bytes:
    """Return a SASL frame."""
    return _FRAME.pack(8 + len(performative), 2, SASL, 0) + performative


def encode_accepted(channel: int, is_receiver: bool, first: int, last: int, settled: bool) -> bytes:
    """Return the frame of a disposition that accepts deliveries."""
    role = 0x41 if is_receiver else 0x42
    done = 0x41 if settled else 0x42
    return _ACCEPTED_FRAME.pack(
        30, 2, AMQP, channel, _DISPOSITION, 17, 5, role, 0x70, first, 0x70, last, done, _ACCEPTED
    )


@final
class TransferEncoder:
    """Writes the deliveries of one link, in as many frames as they need."""

    __slots__ = ("_before", "_channel", "_handle", "_most", "_out")

    def __init__(self, channel: int, handle: int, frame_max: int) -> None:
        self._channel = channel
        self._handle = handle
        self._most = frame_max - _DELIVERY.size
        self._before = _BEFORE_NUMBER.pack(_TYPE, channel, _TRANSFER, handle, 0x70)
        """The bytes of a transfer between its size and its number."""
        self._out = BytesWriter()

    def fit(self, messages: list[bytes]) -> bool:
        """True if each of the messages fits into one frame."""
        most = self._most
        for message in messages:
            if len(message) > most:
                return False
        return True

    def write(self, number: int, tag: int, settled: bool, message: bytes) -> None:
        """Write a delivery that fits into one frame; `take` must follow."""
        out = self._out
        write_i32_be(out, _DELIVERY_BYTES + i32(len(message)))
        out.write(self._before)
        _write_u32(out, number)
        out.write(_TAG)
        _write_u32(out, tag)
        out.write(_SETTLED if settled else _UNSETTLED)
        out.write(message)

    def take(self) -> bytes:
        """Return everything that was written."""
        data = self._out.getvalue()
        self._out = BytesWriter()
        return data

    def encode(self, number: int, tag: int, settled: bool, message: bytes) -> list[bytes]:
        """Return the frames of one delivery."""
        size = len(message)
        done = 0x41 if settled else 0x42
        if size <= self._most:
            return [self._head(number, tag, done, 0x42, size) + message]
        pieces: list[bytes] = []
        for at in range(0, size, self._most):
            piece = message[at : at + self._most]
            more = 0x41 if at + self._most < size else 0x42
            pieces.append(self._head(number, tag, done, more, len(piece)) + piece)
        return pieces

    def _head(self, number: int, tag: int, done: int, more: int, size: int) -> bytes:
        return _DELIVERY.pack(
            _DELIVERY.size + size,
            _TYPE,
            self._channel,
            _TRANSFER,
            self._handle,
            0x70,
            number,
            _TAG,
            tag,
            0x43,
            done,
            more,
        )


def _write_u32(out: BytesWriter, number: int) -> None:
    write_i32_be(out, i32(number if number < 1 << 31 else number - (1 << 32)))

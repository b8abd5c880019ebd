"""Bytes to events; confirms, deliveries and content to bytes. No sockets, no clock, no broker.

Rare methods go through methods.py, in both directions.
"""

import struct
from typing import TYPE_CHECKING, Final, final

from pamqp import base

from headrace.core.routing.topology import key_of
from headrace.errors import ProtocolError
from headrace.model import Source
from headrace.protocols.amqp091.frames import (
    ACK_BYTES,
    BASIC,
    BASIC_ACK,
    BASIC_DELIVER,
    BASIC_PUBLISH,
    BODY,
    FRAME_END,
    FRAME_ERROR,
    FRAME_MAX_SIZE,
    FRAME_OVERHEAD,
    HEADER,
    HEARTBEAT,
    MAX_BODY_BYTES,
    METHOD,
    PROTOCOL_HEADER,
    UNEXPECTED_FRAME,
)
from headrace.protocols.amqp091.methods import decode_method
from headrace.wire.amqp091 import Reader, around_headers, decode_properties, encode_shortstr, with_headers
from headrace.wire.properties import Properties

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue


@final
class Route:
    """The fields of a basic.publish; one value for all equal ones. The publisher sets source and queue."""

    __slots__ = ("exchange", "immediate", "key", "mandatory", "queue", "source")

    def __init__(self, exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
        self.source: Source | None = None
        self.queue: Queue | None = None
        """The queue of a key on the default exchange, until it is deleted."""
        self.exchange = exchange
        self.mandatory = mandatory
        self.immediate = immediate
        self.key = key


@final
class Publish:
    """Whole messages: one, or a row that differs in nothing but the bodies.

    `properties` are `raw`, decoded: shared, never to be changed.
    """

    __slots__ = ("bodies", "channel", "properties", "raw", "route")

    def __init__(self, channel: int, route: Route, raw: bytes, properties: Properties, body: bytes) -> None:
        self.channel = channel
        self.route = route
        self.raw = raw
        self.properties = properties
        self.bodies = [body]


@final
class Ack:
    """basic.ack from the client; acks of consecutive tags are one value."""

    __slots__ = ("channel", "first", "multiple", "tag")

    def __init__(self, channel: int, tag: int, multiple: bool) -> None:
        self.channel = channel
        self.first = tag
        """The first tag of the row; `tag` itself for a single ack."""
        self.tag = tag
        self.multiple = multiple


@final
class Method:
    """Any other method."""

    __slots__ = ("channel", "method")

    def __init__(self, channel: int, method: base.Frame) -> None:
        self.channel = channel
        self.method = method


@final
class TooLarge:
    """A message whose header announces too large a body; the body is skipped."""

    __slots__ = ("channel", "most", "size")

    def __init__(self, channel: int, size: int, most: int) -> None:
        self.channel = channel
        self.size = size
        self.most = most
        """The largest body that is allowed."""


@final
class Hello:
    """The protocol header that opens a connection; `is_ours` when it is that of 0-9-1."""

    __slots__ = ("is_ours",)

    def __init__(self, is_ours: bool) -> None:
        self.is_ours = is_ours


Event = Publish | Ack | Method | TooLarge | Hello


_CONTENT: Final = struct.Struct(">HHQ")

# Publishers repeat themselves: routes and properties that were read once are looked up: 0.4 us a message, not 2.5.
# Each connection has its own, so they are few: a publisher whose properties always differ gains nothing from more.
_OWN_ROUTES: Final = 1024
_SHARED_ROUTES: Final = 65_536
_MAX_KNOWN: Final = 256
_MAX_KNOWN_BYTES: Final = 256

PART_BYTES: Final = 64
"""Memory of a part of a body besides its bytes."""
_SMALL_REST_BYTES: Final = 4096
"""A rest of this size, as every read may leave, does not count as held memory."""

_NONE: Final = Publish(0, Route("", "", False, False), b"", Properties(), b"")


@final
class RouteRoom:
    """The number of routes that all connections together may remember besides the first thousand of each.

    A publisher to ten thousand queues has each route looked up; a thousand such publishers do not fill memory.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = _SHARED_ROUTES

    def take(self) -> bool:
        """Take room for one route; False if there is none."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def give_back(self, count: int) -> None:
        self._left += count


@final
class _Content:
    """An incomplete message."""

    __slots__ = ("is_refused", "left", "parts", "properties", "raw", "route", "size_bytes")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.is_refused = False
        self.left = -1
        self.raw = b""
        self.properties: Properties | None = None
        self.parts: list[bytes] = []
        self.size_bytes = 0
        """Memory of the parts."""


@final
class Decoder:
    """Turns bytes into events, in any cut. Raises ProtocolError and nothing else; it is then of no more use.

    Events before an error are returned first: `failure` says that the next call will raise the error.
    """

    def __init__(self, room: RouteRoom | None = None) -> None:
        self.frame_max = FRAME_MAX_SIZE
        self._room = room or RouteRoom()
        self._rest = b""
        self.max_body_bytes = MAX_BODY_BYTES
        self._body_bytes_held = 0
        self._is_open = False
        self._is_refused = False
        self._is_dropping = False
        self.failure: ProtocolError | None = None
        self._contents: dict[int, _Content] = {}
        self._routes: dict[bytes, Route] = {}
        self._swept_after = _OWN_ROUTES
        """The number of routes at which those to deleted queues are dropped, and so the queues themselves."""
        self._known: dict[bytes, tuple[bytes, Properties]] = {}
        """Decoded properties by their bytes, with the one bytes object that all equal messages share."""
        self._publish = _NONE
        """The last publish that came in one go; a row of messages grows while it is the last event."""
        self._body_bytes = 0
        self._head = b""
        """Its bytes between the method and the body."""
        self._head_channel = -1
        self._raw = b""
        self._properties = Properties()
        """The decoded properties of that publish."""

    def feed(self, data: bytes) -> list[Event]:
        """The events that end in these bytes; the rest is kept for the next call."""
        events: list[Event] = []
        if self.failure is not None:
            raise self.failure
        if self._is_refused:
            return events
        data = self._rest + data if self._rest else data
        at = 0
        if not self._is_open:
            if len(data) < len(PROTOCOL_HEADER) and PROTOCOL_HEADER.startswith(data):
                self._rest = data
                return events
            self._is_open = data.startswith(PROTOCOL_HEADER)
            self._is_refused = not self._is_open
            events.append(Hello(self._is_open))
            if self._is_refused:
                return events
            at = len(PROTOCOL_HEADER)
        try:
            at = self._frames(data, at, events)
        except ProtocolError as error:
            self.failure = error
            if not events:
                raise
            return events
        self._publish = _NONE  # otherwise a silent connection would keep it
        self._rest = data[at:] if at else data
        return events

    def _frames(self, data: bytes, at: int, events: list[Event]) -> int:
        """Decode whole frames; returns where the first incomplete one begins."""
        size = len(data)
        most = self.frame_max - FRAME_OVERHEAD
        contents = self._contents
        alike = b""
        alike_at = alike_bytes = key_at = 0
        while size - at >= FRAME_OVERHEAD:
            if alike_bytes:
                # All bytes up to the body equal those of the last publish: 0.1 us for a message instead of 0.4. The
                # end of the key is compared first: it differs for a publisher to many queues.
                start = at + alike_bytes
                end = start + self._body_bytes
                if end < size and data[end] == FRAME_END and (alike or data[at + key_at] == data[alike_at + key_at]):
                    alike = alike or data[alike_at : alike_at + alike_bytes]
                    if data[at:start] == alike:
                        self._publish.bodies.append(data[start:end])
                        at = end + 1
                        continue
                alike_bytes = 0
            # Byte by byte: 0.21 us for a whole publish, compiled, instead of 0.81 with struct; interpreted 2.0 and 1.2.
            kind = data[at]
            channel = data[at + 1] << 8 | data[at + 2]
            length = data[at + 3] << 24 | data[at + 4] << 16 | data[at + 5] << 8 | data[at + 6]
            if length > most:
                raise ProtocolError(FRAME_ERROR, f"a frame of {length} bytes is larger than the agreed {most}")
            start = at + 7
            end = start + length
            if end >= size:
                break
            if data[end] != FRAME_END:
                raise ProtocolError(FRAME_ERROR, "a frame does not end with its end mark")
            at = end + 1
            if kind == METHOD:
                is_free = not contents or channel not in contents
                if length == ACK_BYTES and _u32(data, start) == BASIC_ACK and is_free:
                    _take_ack(data, start, channel, events)
                    continue
                payload = data[start:end]
                route = self._routes.get(payload)
                if route is not None and is_free:
                    after = self._whole(data, at, channel, route, events)
                    if after != at:
                        alike_at = start - 7
                        alike_bytes = after - 1 - self._body_bytes - alike_at
                        alike = b""
                        key_at = length + 5
                        at = after
                        continue
                self._method(channel, payload, events)
            elif kind == HEADER:
                self._header(channel, data[start:end], events)
            elif kind == BODY:
                self._body(channel, data[start:end], events)
            elif kind != HEARTBEAT:
                raise ProtocolError(FRAME_ERROR, f"there is no frame type {kind}")
            elif channel or length:
                raise ProtocolError(FRAME_ERROR, "a heartbeat is empty and on channel 0")
        return at

    def _whole(self, data: bytes, at: int, channel: int, route: Route, events: list[Event]) -> int:
        """Take a known content header and its body, if both are here; returns where they end.

        Returns `at` otherwise: then the frames are read one by one, and errors are found there.
        """
        start = at + len(self._head)
        stop = start + self._body_bytes
        is_known = stop < len(data) and data[stop] == FRAME_END and channel == self._head_channel
        if not (is_known and data[at:start] == self._head):
            start = self._read_head(data, at, channel)
            if start == at:
                return at
            stop = start + self._body_bytes
        last = self._publish
        is_last = bool(events) and events[-1] is last
        if is_last and last.route is route and last.channel == channel and last.raw == self._raw:
            last.bodies.append(data[start:stop])
        else:
            self._publish = Publish(channel, route, self._raw, self._properties, data[start:stop])
            events.append(self._publish)
        return stop + 1

    def _read_head(self, data: bytes, at: int, channel: int) -> int:
        """Read and remember the bytes between the method and a body in one frame; returns where the body begins.

        Returns `at` if the frames must be read one by one. A publisher to many queues repeats these bytes: only the
        key differs, and it stands before them.
        """
        size = len(data)
        if size - at < 22 + FRAME_OVERHEAD:
            return at
        end = at + 7 + _u32(data, at + 3)
        if data[at] != HEADER or _u16(data, at + 1) != channel or end < at + 19 or size - end < FRAME_OVERHEAD + 1:
            return at
        known = self._known.get(data[at + 19 : end])
        if known is None or data[end] != FRAME_END:
            return at
        length = _u32(data, end + 4)
        start = end + 8
        stop = start + length
        if data[end + 1] != BODY or _u16(data, end + 2) != channel or not length or stop >= size:
            return at
        if data[stop] != FRAME_END or length > self.frame_max - FRAME_OVERHEAD:
            return at
        if _u16(data, at + 7) != BASIC or _u32(data, at + 11) or _u32(data, at + 15) != length:
            return at
        self._head, self._head_channel = data[at:start], channel
        self._raw, self._properties = known
        self._body_bytes = length
        return start

    def _method(self, channel: int, payload: bytes, events: list[Event]) -> None:
        if channel in self._contents:
            raise ProtocolError(UNEXPECTED_FRAME, f"channel {channel}: a method in the middle of a message")
        route = self._routes.get(payload)
        if route is not None:
            self._contents[channel] = _Content(route)
            return
        if len(payload) < 4:
            raise ProtocolError(FRAME_ERROR, "a method frame is too short for a method")
        if _u32(payload, 0) == BASIC_PUBLISH:
            self._contents[channel] = _Content(self._route(payload))
        else:
            events.append(Method(channel, decode_method(payload)))

    def _route(self, payload: bytes) -> Route:
        reader = Reader(payload, 6)
        exchange = reader.shortstr()
        key = reader.shortstr()
        bits = reader.octet()
        route = Route(exchange, key, bits & 1 == 1, bits & 2 == 2)
        if len(self._routes) >= self._swept_after:
            self._sweep()
        if len(self._routes) >= _OWN_ROUTES and not self._room.take():
            self.forget_routes()
        self._routes[payload] = route
        return route

    def _sweep(self) -> None:
        gone = [payload for payload, route in self._routes.items() if route.queue is not None and route.queue.deleted]
        self._room.give_back(min(len(gone), max(0, len(self._routes) - _OWN_ROUTES)))
        for payload in gone:
            del self._routes[payload]
        self._swept_after = max(_OWN_ROUTES, 2 * len(self._routes))

    def forget_routes(self) -> None:
        """Drop all routes: other connections may need the room."""
        self._room.give_back(max(0, len(self._routes) - _OWN_ROUTES))
        self._routes.clear()

    @property
    def held_bytes(self) -> int:
        """Memory of incomplete messages."""
        rest = len(self._rest)
        return self._body_bytes_held + rest if rest > _SMALL_REST_BYTES else self._body_bytes_held

    def drop_bodies(self) -> None:
        """Drop incomplete bodies, and keep none from now on: nothing is published any more."""
        self._is_dropping = True
        self._body_bytes_held = 0
        for content in self._contents.values():
            content.is_refused = True
            content.parts = []
            content.size_bytes = 0

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self.drop_bodies()
        self._contents.clear()
        self._rest = b""
        self.forget_routes()

    def _header(self, channel: int, payload: bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or content.properties is not None:
            raise ProtocolError(UNEXPECTED_FRAME, f"channel {channel}: a content header where none is due")
        if len(payload) < 14:
            raise ProtocolError(FRAME_ERROR, "a content header is too short")
        class_id, _, size = _CONTENT.unpack_from(payload)
        if class_id != BASIC:
            raise ProtocolError(UNEXPECTED_FRAME, f"channel {channel}: a content header of class {class_id}")
        if size > self.max_body_bytes:
            content.is_refused = True
            events.append(TooLarge(channel, size, self.max_body_bytes))
        content.is_refused = content.is_refused or self._is_dropping
        raw = payload[12:]
        known = self._known.get(raw)
        if known is None:
            known = raw, decode_properties(raw)
            if len(raw) <= _MAX_KNOWN_BYTES:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[raw] = known
        raw, properties = known
        if size == 0:
            del self._contents[channel]
            events.append(Publish(channel, content.route, raw, properties, b""))
            return
        content.raw = raw
        content.properties = properties
        content.left = size

    def _body(self, channel: int, piece: bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or content.properties is None:
            raise ProtocolError(UNEXPECTED_FRAME, f"channel {channel}: a body frame where none is due")
        left = content.left - len(piece)
        if left > 0:
            content.left = left
            if not content.is_refused:
                content.parts.append(piece)
                content.size_bytes += len(piece) + PART_BYTES
                self._body_bytes_held += len(piece) + PART_BYTES
            return
        if left < 0:
            raise ProtocolError(FRAME_ERROR, f"channel {channel}: a body goes {-left} bytes beyond its size")
        del self._contents[channel]
        self._body_bytes_held -= content.size_bytes
        if content.is_refused:
            return
        body = b"".join([*content.parts, piece]) if content.parts else piece
        events.append(Publish(channel, content.route, content.raw, content.properties, body))


def _take_ack(data: bytes, at: int, channel: int, events: list[Event]) -> None:
    """Add a basic.ack; one for the tag after the last ack's becomes part of that event."""
    tag = _u32(data, at + 4) << 32 | _u32(data, at + 8)
    multiple = data[at + 12] & 1 == 1
    if events and not multiple:
        last = events[-1]
        if isinstance(last, Ack) and last.tag + 1 == tag and last.channel == channel and not last.multiple:
            last.tag = tag
            return
    events.append(Ack(channel, tag, multiple))


def _u16(data: bytes, at: int) -> int:
    return data[at] << 8 | data[at + 1]


def _u32(data: bytes, at: int) -> int:
    return data[at] << 24 | data[at + 1] << 16 | data[at + 2] << 8 | data[at + 3]


# -- events to bytes -------------------------------------------------------------------------------------------------

_FRAME: Final = struct.Struct(">BHI")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_DELIVER_START: Final = struct.Struct(">BHII")
_HEADER_FRAME: Final = struct.Struct(">BHIHHQ")
_BODY_FRAME: Final = struct.Struct(">BBHI")
_END: Final = bytes([FRAME_END])
_MARKS: Final = (b"\0", b"\1")
_LENGTHS: Final = [bytes([length]) for length in range(256)]
HEARTBEAT_FRAME: Final = _FRAME.pack(HEARTBEAT, 0, 0) + _END


def encode_ack(channel: int, tag: int, multiple: bool) -> bytes:
    """basic.ack to a publisher."""
    return _ACK_FRAME.pack(METHOD, channel, ACK_BYTES, BASIC_ACK, tag, multiple, FRAME_END)


@final
class DeliverEncoder:
    """Writes basic.deliver and its content for one consumer; bytes that equal those of the last delivery are reused."""

    __slots__ = (
        "_after",
        "_around_bytes",
        "_before",
        "_channel",
        "_content",
        "_frame_max",
        "_header",
        "_method_bytes",
        "_middle",
        "_properties",
        "_rest",
        "_size",
        "_source",
        "_tag",
    )

    def __init__(self, channel: int, consumer_tag: str, frame_max: int, header: bytes = b"") -> None:
        """With a header, given as name and type in a table, each delivery carries a number under that name."""
        # The fields of every delivery come first: with thousands of consumers they are read from memory, line by line.
        self._source: Source | None = None
        self._frame_max = frame_max
        self._size = -1
        self._properties = b""
        self._before = b""
        """The bytes up to the delivery tag."""
        self._middle = b""
        """The bytes from the mark of a first delivery to the body, or to the number in the header."""
        self._header = header
        self._around_bytes = 0
        """All bytes around the body, with the tag, the number and the end of the body's frame."""
        self._rest = b""
        """The bytes from that number to the body."""
        self._after = b""
        """The bytes from the mark of a redelivery to the end of the method."""
        self._content = b""
        """The content header and the rest of `_middle`."""
        self._method_bytes = 0
        self._channel = channel
        self._tag = encode_shortstr(consumer_tag)

    def encode(
        self,
        out: list[bytes],
        source: Source,
        delivery_tag: bytes,
        redelivered: bool,
        properties: bytes,
        body: bytes,
        number: int = 0,
    ) -> int:
        """Add a delivery to `out`; returns its size. Its number costs 0.1 us; a table encoded anew took 1.6."""
        if source is not self._source:
            self._take_source(source)
        size = len(body)
        if redelivered or not 0 < size <= self._frame_max - FRAME_OVERHEAD:
            return self._encode_rare(out, delivery_tag, redelivered, properties, body, number)
        if size != self._size or properties != self._properties:
            self._take_content(properties, size)
        out.append(self._before)
        out.append(delivery_tag)
        out.append(self._middle)
        if self._header:
            out.append(number.to_bytes(8, "big"))
            out.append(self._rest)
        out.append(body)
        out.append(_END)
        return self._around_bytes + size

    def _encode_rare(
        self, out: list[bytes], delivery_tag: bytes, redelivered: bool, properties: bytes, body: bytes, number: int
    ) -> int:
        """Encode a redelivery, an empty body, or a body of several frames."""
        if self._header:
            properties = with_headers(properties, self._header + number.to_bytes(8, "big"))
        content = encode_content(self._channel, properties, body, self._frame_max)
        head = b"".join((self._before, delivery_tag, _MARKS[redelivered], self._after))
        out += (head, content)
        return len(head) + len(content)

    def _take_content(self, properties: bytes, size: int) -> None:
        """Prepare first deliveries with these properties and a body of that size."""
        added = len(self._header) + 8 if self._header else 0
        before, behind = around_headers(properties, added) if added else (properties, b"")
        length = 12 + len(before) + added + len(behind)
        head = _HEADER_FRAME.pack(HEADER, self._channel, length, BASIC, 0, size)
        piece = behind + _BODY_FRAME.pack(FRAME_END, BODY, self._channel, size)
        if self._header:
            self._rest, piece = piece, self._header
        self._content = b"".join((head, before, piece))
        self._properties, self._size = properties, size
        self._join()

    def _take_source(self, source: Source) -> None:
        exchange, key = key_of(source)
        self._after = _shortstr(exchange) + _shortstr(key) + _END
        size = 4 + len(self._tag) + 9 + len(self._after) - 1
        if size != self._method_bytes:
            self._before = _DELIVER_START.pack(METHOD, self._channel, size, BASIC_DELIVER) + self._tag
            self._method_bytes = size
        self._source = source
        self._join()  # the content stays: a message with another key than the one before takes 1.4 us, not 2.3

    def _join(self) -> None:
        self._middle = _MARKS[False] + self._after + self._content
        self._around_bytes = len(self._before) + 8 + len(self._middle) + 1
        if self._header:
            self._around_bytes += 8 + len(self._rest)


def _shortstr(text: str) -> bytes:
    """`encode_shortstr` for short texts; that function is not compiled."""
    raw = text.encode()
    return _LENGTHS[len(raw)] + raw if len(raw) < len(_LENGTHS) else encode_shortstr(text)


def encode_content(channel: int, properties: bytes, body: bytes, frame_max: int) -> bytes:
    """Content header and body, for basic.return and basic.get-ok."""
    head = _HEADER_FRAME.pack(HEADER, channel, 12 + len(properties), BASIC, 0, len(body))
    return b"".join((head, properties, _END, _bodies(channel, body, frame_max)))


def _bodies(channel: int, body: bytes, frame_max: int) -> bytes:
    most = frame_max - FRAME_OVERHEAD
    parts: list[bytes] = []
    for at in range(0, len(body), most):
        piece = body[at : at + most]
        parts += (_FRAME.pack(BODY, channel, len(piece)), piece, _END)
    return b"".join(parts)

"""Bytes to events; confirms, deliveries and content to bytes. No sockets, no clock, no broker.

Rare methods go through methods.py, in both directions.
"""

import struct
from abc import ABC, abstractmethod
from typing import Final, final

from librt.strings import BytesWriter, read_i16_be, read_i32_be, write_i16_be, write_i32_be, write_i64_be
from mypy_extensions import i16, i32, i64
from pamqp import base

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
from headrace.wire.amqp091 import HAS_HEADERS, Reader, encode_shortstr
from headrace.wire.amqp091_scan import headers_at, scan_properties


class Target(ABC):
    """The place that a route leads to, as the publisher knows it."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_gone(self) -> bool:
        """True if routes need not remember it any more."""


@final
class Route:
    """The fields of a basic.publish; one value for all equal ones. The publisher sets source, target and is_address."""

    __slots__ = ("exchange", "immediate", "is_address", "key", "mandatory", "source", "target")

    def __init__(self, exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
        self.source: Source | None = None
        self.target: Target | None = None
        """The target of a key on the default exchange, until it is gone."""
        self.is_address = False
        """True for a queue address: rights are checked by its queue, and not by the exchange alone."""
        self.exchange = exchange
        self.mandatory = mandatory
        self.immediate = immediate
        self.key = key


@final
class Publish:
    """Whole messages of one channel and one exchange, in the order in which they came."""

    __slots__ = ("bodies", "channel", "looks", "properties", "route", "routes")

    def __init__(self, channel: int, route: Route, properties: bytes, looks: int, body: bytes) -> None:
        self.channel = channel
        self.route = route
        """The route of the first message."""
        self.routes: list[Route] | None = None
        """The route of each message; None if all have the first."""
        self.looks = looks
        """The findings of `scan_properties` in all of them; 0 if all properties only pass through."""
        self.properties = [properties]
        """The bytes of the properties, one for each body."""
        self.bodies = [body]

    def add(self, route: Route, properties: bytes, looks: int, body: bytes) -> None:
        """Add a message with a route to the same exchange."""
        if self.routes is not None:
            self.routes.append(route)
        elif route is not self.route:
            self.routes = [*[self.route] * len(self.bodies), route]
        self.looks |= looks
        self.properties.append(properties)
        self.bodies.append(body)

    def add_again(self, body: bytes) -> None:
        """Add a message with the route and the properties of the last one."""
        if self.routes is not None:
            self.routes.append(self.routes[-1])
        self.properties.append(self.properties[-1])
        self.bodies.append(body)


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

# Publishers repeat their routes: those that were read once are looked up. Each connection has its own.
_OWN_ROUTES: Final = 1024
_SHARED_ROUTES: Final = 65_536

PART_BYTES: Final = 64
"""Memory of a part of a body besides its bytes."""
_SMALL_REST_BYTES: Final = 4096
"""A rest of this size, as every read may leave, does not count as held memory."""

_NONE: Final = Publish(0, Route("", "", False, False), b"", 0, b"")


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

    __slots__ = ("is_refused", "left", "looks", "parts", "properties", "route", "size_bytes")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.is_refused = False
        self.left = -1
        """Bytes of the body that are still to come; -1 before the content header."""
        self.properties = b""
        self.looks = 0
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
        self._pieces: list[bytes] = []
        """Further pieces of an incomplete large body frame, which begins in `_rest`."""
        self._missing = 0
        """Bytes that such a frame still needs; 0 for any other rest."""
        self.max_body_bytes = MAX_BODY_BYTES
        self._body_bytes_held = 0
        self._is_open = False
        self._is_refused = False
        self._is_dropping = False
        self.failure: ProtocolError | None = None
        self._contents: dict[int, _Content] = {}
        self._routes: dict[bytes, Route] = {}
        self._swept_after = _OWN_ROUTES
        """The number of routes at which those to targets that are gone are dropped, and so the targets themselves."""
        self._payload = b""
        """The method of the last publish, and its route: most publishers repeat it."""
        self._route = _NONE.route
        self._publish = _NONE
        """The last publish that came in one go; messages are added to it while it is the last event."""
        self._properties = b""
        """The properties of that publish: equal ones of neighbours are one object and scanned once."""
        self._looks = 0
        self._head = bytes(30)
        """Its bytes between the method and the body."""
        self._is_head_again = False
        """True if it was the same in the publish before."""
        self._head_channel: i64 = -1
        self._body_bytes: i64 = 0

    def feed(self, data: bytes) -> list[Event]:
        """The events that end in these bytes; the rest is kept for the next call."""
        events: list[Event] = []
        if self.failure is not None:
            raise self.failure
        if self._is_refused:
            return events
        at = 0
        if self._missing:
            if len(data) < self._missing:
                self._pieces.append(data)
                self._missing -= len(data)
                return events
            at = self._missing
        elif self._rest:
            data = self._rest + data
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
            if self._missing:
                self._end_body(data, events)
            at = self._frames(data, at, events)
        except ProtocolError as error:
            self.failure = error
            if not events:
                raise
            return events
        self._publish = _NONE  # otherwise a silent connection would keep it
        self._rest = data[at:] if at else data
        self._missing = self._missing_of(self._rest)
        return events

    def _missing_of(self, rest: bytes) -> int:
        """The bytes that a large body frame still needs; 0 if the rest is something else."""
        if len(rest) <= _SMALL_REST_BYTES or rest[0] != BODY:
            return 0
        return int(_u32(rest, 3)) + FRAME_OVERHEAD - len(rest)

    def _end_body(self, data: bytes, events: list[Event]) -> None:
        """Take a large body frame that ends in these bytes, with one copy however many reads brought it."""
        rest, missing = self._rest, self._missing
        self._rest, self._missing = b"", 0
        if data[missing - 1] != FRAME_END:
            raise ProtocolError(FRAME_ERROR, "a frame does not end with its end mark")
        parts: list[bytes | memoryview] = [memoryview(rest)[7:], *self._pieces, memoryview(data)[: missing - 1]]
        self._pieces = []
        self._body(int(_u16(rest, 1)), b"".join(parts), events)

    def _frames(self, data: bytes, at: int, events: list[Event]) -> int:
        """Decode whole frames; returns where the first incomplete one begins."""
        size: i64 = len(data)
        start: i64 = at
        most = i64(self.frame_max)  # clients that take frame_max for the payload's size are tolerated, as by RabbitMQ
        contents = self._contents
        like = b""
        like_bytes: i64 = 0
        while size - start >= FRAME_OVERHEAD:
            if like_bytes:
                # All up to the body as in the last two publishes: a third fewer instructions.
                body_at = start + like_bytes
                stop = body_at + self._body_bytes
                if stop < size and data[stop] == FRAME_END and data[start:body_at] == like:
                    self._publish.add_again(data[body_at:stop])
                    start = stop + 1
                    continue
                like_bytes = 0
            begin = start
            kind = data[begin]
            channel = i64(data[begin + 1]) << 8 | i64(data[begin + 2])
            length = _u32(data, begin + 3)
            if length > most:
                raise ProtocolError(FRAME_ERROR, f"a frame of {length} bytes is larger than the agreed {most}")
            end = begin + 7 + length
            if end >= size:
                break
            if data[end] != FRAME_END:
                raise ProtocolError(FRAME_ERROR, "a frame does not end with its end mark")
            start = end + 1
            begin += 7
            if kind == METHOD:
                is_free = not contents or channel not in contents
                if length == ACK_BYTES and is_free and _u32(data, begin) == BASIC_ACK:
                    _take_ack(data, begin, channel, events)
                    continue
                payload = data[begin:end]
                last_route = self._route
                route = self._known_route(payload)
                if route is not None and is_free:
                    after = self._whole(data, start, channel, route, events)
                    if after != start:
                        if self._is_head_again and route is last_route:
                            like_bytes = after - 1 - self._body_bytes - (begin - 7)
                            like = data[begin - 7 : begin - 7 + like_bytes]
                        start = after
                        continue
                self._method(channel, payload, events)
            elif kind == HEADER:
                self._header(channel, data[begin:end], events)
            elif kind == BODY:
                self._body(channel, data[begin:end], events)
            elif kind != HEARTBEAT:
                raise ProtocolError(FRAME_ERROR, f"there is no frame type {kind}")
            elif channel or length:
                raise ProtocolError(FRAME_ERROR, "a heartbeat is empty and on channel 0")
        return start

    def _known_route(self, payload: bytes) -> Route | None:
        if payload != self._payload:
            route = self._routes.get(payload)
            if route is None:
                return None
            self._payload, self._route = payload, route
        return self._route

    def _whole(self, data: bytes, at: i64, channel: i64, route: Route, events: list[Event]) -> i64:
        """Take a content header and a body of one frame, if both are here; returns where they end.

        Returns `at` otherwise: then the frames are read one by one, and errors are found there.
        """
        size: i64 = len(data)
        if size - at < 22 + FRAME_OVERHEAD or data[at] != HEADER:
            return at
        start = at + len(self._head)
        stop = start + self._body_bytes
        # Neighbours may have equal headers: 350 instructions less for each. Others mostly differ in one of two bytes.
        is_like = stop < size and data[start - 9] == self._head[-9] and data[at + 18] == self._head[18]
        if is_like and channel == self._head_channel and data[stop] == FRAME_END and data[at:start] == self._head:
            self._is_head_again = True
            self._add(channel, route, data[start:stop], events)
            return stop + 1
        self._is_head_again = False
        end = at + 7 + _u32(data, at + 3)
        if end < at + 21 or size - end < FRAME_OVERHEAD + 1 or data[end] != FRAME_END or data[end + 1] != BODY:
            return at
        length = _u32(data, end + 4)
        start = end + 8
        stop = start + length
        if not length or stop >= size or data[stop] != FRAME_END:
            return at
        if length > self.frame_max or length > self.max_body_bytes or self._is_dropping:
            return at
        if _u16(data, at + 1) != channel or _u16(data, end + 2) != channel:
            return at
        if _u16(data, at + 7) != BASIC or _u32(data, at + 11) or _u32(data, at + 15) != length:
            return at
        properties = data[at + 19 : end]
        if properties != self._properties:
            self._looks = scan_properties(properties)
            self._properties = properties
        self._head, self._head_channel, self._body_bytes = data[at:start], channel, length
        self._add(channel, route, data[start:stop], events)
        return stop + 1

    def _add(self, channel: i64, route: Route, body: bytes, events: list[Event]) -> None:
        """Add a message with the last properties to the last event, if that has the same channel and exchange."""
        last = self._publish
        if (
            events
            and events[-1] is last
            and last.channel == channel
            and (last.route is route or last.route.exchange == route.exchange)
        ):
            last.add(route, self._properties, self._looks, body)
        else:
            self._publish = Publish(channel, route, self._properties, self._looks, body)
            events.append(self._publish)

    def _method(self, channel: int, payload: bytes, events: list[Event]) -> None:
        if channel in self._contents:
            raise ProtocolError(UNEXPECTED_FRAME, f"channel {channel}: a method in the middle of a message")
        route = self._known_route(payload)
        if route is not None:
            self._contents[channel] = _Content(route)
            return
        if len(payload) < 4:
            raise ProtocolError(FRAME_ERROR, "a method frame is too short for a method")
        if _u32(payload, 0) == BASIC_PUBLISH:
            self._contents[channel] = _Content(self._new_route(payload))
        else:
            events.append(Method(channel, decode_method(payload)))

    def _new_route(self, payload: bytes) -> Route:
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
        gone = [payload for payload, route in self._routes.items() if route.target is not None and route.target.is_gone]
        self._room.give_back(min(len(gone), max(0, len(self._routes) - _OWN_ROUTES)))
        for payload in gone:
            del self._routes[payload]
        self._payload = b""
        self._swept_after = max(_OWN_ROUTES, 2 * len(self._routes))

    def forget_routes(self) -> None:
        """Drop all routes: other connections may need the room."""
        self._room.give_back(max(0, len(self._routes) - _OWN_ROUTES))
        self._routes.clear()
        self._payload, self._route = b"", _NONE.route

    @property
    def held_bytes(self) -> int:
        """Memory of incomplete messages."""
        rest = len(self._rest) + sum([len(piece) for piece in self._pieces])
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
        self._rest, self._pieces, self._missing = b"", [], 0
        self.forget_routes()

    def _header(self, channel: int, payload: bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or content.left >= 0:
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
        content.properties = payload[12:]
        content.looks = scan_properties(content.properties)
        if size == 0:
            del self._contents[channel]
            events.append(Publish(channel, content.route, content.properties, content.looks, b""))
            return
        content.left = size

    def _body(self, channel: int, piece: bytes, events: list[Event]) -> None:
        content = self._contents.get(channel)
        if content is None or content.left < 0:
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
        events.append(Publish(channel, content.route, content.properties, content.looks, body))


def _take_ack(data: bytes, at: i64, channel: i64, events: list[Event]) -> None:
    """Add a basic.ack; one for the tag after the last ack's becomes part of that event."""
    tag = int(_u32(data, at + 4)) << 32 | int(_u32(data, at + 8))
    multiple = data[at + 12] & 1 == 1
    if events and not multiple:
        last = events[-1]
        if isinstance(last, Ack) and last.tag + 1 == tag and last.channel == channel and not last.multiple:
            last.tag = tag
            return
    events.append(Ack(channel, tag, multiple))


def _u16(data: bytes, at: i64) -> i64:
    return i64(read_i16_be(data, at)) & 0xFFFF


def _u32(data: bytes, at: i64) -> i64:
    return i64(read_i32_be(data, at)) & 0xFFFFFFFF


# -- events to bytes -------------------------------------------------------------------------------------------------

_FRAME: Final = struct.Struct(">BHI")
_ACK_FRAME: Final = struct.Struct(">BHIIQBB")
_DELIVER_START: Final = struct.Struct(">BHII")
_HEADER_FRAME: Final = struct.Struct(">BHIHHQ")
_END: Final = bytes([FRAME_END])
_LENGTHS: Final = [bytes([length]) for length in range(256)]
HEARTBEAT_FRAME: Final = _FRAME.pack(HEARTBEAT, 0, 0) + _END


def encode_ack(channel: int, tag: int, multiple: bool) -> bytes:
    """basic.ack to a publisher."""
    return _ACK_FRAME.pack(METHOD, channel, ACK_BYTES, BASIC_ACK, tag, multiple, FRAME_END)


_LARGE_BODY_BYTES: Final = 16 << 10
"""Bodies from this size on are not copied into the bytes around them."""


@final
class DeliverEncoder:
    """Writes basic.deliver and its content for one consumer. `finish` must follow the last call of `encode`."""

    __slots__ = ("_before", "_channel", "_entry", "_frame_max", "_key", "_method_bytes", "_out", "_tag", "source")

    def __init__(self, channel: int, consumer_tag: str, frame_max: int, entry: bytes = b"") -> None:
        """With an entry, given as name and type in a table of headers, deliveries carry a number under that name."""
        # The fields of every delivery come first: with thousands of consumers they are read from memory, line by line.
        self.source: Source | None = None
        """The source that `address` was called with last."""
        self._out = BytesWriter()
        self._before = b""
        """The bytes up to the delivery tag."""
        self._key = b""
        """The bytes from the exchange to the end of the method."""
        self._entry = entry
        self._frame_max = frame_max
        self._channel = channel
        self._method_bytes = 0
        self._tag = encode_shortstr(consumer_tag)

    def encode(
        self,
        parts: list[bytes],
        delivery_tag: int,
        redelivered: bool,
        properties: bytes,
        body: bytes,
        number: int = 0,
    ) -> None:
        """Write a delivery of the source that is set; large bodies go into `parts` as they are."""
        out = self._out
        out.write(self._before)
        write_i64_be(out, i64(delivery_tag))
        out.append(redelivered)
        out.write(self._key)
        size: i64 = len(body)
        if self._entry:
            self._write_numbered(properties, size, number)
        else:
            self._write_header(i64(len(properties)), size)
            out.write(properties)
            out.append(FRAME_END)
        if 0 < size <= _LARGE_BODY_BYTES and size <= self._frame_max - FRAME_OVERHEAD:
            self._write_frame_start(size)
            out.write(body)
            out.append(FRAME_END)
        elif size:
            self._write_large(parts, body)

    def finish(self, parts: list[bytes]) -> None:
        """Add everything that was written to `parts`."""
        if len(self._out):
            parts.append(self._out.getvalue())
            self._out = BytesWriter()

    def _write_header(self, properties_bytes: i64, body_bytes: i64) -> None:
        """Write the content header up to the properties."""
        out = self._out
        out.append(HEADER)
        write_i16_be(out, i16(self._channel))
        write_i32_be(out, i32(12 + properties_bytes))
        write_i32_be(out, BASIC << 16)
        write_i64_be(out, body_bytes)

    def _write_frame_start(self, size: i64) -> None:
        out = self._out
        out.append(BODY)
        write_i16_be(out, i16(self._channel))
        write_i32_be(out, i32(size))

    def _write_numbered(self, properties: bytes, body_bytes: i64, number: int) -> None:
        """Write the content header with one more entry in the table of headers."""
        entry = self._entry
        added: i64 = len(entry) + 8
        at = headers_at(properties)
        end = at
        has_headers = properties[0] & HAS_HEADERS >> 8 != 0
        if has_headers:
            end += 4 + _u32(properties, at)
        self._write_header(len(properties) + added + (0 if has_headers else 4), body_bytes)
        out = self._out
        out.append(properties[0] | HAS_HEADERS >> 8)
        out.append(properties[1])
        out.write(properties[2:at])
        write_i32_be(out, i32(end - at + added - (4 if has_headers else 0)))
        if has_headers:
            out.write(properties[at + 4 : end])
        out.write(entry)
        write_i64_be(out, i64(number))
        out.write(properties[end:])
        out.append(FRAME_END)

    def _write_large(self, parts: list[bytes], body: bytes) -> None:
        """Write a body in as many frames as it needs, without a copy if it needs only one."""
        most = self._frame_max - FRAME_OVERHEAD
        for at in range(0, len(body), most):
            piece = body if len(body) <= most else body[at : at + most]
            self._write_frame_start(i64(len(piece)))
            self.finish(parts)
            parts.append(piece)
            self._out.append(FRAME_END)

    def address(self, source: Source, exchange: str, key: str) -> None:
        """Take exchange and key for the deliveries that follow: callers do so when the source changes."""
        self._key = _shortstr(exchange) + _shortstr(key) + _END
        size = 4 + len(self._tag) + 9 + len(self._key) - 1
        if size != self._method_bytes:
            self._before = _DELIVER_START.pack(METHOD, self._channel, size, BASIC_DELIVER) + self._tag
            self._method_bytes = size
        self.source = source


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

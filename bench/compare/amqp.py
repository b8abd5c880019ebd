"""AMQP 0-9-1 under load: publishing with confirms and consuming with acknowledgements. Set-up is in amqp_session.py."""

import struct
from array import array
from datetime import UTC, datetime
from typing import Final, final

from pamqp import body as content
from pamqp import commands, common, frame, header

from bench.compare import amqp_session
from bench.compare.amqp_session import AmqpSession, exchange_name
from bench.compare.consumer import ColumnConsumer, Consumer, Found, Layout
from bench.compare.counters import Counters
from bench.compare.family import FamilyDriver
from bench.compare.load import Endpoint, Job, Load, Unsupported, Wrong
from bench.compare.payload import Piece
from bench.compare.publisher import Publisher
from bench.compare.shape import APPLICATION, CONTENT_TYPE, Sample
from bench.compare.wire import Wire

_ENVELOPE: Final = struct.Struct(">BHI")
_METHOD_HEAD: Final = struct.Struct(">BHII")
_HEADER_HEAD: Final = struct.Struct(">BHIHHQ")
_ENVELOPE_BYTES: Final = 8  # with the byte that ends a frame
_FRAME_END: Final = 0xCE
_METHOD: Final = 1
_HEADER: Final = 2
_BODY: Final = 3
_DELIVER: Final = (60, 60)
_DELIVER_METHOD: Final = 60 << 16 | 60
_ACK: Final = (60, 80)
_NACK: Final = (60, 120)
_CLOSES: Final = frozenset({(10, 50), (20, 40), (60, 30)})
_ACK_FRAME: Final = bytearray(frame.marshal(commands.Basic.Ack(0, False), 1))
_TAG_AT: Final = 11
_MULTIPLE_AT: Final = 19


@final
class AmqpPublisher(Publisher):
    """Persistent messages, confirmed."""

    def __init__(self, job: Job, number: int, counters: Counters) -> None:
        session = AmqpSession(job.endpoint)
        if job.load.size > session.frame_max - _ENVELOPE_BYTES:
            raise Unsupported(f"the broker takes frames of {session.frame_max} bytes at most")
        session.call(commands.Confirm.Select(), commands.Confirm.SelectOk)
        load = job.load
        self._routes = load.routing_keys() or load.queue_names()
        self._exchange = exchange_name(load)
        self._low = 0
        self._above: set[int] = set()
        super().__init__(session.wire, job, number, counters)

    def encode(self, body: bytes, route: int, sample: Sample | None = None) -> bytes:
        publish = commands.Basic.Publish(exchange=self._exchange, routing_key=self._routes[route])
        properties = self._properties(sample) if sample else commands.Basic.Properties(delivery_mode=2)
        parts = (publish, header.ContentHeader(0, len(body), properties), content.ContentBody(body))
        return b"".join([frame.marshal(part, 1) for part in parts])

    def _properties(self, sample: Sample) -> commands.Basic.Properties:
        at = datetime.fromtimestamp(sample.timestamp, UTC)
        if self.job.load.shape == "ids":
            return commands.Basic.Properties(delivery_mode=2, message_id=sample.message_id, timestamp=at)
        return commands.Basic.Properties(
            content_type=CONTENT_TYPE,
            headers={"traceparent": sample.trace, "tenant": sample.tenant, "attempt": sample.attempt},
            delivery_mode=2,
            correlation_id=sample.correlation_id,
            message_id=sample.message_id,
            timestamp=at,
            app_id=APPLICATION,
        )

    def filled(self, piece: Piece) -> None:
        """Publishes carry no numbers: both sides count."""

    def read(self) -> None:
        data = self.wire.take()
        if not data:
            return
        at, end = 0, len(data)
        while end - at >= _ENVELOPE_BYTES:
            kind, _, size = _ENVELOPE.unpack_from(data, at)
            if end - at < size + _ENVELOPE_BYTES:
                break
            if kind == _METHOD:
                self._heard(data, at)
            at += size + _ENVELOPE_BYTES
        self.wire.rest = data[at:]
        self.confirmed = self._low + len(self._above)
        self.note_confirmed()

    def _heard(self, data: bytes, at: int) -> None:
        method = struct.unpack_from(">HH", data, at + 7)
        if method in (_ACK, _NACK):
            tag, flags = struct.unpack_from(">QB", data, at + _TAG_AT)
            if method == _NACK:
                self.refused += 1
            self._settle(tag, bool(flags & 1))
        elif method in _CLOSES:
            raise Wrong(f"the broker closes the connection: {data[at + _TAG_AT : at + 200]!r}")

    def _settle(self, tag: int, is_multiple: bool) -> None:
        if is_multiple:
            self._low = max(self._low, tag)
            if self._above:
                self._above = {other for other in self._above if other > tag}
        elif tag == self._low + 1:
            self._low = tag
        else:
            self._above.add(tag)
        while self._above and self._low + 1 in self._above:
            self._low += 1
            self._above.remove(self._low)


@final
class AmqpConsumer(ColumnConsumer):
    """Acknowledges every n-th delivery, with those before it."""

    def __init__(self, job: Job, number: int) -> None:
        session = AmqpSession(job.endpoint)
        super().__init__(session.wire, job, number)
        self._session = session
        load = job.load
        session.call(commands.Basic.Qos(prefetch_count=load.prefetch), commands.Basic.QosOk)
        self._every = min(load.ack_every, max(1, load.prefetch // 2))
        self._tag = 0
        self._next_ack = self._every
        self._tag_at = self._last_at = 0
        self._tags = [f"c{place:05}" for place in range(len(load.queues_of(number)))]

    def subscribe(self) -> None:
        arguments: common.FieldTable = {"x-stream-offset": "first"} if self.job.load.is_stream else {}
        for tag, queue in zip(self._tags, self.job.load.queues_of(self.number), strict=True):
            self._session.cast(commands.Basic.Consume(queue=queue, consumer_tag=tag, nowait=True, arguments=arguments))

    def skip(self, at: int) -> int:
        if self.end - at < _ENVELOPE_BYTES + 4:
            return 0
        kind, _, size = _ENVELOPE.unpack_from(self.buffer, at)
        if kind == _METHOD:
            method = struct.unpack_from(">HH", self.buffer, at + 7)
            if method == _DELIVER:
                return 0
            if method in _CLOSES:
                raise Wrong(f"the broker ends it: {bytes(self.buffer[at + _TAG_AT : at + 200])!r}")
        whole = int(size) + _ENVELOPE_BYTES
        return whole if self.end - at >= whole else 0

    def learn(self, at: int) -> Layout | None:
        """A method, a header and one body frame."""
        starts: list[int] = []
        place = at
        for _ in (_METHOD, _HEADER, _BODY):
            if self.end - place < _ENVELOPE_BYTES:
                return None
            starts.append(place - at)
            place += _ENVELOPE.unpack_from(self.buffer, place)[2] + _ENVELOPE_BYTES
        if place > self.end:
            return None
        stride = place - at
        self._tag_at = _TAG_AT + 1 + self.buffer[at + _TAG_AT]
        fixed = [(stride - 1, _FRAME_END)]
        for kind, start in zip((_METHOD, _HEADER, _BODY), starts, strict=True):
            fixed += [(start, kind), *[(start + byte, self.buffer[at + start + byte]) for byte in range(3, 7)]]
        fixed += [(byte, self.buffer[at + byte]) for byte in (8, 10)]
        return Layout(stride, starts[2] + 7, tuple(fixed))

    def acknowledge(self, at: int, count: int) -> None:
        stride = self.layout.stride
        end = at + count * stride
        self.ledger.redelivered += self.buffer[at + self._tag_at + 8 : end : stride].count(1)
        self._last_at = end - stride + self._tag_at
        self.answer(count)

    def single(self, at: int) -> Found | None:
        """A method, a header and one body frame; any other frame is skipped."""
        buffer, end = self.buffer, self.end
        if end - at < _METHOD_HEAD.size:
            return None
        kind, _, size, method = _METHOD_HEAD.unpack_from(buffer, at)
        header_at = at + size + _ENVELOPE_BYTES
        if kind != _METHOD or method != _DELIVER_METHOD:
            skipped = self.skip(at)
            return Found(at + skipped) if skipped else None
        if end - header_at < _HEADER_HEAD.size:
            return None
        _, _, size, _, _, body_size = _HEADER_HEAD.unpack_from(buffer, header_at)
        body = header_at + size + _ENVELOPE_BYTES + _ENVELOPE.size
        if end <= body + body_size:
            return None
        if buffer[body + body_size] != _FRAME_END:
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body in several frames")
        self._last_at = at + _TAG_AT + 1 + buffer[at + _TAG_AT]
        self.ledger.redelivered += buffer[self._last_at + 8]
        return Found(body + body_size + 1, body, body + body_size)

    def answer(self, count: int) -> None:
        self._tag += count
        last = int.from_bytes(self.buffer[self._last_at : self._last_at + 8], "big")
        if last != self._tag:
            raise Wrong(f"delivery tag {last} where {self._tag} was due")
        if self._next_ack <= last:
            tags = array("Q", range(self._next_ack, last + 1, self._every))
            self._next_ack += self._every * len(tags)
            self.output += _acks(tags, self._every > 1)

    def finish(self) -> None:
        if self._every > 1 and self._tag > self._next_ack - self._every:
            self.output += _acks(array("Q", [self._tag]), True)
        super().finish()
        self.wire.rest = bytes(self.buffer[: self.end])
        self._session.call_all([commands.Basic.Cancel(consumer_tag=tag) for tag in self._tags], commands.Basic.CancelOk)
        self._session.call(commands.Channel.Close(0, "", 0, 0), commands.Channel.CloseOk)
        self._session.close()


def _acks(tags: "array[int]", is_multiple: bool) -> bytearray:
    """An acknowledgement for each tag."""
    one = bytearray(_ACK_FRAME)
    one[_MULTIPLE_AT] = is_multiple
    frames = one * len(tags)
    tags.byteswap()
    raw = tags.tobytes()
    for byte in range(8):
        frames[_TAG_AT + byte :: len(one)] = raw[byte::8]
    return frames


@final
class AmqpDriver(FamilyDriver):
    """Durable queues or streams, through the default exchange or one that is made for the load."""

    def prepare(self, endpoint: Endpoint, load: Load) -> None:
        amqp_session.prepare(endpoint, load)

    def clear(self, endpoint: Endpoint, load: Load) -> None:
        amqp_session.clear(endpoint, load)

    def depth(self, endpoint: Endpoint, load: Load) -> int | None:
        return None if load.is_stream else amqp_session.depth(endpoint, load)

    def publisher(self, job: Job, number: int, counters: Counters) -> Publisher:
        return AmqpPublisher(job, number, counters)

    def consumer(self, job: Job, number: int) -> Consumer:
        return AmqpConsumer(job, number)

    def idle(self, endpoint: Endpoint, number: int) -> Wire:
        return AmqpSession(endpoint).wire

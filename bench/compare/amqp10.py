"""AMQP 1.0 under load: unsettled transfers to a durable queue, and deliveries accepted by the hundred."""

import struct
from typing import Final, TypeVar, final

from bench.compare import amqp_session
from bench.compare.consumer import ColumnConsumer, Consumer, Found, Layout
from bench.compare.counters import Counters
from bench.compare.family import FamilyDriver
from bench.compare.load import PREFIX, Endpoint, Job, Load, Unsupported, Wrong
from bench.compare.payload import MAGIC, Piece
from bench.compare.publisher import Publisher
from bench.compare.shape import APPLICATION, CONTENT_TYPE, Sample
from bench.compare.wire import Wire
from headrace.protocols.amqp10.codec import Decoder, Event, encode_accepted, encode_frame, encode_sasl
from headrace.protocols.amqp10.frames import AMQP_HEADER, SASL_HEADER, TRANSFER
from headrace.protocols.amqp10.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from headrace.wire.amqp10_values import Reader

_HEAD: Final = struct.Struct(">IBBH4sBBBBIBBIBB")
"""Of a transfer on channel 0: size, doff, type, channel, what it is, handle, delivery-id, tag, format, settled."""
_ID_AT: Final = 16
_TAG_AT: Final = 22
_DURABLE: Final = b"\x00\x53\x70\xc0\x02\x01\x41"
_DATA: Final = b"\x00\x53\x75\xb0"
_WINDOW: Final = 0x7FFFFFF
_FRAME_MAX: Final = 65536
_FRAME_HEAD_BYTES: Final = 8
_TRANSFER_START: Final = bytes((0x00, 0x53, TRANSFER))

Kind = TypeVar("Kind")


@final
class Amqp10Session:
    """A connection with one session on channel 0."""

    __slots__ = ("_heard", "decoder", "window", "wire")

    def __init__(self, endpoint: Endpoint) -> None:
        self.wire = Wire(endpoint)
        self.decoder = Decoder()
        self._heard: list[Event] = []
        self.wire.send(SASL_HEADER)
        login = f"\0{endpoint.user or 'guest'}\0{endpoint.password or 'guest'}".encode()
        self.wire.send(encode_sasl(SaslInit("PLAIN", login).encode()))
        self._log_in()
        opening = Open(PREFIX, endpoint.host)
        opening.max_frame_size = _FRAME_MAX
        self.wire.send(AMQP_HEADER)
        self.say(opening.encode())
        self.expect(Open)
        self.say(Begin(None, 0, _WINDOW, _WINDOW).encode())
        self.window = self.expect(Begin).incoming_window

    def _log_in(self) -> None:
        """The decoder knows a server's side of SASL alone, so the outcome is read here."""
        if self.wire.exactly(len(SASL_HEADER)) != SASL_HEADER:
            raise Unsupported("the broker does not speak AMQP 1.0")
        frame = b""
        for _ in ("mechanisms", "outcome"):
            frame = self.wire.exactly(int.from_bytes(self.wire.exactly(4), "big") - 4)
        outcome = Reader(frame, 4)
        outcome.descriptor()
        if outcome.fields()[0]:
            raise Unsupported("the broker refuses the login over AMQP 1.0")

    def say(self, performative: bytes) -> None:
        self.wire.send(encode_frame(0, performative))

    def expect(self, kind: type[Kind]) -> Kind:
        """The next of this kind; others that come before it are dropped. Raises Unsupported when the broker ends it."""
        while True:
            while self._heard:
                event = self._heard.pop(0)
                if isinstance(event, kind):
                    return event
                check(event)
            if not self.wire.rest:
                self.wire.more()
            data, self.wire.rest = self.wire.rest, b""
            self._heard = list(self.decoder.feed(data))


def check(event: Event) -> None:
    """Raises Unsupported when the broker ends the link, the session or the connection."""
    if isinstance(event, Close | End | Detach):
        raise Unsupported(f"the broker ends it: {getattr(event.error, 'description', None) or event.error}")


def _string(text: str, code: int = 0xA1) -> bytes:
    return bytes((code, len(text))) + text.encode()


def _sections(sample: Sample) -> bytes:
    """Properties and application properties, all of the message's own."""
    fields = (
        _string(sample.message_id)
        + b"\x40" * 4  # user-id, to, subject, reply-to
        + _string(sample.correlation_id)
        + _string(CONTENT_TYPE, 0xA3)
        + b"\x40" * 2  # content-encoding, absolute-expiry-time
        + b"\x83"
        + (sample.timestamp * 1000).to_bytes(8, "big")
    )
    pairs = (("traceparent", sample.trace), ("tenant", sample.tenant), ("app", APPLICATION))
    entries = b"".join([_string(name) + _string(value) for name, value in pairs])
    entries += _string("attempt") + b"\x54" + bytes((sample.attempt,))
    properties = b"\x00\x53\x73\xc0" + bytes((len(fields) + 1, 10)) + fields
    return properties + b"\x00\x53\x74\xc1" + bytes((len(entries) + 1, 8)) + entries


@final
class Amqp10Publisher(Publisher):
    """A message is confirmed when its disposition says accepted."""

    def __init__(self, job: Job, number: int, counters: Counters) -> None:
        self._session = Amqp10Session(job.endpoint)
        attach = Attach(f"{PREFIX}-sender-{number}", 0, False)
        attach.sender_settles = 0
        attach.source, attach.target = Source(PREFIX), Target(job.endpoint.queue_address.format(_queue(job)))
        self._session.say(attach.encode())
        if self._session.expect(Attach).target is None:
            raise Unsupported("the broker takes no messages for the queue over AMQP 1.0")
        self._low = 0
        self._above: set[int] = set()
        self._credit_to = 0
        self._window_to = self._session.window
        super().__init__(self._session.wire, job, number, counters)
        self._flow(self._session.expect(Flow))

    def encode(self, body: bytes, route: int, sample: Sample | None = None) -> bytes:
        message = _DURABLE + (_sections(sample) if sample else b"") + _DATA + len(body).to_bytes(4, "big") + body
        size = _HEAD.size + len(message)
        head = _HEAD.pack(size, 2, 0, 0, _TRANSFER_START + b"\xc0", 15, 5, 0x43, 0x70, 0, 0xA0, 4, 0, 0x43, 0x42)
        return head + message

    def filled(self, piece: Piece) -> None:
        self.batch.count_up(piece, _ID_AT, 4, self.sent)
        self.batch.count_up(piece, _TAG_AT, 4, self.sent)

    def room(self) -> int:
        return min(self._credit_to, self._window_to) - self.sent

    def read(self) -> None:
        data = self.wire.take()
        for event in self._session.decoder.feed(data) if data else ():
            if isinstance(event, Disposition):
                self._settle(event.first, event.last)
                if not isinstance(event.state, Accepted):
                    self.refused += event.last - event.first + 1
            elif isinstance(event, Flow):
                self._flow(event)
            else:
                check(event)
        self.note_confirmed()

    def _settle(self, first: int, last: int) -> None:
        """Ranges may come in any order, and name again what was settled before: RabbitMQ's do."""
        if first > self._low:
            self._above.update(range(first, last + 1))
        else:
            self._low = max(self._low, last + 1)
            self._above = {other for other in self._above if other >= self._low} if self._above else self._above
            while self._low in self._above:
                self._above.remove(self._low)
                self._low += 1
        self.confirmed = self._low + len(self._above)

    def _flow(self, flow: Flow) -> None:
        self._window_to = (flow.next_incoming_id or 0) + flow.incoming_window
        if flow.handle is not None:
            self._credit_to = (flow.delivery_count or 0) + (flow.link_credit or 0)


@final
class Amqp10Consumer(ColumnConsumer):
    """Grants credit by the window and accepts every n-th delivery with those before it."""

    def __init__(self, job: Job, number: int) -> None:
        self._session = Amqp10Session(job.endpoint)
        super().__init__(self._session.wire, job, number)
        self._first_id = -1
        self._granted = 0
        self._accepted = 0

    def subscribe(self) -> None:
        attach = Attach(f"{PREFIX}-receiver-{self.number}", 0, True)
        attach.source, attach.target = Source(self.job.endpoint.queue_address.format(_queue(self.job))), Target(PREFIX)
        self._session.say(attach.encode())
        if self._session.expect(Attach).source is None:
            raise Unsupported("the broker gives no messages of the queue over AMQP 1.0")
        self.output += self._grant(0)
        self.wire.send(self.output)
        self.output.clear()

    def _grant(self, received: int) -> bytes:
        flow = Flow()
        flow.next_incoming_id = received
        flow.incoming_window = flow.outgoing_window = _WINDOW
        flow.handle = 0
        flow.delivery_count = received
        flow.link_credit = self.job.load.prefetch
        self._granted = received + self.job.load.prefetch
        return encode_frame(0, flow.encode())

    def _is_transfer(self, at: int) -> bool:
        return self.buffer[at + _FRAME_HEAD_BYTES : at + _FRAME_HEAD_BYTES + 3] == _TRANSFER_START

    def _size(self, at: int) -> int:
        """The size of the frame that begins here; 0 when it is not all there."""
        size = int.from_bytes(self.buffer[at : at + 4], "big") if self.end - at >= _FRAME_HEAD_BYTES else 0
        return size if self.end - at >= size else 0

    def skip(self, at: int) -> int:
        size = self._size(at)
        if not size or self._is_transfer(at):
            return 0
        check(self._decoded(at, size))
        return size

    def _decoded(self, at: int, size: int) -> Event:
        decoder = Decoder()
        decoder.feed(AMQP_HEADER)
        return decoder.feed(bytes(self.buffer[at : at + size]))[0]

    def learn(self, at: int) -> Layout | None:
        size = self._size(at)
        if not size:
            return None
        if self._first_id < 0:
            transfer = self._decoded(at, size)
            assert isinstance(transfer, Transfer)
            self._first_id = transfer.id
        body = self.buffer.find(MAGIC, at, at + size) - at
        if body < 0:
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        fixed = [(byte, self.buffer[at + byte]) for byte in (0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12)]
        return Layout(size, body, tuple(fixed))

    def single(self, at: int) -> Found | None:
        size = self._size(at)
        if not size:
            return None
        if not self._is_transfer(at):
            check(self._decoded(at, size))
            return Found(at + size)
        if self._first_id < 0:
            self.learn(at)
        body = self.buffer.find(MAGIC, at, at + size)
        if body < 0:
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        return Found(at + size, body, at + size)

    def acknowledge(self, at: int, count: int) -> None:
        self.answer(count)

    def answer(self, count: int) -> None:
        received, every = self.ledger.count, self.job.load.ack_every
        while received - self._accepted >= every:
            self._accept(self._accepted + every)
        if self._granted - received <= self.job.load.prefetch // 2:
            self.output += self._grant(received)

    def _accept(self, upto: int) -> None:
        first = self._first_id + self._accepted
        self.output += encode_accepted(0, True, first, self._first_id + upto - 1, True)
        self._accepted = upto

    def finish(self) -> None:
        if self._accepted < self.ledger.count:
            self._accept(self.ledger.count)
        super().finish()
        self.wire.rest = bytes(self.buffer[: self.end])
        self._session.say(Close().encode())
        self._session.expect(Close)
        self.wire.close()


def _queue(job: Job) -> str:
    return job.load.queue_names()[0]


@final
class Amqp10Driver(FamilyDriver):
    """The queue is made over AMQP 0-9-1, which the brokers that are measured speak on the same port."""

    def prepare(self, endpoint: Endpoint, load: Load) -> None:
        amqp_session.prepare(endpoint, load)

    def clear(self, endpoint: Endpoint, load: Load) -> None:
        amqp_session.clear(endpoint, load)

    def depth(self, endpoint: Endpoint, load: Load) -> int | None:
        return amqp_session.depth(endpoint, load)

    def publisher(self, job: Job, number: int, counters: Counters) -> Publisher:
        return Amqp10Publisher(job, number, counters)

    def consumer(self, job: Job, number: int) -> Consumer:
        return Amqp10Consumer(job, number)

    def idle(self, endpoint: Endpoint, number: int) -> Wire:
        return Amqp10Session(endpoint).wire

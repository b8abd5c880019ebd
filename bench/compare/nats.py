"""NATS JetStream under load, as a peer of durable queues: acknowledged publishes, explicit acks. Other brokers: no."""

import json
import os
import re
from collections import Counter
from typing import Any, Final, final

from bench.compare.consumer import Consumer, Found
from bench.compare.counters import Counters
from bench.compare.family import FamilyDriver
from bench.compare.load import PREFIX, Endpoint, Job, Load, Unsupported, Wrong
from bench.compare.payload import HEAD_BYTES, MAGIC, Piece
from bench.compare.publisher import Publisher, now_us
from bench.compare.shape import APPLICATION, CONTENT_TYPE, Sample
from bench.compare.wire import Wire

_SUBJECT: Final = f"{PREFIX}.t"
_OPTIONS: Final = b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nPING\r\n'
_PING: Final = b"PING\r\n"
_PONG: Final = b"PONG\r\n"
_CONFIRM: Final = b'"seq":'


@final
class NatsSession:
    """A connection that can ask JetStream's API."""

    __slots__ = ("inbox", "version", "wire")

    def __init__(self, endpoint: Endpoint, client: str) -> None:
        self.wire = Wire(endpoint)
        self.version = str(json.loads(self.wire.until(b"\r\n").removeprefix(b"INFO "))["version"])
        self.inbox = f"_INBOX.{PREFIX}.{os.getpid()}.{client}"
        self.wire.send(_OPTIONS)
        self.wire.until(b"PONG\r\n")
        self.wire.send(f"SUB {self.inbox} 1\r\n".encode())

    def ask(self, what: str, body: dict[str, object] | None = None) -> dict[str, Any]:
        """Return the API's answer. Raises Unsupported for an error."""
        self.wire.send(_published(f"$JS.API.{what}", self.inbox, json.dumps(body).encode() if body else b""))
        line = self.wire.until(b"\r\n")
        answer: dict[str, Any] = json.loads(self.wire.exactly(int(line.split()[-1]) + 2))
        if "error" in answer:
            raise Unsupported(f"JetStream refuses {what}: {answer['error'].get('description')}")
        return answer


def _published(subject: str, reply: str, body: bytes) -> bytes:
    return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + b"\r\n"


@final
class NatsPublisher(Publisher):
    """Every publish is acknowledged by the stream."""

    def __init__(self, job: Job, number: int, counters: Counters) -> None:
        session = NatsSession(job.endpoint, f"p{number}")
        self._inbox = session.inbox
        super().__init__(session.wire, job, number, counters)

    def encode(self, body: bytes, route: int, sample: Sample | None = None) -> bytes:
        keys = self.job.load.routing_keys()
        subject = f"{_SUBJECT}.{keys[route]}" if keys else _SUBJECT
        if sample is None:
            return _published(subject, self._inbox, body)
        head = self._head(sample)
        line = f"HPUB {subject} {self._inbox} {len(head)} {len(head) + len(body)}\r\n"
        return line.encode() + head + body + b"\r\n"

    def _head(self, sample: Sample) -> bytes:
        lines = ["NATS/1.0", f"message-id: {sample.message_id}", f"timestamp: {sample.timestamp}"]
        if self.job.load.shape == "mixed":
            lines += [f"correlation-id: {sample.correlation_id}", f"traceparent: {sample.trace}"]
            lines += [f"tenant: {sample.tenant}", f"attempt: {sample.attempt}", f"app-id: {APPLICATION}"]
            lines += [f"content-type: {CONTENT_TYPE}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def filled(self, piece: Piece) -> None:
        """Publishes carry no numbers: acknowledgements are counted."""

    def read(self) -> None:
        data = self.wire.take()
        whole = data.rfind(b"\r\n") + 2 if data else 0
        if whole < 2:
            self.wire.rest = data or self.wire.rest
            return
        if b'"error"' in data:
            raise Wrong(f"JetStream refuses a message: {data[:200]!r}")
        self.answers += _PONG * data.count(_PING, 0, whole)
        self.confirmed += data.count(_CONFIRM, 0, whole)
        self.wire.rest = data[whole:]
        self.note_confirmed()


@final
class NatsConsumer(Consumer):
    """Pushed to by a consumer of its own. Deliveries have headers of different lengths: found one by one."""

    def __init__(self, job: Job, number: int) -> None:
        self._session = NatsSession(job.endpoint, f"c{number}")
        super().__init__(self._session.wire, job, number)
        filler = rb"x{%d}" % (job.load.size - HEAD_BYTES)
        self._delivery = re.compile(
            rb"MSG \S+ 2 (\S+) %d\r\n%s(.{8})(.{6})%s\r\n" % (job.load.size, re.escape(MAGIC), filler), re.DOTALL
        )
        self._other = re.compile(rb"MSG \S+ 1 (\d+)\r\n")
        self._headed = re.compile(rb"HMSG \S+ 2 (\S+) (\d+) (\d+)\r\n")
        self._replies: list[bytes] = []

    def subscribe(self) -> None:
        inbox = self._session.inbox + ".d"
        policy = "explicit" if self.job.load.ack_every else "none"
        consumer: dict[str, object] = {"deliver_subject": inbox, "deliver_policy": "all", "ack_policy": policy}
        if self.job.load.ack_every:
            consumer["max_ack_pending"] = self.job.load.prefetch
        self.wire.send(f"SUB {inbox} 2\r\n".encode())
        body = json.dumps({"stream_name": PREFIX, "config": consumer}).encode()
        self.wire.send(_published(f"$JS.API.CONSUMER.CREATE.{PREFIX}", self._session.inbox, body))

    def single(self, at: int) -> Found | None:
        done = self._pinged(at)
        if done == at:
            done = self._answered(at)
        if done != at:
            return Found(done)
        found = self._headed.match(self.buffer, at, self.end)
        if found is None:
            self._check_rest(at, 0)
            return None
        body, end = found.end() + int(found[2]), found.end() + int(found[3])
        if self.end < end + 2:
            return None
        self._replies.append(found[1])
        return Found(end + 2, body, end)

    def answer(self, count: int) -> None:
        if self.job.load.ack_every:
            self.output += b"".join([b"PUB %s 4\r\n+ACK\r\n" % reply for reply in self._replies])
        self._replies.clear()

    def digest_alike(self) -> int:
        now, done = now_us(), self._answered(0)
        keys, times, replies = bytearray(), Counter[bytes](), self._replies
        done = self._pinged(done)
        while found := self._delivery.match(self.buffer, done, self.end):
            done = self._pinged(found.end())
            reply, key, sent = found.groups()
            keys += key
            times[sent] += 1
            replies.append(reply)
        self._check_rest(done, self.job.load.size)
        if replies:
            self.ledger.add(keys)
            self.last_us = now
            self.enter_times(times, now)
            self.answer(len(replies))
        return done

    def _pinged(self, at: int) -> int:
        """The server asks now and then whether the client is there; returns where that ends."""
        if self.buffer[at : at + len(_PING)] != _PING or self.end - at < len(_PING):
            return at
        self.output += _PONG
        return at + len(_PING)

    def _answered(self, at: int) -> int:
        """The answer to the subscription comes first; returns where it ends. Raises Unsupported when it is an error."""
        found = self._other.match(self.buffer, at, self.end)
        if found is None or self.end < found.end() + int(found[1]) + 2:
            return at
        answer = json.loads(self.buffer[found.end() : found.end() + int(found[1])])
        if "error" in answer:
            raise Unsupported(f"JetStream refuses the consumer: {answer['error'].get('description')}")
        return found.end() + int(found[1]) + 2

    def _check_rest(self, done: int, body_bytes: int) -> None:
        """The rest must be a part of a delivery, not a damaged one."""
        if self.end - done > body_bytes + 256:  # the longest header that JetStream writes is shorter
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")


@final
class NatsDriver(FamilyDriver):
    """One stream in files with one subject. Consuming removes nothing from it, so there is no depth to check."""

    def prepare(self, endpoint: Endpoint, load: Load) -> None:
        self.clear(endpoint, load)
        session = NatsSession(endpoint, "prepare")
        stream: dict[str, object] = {
            "name": PREFIX,
            "subjects": [_SUBJECT, f"{_SUBJECT}.>"],
            "storage": "file",
            "num_replicas": 1,
        }
        session.ask(f"STREAM.CREATE.{PREFIX}", stream)
        session.wire.close()

    def clear(self, endpoint: Endpoint, load: Load) -> None:
        session = NatsSession(endpoint, "clear")
        if PREFIX in (session.ask("STREAM.NAMES").get("streams") or []):
            session.ask(f"STREAM.DELETE.{PREFIX}")
        session.wire.close()

    def depth(self, endpoint: Endpoint, load: Load) -> int | None:
        return None

    def publisher(self, job: Job, number: int, counters: Counters) -> Publisher:
        return NatsPublisher(job, number, counters)

    def consumer(self, job: Job, number: int) -> Consumer:
        return NatsConsumer(job, number)

    def idle(self, endpoint: Endpoint, number: int) -> Wire:
        return NatsSession(endpoint, f"i{number}").wire

"""Libraries that applications use, as publishers and consumers: pika, aio-pika, Celery. PerfTest is in perftest.py.

They publish what the generator publishes, number by number, and what comes back is checked in the same way, so a row
says what an application sees. Libraries are imported where they are used: each process needs one of them.
"""

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from bench.compare.counters import Counters
from bench.compare.histogram import Histogram
from bench.compare.ledger import Ledger
from bench.compare.load import Endpoint, Job, Unsupported, Wrong
from bench.compare.payload import HEAD_BYTES, SEQUENCE_AT, TIME_AT
from bench.compare.processes import own_cpu_seconds
from bench.compare.publisher import now_us
from bench.compare.shape import APPLICATION, CONTENT_TYPE, MARK, Sample, samples

if TYPE_CHECKING:
    from aio_pika.abc import AbstractIncomingMessage, AbstractRobustChannel

_POLL_SECONDS: Final = 0.02
_TASK: Final = "bench.task"
Words = dict[str, Any]
Ready = Callable[[], float]
"""Says that everything is connected, waits for the word to go, and returns the processor time spent until then."""


def _url(endpoint: Endpoint) -> str:
    vhost = endpoint.vhost.replace("/", "%2F")
    login = f"{endpoint.user or 'guest'}:{endpoint.password or 'guest'}"
    return f"amqp://{login}@{endpoint.host}:{endpoint.port}/{vhost}"


class _Sending:
    """One publisher's messages, number by number, and what became of them."""

    def __init__(self, job: Job, counters: Counters) -> None:
        self.job = job
        self.counters = counters
        self.queue = job.load.queue_names()[0]
        self.sent = self.confirmed = self.refused = 0
        self.latency = Histogram()
        self._first = job.firsts[0] if job.firsts else 0
        self._ring: Sequence[Sample] = samples(job.load.shape, job.load.size, 0, 1)
        self._deadline_us = 0

    def start(self) -> None:
        self._deadline_us = now_us() + int(self.job.seconds * 1e6)

    def may_go_on(self) -> bool:
        """Wait while consumers are too far behind; True if there is time left, or a number of messages to reach."""
        counters = self.counters
        while counters.published - counters.received >= self.job.load.ahead and not counters.is_failed:
            time.sleep(0.001)
        limit = self.job.step.messages
        return self.sent < limit if limit else now_us() < self._deadline_us

    def next(self) -> tuple[int, Sample, bytes]:
        """The next number, and the message with it and the time."""
        number = self._first + self.sent
        sample = self._ring[self.sent % len(self._ring)]
        body = bytearray(sample.body(0))
        body[SEQUENCE_AT : SEQUENCE_AT + 6] = number.to_bytes(6, "little")
        body[TIME_AT:HEAD_BYTES] = now_us().to_bytes(6, "little")
        self.sent += 1
        self.counters.add_published(1)
        return number, sample, bytes(body)

    def next_number(self) -> int:
        """The next number alone, for what carries no body of ours."""
        self.sent += 1
        self.counters.add_published(1)
        return self._first + self.sent - 1

    def note(self, sent_us: int, is_taken: bool) -> None:
        self.confirmed += is_taken
        self.refused += not is_taken
        self.latency.add(now_us() - sent_us)

    def words(self, spent: float) -> Words:
        return {
            "cpu_seconds": spent,
            "ended_us": now_us(),
            "sent_per_lane": [self.sent],
            "sent": self.sent,
            "confirmed": self.confirmed,
            "refused": self.refused,
            "latency": {str(number): count for number, count in self.latency.bins.items()},
        }


class _Receiving:
    """Orders of one consumer."""

    def __init__(self, job: Job, counters: Counters) -> None:
        self.job = job
        self.counters = counters
        self.queue = job.load.queue_names()[0]
        self.ledger = Ledger(True, job.taken)
        self.latency = Histogram()
        self.last_us = 0
        self._ring: Sequence[Sample] = samples(job.load.shape, job.load.size, 0, 1)
        self._taken = job.taken[0] if job.taken else 0

    def take(self, body: bytes, message_id: str | None, trace: object) -> None:
        """Raises Wrong for a body that was not sent."""
        number = int.from_bytes(body[SEQUENCE_AT : SEQUENCE_AT + 6], "little")
        sample = self._ring[(number - self._taken) % len(self._ring)]
        if body[HEAD_BYTES:] != sample.tail:
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        if message_id != _numbered(sample.message_id, number) or trace != sample.trace:
            self.ledger.stripped += 1
        self.enter(number, int.from_bytes(body[TIME_AT:HEAD_BYTES], "little"))

    def enter(self, number: int, sent_us: int) -> None:
        self.ledger.add(number.to_bytes(8, "little"))
        self.last_us = now_us()
        self.latency.add(self.last_us - sent_us)
        self.counters.set_received(self.ledger.count, self.ledger.count)

    def words(self, spent: float) -> Words:
        return {
            "cpu_seconds": spent,
            "ended_us": self.last_us,
            "counts": [self.ledger.count],
            "totals": [str(self.ledger.total)],
            "complaints": [words for words in [self.ledger.complaint()] if words],
            "latency": {str(number): count for number, count in self.latency.bins.items()},
            "stripped": self.ledger.stripped,
        }


def _numbered(text: str, number: int) -> str:
    return text.replace(MARK, f"{number:012x}")


class Library(ABC):
    """A client library, on both sides."""

    @abstractmethod
    def publish(self, sending: _Sending, ready: Ready) -> float:
        """Publish and have everything confirmed; returns the processor time that it took."""

    @abstractmethod
    def consume(self, receiving: _Receiving, ready: Ready) -> float:
        """Consume and acknowledge until it is over; returns the processor time that it took."""


@final
class Pika(Library):
    """BlockingConnection, as most code has it: each publish returns with its confirm."""

    def publish(self, sending: _Sending, ready: Ready) -> float:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(_url(sending.job.endpoint)))
        channel = connection.channel()
        channel.confirm_delivery()
        cpu = ready()
        sending.start()
        while sending.may_go_on():
            number, sample, body = sending.next()
            properties = pika.BasicProperties(
                content_type=CONTENT_TYPE,
                headers={"traceparent": sample.trace, "tenant": sample.tenant, "attempt": sample.attempt},
                delivery_mode=2,
                correlation_id=_numbered(sample.correlation_id, number),
                message_id=_numbered(sample.message_id, number),
                timestamp=sample.timestamp,
                app_id=APPLICATION,
            )
            started = now_us()
            channel.basic_publish("", sending.queue, body, properties)  # raises when it is refused
            sending.note(started, True)
        spent = own_cpu_seconds() - cpu
        connection.close()
        return spent

    def consume(self, receiving: _Receiving, ready: Ready) -> float:
        import pika

        def on_message(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            receiving.ledger.redelivered += method.redelivered
            receiving.take(body, properties.message_id, (properties.headers or {}).get("traceparent"))
            channel.basic_ack(method.delivery_tag)

        connection = pika.BlockingConnection(pika.URLParameters(_url(receiving.job.endpoint)))
        channel = connection.channel()
        channel.basic_qos(prefetch_count=receiving.job.load.prefetch)
        channel.basic_consume(receiving.queue, on_message)
        cpu = ready()
        while not receiving.counters.is_stopped:
            connection.process_data_events(_POLL_SECONDS)
        spent = own_cpu_seconds() - cpu
        connection.close()
        return spent


@final
class AioPika(Library):
    """`window` publishes are awaited together, then the next."""

    def publish(self, sending: _Sending, ready: Ready) -> float:
        return asyncio.run(self._publish(sending, ready))

    async def _publish(self, sending: _Sending, ready: Ready) -> float:
        import aio_pika

        connection = await aio_pika.connect_robust(_url(sending.job.endpoint))
        channel = await connection.channel(publisher_confirms=True)
        cpu = ready()
        sending.start()
        while sending.may_go_on():
            await asyncio.gather(*[self._one(channel, sending) for _ in range(sending.job.load.window)])
        spent = own_cpu_seconds() - cpu
        await connection.close()
        return spent

    async def _one(self, channel: "AbstractRobustChannel", sending: _Sending) -> None:
        import aio_pika

        number, sample, body = sending.next()
        message = aio_pika.Message(
            body,
            content_type=CONTENT_TYPE,
            headers={"traceparent": sample.trace, "tenant": sample.tenant, "attempt": sample.attempt},
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            correlation_id=_numbered(sample.correlation_id, number),
            message_id=_numbered(sample.message_id, number),
            timestamp=sample.timestamp,
            app_id=APPLICATION,
        )
        started = now_us()
        await channel.default_exchange.publish(message, sending.queue)  # raises when it is refused
        sending.note(started, True)

    def consume(self, receiving: _Receiving, ready: Ready) -> float:
        return asyncio.run(self._consume(receiving, ready))

    async def _consume(self, receiving: _Receiving, ready: Ready) -> float:
        import aio_pika

        async def on_message(message: "AbstractIncomingMessage") -> None:
            receiving.ledger.redelivered += bool(message.redelivered)
            receiving.take(message.body, message.message_id, message.headers.get("traceparent"))
            await message.ack()

        connection = await aio_pika.connect_robust(_url(receiving.job.endpoint))
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=receiving.job.load.prefetch)
        queue = await channel.get_queue(receiving.queue, ensure=False)
        tag = await queue.consume(on_message)
        cpu = ready()
        while not receiving.counters.is_stopped:
            await asyncio.sleep(_POLL_SECONDS)
        spent = own_cpu_seconds() - cpu
        await queue.cancel(tag)
        await connection.close()
        return spent


@final
class Celery(Library):
    """Tasks with a number and the time as arguments; one worker that runs them itself; results off."""

    def _app(self, job: Job) -> Any:
        from celery import Celery as Application

        name = job.load.queue_names()[0]
        app = Application(_TASK, broker=_url(job.endpoint))
        app.conf.update(
            task_ignore_result=True,
            task_default_queue=name,
            task_default_exchange="",
            task_default_routing_key=name,
            broker_transport_options={"confirm_publish": True},
            worker_enable_remote_control=False,
            worker_hijack_root_logger=False,
            worker_redirect_stdouts=False,
            broker_connection_retry_on_startup=False,
        )
        return app

    def publish(self, sending: _Sending, ready: Ready) -> float:
        app = self._app(sending.job)
        with app.connection_for_write() as connection, app.amqp.Producer(connection.channel()) as producer:
            cpu = ready()
            sending.start()
            while sending.may_go_on():
                number, started = sending.next_number(), now_us()
                app.send_task(_TASK, (number, started), producer=producer)
                sending.note(started, True)
            return own_cpu_seconds() - cpu

    def consume(self, receiving: _Receiving, ready: Ready) -> float:
        import threading

        from celery.signals import worker_ready
        from celery.worker import state

        app = self._app(receiving.job)
        app.task(name=_TASK)(receiving.enter)
        cpu: list[float] = []

        def stop_later() -> None:
            cpu.append(ready())
            while not receiving.counters.is_stopped:
                time.sleep(_POLL_SECONDS)
            cpu.append(own_cpu_seconds())
            state.should_stop = 0

        watching = threading.Thread(target=stop_later)
        worker_ready.connect(lambda **_: watching.start(), weak=False)
        worker = app.Worker(pool="solo", without_mingle=True, without_gossip=True, loglevel="ERROR", quiet=True)
        with contextlib.suppress(SystemExit):
            worker.start()
        watching.join()
        return cpu[1] - cpu[0]


_LIBRARIES: Final[dict[str, tuple[str, type[Library]]]] = {
    "pika": ("pika", Pika),
    "aio-pika": ("aio_pika", AioPika),
    "celery": ("celery", Celery),
}


def run(role: str, job: Job, counters: Counters, ready: Ready) -> Words:
    """Publish or consume with the library that the load names. Raises Unsupported where it is not installed."""
    from importlib.util import find_spec

    module, kind = _LIBRARIES[job.load.client]
    if find_spec(module) is None:
        raise Unsupported(f"{job.load.client} is not installed here")
    library = kind()
    if role == "publish":
        sending = _Sending(job, counters)
        return sending.words(library.publish(sending, ready))
    receiving = _Receiving(job, counters)
    return receiving.words(library.consume(receiving, ready))

"""Clients of every protocol that do all at once what a broker answers, and note each answer in a ledger. No tests."""

import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable

from proton.reactor import Container

from tests.crash.jobs import amqp091, amqp10, coap, http, mqtt, stomp, streams
from tests.crash.jobs.job import SECONDS, Job, Opened, channel_of, declare, payload_of
from tests.crash.ledger import Ledger, Life
from tests.servers import Server

_JOBS: list[Job] = [
    amqp091.confirming,
    amqp091.transacting,
    amqp091.declaring,
    amqp091.rejecting,
    amqp10.accepting,
    amqp10.settling_second,
    amqp10.subscribing,
    mqtt.retaining,
    mqtt.assuring,
    mqtt.subscribing,
    mqtt.settling,
    mqtt.committing,
    stomp.sending,
    stomp.subscribing,
    streams.numbering,
    streams.declaring,
    coap.publishing,
    http.administering,
    http.governing,
    http.getting,
    http.loading,
    http.burying,
]


class Crowd:
    """All clients, each with a connection, a thread and queues of its own."""

    def __init__(self, server: Server, ledger: Ledger, seed: int) -> None:
        self.ledger = ledger
        self._server = server
        self._seed = seed
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._errors: list[BaseException] = []
        self._done: dict[str, int] = {}
        """How often each client got through what it does."""

    def run(self, seconds: float, least: int) -> None:
        """Keep the broker busy for so long, and until each client got through so often."""
        threads = [
            threading.Thread(target=self._work, args=(job, number), daemon=True) for number, job in enumerate(_JOBS)
        ]
        threads.append(threading.Thread(target=self._discharge, daemon=True))
        for thread in threads:
            thread.start()
        with Opened() as opened:
            settle = _settling(self.ledger, self._server, random.Random(self._seed), opened)
            started = time.monotonic()
            count = 0
            while (
                time.monotonic() < started + seconds
                or len(self._done) < len(threads)
                or min(self._done.values()) < least
            ):
                assert time.monotonic() < started + SECONDS, self._done
                if self._errors:
                    break
                settle(count, self._go)
                count += 1
                time.sleep(0.4)
        self._stop.set()
        for thread in threads:
            thread.join(SECONDS)
        if self._errors:
            raise self._errors[0]

    def _work(self, job: Job, number: int) -> None:
        try:
            chance = random.Random(self._seed * 100 + number)
            with contextlib.ExitStack() as opened:
                step = job(self.ledger, self._server, chance, opened)
                for count in itertools.count():
                    self._go.wait()
                    if self._stop.is_set():
                        return
                    step(count)
                    self._done[f"{job.__module__}.{job.__name__}"] = count
        except BaseException as error:
            self._errors.append(error)

    def _discharge(self) -> None:
        try:
            with Opened() as opened:
                for queue in ("ten-a", "ten-b"):
                    declare(self.ledger, channel_of(self._server, opened), queue)
            chance = random.Random(self._seed * 100 + 99)
            url = f"127.0.0.1:{self._server.port}"
            Container(amqp10.Discharging(self.ledger, url, chance, self._stop, self._done)).run()
        except BaseException as error:
            self._errors.append(error)


def _settling(
    ledger: Ledger, server: Server, chance: random.Random, opened: Opened
) -> Callable[[int, threading.Event], None]:
    """Messages that go to segments and are settled while nobody else has anything synced: all may come again."""
    channel = channel_of(server, opened)
    declare(ledger, channel, "settled")

    def settle(count: int, go: threading.Event) -> None:
        lives: list[Life] = []
        for number in range(30):
            payload = payload_of(chance, count * 100 + number) + bytes(700)
            with ledger.publishing(payload, "settled"):
                channel.basic_publish("", "settled", payload)
            lives.append(ledger.queues["settled"][-1])
        go.clear()
        try:
            time.sleep(0.03)  # for those that are on their way
            for life in lives:
                method, _, _ = channel.basic_get("settled")
                life.leaving_ns = time.monotonic_ns()
                if method is not None:
                    channel.basic_ack(method.delivery_tag)
            time.sleep(0.1)
        finally:
            go.set()

    return settle

"""One process of the load generator: `python -m bench.compare.worker publish|consume`, a job on stdin, JSON on stdout.

It says `{"ready": true}` once everything is connected, waits for the word to go, and says at the end what it did. It
sleeps a little after each turn, so that it deals with many messages at a time and leaves the processor to the broker.
"""

import json
import pickle
import select
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, final

from bench.compare import clients
from bench.compare.consumer import Consumer
from bench.compare.counters import Counters
from bench.compare.families import driver_of
from bench.compare.histogram import Histogram
from bench.compare.load import Job, Unsupported
from bench.compare.processes import allow_many_files, own_cpu_seconds
from bench.compare.publisher import Publisher, now_us

_COALESCE_SECONDS: Final = 0.001
_PACED_SECONDS: Final = 0.0005
_POLL_SECONDS: Final = 0.02
_EXACT_US: Final = 2000
"""Below this, waiting is sleeping: epoll rounds up to milliseconds."""


@final
class _Poll:
    """Connections with something to read; they are also woken when they may write again."""

    def __init__(self, members: Sequence[Publisher | Consumer]) -> None:
        self._epoll = select.epoll()
        self._members = {member.wire.fileno(): member for member in members}
        self._masks = dict.fromkeys(self._members, select.EPOLLIN)
        for number in self._members:
            self._epoll.register(number, select.EPOLLIN)

    def read(self, wait_seconds: float) -> bool:
        """Have those read that can; whether there were any."""
        events = self._epoll.poll(wait_seconds)
        for number, mask in events:
            if mask & ~select.EPOLLOUT:
                self._members[number].read()
        return bool(events)

    def watch(self, member: Publisher | Consumer, has_output: bool) -> None:
        number = member.wire.fileno()
        mask = select.EPOLLIN | (select.EPOLLOUT if has_output else 0)
        if mask != self._masks[number]:
            self._epoll.modify(number, mask)
            self._masks[number] = mask


def _publish(job: Job, counters: Counters) -> dict[str, Any]:
    driver = driver_of(job.load.family)
    held = [driver.idle(job.endpoint, number) for number in range(job.load.idle)]
    publishers = [driver.publisher(job, number, counters) for number in range(job.load.publishers)]
    cpu = _wait_for_go(counters)
    for publisher in publishers:
        publisher.start()
    _publish_all(job, publishers, counters)
    ended = now_us()
    spent = own_cpu_seconds() - cpu
    for wire in held:
        wire.close()
    return {
        "cpu_seconds": spent,
        "ended_us": ended,
        "sent_per_lane": [publisher.sent_per_lane for publisher in publishers],
        "sent": sum(publisher.sent for publisher in publishers),
        "confirmed": sum(publisher.confirmed if publisher.is_confirmed else publisher.sent for publisher in publishers),
        "refused": sum(publisher.refused for publisher in publishers),
        "latency": _merged(publisher.latency for publisher in publishers),
    }


def _publish_all(job: Job, publishers: Sequence[Publisher], counters: Counters) -> None:
    poll, live, wait_us = _Poll(publishers), list(publishers), 0
    while live and not counters.is_failed:
        if 0 < wait_us < _EXACT_US:
            time.sleep(wait_us / 1e6)
            wait_us = 0
        if poll.read(wait_us / 1e6) and job.load.naps and not job.load.rate:
            time.sleep(_COALESCE_SECONDS)
            poll.read(0)
        wait_us = 1_000_000
        for publisher in live:
            wait_us = min(wait_us, publisher.pump())
            poll.watch(publisher, publisher.has_output)
        live = [publisher for publisher in live if not publisher.is_done]


def _consume(job: Job, counters: Counters) -> dict[str, Any]:
    driver = driver_of(job.load.family)
    consumers = [driver.consumer(job, number) for number in range(job.load.consumers)]
    if job.step.mode == "flow":
        for consumer in consumers:
            consumer.begin()
    cpu = _wait_for_go(counters)
    if job.step.mode != "flow":
        for consumer in consumers:
            consumer.begin()
    _consume_all(job, consumers, counters)
    spent = own_cpu_seconds() - cpu
    for consumer in consumers:
        consumer.finish()
    return {
        "cpu_seconds": spent,
        "ended_us": max(consumer.last_us for consumer in consumers),
        "counts": [consumer.ledger.count for consumer in consumers],
        "totals": [str(consumer.ledger.total) for consumer in consumers],
        "complaints": [words for consumer in consumers if (words := consumer.ledger.complaint())],
        "latency": _merged(consumer.latency for consumer in consumers),
        "stripped": sum(consumer.ledger.stripped for consumer in consumers),
    }


def _consume_all(job: Job, consumers: Sequence[Consumer], counters: Counters) -> None:
    poll = _Poll(consumers)
    while not counters.is_stopped:
        if job.step.is_paced and counters.received >= counters.published:
            time.sleep(_PACED_SECONDS)
            continue
        poll.read(_POLL_SECONDS)
        for consumer in consumers:
            if consumer.output:
                consumer.flush()
            poll.watch(consumer, bool(consumer.output))
        counts = [consumer.ledger.count for consumer in consumers]
        counters.set_received(sum(counts), min(counts))
        if job.load.naps and not job.load.rate:
            time.sleep(_COALESCE_SECONDS)


def _wait_for_go(counters: Counters) -> float:
    """Returns the processor time that was spent until then."""
    _say({"ready": True})
    while not counters.has_started:
        time.sleep(0.001)
    return own_cpu_seconds()


def _merged(histograms: Iterable[Histogram]) -> dict[str, int]:
    all_of_them = Histogram()
    for histogram in histograms:
        all_of_them.merge(histogram)
    return {str(number): count for number, count in all_of_them.bins.items()}


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    """Do one job; what goes wrong is said like everything else."""
    job: Job = pickle.load(sys.stdin.buffer)  # written by the process that started this one
    allow_many_files()
    try:
        counters = Counters(Path(job.counters))
        role = sys.argv[1]
        if job.load.client:
            _say(clients.run(role, job, counters, partial(_wait_for_go, counters)))
        else:
            _say((_publish if role == "publish" else _consume)(job, counters))
    except Unsupported as error:
        _say({"unsupported": str(error)})
    except Exception as error:  # the process ends here, whatever it was
        _say({"failed": f"{type(error).__name__}: {error}" if not str(error) else str(error)})


if __name__ == "__main__":
    main()

"""Times of a queue's due work; nothing is kept for queues that are gone."""

import gc
from collections import deque
from pathlib import Path

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.group import NACK
from headrace.core.queue.queue import Queue
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.log import LocalLog
from tests.house import House

_MANY = 500


def _alive(kind: type) -> int:
    gc.collect()
    return sum([isinstance(found, kind) for found in gc.get_objects()])


def test_queues_that_are_gone_leave_nothing_behind_though_a_claim_in_them_had_time_left(tmp_path: Path) -> None:
    house = House(LocalEngine(tmp_path / "data"))
    before = _alive(Queue), _alive(LocalLog)
    for number in range(_MANY):
        house.broker.declare(QueueDefinition(f"q{number}"))
        inbox = house.consume(f"q{number}")
        house.publish(f"q{number}", "x")
        house.run()
        assert inbox.texts() == ["x"]
        house.broker.delete(f"q{number}")
        house.run()

    assert house.clock.now_us() == House().clock.now_us()  # no time has passed
    assert _alive(Queue) - before[0] < _MANY // 4
    assert _alive(LocalLog) - before[1] < _MANY // 4
    house.engine.close()


def test_a_queue_that_is_woken_often_is_woken_for_what_is_due_last_and_once() -> None:
    house = House()
    house.broker.declare(QueueDefinition("q", lease_ms=600_000, retry=Retry(1000, 1000, 1000, 1)))
    house.publish("q", "held", "tried again")
    inbox = house.consume("q")
    house.run()
    _, tried = inbox.take()
    for _ in range(300):
        house.broker.settle(tried, NACK)
        house.run()
        house.advance(1)
        (tried,) = inbox.take()
        assert tried.message.payload == b"tried again"
    queue = house.broker.straight_to("", "q")
    assert queue is not None
    times = [entry for entry in gc.get_referrers(queue) if isinstance(entry, tuple)]
    assert len(times) < 200
    house.broker.settle(tried)
    house.run()
    house.advance(299)
    assert inbox.texts() == []

    house.advance(2)

    assert inbox.texts() == ["held"]


def test_a_queue_that_is_gone_keeps_neither_its_owner_nor_its_messages_for_those_who_remember_it() -> None:
    house = House()
    house.owner = _Owner()
    house.broker.declare(QueueDefinition("replies", durable=False, exclusive=True), house.owner)
    house.publish("replies", "x", "y")
    house.run()
    remembered = house.broker.straight_to("", "replies")
    assert remembered is not None
    message = remembered.message(0)
    house.broker.release_owner(house.owner)
    house.run()
    house.owner = None

    assert (remembered.deleted, _alive(_Owner)) == (True, 0)
    assert [found for found in gc.get_referrers(message) if isinstance(found, list | deque)] == []


class _Owner:
    """A connection."""

"""The logs of queues that are not durable: what they hold counts, and nothing is kept that was stored."""

from headrace.core.batch import Batch
from headrace.core.pipeline import MemoryLogs
from headrace.core.queue.definition import declared
from headrace.core.queue.queue import Queue
from tests.house import House


def stored(house: House, logs: MemoryLogs, name: str, *payloads: str) -> Queue:
    """A queue of these logs with these messages."""
    queue = house.broker.declare(declared(name))
    queue.log = logs.engine.log(queue.log.name)
    batch = Batch()
    for payload in payloads:
        batch.append_published(queue, house.message(payload, name))
    (appends,) = logs.store(batch)
    assert [append.count for append in appends.appends] == [len(payloads)]
    assert (batch.is_empty, batch.size_bytes) == (True, 0)
    return queue


def test_what_queues_hold_counts_until_they_are_gone(house: House) -> None:
    logs = MemoryLogs()
    one = stored(house, logs, "one", "a", "bc")
    assert logs.size_bytes == 3
    stored(house, logs, "other", "defg")
    stored(house, logs, "one", "h")
    assert logs.size_bytes == 8

    logs.drop(one.log.name)
    logs.forget(one)

    assert logs.engine.logs() == ["other"]
    assert logs.size_bytes == 4


def test_nothing_waits_in_memory_after_it_was_stored(house: House) -> None:
    logs = MemoryLogs()

    stored(house, logs, "q", "a", "b")

    assert logs.engine.staged_bytes == 0

"""Messages that a log may drop: by number, size and age, and never one that is still needed."""

from headrace.clock import ManualClock
from headrace.core.queue.definition import STREAM, QueueDefinition, Retention
from headrace.core.queue.entry import RETENTION_US, is_over, truncation_point
from headrace.core.queue.group import ACK
from headrace.model import Message, Source
from headrace.storage.memory import MemoryLog
from tests.house import House
from tests.unit.core.conftest import World

SOURCE = Source("s")
SECOND = 1_000_000


def log_of(count: int, size: int = 10) -> MemoryLog:
    """Messages a second apart, from second 0 on."""
    log = MemoryLog("s", 1)
    log.append([Message(SOURCE, bytes(size), number * SECOND) for number in range(count)])
    return log


def test_without_bounds_nothing_may_go() -> None:
    assert truncation_point(log_of(10), Retention(), 10, 100 * SECOND) == 0
    assert not is_over(log_of(10), Retention())


def test_by_number_the_newest_are_kept() -> None:
    assert truncation_point(log_of(10), Retention(max_messages=3), 10, 0) == 7
    assert is_over(log_of(10), Retention(max_messages=9))
    assert not is_over(log_of(10), Retention(max_messages=10))


def test_by_size_about_as_many_go_as_are_too_large_together() -> None:
    assert truncation_point(log_of(10), Retention(max_bytes=40), 10, 0) == 6
    assert is_over(log_of(10), Retention(max_bytes=99))
    assert not is_over(log_of(10), Retention(max_bytes=100))


def test_what_is_gone_already_does_not_count() -> None:
    log = log_of(10)
    log.truncate(6)

    assert not is_over(log, Retention(max_messages=4))
    assert truncation_point(log, Retention(max_bytes=20), 10, 0) == 8


def test_of_an_age_a_moment_more_counts() -> None:
    assert truncation_point(log_of(1002), Retention(max_age_ms=1_000_000), 2000, 1001 * SECOND) == 1


def test_by_age_what_is_older_may_go() -> None:
    assert truncation_point(log_of(10), Retention(max_age_ms=4000), 10, 9 * SECOND) == 5


def test_the_strictest_bound_decides() -> None:
    retention = Retention(max_age_ms=4000, max_bytes=90, max_messages=2)

    assert truncation_point(log_of(10), retention, 10, 9 * SECOND) == 8


def test_what_is_still_needed_stays_whatever_the_bounds_say() -> None:
    assert truncation_point(log_of(10), Retention(max_messages=1), 4, 0) == 4


def test_an_empty_log_has_nothing_to_drop() -> None:
    assert truncation_point(log_of(0), Retention(1, 1, 1), 0, SECOND) == 0


def test_a_stream_that_is_too_long_drops_its_oldest_as_it_grows(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("events", STREAM, retention=Retention(max_messages=3)))

    house.publish("events", *"abcde")

    queue = house.broker.queue("events")
    assert [message.payload for _, message in queue.browse(0, 10)] == [b"c", b"d", b"e"]


def test_a_stream_forgets_what_is_too_old_when_time_passes() -> None:
    house = House(clock=ManualClock())
    house.broker.declare(QueueDefinition("events", STREAM, retention=Retention(max_age_ms=60_000)))
    house.publish("events", "old")
    house.advance(270)
    house.publish("events", "new")

    house.advance(30)

    assert [message.payload for _, message in house.broker.queue("events").browse(0, 10)] == [b"new"]


def test_a_stream_keeps_what_a_work_group_on_it_still_needs(house: House) -> None:
    house.broker.declare(QueueDefinition("events", STREAM, retention=Retention(max_messages=1)))
    worker = house.consume("events", group="workers", mode=1, credit=1)

    house.publish("events", *"abc")

    assert [delivery.offset for delivery in worker.got] == [0]
    assert house.broker.queue("events").first_offset == 0


def test_what_is_not_archived_stays_whatever_the_bounds_say(world: World) -> None:
    house = world.house
    house.broker.declare(
        QueueDefinition("events", STREAM, retention=Retention(max_messages=2, keep_until_archived=True))
    )
    house.publish("events", *"abcdef")
    assert house.broker.queue("events").first_offset == 0  # no archive has said anything

    house.broker.groups.report("events", "archive", 3)
    house.run()
    assert house.broker.queue("events").first_offset == 3

    house = world.restart()
    house.publish("events", "g")
    assert house.broker.queue("events").first_offset == 3
    house.broker.groups.report("events", "archive", 7)
    house.run()
    assert house.broker.queue("events").first_offset == 5
    house.publish("events", "h")
    assert house.broker.queue("events").first_offset == 6


def test_an_archive_holds_nothing_up_unless_that_is_wanted(house: House) -> None:
    house.broker.declare(QueueDefinition("events", STREAM, retention=Retention(max_messages=2)))
    house.broker.groups.report("events", "archive", 0)
    house.publish("events", *"abcdef")

    assert house.broker.queue("events").first_offset == 4


def test_a_purge_leaves_nothing_in_storage(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.broker.cancel(house.consume("q").consumer)
    house.publish("q", *"abc")

    house.broker.purge("q")
    house.run()

    assert house.engine.log("q").first_offset == 3


def test_what_is_too_old_already_is_not_lost_to_new_bounds(house: House) -> None:
    house.broker.declare(QueueDefinition("s", STREAM, retention=Retention(max_age_ms=1000)))
    house.publish("s", *"abc")
    house.clock.advance(2)
    house.publish("s", *"de")

    loss = house.broker.administration.loss(QueueDefinition("s", STREAM, retention=Retention(max_messages=1)))

    assert loss == 1


def test_what_was_pushed_out_above_a_message_that_is_held_leaves_with_it(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_length=1))
    queue = house.broker.queue("q")
    inbox = house.consume("q", credit=1)
    house.publish("q", *"abcd")
    assert (queue.first_offset, queue.disposal.has_given_up) == (0, True)
    house.settle(ACK, inbox.got[0])

    assert (house.engine.log("q").first_offset, queue.disposal.has_given_up) == (3, False)


def test_a_queue_that_keeps_acknowledged_messages_drops_those_that_are_too_old(house: House) -> None:
    house.broker.declare(QueueDefinition("q", retention=Retention(max_age_ms=1000)))
    inbox = house.consume("q")
    house.publish("q", *"ab")
    house.settle(ACK, inbox.got[0])
    assert house.broker.queue("q").first_offset == 0

    house.advance(RETENTION_US / SECOND)

    assert house.broker.queue("q").first_offset == 1


def test_a_stream_keeps_messages_whose_own_time_is_over_though_something_else_is_due(house: House) -> None:
    house.broker.declare(QueueDefinition("s", STREAM))
    house.publish("s", "a", expires_us=house.clock.now_us() + SECOND)

    house.clock.advance(2)
    house.broker.cancel(house.consume("s").consumer)
    house.advance(0)

    assert house.broker.queue("s").first_offset == 0

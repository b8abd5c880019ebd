"""Counters of the broker."""

from headrace.core.flow import Histogram
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.group import ACK, NACK, REJECT, REJECTED
from tests.house import House


def test_a_duration_is_counted_at_the_first_bound_it_does_not_pass() -> None:
    histogram = Histogram((10, 100))

    for duration_us in (0, 10, 11, 100, 101):
        histogram.add(duration_us)

    assert histogram.counts == [2, 2, 1]
    assert (histogram.count, histogram.sum_us) == (5, 222)


def test_a_quantile_is_the_bound_that_so_many_are_below() -> None:
    histogram = Histogram((10, 100, 1000))
    assert histogram.quantile_us(0.5) == 0

    for duration_us in (5, 5, 50, 5000):
        histogram.add(duration_us)

    assert histogram.quantile_us(0.5) == 10
    assert histogram.quantile_us(0.75) == 100
    assert histogram.quantile_us(0.99) == 1000
    assert histogram.quantile_us(0.99, before=[0, 0, 0, 1]) == 100


def test_messages_are_counted_where_they_go_in_and_out(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    inbox = house.consume("jobs")
    house.publish("jobs", "one", "two", "three")
    one, two, three = inbox.take()

    house.settle(ACK, one)
    house.settle(NACK, two)
    house.settle(REJECT, three)

    statistics = house.broker.statistics
    group = house.broker.queue("jobs").groups["default"]
    assert (statistics.stored, statistics.delivered, statistics.redelivered) == (3, 4, 1)
    assert statistics.dead_letters == {REJECTED: 1}
    assert (group.delivered, group.redelivered, group.acknowledged) == (4, 1, 1)
    assert statistics.commits.count > 0


def test_what_is_purged_expired_or_filtered_is_not_acknowledged(house: House) -> None:
    house.broker.declare(declared("jobs", durable=True, arguments={"x-message-ttl": 1000}))
    house.consume("jobs", group="some", key_filter="other/#", credit=1)
    house.consume("jobs", credit=1)
    house.publish("$queue/jobs/a", "held", "expired")
    house.advance(2)
    house.publish("$queue/jobs/a", "purged")

    house.broker.purge("jobs")
    house.run()

    groups = house.broker.queue("jobs").groups
    assert [group.acknowledged for group in groups.values()] == [0, 0]
    assert [group.ready for group in groups.values()] == [0, 0]


def test_what_a_stream_group_read_again_counts_as_such(house: House) -> None:
    house.broker.declare(declared("events", durable=True, arguments={"x-queue-type": "stream"}))
    house.publish("events", "one", "two")
    inbox = house.consume("events", group="readers")
    inbox.take()
    house.broker.cancel(inbox.consumer)

    house.consume("events", group="readers")

    group = house.broker.queue("events").groups["readers"]
    assert (group.delivered, group.redelivered) == (4, 2)

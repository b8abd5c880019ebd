"""What a queue does when its time has come, and when it asks for the next call: neither too late nor all the time."""

import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition, Retention, declared
from headrace.core.queue.entry import RETENTION_US
from headrace.errors import Corrupt, HeadraceError, Unavailable
from headrace.wire.encodings import properties_of
from tests.house import House
from tests.unit.core.test_distant_storage import DistantEngine

_SECOND_US = 1_000_000


def next_call_us(house: House) -> int:
    """The time until the broker wants to be called, 0 for never."""
    due_us = house.broker.tick()
    house.run()
    return due_us - house.clock.now_us() if due_us else 0


def names(house: House) -> list[str]:
    return sorted(house.broker.topology.queues)


def test_queues_without_anything_due_ask_for_no_call(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.broker.declare(QueueDefinition("s", STREAM, retention=Retention(max_messages=5)))
    for name in ("q", "s"):
        inbox = house.consume(name)
        house.publish(name, "a")
        house.broker.cancel(inbox.consumer)
    house.advance(3600)  # as long as a consumer may hold a message

    assert next_call_us(house) == 0


def test_an_unused_queue_goes_in_the_moment_that_its_time_is_over(house: House) -> None:
    house.broker.declare(declared("q", arguments={"x-expires": 10_000}))
    house.run()

    assert next_call_us(house) == 10 * _SECOND_US
    house.advance(9.999999)
    assert names(house) == ["q"]
    assert next_call_us(house) == 1
    house.advance(0.000001)

    assert (names(house), next_call_us(house)) == ([], 0)


def test_a_queue_with_a_consumer_is_in_use_however_long_that_takes(house: House) -> None:
    house.broker.declare(declared("q", arguments={"x-expires": 10_000}))
    inbox = house.consume("q")
    house.advance(25)
    assert (names(house), next_call_us(house)) == (["q"], 0)

    house.broker.cancel(inbox.consumer)
    house.run()
    house.advance(9)
    assert (names(house), next_call_us(house)) == (["q"], _SECOND_US)
    house.advance(1)

    assert names(house) == []


def test_a_stream_looks_for_what_is_too_old_every_five_minutes_whatever_happens_meanwhile(house: House) -> None:
    house.broker.declare(QueueDefinition("s", STREAM, retention=Retention(max_age_ms=1000)))
    stream = house.broker.queue("s")
    house.publish("s", "a")
    house.advance(0)
    assert next_call_us(house) == RETENTION_US

    house.advance(200)
    house.broker.cancel(house.consume("s").consumer)  # the queue is called at once
    house.advance(0)
    house.advance(10)
    assert (stream.first_offset, next_call_us(house)) == (0, RETENTION_US - 210 * _SECOND_US)
    house.advance(RETENTION_US / _SECOND_US - 210)

    assert (stream.first_offset, next_call_us(house)) == (1, RETENTION_US)


@pytest.mark.parametrize("error", [Unavailable("the store does not answer"), Corrupt("a file", 1, "it is torn")])
def test_what_expires_while_it_cannot_be_read_is_tried_again_in_a_second_unless_it_is_damaged(
    error: HeadraceError,
) -> None:
    engine = DistantEngine()
    engine.error = error
    house = House(engine)
    house.broker.declare(QueueDefinition("q", message_ttl_ms=5000))
    queue = house.broker.queue("q")
    house.publish("q", "a")

    engine.is_away = True
    house.advance(5)
    is_damaged = isinstance(error, Corrupt)
    assert queue.refusal is (error if is_damaged else None)
    assert next_call_us(house) == (0 if is_damaged else _SECOND_US)
    engine.is_away = False
    house.advance(1)

    assert queue.messages == (1 if is_damaged else 0)


def test_a_message_goes_in_the_moment_that_its_time_is_over(house: House) -> None:
    house.broker.declare(QueueDefinition("q", message_ttl_ms=5000))
    house.publish("q", "a")

    house.advance(4.999999)
    assert house.broker.queue("q").messages == 1
    house.advance(0.000001)

    assert house.broker.queue("q").messages == 0


def test_a_message_that_nobody_got_died_without_a_delivery(house: House) -> None:
    for name, options in (("expired", {"message_ttl_ms": 1000}), ("pushed", {"max_length": 0})):
        house.broker.declare(QueueDefinition(name, dead_letter_queue=f"$dlq/{name}", **options))  # type: ignore[arg-type]
        house.publish(name, "a")
    house.advance(1)

    for name in ("expired", "pushed"):
        (letter,) = house.consume(f"$dlq/{name}").take()
        assert properties_of(letter.message).headers["_dlq_delivery_count"] == 0

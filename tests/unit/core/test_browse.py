"""Looking at messages without taking them, and moving them elsewhere: bounded, however long the queue is."""

import pytest

from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.group import ACK
from headrace.errors import NotFound, Refused
from headrace.wire.encodings import properties_of
from tests.house import House


def payloads(house: House, queue: str, offset: int = 0, limit: int = 100, max_bytes: int = 1 << 20) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(offset, limit, max_bytes)]


def test_browsing_steps_over_what_every_group_is_done_with(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    inbox = house.consume("jobs")
    house.publish("jobs", *[str(number) for number in range(600)])
    deliveries = inbox.take()

    house.settle(ACK, *deliveries[1:599])

    assert payloads(house, "jobs") == ["0", "599"]
    assert payloads(house, "jobs", offset=1) == ["599"]


def test_browsing_ends_at_its_bounds(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    house.publish("jobs", "x" * 10, "y" * 10, "z" * 10)

    assert len(payloads(house, "jobs", limit=2)) == 2
    assert len(payloads(house, "jobs", max_bytes=15)) in (1, 2)
    assert len(payloads(house, "jobs", max_bytes=1)) == 1


def test_messages_are_moved_in_order_and_as_they_are(house: House) -> None:
    house.broker.declare(QueueDefinition("from"))
    house.broker.declare(QueueDefinition("to"))
    house.publish("from", "one", "two", "three", headers={"h": 1})

    moved = house.broker.dead_letters.transfer("from", "to", limit=2)
    house.run()

    assert moved == 2
    assert payloads(house, "from") == ["three"]
    assert payloads(house, "to") == ["one", "two"]
    (_, message), *_ = house.broker.queue("to").browse(0, 1)
    assert properties_of(message).headers == {"h": 1}


def test_what_a_consumer_holds_is_not_moved(house: House) -> None:
    house.broker.declare(QueueDefinition("from"))
    house.broker.declare(QueueDefinition("to"))
    house.consume("from", credit=1)
    house.publish("from", "held", "waits")

    house.broker.dead_letters.transfer("from", "to")
    house.run()

    assert payloads(house, "from") == ["held"]
    assert payloads(house, "to") == ["waits"]


def test_messages_are_not_moved_from_a_stream_to_themselves_or_to_nowhere(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    house.broker.declare(declared("events", durable=True, arguments={"x-queue-type": "stream"}))

    with pytest.raises(Refused, match="a stream keeps what it has"):
        house.broker.dead_letters.transfer("events", "jobs")
    with pytest.raises(Refused, match="there already"):
        house.broker.dead_letters.transfer("jobs", "jobs")
    with pytest.raises(NotFound):
        house.broker.dead_letters.transfer("jobs", "nowhere")


def test_dead_letters_are_sent_back_from_an_offset_on(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs", dead_letter_queue="$dlq/jobs", message_ttl_ms=1000))
    house.publish("jobs", "one", "two", "three")
    house.advance(2)
    assert payloads(house, "$dlq/jobs") == ["one", "two", "three"]

    assert house.broker.dead_letters.redrive("jobs", limit=1, start=1) == 1
    house.run()

    assert payloads(house, "$dlq/jobs") == ["one", "three"]
    assert payloads(house, "jobs") == ["two"]


def test_a_browser_is_shown_what_is_there_then_what_comes_and_never_what_is_expired_or_not_due(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    now_us = house.clock.now_us()
    house.publish("jobs", "a")
    house.publish("jobs", "expired", expires_us=now_us + 1)
    house.publish("jobs", "later", not_before_us=now_us + 60_000_000)
    house.publish("jobs", "b", "c")
    shown: list[str] = []
    ended: list[bool] = []
    house.clock.advance(1)
    browser = house.broker.browse(
        "jobs",
        lambda found: shown.extend([message.payload.decode() for _, message in found]),
        None,
        lambda: ended.append(True),
    )
    house.broker.allow_browser(browser, 2)
    house.run()
    assert shown == ["a", "b"]

    house.broker.allow_browser(browser, 5)
    house.run()
    house.publish("jobs", "d")
    assert shown == ["a", "b", "c", "d"]
    assert house.broker.queue("jobs").messages >= 4

    house.broker.delete("jobs")
    house.run()
    assert ended == [True]

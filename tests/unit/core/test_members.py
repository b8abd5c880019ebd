"""Members of a group that come, go and share credit: who gets the next message then."""

import pytest

from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Consumer, Credit
from headrace.core.queue.group import ACK, NACK
from headrace.errors import AccessRefused
from headrace.selector import parse
from tests.house import House, Inbox

_SINGLE = {"x-single-active-consumer": True}


def joined(house: House, name: str, priority: int = 0) -> Inbox:
    return house.consume("q", name, auto_ack=True, priority=priority)


def selective(house: House, text: str, credit: int = 0) -> Inbox:
    inbox = Inbox(house, "selective", credit, False, 0, None)
    inbox.consumer.selector = parse(text)
    house.broker.consume("q", inbox.consumer)
    house.run()
    return inbox


def test_single_messages_can_be_taken_again_once_the_exclusive_consumer_left(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", exclusive=True)
    house.broker.cancel(inbox.consumer)
    house.publish("q", "a")

    assert house.broker.get("q", Consumer("getter", print)) is not None
    house.consume("q", "other", exclusive=True)
    with pytest.raises(AccessRefused):
        house.broker.get("q", Consumer("getter", print))


def test_a_consumer_that_was_full_is_found_again_when_another_of_its_channel_settles(house: House) -> None:
    for name in ("q", "other"):
        house.broker.declare(declared(name, durable=True))
    shared = Credit(1)
    first = house.consume("other", "first", shared=shared)
    second = house.consume("q", "second", shared=shared)
    third = house.consume("q", "third", credit=1)
    house.publish("other", "a")
    house.publish("q", *"bc")
    assert (first.payloads, second.payloads, third.payloads) == (["a"], [], ["b"])

    house.settle(ACK, *first.got)

    assert second.payloads == ["c"]


def test_a_consumer_that_settles_nothing_gets_no_more_than_it_is_allowed(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", auto_ack=True)
    house.broker.allow(inbox.consumer, 2)
    house.publish("q", *"abcd")
    assert inbox.payloads == ["a", "b"]

    house.broker.allow(inbox.consumer, 1)
    house.run()

    assert inbox.payloads == ["a", "b", "c"]


def test_what_was_acknowledged_in_a_row_does_not_come_back_when_the_consumer_leaves(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", credit=4)
    house.publish("q", *"abcdefgh")
    house.broker.acknowledge(inbox.take()[:3])
    house.run()
    assert inbox.payloads == ["e", "f", "g"]

    house.broker.cancel(inbox.consumer)
    house.run()

    assert house.consume("q", "next").payloads == ["d", "e", "f", "g", "h"]


def test_what_was_acknowledged_twice_in_a_row_counts_once(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", credit=3)
    house.publish("q", *"abcdefgh")
    first = inbox.take()

    house.broker.acknowledge(first)
    house.broker.acknowledge(first)
    house.run()

    assert inbox.payloads == ["d", "e", "f"]


def test_the_next_to_be_active_is_the_most_important_and_then_the_longest_there(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments=_SINGLE))
    members = {name: joined(house, name, priority) for name, priority in (("first", 5), ("a", 1), ("b", 1), ("c", 2))}

    got: list[str] = []
    for name in ("first", "c", "a", "b"):
        house.publish("q", name)
        got += members[name].texts()
        house.broker.cancel(members[name].consumer)

    assert got == ["first", "c", "a", "b"]


def test_one_that_was_active_before_a_more_important_one_is_active_after_it(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments=_SINGLE))
    low = joined(house, "low")
    house.publish("q", "a")
    high = joined(house, "high", 1)
    middle = joined(house, "middle", 1)
    house.publish("q", "b")
    house.broker.cancel(high.consumer)
    house.publish("q", "c")
    house.broker.cancel(middle.consumer)
    house.publish("q", "d")

    assert (low.payloads, high.payloads, middle.payloads) == (["a", "d"], ["b"], ["c"])


def test_a_consumer_with_a_selector_that_left_gets_nothing_and_others_get_what_it_wanted(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = selective(house, "colour = 'red'")
    house.publish("q", "a", headers={"colour": "red"})
    assert inbox.texts() == ["a"]
    house.broker.cancel(inbox.consumer)
    house.publish("q", "b", headers={"colour": "red"})

    assert inbox.payloads == []
    assert house.consume("q").payloads == ["a", "b"]


def test_a_consumer_with_a_selector_gets_more_when_it_settles_beside_one_without(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = selective(house, "colour = 'red'", credit=1)
    other = house.consume("q", "other", credit=1)
    house.publish("q", *"abcd", headers={"colour": "red"})
    held = {*inbox.payloads, *other.payloads}
    assert len(held) == 2

    house.settle(ACK, inbox.take()[0])

    assert len(inbox.payloads) == 1


def test_what_came_back_goes_to_the_only_consumer_before_what_is_new(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", credit=1)
    house.publish("q", *"abc")
    house.settle(NACK, inbox.take()[0])

    assert [(each.message.payload, each.redelivered, each.attempts) for each in inbox.got] == [(b"a", True, 2)]
    house.settle(ACK, inbox.take()[0])
    assert [(each.message.payload, each.redelivered, each.attempts) for each in inbox.got] == [(b"b", False, 1)]


@pytest.mark.parametrize("count", [1, 2])
def test_the_only_consumer_gets_nothing_that_is_over_and_nothing_that_is_for_later(house: House, count: int) -> None:
    house.broker.declare(declared("q", durable=True))
    now_us = house.clock.now_us()
    for number in range(count):
        house.publish("q", f"over {number}", expires_us=now_us + 1_000_000)
        house.publish("q", f"later {number}", not_before_us=now_us + 5_000_000)
    house.clock.advance(2)

    inbox = house.consume("q")
    assert inbox.payloads == []
    house.advance(3)

    assert inbox.payloads == [f"later {number}" for number in range(count)]


def test_figures_count_what_the_only_consumer_got(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", "a")
    house.publish("q", *"bc")
    group = inbox.consumer.group
    assert group is not None
    before = (group.delivered, group.redelivered)
    house.settle(NACK, inbox.take()[0])

    assert before == (3, 0)
    assert (group.delivered, group.redelivered) == (4, 1)

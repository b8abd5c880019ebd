"""The consumer of the next message: turns, priorities, credit, one active consumer, exclusive use."""

import pytest

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Credit, Delivery
from headrace.core.queue.group import ACK, NACK
from headrace.errors import AccessRefused, Refused
from tests.house import House


def house_with(*queues: str, **options: object) -> House:
    house = House()
    for name in queues or ("orders",):
        house.broker.declare(QueueDefinition(name, **options))  # type: ignore[arg-type]
    house.run()
    return house


def letters(count: int) -> list[str]:
    return [chr(ord("a") + number) for number in range(count)]


# -- turns -------------------------------------------------------------------------------------------------------------


def test_consumers_with_room_get_messages_one_by_one_in_turn() -> None:
    house = house_with()
    first, second, third = (house.consume("orders", name) for name in ("c1", "c2", "c3"))

    house.publish("orders", *letters(7))

    assert (first.payloads, second.payloads, third.payloads) == (["a", "d", "g"], ["b", "e"], ["c", "f"])


def test_the_turn_goes_on_where_it_stopped() -> None:
    house = house_with()
    first, second = house.consume("orders", "c1"), house.consume("orders", "c2")

    house.publish("orders", "a")
    house.publish("orders", "b")
    house.publish("orders", "c")

    assert (first.payloads, second.payloads) == (["a", "c"], ["b"])


def test_a_single_consumer_gets_a_batch_in_one_call() -> None:
    house = house_with()
    batches: list[list[Delivery]] = []
    house.broker.consume("orders", Consumer("c1", batches.append))

    house.publish("orders", *letters(5))

    assert [len(batch) for batch in batches] == [5]


def test_a_consumer_without_room_is_passed_over() -> None:
    house = house_with()
    full, free = house.consume("orders", "full", credit=1), house.consume("orders", "free")

    house.publish("orders", *letters(5))

    assert (full.payloads, free.payloads) == (["a"], ["b", "c", "d", "e"])


def test_a_consumer_that_was_full_gets_its_turn_again_when_it_settles() -> None:
    house = house_with()
    slow, other = house.consume("orders", "slow", credit=1), house.consume("orders", "other", credit=2)
    house.publish("orders", *letters(4))

    house.settle(ACK, slow.got[0])

    assert (slow.payloads, other.payloads) == (["a", "d"], ["b", "c"])


def test_a_backlog_larger_than_one_turn_is_delivered_entirely() -> None:
    house = house_with()
    for number in range(20_000):
        house.broker.publish(house.message(str(number), "orders"))
    house.run()

    inbox = house.consume("orders", auto_ack=True)

    assert inbox.payloads == [str(number) for number in range(20_000)]


# -- priorities --------------------------------------------------------------------------------------------------------


def test_a_consumer_of_higher_priority_gets_everything_while_it_has_room() -> None:
    house = house_with()
    low, high = house.consume("orders", "low", priority=0), house.consume("orders", "high", credit=3, priority=5)

    house.publish("orders", *letters(5))

    assert (high.payloads, low.payloads) == (["a", "b", "c"], ["d", "e"])


def test_consumers_of_equal_priority_take_turns() -> None:
    house = house_with()
    low = house.consume("orders", "low", priority=-1)
    first, second = (house.consume("orders", name, credit=2, priority=5) for name in ("h1", "h2"))

    for payload in letters(5):
        house.broker.publish(house.message(payload, "orders"))
    house.run()

    assert (first.payloads, second.payloads, low.payloads) == (["a", "c"], ["b", "d"], ["e"])


def test_a_priority_whose_last_consumer_left_is_forgotten() -> None:
    house = house_with()
    high = house.consume("orders", "high", priority=5)
    low = house.consume("orders", "low")

    house.broker.cancel(high.consumer)
    house.publish("orders", "a")

    assert low.payloads == ["a"]


# -- credit ------------------------------------------------------------------------------------------------------------


def test_a_consumer_never_holds_more_than_its_credit() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=3)

    house.publish("orders", *letters(10))

    assert inbox.payloads == ["a", "b", "c"]
    assert inbox.consumer.holding == 3


def test_settling_makes_room_for_as_much() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=3)
    house.publish("orders", *letters(10))

    house.settle(ACK, *inbox.take()[:2])

    assert inbox.texts() == ["d", "e"]


def test_a_higher_credit_delivers_more_at_once() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", *letters(5))

    house.broker.set_credit(inbox.consumer, 4)
    house.run()

    assert inbox.payloads == ["a", "b", "c", "d"]


def test_a_lower_credit_takes_nothing_away_but_gives_nothing_more_until_it_is_kept() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=4)
    house.publish("orders", *letters(6))
    held = inbox.take()

    house.broker.set_credit(inbox.consumer, 2)
    house.settle(ACK, *held[:2])
    assert inbox.texts() == []

    house.settle(ACK, held[2])
    assert inbox.texts() == ["e"]


def test_no_limit_is_as_many_as_there_are() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", *letters(9))

    house.broker.set_credit(inbox.consumer, 0)
    house.run()

    assert inbox.payloads == letters(9)


def test_the_credit_of_a_channel_holds_for_all_its_consumers_together() -> None:
    house = house_with()
    channel = Credit(3)
    first, second = (house.consume("orders", name, shared=channel) for name in ("c1", "c2"))

    for payload in letters(9):
        house.broker.publish(house.message(payload, "orders"))
    house.run()

    assert (first.payloads, second.payloads) == (["a", "c"], ["b"])


def test_what_one_consumer_of_a_channel_settles_lets_another_have_more_from_another_queue() -> None:
    house = house_with("orders", "letters")
    channel = Credit(1)
    first, second = house.consume("orders", "c1", shared=channel), house.consume("letters", "c2", shared=channel)
    house.publish("orders", "a")
    house.publish("letters", "b")

    house.settle(ACK, first.got[0])

    assert second.payloads == ["b"]


def test_a_higher_credit_of_the_channel_delivers_more_to_all_of_its_consumers() -> None:
    house = house_with("orders", "letters")
    channel = Credit(1)
    first, second = house.consume("orders", "c1", shared=channel), house.consume("letters", "c2", shared=channel)
    house.publish("orders", "a", "b")
    house.publish("letters", "c", "d")

    house.broker.set_shared_credit(channel, 4)
    house.run()

    assert (first.payloads, second.payloads) == (["a", "b"], ["c", "d"])


def test_a_consumer_that_leaves_gives_the_channel_its_credit_back() -> None:
    house = house_with("orders", "letters")
    channel = Credit(1)
    first, second = house.consume("orders", "c1", shared=channel), house.consume("letters", "c2", shared=channel)
    house.publish("orders", "a")
    house.publish("letters", "b")

    house.broker.cancel(first.consumer)
    house.run()

    assert second.payloads == ["b"]


def test_an_allowance_is_used_up_by_deliveries_whatever_is_settled() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.broker.allow(inbox.consumer, 2)

    house.publish("orders", *letters(5))
    house.settle(ACK, *inbox.got)
    assert inbox.texts() == ["a", "b"]

    house.broker.allow(inbox.consumer, 1)
    house.run()
    assert inbox.texts() == ["c"]


def test_a_consumer_that_is_allowed_nothing_is_paused() -> None:
    house = house_with()
    inbox = house.consume("orders", auto_ack=True)

    house.broker.allow(inbox.consumer, 0)
    house.publish("orders", "a")

    assert inbox.payloads == []


# -- one active consumer -----------------------------------------------------------------------------------------------


def test_only_the_first_consumer_is_active_where_one_at_a_time_is() -> None:
    house = house_with(single_active=True)
    first, second = house.consume("orders", "c1"), house.consume("orders", "c2")

    house.publish("orders", *letters(3))

    assert (first.payloads, second.payloads) == (["a", "b", "c"], [])


def test_an_active_consumer_without_room_is_waited_for() -> None:
    house = house_with(single_active=True)
    first, second = house.consume("orders", "c1", credit=1), house.consume("orders", "c2")

    house.publish("orders", *letters(3))

    assert (first.payloads, second.payloads) == (["a"], [])


def test_the_next_consumer_takes_over_what_the_active_one_held_when_it_leaves() -> None:
    house = house_with(single_active=True)
    first, second = house.consume("orders", "c1"), house.consume("orders", "c2")
    house.publish("orders", *letters(2))

    house.broker.cancel(first.consumer)
    house.run()

    assert second.payloads == ["a", "b"]


def test_the_most_important_of_those_that_wait_takes_over() -> None:
    house = house_with(single_active=True)
    active = house.consume("orders", "active", priority=9)
    low, high = house.consume("orders", "low", priority=1), house.consume("orders", "high", priority=5)

    house.broker.cancel(active.consumer)
    house.publish("orders", "a")

    assert (low.payloads, high.payloads) == ([], ["a"])


def test_a_more_important_consumer_becomes_active_once_the_active_one_holds_nothing() -> None:
    house = house_with(single_active=True)
    low = house.consume("orders", "low", priority=1)
    house.publish("orders", "a")
    high = house.consume("orders", "high", priority=5)

    house.publish("orders", "b")
    assert (low.payloads, high.payloads) == (["a"], [])

    house.settle(ACK, low.got[0])
    assert (low.payloads, high.payloads) == (["a"], ["b"])


# -- exclusive use -----------------------------------------------------------------------------------------------------


def test_nobody_joins_a_consumer_that_has_the_queue_for_itself() -> None:
    house = house_with()
    house.consume("orders", "c1", exclusive=True)

    with pytest.raises(AccessRefused):
        house.consume("orders", "c2")


def test_exclusive_use_is_refused_where_somebody_consumes() -> None:
    house = house_with()
    house.consume("orders", "c1")

    with pytest.raises(AccessRefused):
        house.consume("orders", "c2", exclusive=True)


def test_the_queue_is_free_again_once_the_exclusive_consumer_left() -> None:
    house = house_with()
    alone = house.consume("orders", "c1", exclusive=True)

    house.broker.cancel(alone.consumer)
    other = house.consume("orders", "c2")
    house.publish("orders", "a")

    assert other.payloads == ["a"]


def test_nobody_takes_single_messages_from_a_queue_in_exclusive_use() -> None:
    house = house_with()
    house.consume("orders", "c1", exclusive=True)

    with pytest.raises(AccessRefused):
        house.broker.get("orders", Consumer("taker", lambda deliveries: None))


# -- taking single messages --------------------------------------------------------------------------------------------


def test_a_message_can_be_taken_without_being_a_member() -> None:
    house = house_with()
    house.publish("orders", "a", "b")
    taker = Consumer("taker", lambda deliveries: None)

    first = house.broker.get("orders", taker)
    assert first is not None
    house.settle(ACK, first)

    assert first.message.payload == b"a"
    assert house.broker.queue("orders").messages == 1


def test_taking_from_an_empty_queue_gives_nothing() -> None:
    assert house_with().broker.get("orders", Consumer("taker", lambda deliveries: None)) is None


def test_what_was_taken_goes_back_when_the_taker_leaves() -> None:
    house = house_with()
    house.publish("orders", "a")
    taker = Consumer("taker", lambda deliveries: None)
    house.broker.get("orders", taker)

    house.broker.cancel(taker)
    inbox = house.consume("orders")

    assert [(d.message.payload, d.redelivered) for d in inbox.got] == [(b"a", True)]


def test_one_taker_takes_from_one_queue() -> None:
    house = house_with("orders", "letters")
    house.publish("orders", "a")
    house.publish("letters", "b")
    taker = Consumer("taker", lambda deliveries: None)
    house.broker.get("orders", taker)

    with pytest.raises(Refused):
        house.broker.get("letters", taker)


# -- calls from within a delivery --------------------------------------------------------------------------------------


def test_a_consumer_may_settle_within_its_delivery() -> None:
    house = house_with()
    seen: list[bytes] = []

    def deliver(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            seen.append(delivery.message.payload)
            house.broker.settle(delivery, ACK)

    house.broker.consume("orders", Consumer("c1", deliver, credit=1))
    house.publish("orders", *letters(5))

    assert seen == [b"a", b"b", b"c", b"d", b"e"]
    assert house.broker.queue("orders").messages == 0


def test_a_consumer_may_leave_within_its_delivery() -> None:
    house = house_with()
    seen: list[bytes] = []

    def deliver(deliveries: list[Delivery]) -> None:
        seen.extend(delivery.message.payload for delivery in deliveries)
        house.broker.cancel(consumer)

    consumer = Consumer("c1", deliver, credit=1)
    house.broker.consume("orders", consumer)
    house.publish("orders", "a", "b")

    assert seen == [b"a"]
    assert house.consume("orders", "c2").payloads == ["a", "b"]


@pytest.mark.parametrize("auto_ack", [False, True])
def test_what_was_meant_for_a_consumer_that_another_ones_delivery_made_leave_goes_to_the_next(auto_ack: bool) -> None:
    house = house_with()
    leaving = Consumer("c2", lambda deliveries: pytest.fail("it has left"), auto_ack=auto_ack)
    house.broker.consume("orders", Consumer("c1", lambda deliveries: house.broker.cancel(leaving), credit=1))
    house.broker.consume("orders", leaving)

    for payload in letters(3):
        house.broker.publish(house.message(payload, "orders"))
    house.run()

    assert house.consume("orders", "c3").payloads == ["b", "c"]


def test_a_queue_may_be_deleted_within_a_delivery() -> None:
    house = house_with()

    def deliver(deliveries: list[Delivery]) -> None:
        house.broker.delete("orders")

    house.broker.consume("orders", Consumer("c1", deliver))
    other = house.consume("orders", "c2")

    house.broker.publish(house.message("a", "orders"))
    house.broker.publish(house.message("b", "orders"))
    house.run()

    assert other.is_cancelled
    assert other.got == []


def test_a_consumer_may_join_another_group_within_its_delivery() -> None:
    house = house_with()
    late: list[Delivery] = []

    def deliver(deliveries: list[Delivery]) -> None:
        house.broker.consume("orders", Consumer("c2", late.extend), "another")

    house.broker.consume("orders", Consumer("c1", deliver))

    house.publish("orders", "a")

    assert [delivery.message.payload for delivery in late] == [b"a"]


def test_settling_what_is_left_of_a_deleted_queue_does_nothing() -> None:
    house = house_with("orders", "letters")
    inbox = house.consume("orders")
    house.publish("orders", "a")
    house.broker.delete("orders")
    house.run()

    house.settle(NACK, inbox.got[0])

    assert house.publish("letters", "b") == [None]
    assert inbox.consumer.holding == 0


def test_a_message_on_its_way_to_one_that_is_cancelled_and_keeps_its_own_goes_to_another(house: House) -> None:
    house.broker.declare(QueueDefinition("orders"))
    got: list[Delivery] = []
    leaving_got: list[Delivery] = []
    leaving = Consumer("c2", leaving_got.extend, credit=2)

    def deliver(deliveries: list[Delivery]) -> None:
        got.extend(deliveries)
        if len(leaving_got) == 1:
            house.broker.cancel(leaving, keep=True)

    house.broker.consume("orders", Consumer("c1", deliver, credit=4))
    house.broker.consume("orders", leaving)
    house.run()
    for text in ("12", "34"):
        for each in text:
            house.broker.publish(house.message(each, "orders"))
        house.run()

    assert [delivery.message.payload for delivery in leaving_got] == [b"2"]
    assert [(d.message.payload, d.attempts) for d in got] == [(b"1", 1), (b"3", 1), (b"4", 1)]
    assert leaving.held() == [leaving_got[0].offset]

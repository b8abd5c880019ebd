"""Messages that a member failed go to another member, as long as there is one that takes them."""

import pytest

from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK, NACK, RELEASE
from headrace.selector import parse
from tests.house import House, Inbox

LEASE_S = 30
GRAVE = "$dlq/orders"


def house_with(**options: object) -> House:
    house = House()
    options = {"lease_ms": LEASE_S * 1000, "delivery_limit": 2, "dead_letter_queue": GRAVE, **options}
    house.broker.declare(QueueDefinition("orders", **options))  # type: ignore[arg-type]
    house.run()
    return house


def buried(house: House) -> list[str]:
    if GRAVE not in house.broker.topology.queues:
        return []
    return [message.payload.decode() for message in house.broker.queue(GRAVE).log.read(0, 1000)]


def letters(count: int) -> list[str]:
    return [chr(ord("a") + number) for number in range(count)]


def selective(house: House, name: str, text: str, credit: int = 0) -> Inbox:
    inbox = Inbox(house, name, credit, False, 0, None)
    inbox.consumer.selector = parse(text)
    house.broker.consume("orders", inbox.consumer)
    house.run()
    return inbox


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_no_message_dies_at_a_silent_member_while_another_gets_everything_done() -> None:
    house = house_with()
    silent, healthy = house.consume("orders", "silent", credit=10), house.consume("orders", "healthy", credit=1)
    house.publish("orders", *[str(number) for number in range(40)])
    done: list[str] = []

    for _ in range(400):
        done += healthy.payloads
        house.settle(ACK, *healthy.take())
        if not healthy.got:
            house.advance(1)

    assert sorted(done, key=int) == [str(number) for number in range(40)]
    assert buried(house) == []
    assert len(silent.got) < 20


def test_what_timed_out_waits_for_a_member_that_is_busy() -> None:
    house = house_with()
    silent, busy = house.consume("orders", "silent", credit=1), house.consume("orders", "busy", credit=1)
    house.publish("orders", "a", "b")
    house.advance(LEASE_S / 2)
    house.broker.renew(busy.got[0], 2 * LEASE_S * 1000)

    house.advance(LEASE_S / 2)
    while_busy = list(silent.payloads)
    house.settle(ACK, *busy.take())

    assert while_busy == ["a"]
    assert [(d.message.payload, d.attempts, d.redelivered) for d in busy.got] == [(b"a", 2, True)]


def test_what_timed_out_goes_back_when_no_other_member_took_anything_for_as_long() -> None:
    house = house_with()
    silent, idle = house.consume("orders", "silent", credit=1), house.consume("orders", "idle")
    house.broker.allow(idle.consumer, 0)
    house.publish("orders", "a")

    house.advance(LEASE_S)
    house.advance(LEASE_S - 1)
    before = len(silent.got)
    house.advance(1)

    assert before == 1
    assert [delivery.attempts for delivery in silent.got] == [1, 2]


def test_what_timed_out_goes_back_when_the_others_leave() -> None:
    house = house_with()
    silent, other = house.consume("orders", "silent"), house.consume("orders", "other")
    house.broker.allow(other.consumer, 0)
    house.publish("orders", *letters(100 // 4))
    house.advance(LEASE_S)
    before = len(silent.got)

    house.broker.cancel(other.consumer)
    house.run()

    assert (before, sorted(silent.payloads)) == (25, sorted(2 * letters(25)))


def test_everything_kept_for_another_goes_to_one_that_comes() -> None:
    house = house_with()
    silent, full = house.consume("orders", "silent"), house.consume("orders", "full")
    house.broker.allow(full.consumer, 0)
    house.publish("orders", *[str(number) for number in range(200)])
    house.advance(LEASE_S)

    newcomer = house.consume("orders", "newcomer")

    assert newcomer.payloads == [str(number) for number in range(200)]
    assert len(silent.got) == 200


def test_two_silent_members_do_not_pass_a_message_to_and_fro_while_a_third_is_busy() -> None:
    house = house_with()
    first, second = house.consume("orders", "first", credit=1), house.consume("orders", "second", credit=1)
    third = house.consume("orders", "third", credit=1)
    house.publish("orders", "a", "b", "c")
    for _ in range(3):
        house.broker.renew(third.got[0], 10 * LEASE_S * 1000)
        house.advance(LEASE_S)

    house.settle(ACK, *third.take())
    house.settle(ACK, *third.take())

    assert buried(house) == []
    assert len(third.got) == 1
    assert max(d.attempts for d in [*first.got, *second.got]) <= 2


def test_a_silent_member_gets_one_message_at_a_time_and_only_if_nobody_else_has_room() -> None:
    house = house_with(delivery_limit=-1)
    silent, healthy = house.consume("orders", "silent", credit=5), house.consume("orders", "healthy", credit=5)
    house.publish("orders", *letters(5))
    house.settle(ACK, *healthy.take())
    house.advance(LEASE_S)
    house.settle(ACK, *healthy.take())
    silent.take()

    house.publish("orders", *letters(5))
    at_first = (silent.texts(), healthy.payloads)
    house.publish("orders", *letters(5))

    assert at_first == ([], letters(5))
    assert (len(silent.got), len(healthy.got)) == (1, 5)


def test_a_silent_member_is_like_the_others_once_it_settles_something() -> None:
    house = house_with(delivery_limit=-1)
    late, other = house.consume("orders", "late", credit=4), house.consume("orders", "other", credit=4)
    house.publish("orders", "a", "b")
    house.settle(ACK, *other.take())
    house.advance(LEASE_S)
    house.settle(ACK, *other.take())

    house.broker.acknowledge(late.take())  # it is too late for this one, and says that the member is there
    house.run()
    house.publish("orders", *letters(8))

    assert (len(late.got), len(other.got)) == (4, 4)


def test_members_that_are_all_silent_have_all_their_room() -> None:
    house = house_with(delivery_limit=-1)
    first, second = house.consume("orders", "first", credit=4), house.consume("orders", "second", credit=4)
    house.publish("orders", *letters(8))

    house.advance(LEASE_S)

    assert (len(first.got), len(second.got)) == (8, 8)
    assert set(first.payloads) == set(second.payloads) == set(letters(8))


def test_a_silent_member_of_higher_priority_comes_last() -> None:
    house = house_with()
    silent = house.consume("orders", "silent", credit=1, priority=5)
    healthy = house.consume("orders", "healthy")
    house.publish("orders", "a")

    house.advance(LEASE_S)
    house.publish("orders", "b")

    assert (silent.payloads, healthy.payloads) == (["a"], ["a", "b"])


def test_the_next_member_takes_the_place_of_a_silent_active_one() -> None:
    house = house_with(single_active=True)
    silent, following = house.consume("orders", "silent"), house.consume("orders", "following")
    house.publish("orders", "a", "b")

    house.advance(LEASE_S)
    house.publish("orders", "c")

    assert (silent.payloads, following.payloads) == (["a", "b"], ["a", "b", "c"])


def test_a_silent_active_member_of_higher_priority_does_not_take_over_again() -> None:
    house = house_with(single_active=True)
    silent = house.consume("orders", "silent", priority=5)
    following = house.consume("orders", "following")
    house.publish("orders", "a")

    house.advance(LEASE_S)
    house.settle(ACK, *following.take())
    house.publish("orders", "b")

    assert (silent.payloads, following.payloads) == (["a"], ["b"])


def test_silent_active_members_take_turns() -> None:
    house = house_with(single_active=True, delivery_limit=-1)
    first, second = house.consume("orders", "first"), house.consume("orders", "second")
    house.publish("orders", "a")

    for _ in range(3):
        house.advance(LEASE_S)

    assert (len(first.got), len(second.got)) == (2, 2)


# -- what is given back ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [NACK, RELEASE])
def test_what_a_member_gives_back_goes_to_one_that_is_idle(outcome: int) -> None:
    house = house_with()
    picky = house.consume("orders", "picky", credit=1, priority=5)
    idle = house.consume("orders", "idle", credit=1)
    house.publish("orders", "a")

    house.settle(outcome, *picky.take())

    assert (picky.payloads, idle.payloads) == ([], ["a"])


def test_a_member_that_fails_everything_at_once_kills_nothing() -> None:
    house = house_with()
    broken, healthy = house.consume("orders", "broken", credit=1), house.consume("orders", "healthy", credit=1)
    for number in range(50):
        house.broker.publish(house.message(str(number), "orders"))
    house.run()
    done: list[str] = []

    for _ in range(60):
        for _ in range(5):
            house.settle(NACK, *broken.take())
        done += healthy.payloads
        house.settle(ACK, *healthy.take())
        house.advance(0.5)

    assert sorted(done, key=int) == [str(number) for number in range(50)]
    assert buried(house) == []


def test_a_nacked_message_goes_back_to_its_member_after_a_second_in_which_no_other_has_room() -> None:
    house = house_with()
    picky, busy = house.consume("orders", "picky", credit=1), house.consume("orders", "busy", credit=1)
    house.publish("orders", "a", "b")
    house.settle(NACK, *picky.take())

    house.advance(0.999)
    before = list(picky.payloads)
    house.advance(0.001)

    assert (before, picky.payloads, busy.payloads) == ([], ["a"], ["b"])


def test_a_released_message_goes_back_at_once_where_no_other_has_room() -> None:
    house = house_with()
    picky, busy = house.consume("orders", "picky", credit=1), house.consume("orders", "busy", credit=1)
    house.publish("orders", "a", "b")

    house.settle(RELEASE, *picky.take())

    assert (picky.payloads, busy.payloads) == (["a"], ["b"])


def test_a_message_that_every_member_failed_goes_round() -> None:
    house = house_with(delivery_limit=-1)
    inboxes = {name: house.consume("orders", name) for name in ("a", "b", "c")}
    house.publish("orders", "x")
    order: list[str] = []

    for _ in range(6):
        name, inbox = next((name, inbox) for name, inbox in inboxes.items() if inbox.got)
        order.append(name)
        house.settle(NACK, *inbox.take())

    assert sorted(order[:3]) == sorted(order[3:]) == ["a", "b", "c"]


# -- selectors, gets, transactions -------------------------------------------------------------------------------------


def test_what_timed_out_at_a_member_with_a_selector_goes_to_another_one() -> None:
    house = house_with()
    silent = selective(house, "silent", "color = 'red'")
    healthy = selective(house, "healthy", "color = 'red'")
    house.publish("orders", "a", headers={"color": "red"})

    house.advance(LEASE_S)

    assert (silent.payloads, healthy.payloads) == (["a"], ["a"])


def test_what_timed_out_goes_back_at_once_if_no_other_member_wants_it() -> None:
    house = house_with()
    silent = selective(house, "silent", "color = 'red'")
    selective(house, "other", "color = 'blue'")
    house.publish("orders", "a", headers={"color": "red"})

    house.advance(LEASE_S)

    assert silent.payloads == ["a", "a"]


def test_what_timed_out_at_a_member_with_a_selector_goes_to_one_without() -> None:
    house = house_with()
    silent, healthy = selective(house, "silent", "color = 'red'"), house.consume("orders", "healthy")
    house.publish("orders", "a", headers={"color": "red"})

    house.advance(LEASE_S)

    assert (silent.payloads, healthy.payloads) == (["a"], ["a"])


def test_what_is_kept_for_another_member_can_be_got() -> None:
    house = house_with()
    house.consume("orders", "silent", credit=1)
    full = house.consume("orders", "full")
    house.broker.allow(full.consumer, 0)
    house.publish("orders", "a")
    house.advance(LEASE_S)

    got = house.broker.get("orders", Inbox(house, "getter", 0, False, 0, None).consumer)

    assert got is not None
    assert (got.message.payload, got.attempts) == (b"a", 2)


def test_what_a_transaction_gives_back_goes_to_another_member() -> None:
    house = house_with()
    picky, idle = house.consume("orders", "picky", credit=1, priority=5), house.consume("orders", "idle")
    house.publish("orders", "a")

    house.broker.transaction([], [(picky.take()[0], NACK)])
    house.run()

    assert (picky.payloads, idle.payloads) == ([], ["a"])


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_nothing_is_remembered_of_failures_once_their_messages_are_done() -> None:
    house = house_with(delivery_limit=-1)
    first, second = house.consume("orders", "first"), house.consume("orders", "second")
    house.publish("orders", *letters(20))
    held: list[Delivery] = []
    for inbox in (first, second):
        house.settle(NACK, *inbox.take())
    held += [*first.take(), *second.take()]

    house.broker.acknowledge(held[:10])
    house.settle(ACK, *held[10:])

    group = house.broker.queue("orders").groups["default"]
    assert group.failures is None  # type: ignore[attr-defined]
    assert group.ready == group.unsettled == 0


def test_a_purge_removes_what_is_kept_for_another_member() -> None:
    house = house_with()
    silent, full = house.consume("orders", "silent"), house.consume("orders", "full")
    house.broker.allow(full.consumer, 0)
    house.publish("orders", "a")
    house.advance(LEASE_S)

    house.broker.purge("orders")
    house.broker.allow(full.consumer, 5)
    house.run()
    house.advance(2 * LEASE_S)

    assert (silent.payloads, full.payloads) == (["a"], [])
    assert house.broker.queue("orders").messages == 0

"""Work groups: cursor, committed and pending as the sources have it; claims, retries, filters, restarts."""

import tracemalloc
from collections.abc import Callable

import pytest

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE, Group, PendingEntry, mode_to_join
from headrace.core.queue.work import WorkGroup
from headrace.errors import NotFound, Refused
from headrace.selector import parse
from headrace.storage.group_state import STREAM, WORK
from tests.house import House, Inbox
from tests.unit.core.conftest import World

LEASE_S = 30
DLQ = "$dlq/orders"


def house_with(**options: object) -> House:
    house = House()
    house.broker.declare(QueueDefinition("orders", **options))  # type: ignore[arg-type]
    house.run()
    return house


def restarted(house: House) -> House:
    """The group as a new process finds it."""
    return House(house.engine, house.clock)


def group_of(house: House, name: str = "default") -> WorkGroup:
    group = house.broker.queue("orders").groups[name]
    assert isinstance(group, WorkGroup)
    return group


def progress(group: Group) -> tuple[int, list[int], int]:
    """Cursor, pending offsets, committed: the columns of the sources' table."""
    return group.state.cursor, [entry.offset for entry in group.pending()], group.state.committed


def payloads(house: House, queue: str) -> list[bytes]:
    log = house.broker.queue(queue).log
    return [message.payload for message in log.read(log.first_offset, 1000)]


# -- the sources' worked examples --------------------------------------------------------------------------------------


def test_classic_group_progress_over_offsets_0_to_5() -> None:
    house = house_with()
    house.publish("orders", "0", "1", "2", "3", "4", "5")
    inbox = house.consume("orders", "c1", credit=2)
    group = group_of(house)

    claimed = progress(group)
    house.broker.allow(inbox.consumer, 0)
    first, second = inbox.take()
    house.settle(ACK, first)
    acked_0 = progress(group)
    house.settle(ACK, second)
    acked_1 = progress(group)

    assert claimed == (2, [0, 1], 0)
    assert acked_0 == (2, [1], 1)
    assert acked_1 == (2, [], 2)


def test_a_group_starts_at_zero_with_nothing_pending() -> None:
    house = house_with()
    house.consume("orders", "c1")

    assert progress(group_of(house)) == (0, [], 0)


def test_classic_mode_state_with_offsets_3_4_5_pending_of_two_consumers() -> None:
    house = house_with()
    house.publish("orders", *"01234567")
    first = house.consume("orders", "c1", credit=1)
    for _ in range(3):
        house.settle(ACK, *first.take())
    house.broker.allow(first.consumer, 0)
    started = house.clock.now_us()
    second = house.consume("orders", "c2", credit=1)
    house.broker.allow(second.consumer, 0)
    house.settle(NACK, *second.take())  # offset 4 comes back, for c1; that has no room
    house.advance(1)
    house.broker.allow(second.consumer, 1)  # and so c2 gets it a second time
    house.run()
    house.broker.set_credit(first.consumer, 2)
    house.broker.allow(first.consumer, 1)
    house.run()

    due = started + LEASE_S * 1_000_000
    assert house.broker.groups.pending("orders") == [
        PendingEntry(3, "c1", 1, due),
        PendingEntry(4, "c2", 2, due + 1_000_000),
        PendingEntry(5, "c1", 1, due + 1_000_000),
    ]
    assert (group_of(house).state.committed, group_of(house).state.cursor) == (3, 6)


def test_committed_is_the_lowest_pending_offset_whatever_is_acked_above() -> None:
    house = house_with()
    house.publish("orders", *"01234567")
    inbox = house.consume("orders")

    house.settle(ACK, *[inbox.got[offset] for offset in (1, 2, 5, 7)])
    assert group_of(house).state.committed == 0

    house.settle(ACK, inbox.got[0])
    assert group_of(house).state.committed == 3


def test_what_every_group_has_settled_leaves_the_log() -> None:
    house = house_with()
    house.publish("orders", *"0123")
    ours, theirs = house.consume("orders", group="ours"), house.consume("orders", group="theirs")

    house.settle(ACK, *ours.got[:3], *theirs.got[:2])

    assert house.broker.queue("orders").log.first_offset == 2


def test_acking_one_offset_leaves_all_others_pending() -> None:
    house = house_with()
    house.publish("orders", *"012345")
    inbox = house.consume("orders")

    house.settle(ACK, inbox.got[5])

    assert progress(group_of(house)) == (6, [0, 1, 2, 3, 4], 0)


def test_groups_have_progress_of_their_own() -> None:
    house = house_with()
    house.publish("orders", "a", "b")

    ours, theirs = house.consume("orders", group="ours"), house.consume("orders", group="theirs")
    house.settle(ACK, *ours.got)

    assert theirs.payloads == ["a", "b"]
    assert (group_of(house, "ours").state.committed, group_of(house, "theirs").state.committed) == (2, 0)


def test_members_of_a_group_share_its_messages() -> None:
    house = house_with()
    inboxes = [house.consume("orders", name, group="workers") for name in ("c1", "c2")]

    house.publish("orders", *"0123")

    assert sorted(inboxes[0].payloads + inboxes[1].payloads) == list("0123")


def test_a_group_of_the_other_mode_is_refused() -> None:
    house = house_with()
    house.consume("orders", group="workers")

    with pytest.raises(Refused, match="ErrGroupModeMismatch"):
        house.consume("orders", group="workers", mode=STREAM)


def test_a_group_may_be_made_anew_in_the_other_mode_once_all_left_and_it_was_deleted() -> None:
    house = house_with()
    inbox = house.consume("orders", group="workers")
    with pytest.raises(Refused, match="has consumers"):
        house.broker.groups.delete("orders", "workers")

    house.broker.cancel(inbox.consumer)
    house.broker.groups.delete("orders", "workers")
    reader = house.consume("orders", group="workers", mode=STREAM)
    house.publish("orders", "a")

    assert reader.payloads == ["a"]


@pytest.mark.parametrize("group", ["default", "workers"])
def test_a_group_is_not_forgotten_where_that_brings_back_what_was_acknowledged(group: str) -> None:
    house = house_with()
    inbox = house.consume("orders", group=group)
    house.publish("orders", "stuck", "done")
    house.settle(ACK, inbox.got[1])
    house.broker.cancel(inbox.consumer)

    with pytest.raises(Refused, match="would be delivered again"):
        house.broker.groups.delete("orders", group)

    assert [(d.message.payload, d.redelivered) for d in house.consume("orders", group=group).got] == [(b"stuck", True)]


def test_a_filter_holds_after_a_restart_for_messages_that_a_selector_passed_over(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("orders", topics=("$queue/orders/#",)))
    picky = Inbox(house, "picky", 0, False, 0, None)
    picky.consumer.selector = parse("topic LIKE '%paid'")
    house.broker.consume("orders", picky.consumer, group="workers", key_filter="eu/#")
    house.publish("$queue/orders/us/new", "us")
    house.publish("$queue/orders/eu/paid", "eu")
    house.advance(2)
    house.advance(2)

    house = world.restart()

    assert picky.payloads == ["eu"]
    assert house.consume("orders", group="workers", key_filter="eu/#").payloads == ["eu"]


def test_a_forgotten_group_stays_forgotten_and_takes_along_what_only_it_had_to_do(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("orders"))
    done, late = house.consume("orders"), house.consume("orders", group="late")
    house.publish("orders", "a", "b")
    house.settle(ACK, *done.take())
    house.broker.cancel(late.consumer)
    house.run()
    assert house.broker.queue("orders").log.first_offset == 0

    house.broker.groups.delete("orders", "late")
    house.run()

    assert house.broker.queue("orders").log.first_offset == 2
    assert list(world.restart().broker.queue("orders").groups) == ["default"]


def test_a_group_besides_another_is_forgotten_and_says_what_it_had_not_finished() -> None:
    house = house_with()
    house.consume("orders")
    inbox = house.consume("orders", group="workers")
    house.publish("orders", "a", "b", "c")
    house.settle(ACK, inbox.got[1])
    house.broker.cancel(inbox.consumer)

    assert house.broker.groups.delete("orders", "workers") == 2


def test_the_lag_of_a_work_group_is_what_is_open() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.publish("orders", *[str(number) for number in range(2000)])
    house.settle(ACK, *inbox.take()[1:])

    assert house.broker.queue("orders").groups["default"].lag == 1


# -- filters -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key_filter", "name"), [("#", "demo-workers@#"), ("orders/+", "demo-workers@orders/+"), ("", "demo-workers")]
)
def test_a_group_with_a_filter_is_known_by_both(key_filter: str, name: str) -> None:
    house = house_with()

    house.consume("orders", group="demo-workers", key_filter=key_filter)

    assert list(house.broker.queue("orders").groups) == [name]


def test_a_filter_sees_the_key_behind_the_name_of_the_queue_and_other_topics_whole() -> None:
    house = house_with(topics=("$queue/orders/#",))
    house.exchange("trade", "topic")
    house.bind("trade", "orders", "#")
    two = house.consume("orders", group="workers", key_filter="+/+")
    everything = house.consume("orders", group="workers", key_filter="#")

    for topic in ("$queue/orders", "$queue/orders/eu", "$queue/orders/eu/1"):
        house.publish_topic(topic, topic)
    for key in ("eu", "eu/1"):
        house.publish(key, key, exchange="trade")

    assert two.payloads == ["$queue/orders/eu/1", "eu/1"]
    assert len(everything.payloads) == 5


def test_messages_that_a_filter_keeps_out_stay_settled_after_a_restart(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("orders", topics=("$queue/orders/#",)))
    house.consume("orders", group="workers", key_filter="eu/#")
    house.publish_topic("$queue/orders/us/1", "a", "b")

    group = world.restart().broker.queue("orders").groups["workers@eu/#"]

    assert (group.lag, group.acknowledged) == (0, 0)


def test_messages_that_a_filter_keeps_out_make_room_in_the_queue() -> None:
    house = house_with(topics=("$queue/orders/#",), max_length_bytes=5, overflow="reject-publish")
    house.consume("orders", group="workers", key_filter="eu/#")

    told = [house.publish("$queue/orders/us/1", "12345") for _ in range(3)]

    assert told == [[None]] * 3


def test_the_same_group_has_progress_for_each_filter() -> None:
    house = house_with()
    eu = house.consume("orders", "c1", group="workers", key_filter="eu/#")
    everything = house.consume("orders", "c2", group="workers", key_filter="#")

    for key in ("eu/1", "us/1", "eu/2"):
        house.publish_topic(f"$queue/orders/{key}", key)

    assert (eu.payloads, everything.payloads) == (["eu/1", "eu/2"], ["eu/1", "us/1", "eu/2"])


@pytest.mark.parametrize(
    ("key_filter", "keys"),
    [
        ("images", ["images"]),
        ("images/#", ["images", "images/png", "images/resize/thumbnail"]),
        ("+/images/#", ["eu/images/resize", "us/images/png"]),
    ],
)
def test_a_filter_matches_the_routing_keys_of_the_examples(key_filter: str, keys: list[str]) -> None:
    house = house_with()
    inbox = house.consume("orders", group="g", key_filter=key_filter)

    for key in ("images", "images/png", "images/resize/thumbnail", "eu/images/resize", "us/images/png", "other"):
        house.publish_topic(f"$queue/orders/{key}", key)

    assert inbox.payloads == keys


def test_groups_whose_filters_overlap_both_get_the_message() -> None:
    house = house_with()
    eu = house.consume("orders", group="eu-processors", key_filter="eu/#")
    images = house.consume("orders", group="image-processors", key_filter="+/images/#")

    house.publish_topic("$queue/orders/eu/images/resize", "a")

    assert (eu.payloads, images.payloads) == (["a"], ["a"])


def test_what_a_filter_does_not_let_through_is_settled_as_one_range() -> None:
    house = house_with()
    house.consume("orders", group="g", key_filter="wanted")
    for _ in range(1000):
        house.broker.publish_topic(house.message("x", "$queue/orders/other"))
    house.run()
    group = group_of(house, "g@wanted")

    assert (group.state.committed, len(group.state.settled), group.ready) == (1000, 0, 0)


def test_a_consumer_with_little_credit_finds_what_it_wants_behind_a_long_backlog() -> None:
    house = house_with()
    for number in range(30_000):
        house.broker.publish_topic(house.message(str(number), f"$queue/orders/{'wanted' if number > 29_997 else 'x'}"))
    house.run()

    inbox = house.consume("orders", group="g", key_filter="wanted", credit=1)

    assert inbox.payloads == ["29998"]


# -- leases ------------------------------------------------------------------------------------------------------------


def test_after_the_visibility_timeout_another_consumer_gets_the_message() -> None:
    house = house_with()
    stuck = house.consume("orders", "stuck", credit=1)
    house.publish("orders", "a")
    other = house.consume("orders", "other")
    house.broker.allow(stuck.consumer, 0)

    house.advance(LEASE_S - 0.001)
    before = len(other.got)
    house.advance(0.001)

    assert before == 0
    assert [(d.message.payload, d.attempts, d.redelivered) for d in other.got] == [(b"a", 2, True)]


def test_after_the_visibility_timeout_a_single_consumer_gets_its_message_again() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a")

    house.advance(LEASE_S)

    assert [(d.message.payload, d.attempts) for d in inbox.got] == [(b"a", 1), (b"a", 2)]


def test_a_message_nobody_settles_uses_one_attempt_per_timeout() -> None:
    house = house_with()
    inboxes = [house.consume("orders", name) for name in ("c1", "c2")]
    house.publish("orders", "a")

    for _ in range(3):
        house.advance(LEASE_S)

    assert sorted(d.attempts for inbox in inboxes for d in inbox.got) == [1, 2, 3, 4]


def test_a_consumer_whose_time_ran_out_cannot_settle() -> None:
    house = house_with()
    slow = house.consume("orders", "slow")
    house.publish("orders", "a")
    house.broker.allow(slow.consumer, 0)

    house.advance(LEASE_S)

    with pytest.raises(Refused, match="not pending"):
        house.broker.settle(slow.got[0], ACK)


def test_a_message_is_settled_once() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.publish("orders", "a")
    house.settle(ACK, inbox.got[0])

    with pytest.raises(Refused, match="not pending"):
        house.broker.settle(inbox.got[0], ACK)


def test_a_renewed_lease_ends_when_it_was_renewed_to() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a")
    house.advance(20)

    house.broker.renew(inbox.got[0], 60_000)
    house.advance(59)
    assert len(inbox.got) == 1

    house.advance(1)
    assert len(inbox.got) == 2


def test_a_lease_may_be_cut_short() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a")

    house.broker.renew(inbox.got[0], 1_000)
    house.advance(1)

    assert len(inbox.got) == 2


def test_the_old_end_of_a_renewed_lease_does_not_end_the_next_one() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a")
    house.broker.renew(inbox.got[0], 10_000)
    house.advance(10)
    house.settle(NACK, inbox.got[1])
    assert len(inbox.got) == 3

    house.advance(LEASE_S - 10)

    assert len(inbox.got) == 3


def test_what_is_not_held_cannot_be_renewed() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.publish("orders", "a")
    house.settle(ACK, inbox.got[0])

    with pytest.raises(Refused):
        house.broker.renew(inbox.got[0], 1_000)


def test_the_lease_is_that_of_the_consumer_where_it_has_one() -> None:
    house = house_with()
    consumer = Consumer("c1", lambda deliveries: None)
    consumer.lease_us = 5_000_000
    house.broker.consume("orders", consumer)

    house.publish("orders", "a")

    assert house.broker.groups.pending("orders")[0].due_us == house.clock.now_us() + 5_000_000


def test_settled_leases_do_not_pile_up_until_their_time_is_over() -> None:
    house = house_with(lease_ms=30 * 60_000)
    inbox = house.consume("orders")
    for _ in range(100):
        house.publish("orders", *["x"] * 100)
        house.settle(ACK, *inbox.take())

    leases = group_of(house).leases

    assert leases._noted <= 1024 + 100


def test_many_leases_that_end_at_once_come_back_as_one_step_in_order() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.publish("orders", *[str(number) for number in range(500)])
    inbox.take()

    house.advance(LEASE_S)

    assert inbox.texts() == [str(number) for number in range(500)]


# -- settling ----------------------------------------------------------------------------------------------------------


def test_a_nacked_message_comes_back_after_its_backoff() -> None:
    house = house_with(retry=Retry())
    inbox = house.consume("orders")
    house.publish("orders", "a")

    waits = []
    for _ in range(8):
        house.settle(NACK, inbox.take()[0])
        waited = 0
        while not inbox.got:
            house.advance(5)
            waited += 5
        waits.append(waited)

    assert waits == [5, 10, 20, 40, 80, 160, 300, 300]


def test_a_nacked_message_does_not_hold_up_the_others() -> None:
    house = house_with(retry=Retry())
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a", "b", "c")

    house.settle(NACK, inbox.take()[0])
    assert inbox.texts() == ["b"]


def test_messages_that_came_back_go_before_those_never_delivered_in_order_of_offset() -> None:
    house = house_with()
    house.publish("orders", *"01234")
    inbox = house.consume("orders", credit=3)
    held = inbox.take()
    house.broker.allow(inbox.consumer, 0)

    house.settle(NACK, held[2], held[0], held[1])
    house.broker.set_credit(inbox.consumer, 5)
    house.broker.allow(inbox.consumer, 5)
    house.run()

    assert inbox.texts() == list("01234")


def test_after_ten_retries_a_message_is_a_dead_letter() -> None:
    house = house_with(retry=Retry(), dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    house.publish("orders", "a")

    deliveries = 0
    while inbox.got:
        deliveries += 1
        house.settle(NACK, inbox.take()[0])
        house.advance(300)

    assert deliveries == 11
    assert payloads(house, DLQ) == [b"a"]


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    house = house_with(retry=Retry(), dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    house.publish("orders", "a", "b")

    house.settle(REJECT, inbox.got[0])

    assert payloads(house, DLQ) == [b"a"]
    assert progress(group_of(house)) == (2, [1], 1)


def test_a_timeout_counts_as_an_attempt() -> None:
    house = house_with(delivery_limit=1, dead_letter_queue=DLQ)
    house.consume("orders", credit=1)
    house.publish("orders", "a")

    house.advance(LEASE_S)
    house.advance(LEASE_S)

    assert payloads(house, DLQ) == [b"a"]


def test_a_released_message_is_redelivered_and_not_counted() -> None:
    house = house_with(delivery_limit=0, dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    house.publish("orders", "a")

    house.settle(RELEASE, inbox.take()[0])

    assert [(d.attempts, d.redelivered) for d in inbox.got] == [(1, True)]


def test_a_first_delivery_is_not_marked_as_redelivered() -> None:
    house = house_with()
    inbox = house.consume("orders")

    house.publish("orders", "a")

    assert [(d.attempts, d.redelivered) for d in inbox.got] == [(1, False)]


def test_a_message_can_be_settled_by_offset() -> None:
    house = house_with()
    house.consume("orders", group="g")
    house.publish("orders", "a", "b")

    house.broker.groups.settle("orders", "g", 1, ACK)
    house.run()

    assert progress(group_of(house, "g")) == (2, [0], 0)


@pytest.mark.parametrize("mode", ["work", "queue", "classic"])
def test_work_has_three_names(mode: str) -> None:
    house = house_with()

    assert mode_to_join(house.broker.queue("orders"), "g", mode) == WORK


def test_a_group_may_be_named_without_its_filter_where_that_is_clear() -> None:
    house = house_with()
    house.consume("orders", "one", group="workers", key_filter="eu/#")
    house.consume("orders", "two", group="workers", key_filter="us/#")
    house.publish_topic("$queue/orders/eu/1", "a")
    house.publish_topic("$queue/orders/us/1", "b")

    house.broker.groups.settle("orders", "workers", 0, ACK)
    house.broker.groups.settle("orders", "workers", 1, ACK)
    house.run()

    assert house.broker.queue("orders").messages == 0
    with pytest.raises(Refused, match="may be any of 'workers@eu/#', 'workers@us/#'"):
        house.broker.groups.settle("orders", "workers", 0, ACK)
    with pytest.raises(NotFound, match="no group 'others'"):
        house.broker.groups.settle("orders", "others", 0, ACK)


def test_a_message_that_is_pending_in_two_groups_of_a_name_is_not_settled_without_the_filter() -> None:
    house = house_with()
    for key_filter in ("eu/#", "+/1"):
        house.consume("orders", key_filter, group="workers", key_filter=key_filter)
    house.publish_topic("$queue/orders/eu/1", "a")

    with pytest.raises(Refused, match="name one of them"):
        house.broker.groups.settle("orders", "workers", 0, ACK)


def test_a_group_of_that_very_name_is_meant_before_one_with_a_filter() -> None:
    house = house_with()
    for key_filter in ("", "#"):
        house.consume("orders", f"c{key_filter}", group="workers", key_filter=key_filter)
    house.publish("orders", "a")

    house.broker.groups.settle("orders", "workers", 0, ACK)

    assert [entry.offset for entry in house.broker.groups.pending("orders", "workers")] == []
    assert [entry.offset for entry in house.broker.groups.pending("orders", "workers@#")] == [0]


def test_an_offset_that_is_not_pending_is_refused() -> None:
    house = house_with()
    house.consume("orders", group="g")
    house.publish("orders", "a")

    with pytest.raises(Refused, match="not pending"):
        house.broker.groups.settle("orders", "g", 1, ACK)


def test_the_pending_list_of_a_group_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFound):
        house_with().broker.groups.pending("orders", "nobody")


def test_what_waits_for_its_next_try_is_pending_with_nobody() -> None:
    house = house_with(retry=Retry())
    inbox = house.consume("orders", "c1")
    house.publish("orders", "a")

    house.settle(NACK, inbox.got[0])

    assert house.broker.groups.pending("orders") == [PendingEntry(0, "", 1, house.clock.now_us() + 5_000_000)]


def test_ready_and_unsettled_add_up() -> None:
    house = house_with(retry=Retry())
    house.publish("orders", *"01234")
    inbox = house.consume("orders", credit=3)
    house.settle(NACK, inbox.got[0])
    house.settle(ACK, inbox.got[1])

    group = group_of(house)

    assert (group.ready, group.unsettled) == (1, 3)


# -- members -----------------------------------------------------------------------------------------------------------


def test_what_a_leaving_member_holds_goes_to_the_others_in_order() -> None:
    house = house_with()
    house.publish("orders", *"0123")
    leaver = house.consume("orders", "leaver", credit=3)
    stayer = house.consume("orders", "stayer")
    house.settle(ACK, leaver.got[1])
    stayer.take()

    house.broker.cancel(leaver.consumer)
    house.run()

    assert [(d.offset, d.attempts, d.redelivered) for d in stayer.got if d.offset < 3] == [(0, 2, True), (2, 2, True)]


def test_a_member_that_left_but_keeps_what_it_holds_may_settle_it() -> None:
    house = house_with()
    house.publish("orders", "0", "1")
    inbox = house.consume("orders", credit=1)

    house.broker.cancel(inbox.consumer, keep=True)
    house.settle(ACK, inbox.got[0])

    assert progress(group_of(house)) == (1, [], 1)
    assert inbox.payloads == ["0"]


def test_what_a_member_kept_goes_back_when_it_is_cancelled_for_good() -> None:
    house = house_with()
    house.publish("orders", "0", "1")
    inbox = house.consume("orders", credit=1)

    house.broker.cancel(inbox.consumer, keep=True)
    house.broker.cancel(inbox.consumer)

    assert house.consume("orders", "next").payloads == ["0", "1"]


def test_the_bound_of_the_pending_list_holds_delivery_up_until_there_is_room() -> None:
    house = house_with()
    inbox = house.consume("orders")
    group_of(house).max_pending = 3
    house.publish("orders", *"01234")
    assert inbox.payloads == ["0", "1", "2"]

    house.settle(ACK, *inbox.take()[:1])
    assert inbox.texts() == ["3"]


# -- what the queue gives up -------------------------------------------------------------------------------------------


def test_a_purge_leaves_what_consumers_hold() -> None:
    house = house_with()
    house.publish("orders", *"0123456789")
    inbox = house.consume("orders", credit=5)
    house.settle(ACK, inbox.got[1])
    house.settle(NACK, inbox.got[3])
    house.broker.allow(inbox.consumer, 0)
    house.broker.settle(inbox.got[4], NACK)

    house.broker.purge("orders")
    house.run()

    assert [entry.offset for entry in house.broker.groups.pending("orders")] == [0, 2, 3, 5]
    assert group_of(house).ready == 0


def test_what_was_published_after_a_purge_is_delivered() -> None:
    house = house_with()
    house.publish("orders", *"0123")
    house.broker.purge("orders")

    house.publish("orders", "4")

    assert house.consume("orders").payloads == ["4"]


def test_a_purge_of_what_waits_beyond_many_gaps_takes_a_step_for_each_gap() -> None:
    house = house_with()
    house.publish("orders", *[str(number) for number in range(1000)])
    inbox = house.consume("orders", credit=100)
    house.settle(ACK, *inbox.got[:100:2])
    group = group_of(house)

    house.broker.purge("orders")

    assert len(house.broker._pipeline.batch.durable.steps) == 1
    assert group.ready == 0


def test_the_head_is_the_oldest_that_nobody_holds() -> None:
    house = house_with(retry=Retry())
    house.publish("orders", *"012345")
    inbox = house.consume("orders", credit=4)
    group = group_of(house)
    assert group.head() == 4

    house.broker.allow(inbox.consumer, 0)
    house.settle(NACK, inbox.got[2])
    assert group.head() == 2

    house.broker.allow(inbox.consumer, 1)
    house.advance(5)
    assert group.head() == 4


def test_the_head_of_an_empty_queue_is_its_end() -> None:
    house = house_with()
    house.publish("orders", "0")
    inbox = house.consume("orders")
    house.settle(ACK, inbox.got[0])

    assert group_of(house).head() == 1


def test_a_group_whose_log_was_truncated_under_it_goes_on_at_the_new_beginning() -> None:
    house = house_with()
    house.publish("orders", *"01234567")
    inbox = house.consume("orders", credit=2)
    queue = house.broker.queue("orders")

    queue.disposal.truncate(house.broker._pipeline.open(), 5)
    queue.pump_soon()
    house.run()

    assert inbox.payloads == ["0", "1", "5", "6"]
    assert progress(group_of(house)) == (7, [5, 6], 5)


def test_an_expired_message_is_passed_over() -> None:
    house = house_with()
    house.publish("orders", "0", expires_us=house.clock.now_us() + 1_000_000)
    house.publish("orders", "1")
    house.clock.advance(1)

    assert house.consume("orders").payloads == ["1"]


# -- delays and priorities ---------------------------------------------------------------------------------------------


def test_a_delayed_message_is_delivered_when_its_time_has_come() -> None:
    house = house_with()
    inbox = house.consume("orders")
    house.publish("orders", "later", not_before_us=house.clock.now_us() + 20_000_000)
    house.publish("orders", "now")

    house.advance(19)
    assert inbox.texts() == ["now"]
    house.advance(1)
    assert inbox.texts() == ["later"]


def test_a_delayed_message_is_ready_but_not_pending() -> None:
    house = house_with()
    house.consume("orders")
    house.publish("orders", "later", not_before_us=house.clock.now_us() + 60_000_000)

    assert (group_of(house).ready, house.broker.groups.pending("orders")) == (1, [])


def test_a_delayed_message_expires_while_it_waits() -> None:
    house = house_with(dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    now_us = house.clock.now_us()
    house.publish("orders", "a", not_before_us=now_us + 60_000_000, expires_us=now_us + 50_000_000)

    house.advance(60)

    assert inbox.payloads == []
    assert payloads(house, DLQ) == [b"a"]


def test_a_higher_priority_goes_first_then_the_older() -> None:
    house = house_with(max_priority=10)
    for payload, priority in (("a1", 1), ("b5", 5), ("c1", 1), ("d5", 5), ("e99", 99)):
        house.publish("orders", payload, priority=priority)

    assert house.consume("orders").payloads == ["e99", "b5", "d5", "a1", "c1"]


def test_a_message_that_comes_back_takes_the_place_of_its_priority_and_age() -> None:
    house = house_with(max_priority=10)
    for payload, priority in (("a1", 1), ("b5", 5), ("c5", 5)):
        house.publish("orders", payload, priority=priority)
    inbox = house.consume("orders", credit=1)

    house.settle(NACK, inbox.take()[0])

    assert inbox.texts() == ["b5"]


def test_priorities_hold_after_a_restart() -> None:
    house = house_with(max_priority=10)
    for payload, priority in (("a1", 1), ("b5", 5), ("c9", 9), ("d5", 5)):
        house.publish("orders", payload, priority=priority)
    house.consume("orders", credit=1)

    inbox = restarted(house).consume("orders")

    assert [(d.message.payload.decode(), d.redelivered) for d in inbox.got] == [
        ("c9", True),
        ("b5", False),
        ("d5", False),
        ("a1", False),
    ]


def test_exactly_what_was_claimed_out_of_order_is_redelivered_after_a_restart() -> None:
    house = house_with(max_priority=9)
    for priority in (0, 9, 0, 7, 0, 0, 0, 8):
        house.publish("orders", "x", priority=priority)
    house.consume("orders", credit=3)

    inbox = restarted(house).consume("orders")

    assert [delivery.offset for delivery in inbox.got if delivery.redelivered] == [1, 7, 3]


def test_a_delayed_message_keeps_its_priority() -> None:
    house = house_with(max_priority=9)
    inbox = house.consume("orders")
    later = house.clock.now_us() + 10_000_000
    house.publish("orders", "low", priority=1, not_before_us=later)
    house.publish("orders", "high", priority=9, not_before_us=later)

    house.advance(10)

    assert inbox.payloads == ["high", "low"]


def test_without_priorities_order_is_that_of_the_log() -> None:
    house = house_with()
    for payload, priority in (("a", 1), ("b", 5)):
        house.publish("orders", payload, priority=priority)

    assert house.consume("orders").payloads == ["a", "b"]


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_what_was_claimed_is_redelivered_after_a_restart_with_its_attempts() -> None:
    house = house_with()
    inbox = house.consume("orders", credit=2)
    house.publish("orders", *"0123")
    house.settle(NACK, inbox.got[0])
    house.settle(ACK, inbox.got[1])

    inbox = restarted(house).consume("orders")

    assert [(d.offset, d.attempts, d.redelivered) for d in inbox.got] == [(0, 3, True), (2, 2, True), (3, 1, False)]


def test_a_backoff_goes_on_after_a_restart() -> None:
    house = house_with(retry=Retry())
    inbox = house.consume("orders")
    house.publish("orders", "a")
    house.settle(NACK, inbox.got[0])

    house = restarted(house)
    inbox = house.consume("orders")
    house.advance(4)
    assert inbox.payloads == []
    house.advance(1)
    assert [(d.attempts, d.redelivered) for d in inbox.got] == [(2, True)]


def test_a_delayed_message_survives_a_restart() -> None:
    house = house_with()
    house.consume("orders")
    house.publish("orders", "later", not_before_us=house.clock.now_us() + 20_000_000)
    house.publish("orders", "now")

    house = restarted(house)
    inbox = house.consume("orders")
    before = inbox.texts()
    house.advance(20)

    assert (before, inbox.texts()) == (["now"], ["later"])


def test_a_message_whose_last_try_a_restart_cut_short_is_a_dead_letter() -> None:
    house = house_with(delivery_limit=1, dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    house.publish("orders", "a")
    house.settle(NACK, inbox.got[0])

    house = restarted(house)
    inbox = house.consume("orders")

    assert inbox.payloads == []
    assert payloads(house, DLQ) == [b"a"]


def test_settled_messages_stay_settled_after_a_restart() -> None:
    house = house_with(dead_letter_queue=DLQ)
    inbox = house.consume("orders")
    house.publish("orders", *"0123")
    house.settle(ACK, inbox.got[2])
    house.settle(REJECT, inbox.got[3])

    assert restarted(house).consume("orders").payloads == ["0", "1"]


def test_a_purge_holds_after_a_restart() -> None:
    house = house_with()
    house.publish("orders", *"0123")
    inbox = house.consume("orders", credit=1)
    house.broker.purge("orders")
    house.run()
    assert inbox.payloads == ["0"]

    assert restarted(house).consume("orders").payloads == ["0"]


def test_filtered_progress_survives_a_restart() -> None:
    house = house_with()
    inbox = house.consume("orders", group="g", key_filter="a")
    for key in "abaab":
        house.publish_topic(f"$queue/orders/{key}", key)
    house.settle(ACK, inbox.got[0])

    house = restarted(house)
    inbox = house.consume("orders", group="g", key_filter="a")

    assert [delivery.offset for delivery in inbox.got] == [2, 3]


@pytest.mark.parametrize("how", [lambda house: None, lambda house: house.broker.purge("orders")])
def test_the_count_of_messages_is_the_same_after_a_restart(how: Callable[[House], object]) -> None:
    house = house_with()
    house.publish("orders", *"012345")
    inbox = house.consume("orders", credit=3)
    house.settle(ACK, inbox.got[1])
    house.broker.cancel(inbox.consumer)
    house.run()
    how(house)
    house.run()

    assert group_of(restarted(house)).ready == group_of(house).ready


# -- what is remembered ------------------------------------------------------------------------------------------------


def test_a_group_remembers_nothing_of_messages_that_it_is_done_with() -> None:
    house = house_with()
    inbox = house.consume("orders", "c1", credit=2)

    def pass_through(count: int) -> None:
        for _ in range(count):
            house.publish("orders", "x")
            house.settle(ACK, *inbox.take())

    pass_through(200)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        pass_through(600)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert grown < 30 * 600


# -- large messages ----------------------------------------------------------------------------------------------------


def test_large_messages_that_came_back_all_come_before_new_ones() -> None:
    house = house_with()
    house.publish("orders", *[f"{number:02}" + "x" * 150_000 for number in range(20)])
    first = house.consume("orders", "c1", credit=15)
    assert len(first.got) == 15
    house.broker.cancel(first.consumer)

    second = house.consume("orders", "c2", credit=100)
    house.run()

    assert [text[:2] for text in second.texts()] == [f"{number:02}" for number in range(20)]

"""Stream groups: where reading starts, how progress is committed, what settling means, retention under a reader."""

from datetime import UTC, datetime

import pytest

from headrace.core.queue.definition import (
    FIRST,
    LAST,
    NEXT,
    OFFSET,
    RESUME,
    STREAM,
    TIMESTAMP,
    QueueDefinition,
    Retention,
    parse_position,
)
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.filter_values import ValueFilter, read_values
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE, STREAM_MODE, PendingEntry
from headrace.core.queue.stream import StreamGroup
from headrace.errors import Refused
from headrace.selector import parse
from headrace.storage.group_state import WORK
from tests.house import House, Inbox


def house_with(**options: object) -> House:
    house = House()
    house.broker.declare(QueueDefinition("events", STREAM, **options))  # type: ignore[arg-type]
    house.run()
    return house


def filled(count: int = 8, **options: object) -> House:
    house = house_with(**options)
    house.publish("events", *[str(number) for number in range(count)])
    return house


def restarted(house: House) -> House:
    return House(house.engine, house.clock)


def group_of(house: House, name: str = "readers") -> StreamGroup:
    group = house.broker.queue("events").groups[name]
    assert isinstance(group, StreamGroup)
    return group


def progress(house: House, name: str = "readers") -> tuple[int, int]:
    """Cursor and committed."""
    state = group_of(house, name).state
    return state.cursor, state.committed


# -- where reading starts ----------------------------------------------------------------------------------------------


def test_without_a_position_a_new_group_reads_from_the_beginning() -> None:
    assert filled(3).consume("events", group="readers").payloads == ["0", "1", "2"]


def test_without_a_position_a_group_resumes_at_what_it_committed() -> None:
    house = filled(5)
    inbox = house.consume("events", group="readers", credit=3)
    house.settle(ACK, *inbox.got[:2])

    house = restarted(house)

    assert house.consume("events", group="readers").payloads == ["2", "3", "4"]


def test_first_is_the_beginning_of_the_log() -> None:
    house = filled(3)
    reader = house.consume("events", group="readers", auto_ack=True)
    house.broker.cancel(reader.consumer)

    assert house.consume("events", group="readers", position="first").payloads == ["0", "1", "2"]


def test_next_are_new_messages_only() -> None:
    house = filled(3)

    inbox = house.consume("events", group="readers", position="next")
    house.publish("events", "new")

    assert inbox.payloads == ["new"]


@pytest.mark.parametrize("position", [2, "2", "offset=2"])
def test_a_number_is_an_offset(position: object) -> None:
    assert filled(4).consume("events", group="readers", position=position).payloads == ["2", "3"]


@pytest.mark.parametrize(("position", "expected"), [(100, ["new"]), (0, ["3", "4", "new"])])
def test_an_offset_is_kept_within_what_there_is(position: int, expected: list[str]) -> None:
    house = filled(5, retention=Retention(max_messages=2))

    inbox = house.consume("events", group="readers", position=position)
    house.publish("events", "new")

    assert inbox.payloads == expected


@pytest.mark.parametrize("unit", [1, 1000])
def test_a_timestamp_in_seconds_or_milliseconds_is_the_first_message_since(unit: int) -> None:
    house = house_with()
    start = house.clock.now_us() // 1_000_000
    for number in range(5):
        house.publish("events", str(number))
        house.clock.advance(10)

    inbox = house.consume("events", group="readers", position=f"timestamp={(start + 15) * unit}")

    assert inbox.payloads == ["2", "3", "4"]


def test_a_position_of_a_second_reader_does_not_move_the_group_under_the_first() -> None:
    house = filled(3)
    first = house.consume("events", "c1", group="readers", position="first", auto_ack=True)

    second = house.consume("events", "c2", group="readers", position="first", auto_ack=True)

    assert (first.payloads, second.payloads) == (["0", "1", "2"], [])


@pytest.mark.parametrize(
    ("value", "place"),
    [
        (None, (RESUME, 0)),
        ("", (RESUME, 0)),
        ("first", (FIRST, 0)),
        ("earliest", (FIRST, 0)),
        ("last", (LAST, 0)),
        ("next", (NEXT, 0)),
        ("latest", (NEXT, 0)),
        (123, (OFFSET, 123)),
        ("123", (OFFSET, 123)),
        ("offset=123", (OFFSET, 123)),
        ("timestamp=1706745600000", (TIMESTAMP, 1_706_745_600_000_000)),
        ("timestamp=1706745600", (TIMESTAMP, 1_706_745_600_000_000)),
        ("timestamp=9999999999999999999", (TIMESTAMP, (1 << 63) - 1)),
        (datetime(2024, 2, 1, tzinfo=UTC), (TIMESTAMP, 1_706_745_600_000_000)),
        (datetime(2024, 2, 1), (TIMESTAMP, 1_706_745_600_000_000)),
    ],
)
def test_a_position_is_read(value: object, place: tuple[str, int]) -> None:
    assert parse_position(value) == place


@pytest.mark.parametrize(
    ("value", "seconds"), [("5s", 5), ("05m", 300), ("2h", 7200), ("1D", 86_400), ("1M", 2_592_000), ("1Y", 31_536_000)]
)
def test_an_age_is_a_position_counted_back_from_now(value: str, seconds: int) -> None:
    now_us = 1_706_745_600_000_000

    assert parse_position(value, now_us) == (TIMESTAMP, now_us - seconds * 1_000_000)
    assert parse_position("999999999Y", now_us) == (TIMESTAMP, 0)


@pytest.mark.parametrize("value", ["0s", "m", "5d", "-5m", "1.5h", "5m ", "5mm", "m5"])
def test_what_is_no_age_is_refused(value: str) -> None:
    with pytest.raises(Refused, match="an age such as 5m"):
        parse_position(value, 1_706_745_600_000_000)


def test_an_age_is_no_position_to_be_stored() -> None:
    with pytest.raises(Refused, match="stream offset"):
        parse_position("5m")


@pytest.mark.parametrize(
    ("position", "texts"), [("last", ["2", "3"]), ("next", ["3"]), ("15s", ["2", "3"]), ("25s", ["1", "2", "3"])]
)
def test_a_reader_starts_with_the_last_message_or_some_time_ago(position: str, texts: list[str]) -> None:
    house = house_with()
    for number in range(3):
        house.publish("events", str(number))
        house.advance(10)
    reader = house.consume("events", position=position)
    house.publish("events", "3")

    assert reader.payloads == texts


def test_the_last_message_of_an_empty_stream_is_the_next() -> None:
    house = house_with()
    reader = house.consume("events", position="last")
    house.publish("events", "1")

    assert reader.payloads == ["1"]


# -- filter values -----------------------------------------------------------------------------------------------------


def _reader(house: House, values: ValueFilter | None, group: str) -> Inbox:
    inbox = Inbox(house, group, 0, False, 0, None)
    inbox.consumer.values = values
    house.broker.consume("events", inbox.consumer, group)
    house.run()
    return inbox


def _valued() -> House:
    house = house_with()
    for number, value in enumerate(["a", "b", None, "a", 5]):
        headers = {} if value is None else {"x-stream-filter-value": value}
        house.publish("events", str(number), headers=headers)
    return house


@pytest.mark.parametrize(
    ("values", "others", "texts"),
    [("a", False, ["0", "3"]), ("ab", False, ["0", "1", "3"]), ("b", True, ["1", "2", "4"]), ("c", False, [])],
)
def test_a_reader_gets_the_filter_values_that_it_asks_for(values: str, others: bool, texts: list[str]) -> None:
    house = _valued()

    reader = _reader(house, ValueFilter(frozenset(values), others), "readers")

    assert reader.payloads == texts
    assert progress(house)[0] == 5


def test_readers_of_a_group_agree_on_filter_values() -> None:
    house = _valued()
    _reader(house, ValueFilter(frozenset("ab"), True), "readers")

    _reader(house, ValueFilter(frozenset("ba"), True), "readers")
    with pytest.raises(Refused, match=r"the filter values \['a', 'b'\] and messages without one"):
        _reader(house, ValueFilter(frozenset("ab"), False), "readers")
    with pytest.raises(Refused, match="all of them must agree"):
        _reader(house, None, "readers")


@pytest.mark.parametrize("given", [5, {"a": 1}, ["a", 5], True, None])
def test_filter_values_are_texts(given: object) -> None:
    with pytest.raises(Refused, match="a string or a list of strings"):
        read_values(given)


@pytest.mark.parametrize(
    "value", ["middle", "-1", -1, True, 1.5, "offset=", "offset=x", "timestamp=", "time=5", "9" * 5000, 1 << 63, "²"]
)
def test_what_is_no_position_is_refused(value: object) -> None:
    with pytest.raises(Refused, match="stream offset"):
        parse_position(value)


# -- progress ----------------------------------------------------------------------------------------------------------


def test_stream_state_is_just_a_cursor_and_a_checkpoint() -> None:
    house = filled(8)
    inbox = house.consume("events", group="readers", credit=5)
    house.broker.allow(inbox.consumer, 0)

    house.settle(ACK, *inbox.got[:3])

    assert progress(house) == (5, 3)
    assert house.engine.log("events").groups["readers"].pending == {}


def test_groups_read_independently() -> None:
    house = filled(3)
    ours, theirs = house.consume("events", group="ours", credit=1), house.consume("events", group="theirs")

    house.settle(ACK, *theirs.got)

    assert (ours.payloads, theirs.payloads) == (["0"], ["0", "1", "2"])
    assert (progress(house, "ours"), progress(house, "theirs")) == ((1, 0), (3, 3))


def test_acknowledged_messages_stay_in_the_log() -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers")

    house.settle(ACK, *inbox.got)

    assert house.broker.queue("events").log.first_offset == 0


def test_what_is_delivered_without_acknowledgement_is_committed_every_five_seconds() -> None:
    house = filled(3)
    house.consume("events", group="readers", auto_ack=True)

    house.advance(4.999)
    assert progress(house) == (3, 0)
    house.advance(0.001)
    assert progress(house) == (3, 3)


def test_a_commit_never_passes_what_a_reader_holds() -> None:
    house = filled(5)
    inbox = house.consume("events", group="readers")

    house.settle(ACK, inbox.got[0], inbox.got[1], inbox.got[3])
    house.advance(5)

    assert progress(house) == (5, 2)


def test_many_acknowledgements_of_one_turn_are_one_checkpoint() -> None:
    house = filled(100)
    inbox = house.consume("events", group="readers")

    for delivery in inbox.got:
        house.broker.settle(delivery, ACK)

    assert house.broker._pipeline.batch.durable.steps == []
    house.run()
    assert progress(house) == (100, 100)


def test_without_auto_commit_acknowledging_commits_nothing() -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers", auto_commit=False)

    house.settle(ACK, *inbox.got)
    house.advance(60)

    assert progress(house) == (3, 0)


def test_without_auto_commit_reading_resumes_where_it_was_committed_by_hand() -> None:
    house = filled(5)
    inbox = house.consume("events", group="readers", auto_commit=False)
    house.settle(ACK, *inbox.got)

    house.broker.groups.commit("events", "readers", 2)
    house.broker.cancel(inbox.consumer)
    inbox = house.consume("events", group="readers", auto_commit=False)

    assert inbox.payloads == ["2", "3", "4"]


def test_a_group_committed_by_hand_is_so_after_a_restart() -> None:
    house = filled(5)
    house.consume("events", group="readers", auto_commit=False)

    house = restarted(house)
    house.consume("events", group="readers", auto_commit=False, auto_ack=True)
    house.advance(60)

    assert progress(house) == (5, 0)


def test_readers_of_a_group_must_agree_on_who_commits() -> None:
    house = filled(1)
    house.consume("events", "c1", group="readers", auto_commit=False)

    with pytest.raises(Refused, match="must agree"):
        house.consume("events", "c2", group="readers", auto_commit=True)


def test_nothing_above_the_cursor_can_be_committed() -> None:
    house = filled(5)
    house.consume("events", group="readers", credit=2)

    with pytest.raises(Refused, match="has read to 2"):
        house.broker.groups.commit("events", "readers", 3)


def test_committing_what_was_committed_before_changes_nothing() -> None:
    house = filled(5)
    house.consume("events", group="readers", auto_commit=False)
    house.broker.groups.commit("events", "readers", 4)

    house.broker.groups.commit("events", "readers", 1)

    assert progress(house) == (5, 4)


def test_a_work_group_has_no_offset_to_commit() -> None:
    house = filled(1)
    house.consume("events", group="workers", mode=WORK)

    with pytest.raises(Refused, match="work group"):
        house.broker.groups.commit("events", "workers", 1)


def test_a_checkpoint_survives_a_restart() -> None:
    house = filled(5)
    house.consume("events", group="readers", auto_ack=True)
    house.advance(5)

    assert progress(restarted(house)) == (5, 5)


# -- settling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [NACK, RELEASE])
def test_a_nack_does_nothing_but_make_room(outcome: int) -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers", credit=1)

    house.settle(outcome, inbox.got[0])

    assert inbox.payloads == ["0", "1"]
    assert (group_of(house).ready, group_of(house).unsettled) == (1, 1)


def test_nacked_messages_are_behind_the_next_periodic_commit() -> None:
    house = filled(2)
    inbox = house.consume("events", group="readers")
    house.advance(5)

    house.settle(NACK, *inbox.got)
    assert progress(house) == (2, 0)
    house.advance(5)
    assert progress(house) == (2, 2)


def test_a_rejected_message_is_stepped_over_and_stays_in_the_log() -> None:
    house = filled(2)
    inbox = house.consume("events", group="readers", credit=1)

    house.settle(REJECT, inbox.got[0])

    assert progress(house) == (2, 1)
    assert house.broker.queue("events").log.first_offset == 0


def test_settling_twice_does_nothing_more() -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers", credit=2)

    house.settle(ACK, inbox.got[0], inbox.got[0])

    assert inbox.consumer.holding == 2


def test_what_readers_hold_is_listed() -> None:
    house = filled(3)
    house.consume("events", "c1", group="readers", credit=2)

    pending = house.broker.groups.pending("events", "readers")
    assert pending == [PendingEntry(0, "c1", 1, 0), PendingEntry(1, "c1", 1, 0)]


def test_a_stream_message_can_be_settled_by_offset() -> None:
    house = filled(3)
    house.consume("events", group="readers")

    house.broker.groups.settle("events", "readers", 0, ACK)
    house.run()

    assert progress(house) == (3, 1)


# -- seeking -----------------------------------------------------------------------------------------------------------


def test_a_seek_back_reads_again_without_marking_it_redelivered() -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers")
    house.settle(ACK, *inbox.take())

    house.broker.groups.seek("events", "readers", 1)
    house.run()

    assert [(d.offset, d.redelivered) for d in inbox.got] == [(1, False), (2, False)]
    assert progress(house) == (3, 1)


def test_a_seek_gives_back_the_credit_of_what_readers_held() -> None:
    house = filled(3)
    inbox = house.consume("events", group="readers", credit=2)
    held = inbox.take()

    house.broker.groups.seek("events", "readers", "first")
    house.run()
    house.settle(ACK, *held, *inbox.take())

    assert inbox.texts() == ["2"]
    assert inbox.consumer.holding == 1


def test_a_seek_survives_a_restart() -> None:
    house = filled(5)
    reader = house.consume("events", group="readers", auto_ack=True)
    house.broker.allow(reader.consumer, 0)

    house.broker.groups.seek("events", "readers", 3)
    house.run()

    assert restarted(house).consume("events", group="readers").payloads == ["3", "4"]


def test_a_work_group_cannot_be_moved() -> None:
    house = filled(1)
    house.consume("events", group="workers", mode=WORK)

    with pytest.raises(Refused, match="work group"):
        house.broker.groups.seek("events", "workers", "first")


# -- members -----------------------------------------------------------------------------------------------------------


def test_members_share_the_cursor() -> None:
    house = filled(4)
    first = house.consume("events", "c1", group="readers", credit=1)
    second = house.consume("events", "c2", group="readers", credit=1)

    assert (first.payloads, second.payloads) == (["0"], ["1"])


def test_what_a_leaving_member_held_is_read_by_another_and_nothing_else_is_read_twice() -> None:
    house = filled(3)
    leaver = house.consume("events", "c1", group="readers", credit=1)
    stayer = house.consume("events", "c2", group="readers", credit=5)

    house.broker.cancel(leaver.consumer)
    house.run()

    assert [(d.offset, d.redelivered) for d in stayer.got] == [(1, False), (2, False), (0, True)]
    assert len(stayer.consumer.held()) == stayer.consumer.holding == 3


def test_once_all_readers_left_reading_resumes_at_the_checkpoint() -> None:
    house = filled(4)
    inbox = house.consume("events", "c1", group="readers", credit=4)
    house.settle(ACK, inbox.got[0], inbox.got[2])
    house.broker.cancel(inbox.consumer)
    house.run()

    assert house.consume("events", "c2", group="readers").payloads == ["1", "2", "3"]


def test_a_reader_that_left_but_keeps_what_it_holds_may_acknowledge_it() -> None:
    house = filled(3)
    inbox = house.consume("events", "c1", group="readers", credit=2)

    house.broker.cancel(inbox.consumer, keep=True)
    house.settle(ACK, *inbox.got)
    house.broker.cancel(inbox.consumer)
    house.run()

    assert progress(house) == (2, 2)


def test_a_reader_may_leave_within_its_delivery() -> None:
    house = filled(3)
    seen: list[int] = []

    def deliver(deliveries: list[Delivery]) -> None:
        seen.extend(delivery.offset for delivery in deliveries)
        house.broker.cancel(consumer)

    consumer = Consumer("c1", deliver, credit=1)
    house.broker.consume("events", consumer, "readers")
    house.run()

    assert seen == [0]
    assert house.consume("events", "c2", group="readers").payloads == ["0", "1", "2"]


@pytest.mark.parametrize("auto_ack", [False, True])
def test_what_was_meant_for_a_reader_that_another_ones_delivery_made_leave_is_read_by_the_next(auto_ack: bool) -> None:
    house = house_with()
    leaving = Consumer("c2", lambda deliveries: pytest.fail("it has left"), auto_ack=auto_ack)
    house.broker.consume("events", Consumer("c1", lambda deliveries: house.broker.cancel(leaving), 1), "readers")
    house.broker.consume("events", leaving, "readers")

    house.publish("events", "0", "1", "2")

    assert house.consume("events", "c3", group="readers").payloads == ["1", "2"]


def test_without_a_group_each_reader_has_its_own() -> None:
    house = filled(2)

    first, second = house.consume("events", "c1"), house.consume("events", "c2")

    assert (first.payloads, second.payloads) == (["0", "1"], ["0", "1"])


def test_a_work_group_is_refused_as_a_stream_group() -> None:
    house = filled(1)
    house.consume("events", group="workers", mode=WORK)

    with pytest.raises(Refused, match="ErrGroupModeMismatch"):
        house.consume("events", group="workers")


def test_single_messages_cannot_be_taken_from_a_stream() -> None:
    house = filled(1)

    with pytest.raises(Refused, match="stream"):
        house.broker.get("events", Consumer("taker", lambda deliveries: None))


# -- filters, expiry, retention ----------------------------------------------------------------------------------------


def test_a_filtered_reader_gets_its_part_of_the_stream() -> None:
    house = house_with()
    sensors = house.consume("events", "c1", group="readers", key_filter="sensors/#")
    everything = house.consume("events", "c2", group="readers", key_filter="#")

    for key in ("sensors/1", "doors/1", "sensors/2"):
        house.publish_topic(f"$queue/events/{key}", key)

    assert (sensors.payloads, everything.payloads) == (
        ["sensors/1", "sensors/2"],
        ["sensors/1", "doors/1", "sensors/2"],
    )
    assert set(house.broker.queue("events").groups) == {"readers@sensors/#", "readers@#"}


def test_what_a_filter_passes_over_is_committed_too() -> None:
    house = house_with()
    house.consume("events", group="readers", key_filter="wanted")
    for _ in range(1000):
        house.broker.publish_topic(house.message("x", "$queue/events/other"))
    house.run()

    house.advance(5)

    assert progress(house, "readers@wanted") == (1000, 1000)


@pytest.mark.parametrize("mode", [STREAM_MODE, WORK])
def test_the_expiry_of_a_message_does_not_count_in_a_stream(mode: int) -> None:
    house = house_with()
    house.publish("events", "a", expires_us=house.clock.now_us() + 1_000_000)
    house.publish("events", "b", expires_us=house.clock.now_us())
    house.publish("events", "c")
    house.advance(2)

    assert house.consume("events", group="readers", mode=mode).payloads == ["a", "b", "c"]
    assert house.broker.queue("events").messages == 0


def test_a_browser_sees_what_expired_in_a_stream() -> None:
    house = house_with()
    house.publish("events", "a", expires_us=house.clock.now_us() + 1_000_000)
    house.advance(2)
    seen: list[bytes] = []
    browser = house.broker.browse(
        "events", lambda found: seen.extend([message.payload for _, message in found]), None, lambda: None
    )

    house.broker.allow_browser(browser, 5)
    house.run()

    assert seen == [b"a"]


@pytest.mark.parametrize("mode", [STREAM_MODE, WORK])
@pytest.mark.parametrize("own_s", [0, 1, 10])
def test_the_time_to_live_of_a_stream_counts_alone(mode: int, own_s: int) -> None:
    house = house_with(message_ttl_ms=5000)
    expires_us = house.clock.now_us() + own_s * 1_000_000 if own_s else 0
    house.publish("events", "old", expires_us=expires_us)
    house.advance(2)

    early = house.consume("events", group="early", mode=mode).payloads
    house.advance(3)
    house.publish("events", "new")

    assert early == ["old"]
    assert house.consume("events", group="late", mode=mode).payloads == ["new"]


def test_a_reader_that_falls_behind_retention_goes_on_where_the_log_begins() -> None:
    house = filled(3, retention=Retention(max_messages=4))
    inbox = house.consume("events", group="readers", credit=1)
    house.publish("events", *[str(number) for number in range(3, 10)])
    assert house.broker.queue("events").log.first_offset == 6

    house.settle(ACK, inbox.take()[0])

    assert inbox.payloads == ["6"]
    assert progress(house) == (7, 6)


def test_what_a_leaver_held_and_retention_took_is_not_read_again() -> None:
    house = filled(3, retention=Retention(max_messages=4))
    leaver = house.consume("events", "c1", group="readers", credit=1)
    stayer = house.consume("events", "c2", group="readers")
    house.publish("events", *[str(number) for number in range(3, 10)])
    stayer.take()

    house.broker.cancel(leaver.consumer)
    house.run()

    assert stayer.got == []


def test_the_bound_of_the_pending_list_holds_reading_up_until_there_is_room() -> None:
    house = house_with()
    inbox = house.consume("events", group="readers")
    group_of(house).max_pending = 3
    house.publish("events", *"01234")

    house.settle(ACK, inbox.got[0])

    assert inbox.payloads == ["0", "1", "2", "3"]


def test_a_slow_reader_does_not_make_the_group_remember_what_others_settled() -> None:
    house = house_with()
    slow = house.consume("events", "slow", group="readers", credit=1)
    house.publish("events", "kept")
    fast = house.consume("events", "fast", group="readers", credit=2)
    for _ in range(1100):
        house.publish("events", "x")
        house.settle(ACK, *fast.take())

    assert len(group_of(house)._runs) <= 1024 + 3
    assert progress(house) == (1101, 0)
    house.settle(ACK, *slow.take())
    assert progress(house) == (1101, 1101)


# -- the primary work group --------------------------------------------------------------------------------------------


def test_a_stream_tells_how_far_its_primary_work_group_is() -> None:
    house = filled(5, primary_group="workers")
    house.consume("events", group="readers")
    worker = house.consume("events", group="workers", mode=WORK)

    house.settle(ACK, *worker.got[:3])

    assert group_of(house).work_progress() == ("workers", 3)


def test_the_primary_work_group_may_have_filters_and_the_furthest_behind_counts() -> None:
    house = filled(4, primary_group="workers")
    house.consume("events", group="readers")
    fast = house.consume("events", group="workers", key_filter="#", mode=WORK)
    house.consume("events", group="workers", mode=WORK, credit=1)

    house.settle(ACK, *fast.got)

    assert group_of(house).work_progress() == ("workers", 0)


@pytest.mark.parametrize("primary", ["", "workers"])
def test_without_a_primary_work_group_there_is_nothing_to_tell(primary: str) -> None:
    house = filled(1, primary_group=primary)
    house.consume("events", group="readers")

    assert group_of(house).work_progress() is None


# -- many at once ------------------------------------------------------------------------------------------------------


def test_what_is_acknowledged_at_once_is_committed_up_to_the_oldest_that_is_not() -> None:
    house = filled(8)
    inbox = house.consume("events", group="readers", credit=6)

    house.broker.acknowledge([inbox.got[number] for number in (0, 1, 3, 5)])
    house.run()

    assert progress(house) == (8, 2)
    assert [entry.offset for entry in house.broker.groups.pending("events", "readers")] == [2, 4, 6, 7]


def test_readers_that_share_a_stream_get_first_deliveries() -> None:
    house = house_with()
    readers = [house.consume("events", name, group="readers", credit=4) for name in ("a", "b")]

    house.publish("events", *[str(number) for number in range(8)])

    assert sorted(text for reader in readers for text in reader.payloads) == [str(number) for number in range(8)]
    assert not any(delivery.redelivered for reader in readers for delivery in reader.got)


def test_a_commit_makes_room_for_the_reader_that_holds_what_is_below() -> None:
    house = filled(9)
    inbox = house.consume("events", group="readers", credit=3, auto_commit=False)

    house.broker.groups.commit("events", "readers", 2)
    house.run()
    house.broker.groups.commit("events", "readers", 5)
    house.run()

    assert inbox.payloads == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert [entry.offset for entry in house.broker.groups.pending("events", "readers")] == [5, 6, 7]


def test_the_lag_of_a_stream_group_is_what_its_readers_have_not_settled() -> None:
    house = filled(4)
    inbox = house.consume("events", group="g", position=FIRST)
    group = house.broker.queue("events").groups["g"]
    assert group.lag == 4

    house.settle(ACK, *inbox.take()[1:])

    assert group.lag == 1


def test_a_stream_group_may_be_named_without_its_filter_where_there_is_one() -> None:
    house = filled(3)
    house.consume("events", group="readers", key_filter="#", auto_commit=False)

    house.broker.groups.commit("events", "readers", 2)
    house.run()

    assert progress(house, "readers@#")[1] == 2


@pytest.mark.parametrize("credit", [1, 2, 5])
@pytest.mark.parametrize("by", ["filter", "selector"])
def test_a_reader_that_wants_some_messages_holds_no_more_than_its_credit_and_misses_none(by: str, credit: int) -> None:
    house = House()
    house.broker.declare(QueueDefinition("s", STREAM, topics=("$queue/s/#",)))
    for number in range(30):
        house.publish_topic(f"$queue/s/{'odd' if number % 3 else 'even'}/{number}", str(number))
    inbox = Inbox(house, "reader", credit, False, 0, None)
    inbox.consumer.selector = parse("topic LIKE '%even%'") if by == "selector" else None
    house.broker.consume("s", inbox.consumer, group="g", key_filter="even/#" if by == "filter" else "")
    house.run()

    seen: list[str] = []
    while inbox.got:
        assert len(inbox.got) <= credit
        seen += inbox.payloads
        house.settle(ACK, *inbox.take())

    assert seen == [str(number) for number in range(0, 30, 3)]

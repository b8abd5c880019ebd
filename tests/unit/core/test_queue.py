"""Ways into a queue, and out of it unread: time to live, limits, purging, later delivery, history."""

import pytest

from headrace.core.queue.definition import QueueDefinition, Retention, Retry, declared
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.errors import HeadraceError, PreconditionFailed, Refused, TooLarge
from headrace.model import Message, Source
from tests.house import House
from tests.unit.core.conftest import World

SECOND_US = 1_000_000


def texts(house: House, queue: str) -> list[str]:
    """Messages that wait or are held in a queue."""
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def with_graves(house: House, name: str, **arguments: object) -> None:
    """A queue whose dead letters go to the queue `dead`."""
    house.broker.declare(declared("dead", durable=True))
    table = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
    table |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    house.broker.declare(declared(name, durable=True, arguments=table))
    house.run()


# -- time to live ------------------------------------------------------------------------------------------------------


def test_a_message_that_outlives_the_queues_ttl_is_a_dead_letter_without_any_consumer(world: World) -> None:
    with_graves(world.house, "q", message_ttl=1000)
    world.house.publish("q", "a")

    world.house.advance(0.9)
    assert texts(world.house, "q") == ["a"]
    world.house.advance(0.2)

    assert (texts(world.house, "q"), texts(world.house, "dead")) == ([], ["a"])


@pytest.mark.parametrize(("own", "queues"), [(1, 5), (5, 1)])
def test_the_shorter_time_to_live_wins(house: House, own: int, queues: int) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-message-ttl": queues * 1000}))
    house.publish("q", "a", expires_us=house.clock.now_us() + own * SECOND_US)

    house.advance(1.5)

    assert texts(house, "q") == []


def test_an_expired_message_is_never_delivered(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-message-ttl": 1000}))
    house.publish("q", "old")
    house.clock.advance(2)

    assert house.consume("q").payloads == []


def test_a_ttl_of_zero_delivers_to_a_consumer_that_waits(world: World) -> None:
    world.house.broker.declare(declared("q", durable=True, arguments={"x-message-ttl": 0}))
    inbox = world.house.consume("q")

    world.house.publish("q", "now")

    assert inbox.payloads == ["now"]


def test_a_ttl_of_zero_drops_what_no_consumer_waits_for(world: World) -> None:
    with_graves(world.house, "q", message_ttl=0)

    world.house.publish("q", "a", "b")

    assert (texts(world.house, "q"), texts(world.house, "dead")) == ([], ["a", "b"])


def test_a_message_that_expires_behind_one_that_lives_goes_when_it_is_the_oldest(house: House) -> None:
    with_graves(house, "q")
    house.publish("q", "lives")
    house.publish("q", "short", expires_us=house.clock.now_us() + SECOND_US)
    house.advance(2)
    assert house.broker.queue("q").messages == 2

    inbox = house.consume("q")

    assert (inbox.payloads, texts(house, "dead")) == (["lives"], ["short"])


def test_a_message_that_expires_for_several_groups_is_one_dead_letter(house: House) -> None:
    with_graves(house, "q", message_ttl=1000)
    for group in ("one", "two"):
        house.broker.cancel(house.consume("q", group=group).consumer)
    house.publish("q", "a")

    house.advance(2)

    assert texts(house, "dead") == ["a"]


def test_a_message_that_a_consumer_holds_does_not_expire_under_it(house: House) -> None:
    with_graves(house, "q", message_ttl=1000)
    inbox = house.consume("q")
    house.publish("q", "a")

    house.advance(2)
    house.settle(ACK, *inbox.got)

    assert texts(house, "dead") == []


def test_a_message_that_expired_for_one_group_is_no_second_dead_letter_when_another_gives_it_back(house: House) -> None:
    with_graves(house, "q", message_ttl=1000)
    holder = house.consume("q", group="one")
    house.broker.cancel(house.consume("q", group="two").consumer)
    house.publish("q", "a")
    house.advance(2)
    assert texts(house, "dead") == ["a"]

    house.broker.cancel(holder.consumer)
    house.advance(2)

    assert (house.broker.queue("q").messages, texts(house, "dead")) == (0, ["a"])


def test_a_message_that_comes_back_expired_to_a_consumer_without_room_is_gone(house: House) -> None:
    with_graves(house, "q", message_ttl=1000)
    inbox = house.consume("q", credit=1)
    house.publish("q", "a")
    house.publish("q", "b", expires_us=0)
    house.advance(2)
    inbox.consumer.limit = 0

    house.broker.settle(inbox.got[0], RELEASE)
    house.advance(1)

    assert texts(house, "dead") == ["b", "a"]


def test_what_a_consumer_gave_back_expires_as_the_oldest_again(house: House) -> None:
    with_graves(house, "q", max_length=10, message_ttl=5000)
    holder = house.consume("q", credit=1)
    house.publish("q", "held", "waits")
    house.advance(1)
    house.broker.queue("q").head()

    house.broker.cancel(holder.consumer)
    house.advance(5)

    assert texts(house, "dead") == ["held", "waits"]


def test_what_expired_while_nothing_ran_is_dead_after_the_restart(world: World) -> None:
    with_graves(world.house, "q", message_ttl=1000)
    world.house.publish("q", "a")
    world.clock.advance(5)

    house = world.restart()

    assert (texts(house, "q"), texts(house, "dead")) == ([], ["a"])


def test_a_backlog_that_expires_at_once_is_seen_to_in_several_commits(house: House) -> None:
    with_graves(house, "q", message_ttl=1000)
    house.publish("q", *(str(number) for number in range(2500)))

    house.advance(2)

    assert house.broker.queue("q").messages == 0
    assert house.broker.queue("dead").messages == 2500


# -- later delivery ----------------------------------------------------------------------------------------------------


def test_a_message_for_later_is_delivered_then_and_not_before(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", "later", not_before_us=house.clock.now_us() + 60 * SECOND_US)
    house.publish("q", "now")
    assert inbox.payloads == ["now"]

    house.advance(59)
    assert inbox.payloads == ["now"]
    house.advance(2)

    assert inbox.payloads == ["now", "later"]


def test_a_message_for_later_survives_a_restart(world: World) -> None:
    world.house.broker.declare(declared("q", durable=True))
    world.house.consume("q")
    world.house.publish("q", "later", not_before_us=world.clock.now_us() + 60 * SECOND_US)

    house = world.restart()
    inbox = house.consume("q")
    assert inbox.payloads == []
    house.advance(61)

    assert inbox.payloads == ["later"]


def test_the_queues_ttl_of_a_message_for_later_begins_when_it_is_due(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-message-ttl": 1000}))
    inbox = house.consume("q")
    house.publish("q", "later", not_before_us=house.clock.now_us() + 60 * SECOND_US)

    house.advance(60)

    assert inbox.payloads == ["later"]


# -- limits ------------------------------------------------------------------------------------------------------------


def test_beyond_the_length_the_oldest_go_and_are_dead_letters(world: World) -> None:
    with_graves(world.house, "q", max_length=2)

    world.house.publish("q", *"abcd")

    assert (texts(world.house, "q"), texts(world.house, "dead")) == (["c", "d"], ["a", "b"])


def test_beyond_the_bytes_the_oldest_go(world: World) -> None:
    with_graves(world.house, "q", max_length_bytes=5)

    world.house.publish("q", "aa", "bb", "cc")

    assert (texts(world.house, "q"), texts(world.house, "dead")) == (["bb", "cc"], ["aa"])


def test_a_message_larger_than_the_whole_limit_drops_everything(house: House) -> None:
    with_graves(house, "q", max_length_bytes=5)

    house.publish("q", "aa", "far too long")

    assert texts(house, "q") == []


def test_what_goes_to_a_consumer_at_once_does_not_count_as_waiting(house: House) -> None:
    with_graves(house, "q", max_length=1)
    inbox = house.consume("q", credit=10)

    house.publish("q", *"abc")

    assert (inbox.payloads, texts(house, "dead")) == (["a", "b", "c"], [])


def test_what_consumers_hold_does_not_count_against_the_length(house: House) -> None:
    with_graves(house, "q", max_length=1)
    house.consume("q", credit=2)

    house.publish("q", *"abcd")

    assert (texts(house, "q"), texts(house, "dead")) == (["a", "b", "d"], ["c"])


def test_what_consumers_hold_does_not_count_against_the_bytes(house: House) -> None:
    with_graves(house, "q", max_length_bytes=2)
    house.consume("q", credit=2)

    house.publish("q", "aa", "bb", "cc")
    assert texts(house, "dead") == []
    house.publish("q", "dd")

    assert (texts(house, "q"), texts(house, "dead")) == (["aa", "bb", "dd"], ["cc"])


def test_bytes_are_counted_again_after_a_restart(world: World) -> None:
    with_graves(world.house, "q", max_length_bytes=5)
    world.house.publish("q", "aa", "bb")

    house = world.restart()
    house.publish("q", "cc")

    assert (texts(house, "q"), texts(house, "dead")) == (["bb", "cc"], ["aa"])


def test_bytes_that_were_acknowledged_make_room(house: House) -> None:
    with_graves(house, "q", max_length_bytes=4)
    inbox = house.consume("q", credit=1)
    for text in ("aa", "bb", "cc", "dd", "ee"):
        house.publish("q", text)
        house.settle(ACK, *inbox.take())

    assert texts(house, "dead") == []


def test_with_two_groups_a_message_counts_until_both_are_done(house: House) -> None:
    house.broker.declare(
        declared("q", durable=True, arguments={"x-max-length-bytes": 4, "x-overflow": "reject-publish"})
    )
    fast, slow = house.consume("q", group="fast"), house.consume("q", group="slow", credit=1)
    house.publish("q", "aa", "bb", "cc")
    house.settle(ACK, *fast.take())
    assert [type(error) for error in house.publish("q", "dd")] == [Refused]

    house.settle(ACK, *slow.take())

    assert house.publish("q", "dd") == [None]


def test_a_full_queue_that_rejects_tells_the_publisher_and_keeps_what_it_has(world: World) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    world.house.broker.declare(declared("q", durable=True, arguments=arguments))

    confirmed = world.house.publish("q", *"abc")

    assert [type(error) for error in confirmed] == [type(None), type(None), Refused]
    assert texts(world.house, "q") == ["a", "b"]


def test_a_full_queue_that_rejects_takes_more_once_there_is_room(house: House) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    house.publish("q", "a")
    inbox = house.consume("q", credit=1)

    assert house.publish("q", "b") == [None]
    assert inbox.payloads == ["a"]


def test_a_full_queue_that_rejects_takes_what_its_consumers_have_room_for(house: House) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    inbox = house.consume("q", credit=3)

    confirmed = house.publish("q", *"abcde")

    assert [error is None for error in confirmed] == [True, True, True, True, False]
    assert inbox.payloads == ["a", "b", "c"]


def test_a_queue_that_rejects_by_bytes_counts_what_is_on_its_way(house: House) -> None:
    arguments = {"x-max-length-bytes": 4, "x-overflow": "reject-publish"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))

    confirmed = house.publish("q", "aa", "bb", "cc")

    assert [error is None for error in confirmed] == [True, True, False]


def test_a_full_queue_may_make_dead_letters_of_what_it_rejects(world: World) -> None:
    with_graves(world.house, "q", max_length=1, overflow="reject-publish-dlx")

    confirmed = world.house.publish("q", "a", "b")

    assert [error is None for error in confirmed] == [True, False]
    assert (texts(world.house, "q"), texts(world.house, "dead")) == (["a"], ["b"])


def test_a_message_too_large_for_the_queue_is_refused_with_both_sizes(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_message_bytes=3))

    confirmed = house.publish("q", "abcd", "abc")

    assert isinstance(confirmed[0], TooLarge)
    assert "4 bytes" in str(confirmed[0])
    assert "3 at most" in str(confirmed[0])
    assert texts(house, "q") == ["abc"]


def test_dropping_many_from_the_head_takes_one_step_each_run_and_not_one_each_message(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-max-length": 10}))
    house.broker.cancel(house.consume("q").consumer)
    house.publish("q", *(str(number) for number in range(10)))
    held = house.consume("q", credit=3)

    house.publish("q", *(str(number) for number in range(10, 5000)))

    group = house.broker.queue("q").groups["default"]
    assert held.payloads == ["0", "1", "2"]
    assert group.ready == 10
    assert len(group.state.settled) == 1


def test_a_queue_without_groups_drops_from_the_start_of_its_log(world: World) -> None:
    world.house.broker.declare(declared("q", durable=True, arguments={"x-max-length": 3}))

    world.house.publish("q", *(str(number) for number in range(100)))

    assert world.house.broker.queue("q").first_offset == 97


# -- purging -----------------------------------------------------------------------------------------------------------


def test_purging_drops_what_waits_and_leaves_what_consumers_hold(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", credit=2)
    house.publish("q", *"abcde")

    assert house.broker.purge("q") == 3
    house.run()

    house.settle(ACK, *inbox.take())
    assert (inbox.payloads, house.broker.queue("q").messages) == ([], 0)


def test_what_was_purged_stays_away_after_a_restart(world: World) -> None:
    world.house.broker.declare(declared("q", durable=True))
    world.house.consume("q", credit=1)
    world.house.publish("q", *"abc")
    world.house.broker.purge("q")

    house = world.restart()

    assert house.consume("q").payloads == ["a"]


def test_purging_a_large_backlog_is_a_few_steps_of_one_commit(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.consume("q", credit=2)
    house.publish("q", *(str(number) for number in range(5000)))
    house.run()

    house.broker.purge("q")

    turn = house.broker._pipeline.batch  # the commit itself is what this is about
    assert len(turn.durable.steps) <= 3


def test_purging_does_not_touch_what_is_published_afterwards(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.publish("q", "old")
    house.broker.purge("q")
    house.publish("q", "new")

    assert house.consume("q").payloads == ["new"]


def test_purging_drops_what_waits_for_its_backoff(house: House) -> None:
    house.broker.declare(QueueDefinition("q", retry=Retry(10, 5000, 5000)))
    inbox = house.consume("q")
    house.publish("q", "a")
    house.settle(NACK, *inbox.take())

    assert house.broker.purge("q") == 1
    house.advance(60)

    assert inbox.payloads == []


def test_a_stream_cannot_be_purged(house: House) -> None:
    house.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))

    with pytest.raises(Refused, match="retention"):
        house.broker.purge("s")


# -- history -----------------------------------------------------------------------------------------------------------


def ended(house: House, queue: str) -> list[tuple[object, object, object]]:
    return [(entry["offset"], entry["outcome"], entry["deliveries"]) for _, entry in house.broker.history(queue)]


def test_who_claimed_a_message_and_how_it_ended_can_be_looked_up(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("q", history_ms=3_600_000, retry=Retry(5, 1000, 1000)))
    inbox = house.consume("q", "worker-1")
    house.publish("q", "a")
    claimed_us = house.clock.now_us()
    house.settle(NACK, *inbox.take())
    house.advance(1)
    house.settle(ACK, *inbox.take())

    ((_, entry),) = world.restart().broker.history("q")

    assert entry == {
        "queue": "q",
        "group": "default",
        "offset": 0,
        "topic": "q",
        "exchange": "",
        "published_at_us": claimed_us,
        "outcome": "done",
        "deliveries": 2,
        "attempts": [
            {"consumer": "worker-1", "claimed_at_us": claimed_us},
            {"consumer": "worker-1", "claimed_at_us": claimed_us + SECOND_US},
        ],
        "ended_at_us": claimed_us + SECOND_US,
    }


def test_messages_that_failed_are_in_the_history_with_their_reason(house: House) -> None:
    house.broker.declare(QueueDefinition("q", history_ms=3_600_000, message_ttl_ms=5000, retry=Retry(0, 1000, 1000)))
    inbox = house.consume("q")
    house.publish("q", "rejected", "failed")
    house.settle(REJECT, inbox.got[0])
    house.settle(NACK, inbox.got[1])
    house.broker.cancel(inbox.consumer)
    house.publish("q", "expired")
    house.advance(6)

    assert ended(house, "q") == [(0, "rejected", 1), (1, "delivery_limit", 1), (2, "expired", 0)]


def test_history_is_forgotten_after_its_time(house: House) -> None:
    house.broker.declare(QueueDefinition("q", history_ms=60_000))
    house.publish("q", "a")
    house.settle(ACK, *house.consume("q").take())
    assert len(house.broker.history("q")) == 1

    house.advance(400)

    assert house.broker.history("q") == []


def test_history_is_browsed_in_pages(house: House) -> None:
    house.broker.declare(QueueDefinition("q", history_ms=60_000))
    house.consume("q", auto_ack=True)
    house.publish("q", *"abcd")

    first = house.broker.history("q", limit=3)
    rest = house.broker.history("q", offset=first[-1][0] + 1)

    assert [entry["offset"] for _, entry in first + rest] == [0, 1, 2, 3]


def test_the_last_claim_before_a_restart_is_in_the_history(world: World) -> None:
    world.house.broker.declare(QueueDefinition("q", history_ms=3_600_000))
    world.house.consume("q", "before")
    world.house.publish("q", "a")
    claimed_us = world.clock.now_us()

    house = world.restart()
    house.settle(ACK, *house.consume("q", "after").take())

    ((_, entry),) = house.broker.history("q")
    assert entry["attempts"] == [
        {"consumer": "before", "claimed_at_us": claimed_us},
        {"consumer": "after", "claimed_at_us": claimed_us},
    ]


def test_a_queue_that_keeps_no_history_has_none(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", "a")
    house.settle(ACK, *house.consume("q").take())

    assert house.broker.history("q") == []
    assert list(house.broker.topology.queues) == ["q"]


# -- many at once ------------------------------------------------------------------------------------------------------


def publish_all(house: House, topic: str, *payloads: str, exchange: str = "") -> list[tuple[int, bool]]:
    """Publish what differs in nothing but the payload; how many each confirm was for, and whether they were taken."""
    confirmed: list[tuple[int, bool]] = []
    first = house.message(payloads[0], topic, exchange)
    messages = [Message(first.source, text.encode(), first.timestamp_us) for text in payloads]
    house.broker.publish_all(messages, lambda count, error: confirmed.append((count, error is None)))
    house.run()
    return confirmed


def test_many_messages_to_several_queues_are_stored_in_each_and_confirmed_as_one(world: World) -> None:
    house = world.house
    house.exchange("x", "fanout")
    for name in ("a", "b"):
        house.broker.declare(declared(name, durable=True))
        house.bind("x", name)

    assert publish_all(house, "key", "1", "2", "3", exchange="x") == [(3, True)]

    world.restart()
    assert (texts(world.house, "a"), texts(world.house, "b")) == (["1", "2", "3"], ["1", "2", "3"])


def test_rows_of_one_turn_to_one_queue_and_to_several_stay_apart_and_are_told_of_in_one_call(house: House) -> None:
    house.exchange("x", "fanout")
    for name in ("a", "b", "c"):
        house.broker.declare(declared(name, durable=True))
    for name in ("a", "b"):
        house.bind("x", name)
    confirmed: list[int] = []

    def confirm(count: int, error: HeadraceError | None) -> None:
        assert error is None
        confirmed.append(count)

    for topic, exchange, rows in (("c", "", "12"), ("key", "x", "34"), ("a", "", "5"), ("b", "", "6"), ("c", "", "7")):
        first = house.message(rows[0], topic, exchange)
        messages = [Message(first.source, text.encode(), first.timestamp_us) for text in rows]
        house.broker.publish_all(messages, confirm)
    house.run()

    assert [texts(house, name) for name in "abc"] == [["3", "4", "5"], ["3", "4", "6"], ["1", "2", "7"]]
    assert confirmed == [7]


def test_of_many_messages_a_full_queue_takes_those_that_it_has_room_for(house: House) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))

    assert publish_all(house, "q", "1", "2", "3", "4") == [(1, True), (1, True), (1, False), (1, False)]
    assert texts(house, "q") == ["1", "2"]


def test_of_many_messages_only_those_that_are_too_large_are_refused(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_message_bytes=3))

    assert publish_all(house, "q", "1", "four", "2") == [(1, True), (1, False), (1, True)]
    assert texts(house, "q") == ["1", "2"]


def test_many_messages_that_nobody_wants_are_confirmed_and_said_to_be_unroutable(house: House) -> None:
    message = house.message("1", "nowhere")
    confirmed: list[int] = []

    assert house.broker.publish_all([message, message], lambda count, error: confirmed.append(count)) == 0
    house.run()

    assert sum(confirmed) == 2


def test_acknowledging_many_leaves_those_that_another_has_by_now(house: House) -> None:
    house.broker.declare(QueueDefinition("q", lease_ms=1000))
    house.publish("q", *"abcd")
    first = house.consume("q", "first", credit=4)
    taken = first.take()
    house.broker.allow(first.consumer, 0)
    house.advance(2)
    second = house.consume("q", "second", credit=2)

    house.broker.acknowledge(taken)
    house.run()

    assert second.payloads == ["a", "b"]
    assert texts(house, "q") == list("abcd")
    house.broker.acknowledge(second.take())
    house.run()
    assert texts(house, "q") == ["c", "d"]


def test_acknowledging_many_counts_the_bytes_and_the_ends_of_each(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_length_bytes=4, history_ms=60_000))
    house.publish("q", *"abcd")
    inbox = house.consume("q", credit=3)

    house.broker.acknowledge(inbox.take())
    house.run()
    house.publish("q", *"efg")

    assert texts(house, "q") == list("defg")
    assert [entry["offset"] for _, entry in house.broker.history("q")] == [0, 1, 2]


# -- delayed -----------------------------------------------------------------------------------------------------------


def later(house: House, queue: str, seconds: float, *payloads: str) -> None:
    """Publish for later."""
    due_us = house.clock.now_us() + round(seconds * 1_000_000)
    for payload in payloads:
        house.broker.publish(Message(Source(queue), payload.encode(), house.clock.now_us(), not_before_us=due_us))
    house.run()


def figures(house: House, name: str) -> tuple[int, int]:
    """Numbers of messages that may be delivered, and that are delayed."""
    queue = house.broker.queue(name)
    return queue.messages - queue.delayed, queue.delayed


def test_messages_that_wait_for_their_next_try_are_delayed(world: World) -> None:
    retry = Retry(5, 10_000, 10_000)
    world.house.broker.declare(QueueDefinition("jobs", retry=retry))
    inbox = world.house.consume("jobs")
    world.house.publish("jobs", *"abc")
    first, second, _ = inbox.take()
    world.house.settle(NACK, first, second)
    assert figures(world.house, "jobs") == (0, 2)
    world.house.broker.cancel(inbox.consumer)

    house = world.restart()
    assert figures(house, "jobs") == (1, 2)
    house.advance(11)
    assert figures(house, "jobs") == (3, 0)


@pytest.mark.parametrize("has_group", [False, True])
def test_messages_published_for_later_are_delayed_whether_somebody_consumes_or_not(
    house: House, has_group: bool
) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    if has_group:
        house.consume("jobs", credit=1)
    house.publish("jobs", "now")
    later(house, "jobs", 10, "a", "b")
    assert figures(house, "jobs") == (0 if has_group else 1, 2)

    house.advance(11)

    assert figures(house, "jobs") == (2 if has_group else 3, 0)


def test_delayed_messages_that_are_gone_do_not_count(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs", max_length=2))
    house.broker.declare(QueueDefinition("other"))
    later(house, "jobs", 10, "a", "b", "c")
    assert figures(house, "jobs") == (0, 2)

    house.broker.dead_letters.transfer("jobs", "other", limit=1)
    house.run()
    assert (figures(house, "jobs"), figures(house, "other")) == ((0, 1), (0, 1))

    house.broker.purge("jobs")
    house.run()
    assert figures(house, "jobs") == (0, 0)


def test_a_delayed_retry_that_expires_does_not_count(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs", retry=Retry(5, 10_000, 10_000), message_ttl_ms=5000))
    inbox = house.consume("jobs")
    house.publish("jobs", "a")
    house.settle(NACK, *inbox.take())
    assert figures(house, "jobs") == (0, 1)

    house.advance(6)

    assert figures(house, "jobs") == (0, 0)


def test_after_a_start_messages_published_for_later_are_looked_for(world: World) -> None:
    world.house.broker.declare(QueueDefinition("jobs"))
    later(world.house, "jobs", 100, "a")
    world.house.publish("jobs", "now")

    house = world.restart()
    later(house, "jobs", 100, "b")
    house.broker.queue("jobs").look_for_schedule(house.clock.now_us())
    house.broker.queue("jobs").look_for_schedule(house.clock.now_us())

    assert figures(house, "jobs") == (1, 2)


def test_a_queue_with_delayed_messages_only_is_not_empty(house: House) -> None:
    house.broker.declare(QueueDefinition("jobs"))
    later(house, "jobs", 10, "a")

    with pytest.raises(PreconditionFailed, match="not empty"):
        house.broker.delete("jobs", if_empty=True)


# -- retention of what is done -----------------------------------------------------------------------------------------


def retained(retention: Retention) -> House:
    house = House()
    house.broker.declare(QueueDefinition("orders", retention=retention))
    house.run()
    return house


def kept(house: House) -> tuple[int, int]:
    log = house.broker.queue("orders").log
    return log.first_offset, log.next_offset


def test_a_work_queue_keeps_what_is_done_for_as_long_as_its_retention_says() -> None:
    house = retained(Retention(max_age_ms=3_600_000))
    inbox = house.consume("orders")
    house.publish("orders", "a", "b")
    house.settle(ACK, *inbox.take())

    before = kept(house), house.broker.queue("orders").messages
    late = house.consume("orders", "late", group="late").payloads
    house.broker.groups.settle("orders", "late", 0, ACK)
    house.broker.groups.settle("orders", "late", 1, ACK)
    house.run()
    house.advance(3_600)
    house.advance(300)

    assert before == ((0, 2), 0)
    assert late == ["a", "b"]
    assert kept(house) == (2, 2)


def test_retention_never_takes_what_a_group_has_not_done() -> None:
    house = retained(Retention(max_messages=1))
    inbox = house.consume("orders", credit=1)
    house.publish("orders", "a", "b", "c")

    house.settle(ACK, *inbox.take())
    house.publish("orders", "d")

    assert kept(house) == (1, 4)
    assert house.broker.queue("orders").messages == 2


@pytest.mark.parametrize("groups", [1, 2])
def test_what_is_kept_though_done_does_not_make_a_queue_full(groups: int) -> None:
    house = House()
    house.broker.declare(
        QueueDefinition("orders", retention=Retention(max_messages=100), max_length_bytes=2, overflow="reject-publish")
    )
    inboxes = [house.consume("orders", group=f"g{number}", auto_ack=True) for number in range(groups)]

    refused = [house.publish("orders", "x") for _ in range(10)]

    assert refused == [[None]] * 10
    assert [len(inbox.got) for inbox in inboxes] == [10] * groups
    assert kept(house) == (0, 10)
    again = House(house.engine, house.clock)
    for number in range(groups):
        again.consume("orders", group=f"g{number}", auto_ack=True)
    assert [again.publish("orders", "x") for _ in range(5)] == [[None]] * 5
    again.consume("orders", group="late", auto_ack=True)
    assert [again.publish("orders", "x") for _ in range(5)] == [[None]] * 5
    assert kept(again) == (0, 20)

"""Messages that a transaction settles: rejected, given back, read in a stream; now and after a restart."""

import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition, Retry, declared
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, Refused, Unavailable
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine
from tests.unit.core.conftest import World


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def working(house: House, *payloads: str, **options: object) -> Inbox:
    """A consumer that holds these."""
    house.broker.declare(QueueDefinition("q", **options))  # type: ignore[arg-type]
    inbox = house.consume("q")
    house.publish("q", *payloads)
    return inbox


def attempts(inbox: Inbox) -> list[tuple[str, int]]:
    return [(each.message.payload.decode(), each.attempts) for each in inbox.got]


def test_one_of_several_that_is_rejected_is_a_dead_letter_once_and_the_others_stay(world: World) -> None:
    inbox = working(world.house, *"abc", dead_letter_queue="$dlq/q")

    world.house.broker.transaction([], [(inbox.got[1], REJECT)])
    world.house.run()

    assert texts(world.house, "$dlq/q") == ["b"]
    house = world.restart()
    assert texts(house, "$dlq/q") == ["b"]
    assert house.consume("q").payloads == ["a", "c"]


def test_one_that_is_rejected_where_dead_letters_go_to_an_exchange_arrives_there(world: World) -> None:
    world.house.broker.declare(declared("dead", durable=True))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    world.house.broker.declare(declared("q", durable=True, arguments=arguments))
    inbox = world.house.consume("q")
    world.house.publish("q", *"ab")

    world.house.broker.transaction([], [(inbox.got[0], REJECT)])
    world.house.run()

    house = world.restart()
    assert (texts(house, "dead"), house.consume("q").payloads) == (["a"], ["b"])


def test_one_of_several_that_is_given_back_after_a_failure_waits_out_its_delay_over_a_restart(world: World) -> None:
    inbox = working(world.house, *"abc", retry=Retry(max_retries=9, initial_backoff_ms=20_000))

    world.house.broker.transaction([], [(inbox.got[0], ACK), (inbox.got[1], NACK)])
    world.house.run()
    house = world.restart()

    again = house.consume("q")
    assert attempts(again) == [("c", 2)]
    house.advance(21)
    assert attempts(again) == [("c", 2), ("b", 2)]


def test_one_that_is_given_back_without_a_failure_comes_at_once_and_counts_no_attempt(world: World) -> None:
    inbox = working(world.house, *"ab", retry=Retry(max_retries=0))
    house = world.house

    house.broker.transaction([], [(inbox.take()[0], RELEASE)])
    house.turn()

    assert attempts(inbox) == [("a", 1)]
    assert texts(world.restart(), "q") == ["a", "b"]


def test_one_that_fails_for_the_last_time_is_a_dead_letter(world: World) -> None:
    inbox = working(world.house, *"ab", retry=Retry(max_retries=0), dead_letter_queue="$dlq/q")

    world.house.broker.transaction([], [(inbox.got[0], NACK)])
    world.house.run()

    house = world.restart()
    assert (texts(house, "q"), texts(house, "$dlq/q")) == (["b"], ["a"])


def test_one_that_was_read_in_a_stream_is_behind_its_group(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("s", STREAM))
    house.broker.declare(declared("out", durable=True))
    inbox = house.consume("s", group="readers", credit=10)
    house.publish("s", *"abc")

    house.broker.transaction([Publish(house.message("x", "out"))], [(inbox.got[0], ACK), (inbox.got[1], ACK)])
    house.run()

    house = world.restart()
    assert texts(house, "out") == ["x"]
    assert house.consume("s", group="readers").payloads == ["c"]


@pytest.mark.parametrize("why", ["settled", "gone"])
def test_one_that_is_not_held_any_more_refuses_all_of_it(house: House, why: str) -> None:
    house.broker.declare(declared("out", durable=True))
    inbox = working(house, *"ab")
    if why == "settled":
        house.settle(ACK, inbox.got[0])
    else:
        house.broker.delete("q")

    with pytest.raises(Refused):
        house.broker.transaction([Publish(house.message("x", "out"))], [(inbox.got[1], ACK), (inbox.got[0], ACK)])
    house.run()

    assert texts(house, "out") == []
    if why == "settled":
        house.settle(ACK, inbox.got[1])
        assert texts(house, "q") == []


def test_all_that_a_failed_transaction_held_for_a_consumer_that_left_comes_back_without_any_other_call() -> None:
    engine = RefusingEngine()
    house = House(engine)
    inbox = working(house, *"ab")
    other = house.consume("q", "other")
    engine.failure, engine.fails_all = Unavailable("the disk is full"), True
    told: list[HeadraceError | None] = []
    house.broker.transaction([], [(each, ACK) for each in inbox.got], told.append)
    house.broker.cancel(inbox.consumer)

    house.turn()

    assert told == [engine.failure]
    assert other.payloads == ["a", "b"]


def test_a_queue_that_goes_meanwhile_does_not_hinder_the_rest_of_a_transaction() -> None:
    engine = RefusingEngine()
    house = House(engine)
    inbox = working(house, "a")
    house.broker.declare(declared("other", durable=True))
    others = house.consume("other", credit=1)
    house.publish("other", "b", "c")
    engine.is_closed_door = True
    house.broker.transaction([], [(inbox.got[0], ACK), (others.got[0], ACK)])
    house.turn()
    house.broker.delete("q")
    engine.open_door()
    house.turn()

    assert others.payloads == ["b", "c"]
    assert texts(House(engine), "other") == ["c"]


def test_a_failure_right_after_the_delivery_counts_as_an_attempt_after_a_restart(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("q", retry=Retry(initial_backoff_ms=0)))
    inbox = house.consume("q", credit=1)
    house.broker.publish(house.message("a", "q"))
    house.turn()

    house.broker.transaction([], [(inbox.got[0], NACK)])
    house.broker.cancel(inbox.consumer)
    house.turn()

    assert attempts(world.restart().consume("q")) == [("a", 2)]


def test_a_queue_of_dead_letters_is_kept_though_the_transaction_that_made_it_failed() -> None:
    engine = RefusingEngine()
    house = House(engine)
    inbox = working(house, "a", dead_letter_queue="$dlq/q")
    engine.failure = Unavailable("the disk is full")
    told: list[HeadraceError | None] = []
    house.broker.transaction([], [(inbox.got[0], REJECT)], told.append)
    house.run()
    engine.failure = None
    house.advance(2)
    assert [type(error) for error in told] == [Unavailable]

    house.settle(REJECT, inbox.got[-1])

    again = House(engine)
    assert (texts(again, "q"), texts(again, "$dlq/q")) == ([], ["a"])


def test_one_of_a_stream_that_is_settled_already_refuses_all_of_it(house: House) -> None:
    house.broker.declare(QueueDefinition("s", STREAM))
    house.broker.declare(declared("out", durable=True))
    inbox = house.consume("s", group="readers", credit=10)
    house.publish("s", *"ab")
    house.settle(ACK, inbox.got[0])

    with pytest.raises(Refused):
        house.broker.transaction([Publish(house.message("x", "out"))], [(inbox.got[0], ACK)])
    house.run()

    assert texts(house, "out") == []


def test_a_rejection_makes_no_queue_where_an_exchange_or_nobody_gets_dead_letters(house: House) -> None:
    house.broker.declare(declared("to-exchange", arguments={"x-dead-letter-exchange": "nowhere"}))
    house.broker.declare(declared("to-nobody"))
    inboxes = [house.consume(name) for name in ("to-exchange", "to-nobody")]
    for name in ("to-exchange", "to-nobody"):
        house.publish(name, "a")

    house.broker.transaction([], [(inbox.got[0], REJECT) for inbox in inboxes])
    house.run()

    assert sorted(house.broker.topology.queues) == ["to-exchange", "to-nobody"]


def test_a_failed_transaction_gives_back_what_it_held_of_other_queues_than_one_that_went_meanwhile() -> None:
    engine = RefusingEngine()
    house = House(engine)
    inbox = working(house, "a")
    house.broker.declare(declared("other", durable=True))
    others = house.consume("other")
    house.publish("other", "b")
    engine.is_closed_door = True
    house.broker.transaction([], [(inbox.got[0], ACK), (others.got[0], ACK)])
    house.turn()
    house.broker.delete("q")
    engine.failure, engine.fails_all = Unavailable("the disk is full"), True
    engine.open_door()
    house.run()
    engine.failure = None
    house.advance(2)

    house.settle(ACK, others.got[0])

    assert texts(house, "other") == []
    assert texts(House(engine), "other") == []


def test_a_delivery_that_a_failed_transaction_held_counts_as_an_attempt_after_a_restart() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    inbox = house.consume("q")
    house.broker.publish(house.message("a", "q"))
    house.turn()
    engine.failure, engine.fails_all = Unavailable("the disk is full"), True
    house.broker.transaction([], [(inbox.got[0], NACK)])
    house.turn()
    engine.failure = None
    house.advance(5)

    assert attempts(House(engine, house.clock).consume("q")) == [("a", 2)]

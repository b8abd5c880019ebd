"""Several publishes and settlements as one: all of it happens, or nothing did."""

import pytest

from headrace.core.queue.definition import DROP_HEAD, EPHEMERAL, QueueDefinition, Retry, declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK, NACK, REJECT, RELEASE
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, NotFound, Refused, Unavailable
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine
from tests.unit.core.conftest import World

FULL = Unavailable("the disk is full")


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def prepared(house: House, **options: object) -> Inbox:
    """Work in the queue `in`, held by a consumer, and an empty queue `out`."""
    house.broker.declare(QueueDefinition("in", **options))  # type: ignore[arg-type]
    house.broker.declare(declared("out", durable=True))
    inbox = house.consume("in")
    house.publish("in", "work")
    return inbox


def commit(house: House, *settlements: tuple[Delivery, int], publish: str = "result") -> list[HeadraceError | None]:
    """A transaction that publishes to `out` and settles; how it ended."""
    ended: list[HeadraceError | None] = []
    house.broker.transaction([Publish(house.message(publish, "out"))], settlements, ended.append)
    house.run()
    return ended


def test_publishes_and_settlements_happen_together(world: World) -> None:
    inbox = prepared(world.house)

    assert commit(world.house, (inbox.got[0], ACK)) == [None]

    house = world.restart()
    assert (texts(house, "in"), texts(house, "out")) == ([], ["result"])


def test_a_transaction_is_one_commit(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    refused.publish("in", "more")
    before = len(refusing.committed)

    commit(refused, *[(delivery, ACK) for delivery in inbox.got])

    (stored,) = [one for one in refusing.committed[before:] if one.appends]
    assert [append.log for append in stored.appends] == ["out"]
    assert [(step.start, step.stop) for step in stored.steps] == [(0, 2)]


def test_it_says_for_each_publish_how_many_queues_it_is_meant_for(house: House) -> None:
    prepared(house)

    publishes = [Publish(house.message("a", "out")), Publish(house.message("b", "nowhere"))]

    assert house.broker.transaction(publishes, []) == [1, 0]


def test_until_it_is_stored_nothing_is_delivered_and_nothing_settled(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    out = refused.consume("out", "out")
    refusing.is_closed_door = True

    ended = commit(refused, (inbox.got[0], ACK))
    assert (ended, out.payloads, refused.broker.queue("in").unsettled) == ([], [], 1)
    refusing.open_door()
    refused.run()

    assert (ended, out.payloads, refused.broker.queue("in").unsettled) == ([None], ["result"], 0)


@pytest.mark.parametrize("outcome", [ACK, NACK, REJECT, RELEASE])
def test_when_the_disk_is_full_nothing_happened(refusing: RefusingEngine, refused: House, outcome: int) -> None:
    inbox = prepared(refused, retry=Retry(5, 1000, 1000), dead_letter_queue="$dlq/in")
    refusing.failure = FULL

    ended = commit(refused, (inbox.got[0], outcome))
    refusing.failure = None
    refused.advance(5)

    assert ended == [FULL]
    assert (texts(refused, "in"), texts(refused, "out")) == (["work"], [])
    assert refused.broker.queue("in").unsettled == 1
    assert inbox.payloads == ["work"]


def test_after_it_failed_the_consumer_can_settle_as_if_nothing_had_been(
    refusing: RefusingEngine, refused: House
) -> None:
    inbox = prepared(refused)
    refusing.refusal = FULL
    commit(refused, (inbox.got[0], ACK))
    refusing.refusal = None

    assert commit(refused, (inbox.got[0], ACK), publish="again") == [None]

    assert (texts(refused, "in"), texts(refused, "out")) == ([], ["again"])


def test_those_that_failed_are_no_attempts(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(QueueDefinition("in"))
    refused.broker.declare(declared("out", durable=True))
    inbox = refused.consume("in")
    refused.broker.publish(refused.message("work", "in"))
    refused.turn()
    for _ in range(2):
        refusing.refusal = FULL
        assert commit(refused, (inbox.got[0], NACK)) == [FULL]
        refusing.refusal = None
        refused.advance(2)
    refused.settle(NACK, inbox.got[0])
    refused.advance(10)

    again = House(refusing, refused.clock).consume("in")

    assert [delivery.attempts for delivery in again.got] == [3]


def test_after_it_failed_the_consumer_has_its_time_again_and_no_more(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused, lease_ms=10_000)
    refusing.refusal = FULL
    commit(refused, (inbox.take()[0], ACK))
    refusing.refusal = None

    refused.advance(9)
    assert inbox.payloads == []
    refused.advance(2)

    assert inbox.payloads == ["work"]


def test_what_a_failed_transaction_held_for_a_consumer_that_left_goes_back_in_line(
    refusing: RefusingEngine, refused: House
) -> None:
    inbox = prepared(refused)
    refusing.is_closed_door = True
    ended = commit(refused, (inbox.got[0], ACK))
    refused.broker.cancel(inbox.consumer)
    other = refused.consume("in", "other")
    assert other.payloads == []

    refusing.failure = FULL
    refusing.open_door()
    refused.run()
    refusing.failure = None
    refused.advance(2)

    assert (ended, other.payloads) == ([FULL], ["work"])


def test_a_consumer_that_leaves_meanwhile_does_not_get_its_work_done_twice(
    refusing: RefusingEngine, refused: House
) -> None:
    inbox = prepared(refused)
    refusing.is_closed_door = True
    ended = commit(refused, (inbox.got[0], ACK))

    refused.broker.cancel(inbox.consumer)
    other = refused.consume("in", "other")
    refusing.open_door()
    refused.run()

    assert (ended, other.payloads, texts(refused, "in")) == ([None], [], [])


def test_a_lease_does_not_run_out_while_the_transaction_is_being_stored(
    refusing: RefusingEngine, refused: House
) -> None:
    inbox = prepared(refused, lease_ms=1000)
    refusing.is_closed_door = True
    commit(refused, (inbox.got[0], ACK))

    refused.advance(60)
    assert len(inbox.got) == 1
    refusing.open_door()
    refused.run()

    assert texts(refused, "in") == []


def test_what_a_transaction_settles_cannot_be_settled_by_another_call(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    refusing.is_closed_door = True
    commit(refused, (inbox.got[0], ACK))

    with pytest.raises(Refused):
        refused.broker.settle(inbox.got[0], ACK)
    with pytest.raises(Refused):
        refused.broker.groups.settle("in", "default", 0, ACK)
    with pytest.raises(Refused):
        refused.broker.transaction([], [(inbox.got[0], ACK)])


@pytest.mark.parametrize("exchange", ["missing", ""])
def test_a_publish_or_a_settlement_that_cannot_be_is_refused_before_anything_is_done(
    house: House, exchange: str
) -> None:
    inbox = prepared(house)
    (delivery,) = inbox.take()
    stale = exchange == ""
    if stale:
        house.settle(ACK, delivery)
        house.publish("in", "second")

    with pytest.raises(HeadraceError) as raised:
        house.broker.transaction(
            [Publish(house.message("result", "out")), Publish(house.message("x", "out", exchange))], [(delivery, ACK)]
        )
    house.run()

    assert isinstance(raised.value, Refused if stale else NotFound)
    assert texts(house, "out") == []


def test_a_queue_that_does_not_take_a_message_refuses_the_whole_transaction(house: House) -> None:
    inbox = prepared(house)
    house.broker.declare(declared("full", arguments={"x-max-length": 0, "x-overflow": "reject-publish"}))
    publishes = [Publish(house.message("a", "out")), Publish(house.message("b", "full"))]

    with pytest.raises(Refused, match="full"):
        house.broker.transaction(publishes, [(inbox.got[0], ACK)])
    house.run()

    assert (texts(house, "out"), house.broker.queue("in").unsettled) == ([], 1)
    house.settle(ACK, *inbox.got)


def test_a_transaction_that_was_refused_does_not_count_against_the_queues_limit(house: House) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    with pytest.raises(Refused):
        house.broker.transaction([Publish(house.message(text, "q")) for text in "ab"], [])

    assert house.publish("q", "c") == [None]


def test_a_rejection_in_a_transaction_is_a_dead_letter_of_the_same_commit(world: World) -> None:
    inbox = prepared(world.house, dead_letter_queue="$dlq/in")

    commit(world.house, (inbox.got[0], REJECT))

    house = world.restart()
    assert [texts(house, queue) for queue in ("in", "out", "$dlq/in")] == [[], ["result"], ["work"]]


def test_a_nack_in_a_transaction_comes_back_after_its_backoff(house: House) -> None:
    inbox = prepared(house, retry=Retry(5, 10_000, 10_000))

    commit(house, (inbox.take()[0], NACK))
    house.advance(9)
    assert inbox.payloads == []
    house.advance(2)

    assert [delivery.attempts for delivery in inbox.got] == [2]


def test_what_came_before_the_transaction_is_stored_before_it(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    before = len(refusing.committed)
    refused.broker.publish(refused.message("plain", "out"))

    commit(refused, (inbox.got[0], ACK), publish="in transaction")

    stored = [one for one in refusing.committed[before:] if one.appends]
    assert [[m.payload for m in one.appends[0].messages] for one in stored] == [[b"plain"], [b"in transaction"]]


def test_transactions_over_transient_queues_happen_too(house: House) -> None:
    house.broker.declare(declared("in"))
    house.broker.declare(declared("out"))
    inbox = house.consume("in")
    house.publish("in", "work")

    assert commit(house, (inbox.got[0], ACK)) == [None]

    assert (texts(house, "in"), texts(house, "out")) == ([], ["result"])


def test_a_transient_queue_gets_nothing_from_a_transaction_that_failed(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("memory"))
    inbox = prepared(refused)
    refusing.refusal = FULL
    publishes = [Publish(refused.message("a", "memory")), Publish(refused.message("b", "out"))]

    refused.broker.transaction(publishes, [(inbox.got[0], ACK)])
    refused.run()

    assert texts(refused, "memory") == []


def test_settled_in_a_transaction_gives_credit_back(house: House) -> None:
    house.broker.declare(declared("in", durable=True))
    house.broker.declare(declared("out", durable=True))
    inbox = house.consume("in", credit=1)
    house.publish("in", "a", "b")

    commit(house, (inbox.take()[0], ACK))

    assert inbox.payloads == ["b"]


@pytest.mark.parametrize(("outcome", "end"), [(ACK, "done"), (REJECT, "rejected"), (NACK, "delivery_limit")])
def test_how_a_message_ended_in_a_transaction_is_in_the_history(house: House, outcome: int, end: str) -> None:
    inbox = prepared(house, history_ms=60_000, delivery_limit=0)

    commit(house, (inbox.got[0], outcome))

    assert [entry["outcome"] for _, entry in house.broker.history("in")] == [end]


def test_a_queue_deleted_while_the_transaction_is_being_stored_takes_its_part_with_it(
    refusing: RefusingEngine, refused: House
) -> None:
    inbox = prepared(refused)
    refusing.is_closed_door = True
    ended = commit(refused, (inbox.got[0], ACK))

    refused.broker.delete("in")
    refusing.open_door()
    refused.run()

    assert (ended, texts(refused, "out")) == ([None], ["result"])


def test_a_transaction_in_memory_pushes_the_oldest_messages_out_to_a_queue_in_memory() -> None:
    house = House()
    house.broker.declare(QueueDefinition("graves", kind=EPHEMERAL))
    small = QueueDefinition(
        "small", kind=EPHEMERAL, max_length=1, overflow=DROP_HEAD, dead_letter_exchange="", dead_letter_key="graves"
    )
    house.broker.declare(small)
    house.run()
    graves = house.consume("graves")
    publishes = [Publish(house.message(text, "small")) for text in ("old", "new")]

    house.broker.transaction(publishes, [])
    house.run()

    assert graves.texts() == ["old"]
    assert house.broker.queue("small").log.first_offset == 1
    assert house.broker.queue("graves").log.first_offset == 1


def test_a_transaction_that_failed_does_not_count_against_the_limit_of_a_queue_in_memory(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("memory", arguments={"x-max-length": 1, "x-overflow": "reject-publish"}))
    prepared(refused)
    refusing.refusal = FULL
    refused.broker.transaction([Publish(refused.message("a", "memory")), Publish(refused.message("b", "out"))], [])
    refused.run()
    refusing.refusal = None
    refused.advance(2)

    assert refused.publish("memory", "c") == [None]
    assert texts(refused, "memory") == ["c"]

"""Work of one turn of the event loop: its order, the parts that belong together, and the calls that wake the broker."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.core.batch import Confirm
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.pipeline import AT_ONCE, HOLD_STEPS, HOLD_US, LONG_STEPS
from headrace.core.publishing import TO_QUEUE
from headrace.core.queue.configured import configured
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, FILTERED_AT_ONCE, NACK, REJECT
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, Unavailable
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine
from tests.unit.core.conftest import World
from tests.unit.core.test_bulk import rows
from tests.unit.core.test_pipeline import Ahead
from tests.unit.core.test_pipeline_model import SteppedEngine

FULL = Unavailable("the disk is full")
_KINDS = pytest.mark.parametrize("durable", [True, False])
"""Queues that storage keeps, and those that only memory holds."""


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def noting(told: list[str], name: str) -> Confirm:
    return lambda _: told.append(name)


# -- when the broker is called -----------------------------------------------------------------------------------------


def test_a_turn_asks_for_one_call_however_much_is_in_it() -> None:
    calls: list[object] = []
    house = House()
    broker = Broker(house.engine, ManualClock(), calls.append)
    broker.declare(declared("q", durable=True))
    for text in "abc":
        broker.publish(house.message(text, "q"))

    assert len(calls) == 1


@_KINDS
def test_a_message_is_delivered_and_confirmed_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("q", durable=durable))
    inbox = house.consume("q", credit=1)
    told: list[HeadraceError | None] = []

    house.broker.publish(house.message("a", "q"), told.append)
    house.turn()

    assert (inbox.payloads, told) == (["a"], [None])


@_KINDS
def test_messages_that_came_together_are_delivered_and_confirmed_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("q", durable=durable))
    inbox = house.consume("q")
    told: list[tuple[int, HeadraceError | None]] = []
    messages = [house.message(text, "q") for text in "abc"]

    house.broker.publish_all(messages, lambda count, error: told.append((count, error)))
    house.turn()

    assert (inbox.payloads, told) == (["a", "b", "c"], [(3, None)])


@_KINDS
def test_a_dead_letter_for_a_queue_in_memory_arrives_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("dead"))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    house.broker.declare(declared("q", durable=durable, arguments=arguments))
    dead, inbox = house.consume("dead"), house.consume("q")
    house.publish("q", "a")

    house.broker.settle(inbox.got[0], REJECT)
    house.turn()

    assert dead.payloads == ["a"]


@_KINDS
def test_a_settlement_makes_room_for_the_next_message_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("q", durable=durable))
    house.publish("q", *"abc")
    inbox = house.consume("q", credit=1)
    house.broker.settle(inbox.got[0], ACK)
    house.turn()
    house.broker.settle(inbox.got[1], NACK)
    house.turn()

    assert inbox.payloads == ["a", "b", "b"]


@_KINDS
def test_more_credit_brings_the_next_messages_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("q", durable=durable))
    house.publish("q", *"abc")
    inbox = house.consume("q", credit=1)

    house.broker.set_credit(inbox.consumer, 2)
    house.turn()

    assert inbox.payloads == ["a", "b"]


@_KINDS
def test_a_consumer_that_joins_gets_what_is_there_without_any_other_call(durable: bool) -> None:
    house = House()
    house.broker.declare(declared("q", durable=durable))
    house.publish("q", "a")
    house.consume("q", credit=1)
    house.publish("q", "b")
    second = house.consume("q", "second", credit=1)
    assert second.payloads == ["b"]
    house.publish("q", "c")

    third = house.consume("q", "third", credit=1)

    assert third.payloads == ["c"]


def test_settlements_behind_those_that_wait_are_stored_at_once_when_they_are_many() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", *map(str, range(2 * HOLD_STEPS + 6)))
    stored = len(engine.committed)
    got = inbox.take()[1::2]
    house.broker.settle(got[0])
    house.turn()
    assert len(engine.committed) == stored, "one that nobody waits for waits"

    for delivery in got[1:]:
        house.broker.settle(delivery)
    house.turn()

    assert len(engine.committed) == stored + 1


def test_what_is_for_the_end_of_a_turn_is_called_then_and_once(house: House) -> None:
    seen: list[str] = []
    house.broker.at_flush(lambda: seen.append("flushed"))
    assert seen == []

    house.turn()
    house.run()

    assert seen == ["flushed"]


def test_calls_for_the_end_of_a_turn_are_made_in_order(house: House) -> None:
    called: list[str] = []

    for name in "abc":
        house.broker.at_flush(lambda name=name: called.append(name))  # type: ignore[misc]
    house.turn()

    assert called == ["a", "b", "c"]


def test_those_who_wait_for_messages_or_deliveries_are_called_in_order() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    house.run()
    engine.is_closed_door = True
    house.broker.publish(house.message("a", "q"))
    called: list[str] = []

    for name in "ab":
        house.broker.when_entered(lambda name=f"{name} entered": called.append(name))  # type: ignore[misc]
        house.broker.after_delivery("q", lambda name=f"{name} delivered": called.append(name))  # type: ignore[misc]
    house.turn()
    assert called == ["a delivered", "b delivered"]
    engine.open_door()
    house.turn()

    assert called[2:] == ["a entered", "b entered"]


def test_a_queue_that_is_deleted_and_declared_again_is_not_there_in_between() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", "a")
    house.broker.delete("q")
    engine.is_closed_door = True
    house.broker.declare(QueueDefinition("q"))
    house.turn()

    engine.let_one_in()
    engine.sync()
    assert list(House(engine).broker.topology.queues) == []
    engine.open_door()
    house.run()

    assert texts(House(engine), "q") == []


def test_long_work_goes_on_though_the_batch_that_it_waits_for_could_not_be_stored() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    house.run()
    engine.is_closed_door = True
    house.broker.publish(house.message("a", "q"))
    house.turn()
    taken: list[int] = []

    def work() -> Iterator[None]:
        for number in range(3 * LONG_STEPS * AT_ONCE):
            taken.append(number)
            yield

    house.broker.in_steps(work())
    house.broker.publish(house.message("b", "q"))
    house.turn()
    engine.let_one_in()
    engine.is_closed_door = False
    engine.failure = FULL
    house.run()
    engine.failure = None
    house.advance(2)

    assert taken == list(range(3 * LONG_STEPS * AT_ONCE))


def test_a_settlement_that_cannot_be_stored_is_tried_again_at_once_and_then_after_a_second() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    inbox = house.consume("q")
    house.publish("q", "a")
    before = engine.attempts
    engine.refusal = FULL

    house.broker.settle(inbox.got[0], ACK)
    house.run()
    assert engine.attempts - before == 2
    house.advance(0.999999)
    assert engine.attempts - before == 2
    house.advance(0.000001)

    assert engine.attempts - before == 3


def test_dead_letters_behind_a_batch_that_cannot_be_stored_keep_their_order() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("$dlq/q"))
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    inbox = house.consume("q")
    house.publish("q", *"abc")
    engine.is_closed_door = True
    house.settle(REJECT, inbox.got[0])
    for delivery in inbox.got[1:]:
        house.broker.settle(delivery, REJECT)
        house.broker.transaction([], [])  # what was settled so far is closed off from what follows
        house.turn()

    engine.failure, engine.fails_all = FULL, True
    engine.open_door()
    house.run()
    engine.failure = None
    house.advance(2)

    assert texts(house, "$dlq/q") == ["a", "b", "c"]


@pytest.mark.parametrize("kind", ["publish", "transaction", "settlement"])
def test_what_was_called_for_meanwhile_is_sent_when_the_batch_before_it_is_visible_and_no_earlier(kind: str) -> None:
    engine = SteppedEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    inbox = house.consume("q", credit=1)
    for _ in range(3):
        house.broker.publish(house.message("a", "q"))
        house.turn()
        engine.settle()
    house.turn()
    house.broker.publish(house.message("b", "q"))
    house.turn()
    (first,) = engine.taken

    if kind == "publish":
        house.broker.publish(house.message("c", "q"))
    elif kind == "transaction":
        house.broker.transaction([Publish(house.message("c", "q"))], [])
    else:
        house.broker.settle(inbox.got[0], REJECT)
    house.turn()
    assert list(engine.taken) == [first]
    engine.write()
    assert not engine.taken
    house.turn()

    assert len(engine.taken) == (0 if kind == "settlement" else 1)  # nobody waits for a settlement


def test_long_work_waits_for_the_batch_on_its_way_when_much_of_it_is_in_the_next() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    house.run()
    engine.is_closed_door = True
    house.broker.publish(house.message("a", "q"))
    house.turn()
    taken: list[int] = []

    def work() -> Iterator[None]:
        for number in range(3 * LONG_STEPS * AT_ONCE):
            taken.append(number)
            yield

    house.broker.in_steps(work())
    house.turn()
    assert len(taken) == LONG_STEPS * AT_ONCE
    engine.open_door()
    house.turn()

    assert taken == list(range(3 * LONG_STEPS * AT_ONCE))


def test_settlements_wait_no_longer_however_often_the_broker_is_called_meanwhile() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", *"abc")
    for delivery in inbox.take():
        stored, begun_us = len(engine.committed), house.clock.now_us()
        house.broker.settle(delivery)
        house.turn()
        assert house.broker.tick() == begun_us + HOLD_US
        house.clock.advance(0.75 * HOLD_US / 1_000_000)
        house.broker.after_delivery("q", lambda: None)
        house.turn()
        assert (house.broker.tick(), len(engine.committed)) == (begun_us + HOLD_US, stored)

        house.clock.advance(0.25 * HOLD_US / 1_000_000)
        house.broker.tick()
        house.turn()

        assert len(engine.committed) == stored + 1


def test_whoever_waits_for_a_delivery_is_called_though_nothing_else_happens(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.run()
    seen: list[str] = []

    house.broker.after_delivery("q", lambda: seen.append("delivered"))
    house.turn()

    assert seen == ["delivered"]


def test_whoever_waits_for_a_delivery_is_called_after_the_last_of_a_backlog_of_several_turns(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    count = 2 * FILTERED_AT_ONCE + 1
    house.broker.publish_all([house.message(str(number), "q") for number in range(count)])
    house.run()
    seen: list[int] = []
    inbox = Inbox(house, "consumer", 0, True, 0, None)

    house.broker.consume("q", inbox.consumer)
    house.broker.after_delivery("q", lambda: seen.append(len(inbox.got)))
    house.turn()

    assert seen == [count]


# -- order -------------------------------------------------------------------------------------------------------------


def test_publishes_and_transactions_of_one_turn_keep_their_order(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    for number in range(0, 8, 2):
        house.broker.publish(house.message(str(number), "q"))
        house.broker.transaction([Publish(house.message(str(number + 1), "q"))], [])
    house.turn()

    assert texts(house, "q") == list("01234567")


def test_a_message_that_only_memory_holds_is_not_lost_before_a_transaction(house: House) -> None:
    house.broker.declare(declared("q"))
    house.broker.publish(house.message("a", "q"))
    house.broker.transaction([Publish(house.message("b", "q"))], [])
    house.turn()

    assert texts(house, "q") == ["a", "b"]


def test_a_queue_that_is_deleted_and_declared_again_has_nothing_of_a_transaction_before_that(world: World) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=True))
    house.run()
    house.broker.publish(house.message("old", "q"))
    house.broker.transaction([Publish(house.message("older", "q"))], [])
    house.broker.delete("q")
    house.broker.declare(declared("q", durable=True))
    house.broker.publish(house.message("new", "q"))
    house.turn()

    assert texts(house, "q") == ["new"]
    assert texts(world.restart(), "q") == ["new"]


@_KINDS
@pytest.mark.parametrize("before", ["reject", "purge"])
def test_what_was_settled_in_a_queue_that_is_gone_is_not_settled_in_its_successor(
    world: World, durable: bool, before: str
) -> None:
    house = world.house
    house.broker.declare(declared("q", durable=durable))
    inbox = house.consume("q")
    house.publish("q", "old", "older")
    if before == "reject":
        house.broker.settle(inbox.got[0], REJECT)
        house.broker.settle(inbox.got[1], REJECT)
    else:
        house.broker.purge("q")
    house.broker.delete("q")
    house.broker.declare(declared("q", durable=durable))
    house.broker.publish(house.message("new", "q"))
    house.turn()

    assert texts(house, "q") == ["new"]
    assert house.consume("q", "again").payloads == ["new"]
    if durable:
        assert world.restart().consume("q").payloads == ["new"]


@_KINDS
def test_a_dead_letter_for_a_queue_that_is_deleted_in_the_same_turn_is_not_in_its_successor(
    world: World, durable: bool
) -> None:
    house = world.house
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    house.broker.declare(declared("dead", durable=durable))
    inbox = house.consume("q")
    house.publish("q", "a", "b")
    house.broker.settle(inbox.got[0], REJECT)
    house.broker.delete("dead")
    house.broker.declare(declared("dead", durable=durable))
    house.broker.settle(inbox.got[1], REJECT)
    house.turn()

    assert texts(house, "dead") == ["b"]
    assert house.publish("dead", "c") == [None]
    assert texts(house, "dead") == ["b", "c"]


def test_one_commit_at_a_time_is_on_its_way() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    house.run()
    before = engine.attempts
    engine.is_closed_door = True
    for text in "abc":
        house.broker.transaction([Publish(house.message(text, "q"))], [])
    house.turn()
    house.broker.flush()
    assert engine.attempts == before + 1

    engine.open_door()
    house.turn()

    assert texts(house, "q") == ["a", "b", "c"]


def test_a_transaction_that_needs_no_storage_lets_nothing_pass_those_behind_it(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.broker.declare(declared("memory"))
    house.run()
    house.broker.transaction([Publish(house.message("x", "memory"))], [])
    house.broker.transaction([Publish(house.message("a", "q"))], [])
    house.broker.publish(house.message("b", "q"))
    house.broker.flush()
    house.turn()

    assert (texts(house, "memory"), texts(house, "q")) == (["x"], ["a", "b"])


# -- waiting for what was published ------------------------------------------------------------------------------------


@_KINDS
def test_whoever_waits_for_what_was_published_is_called_when_consumers_were_offered_it(durable: bool) -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=durable))
    inbox = house.consume("q")
    seen: list[list[str]] = []
    assert not house.broker.when_entered(lambda: seen.append([])), "nothing is on its way"
    engine.is_closed_door = True

    house.broker.publish(house.message("a", "q"))
    assert house.broker.when_entered(lambda: seen.append(inbox.payloads))
    assert seen == []
    house.turn()
    engine.open_door()
    house.turn()

    assert seen == [["a"]]


@pytest.mark.parametrize("state", ["on its way", "behind one that is"])
def test_whoever_waits_for_what_was_published_in_turns_before_is_called_after_them(state: str) -> None:
    engine = RefusingEngine()
    house = House(engine)
    for name in ("q", "other"):
        house.broker.declare(declared(name, durable=True))
    house.run()
    engine.is_closed_door = True
    if state == "behind one that is":
        house.broker.publish(house.message("before", "other"))
        house.turn()
    house.broker.publish(house.message("a", "q"))
    house.broker.transaction([], [])
    house.turn()
    seen: list[list[str]] = []

    assert house.broker.when_entered(lambda: seen.append(texts(house, "q")))
    house.turn()
    assert seen == []
    engine.open_door()
    house.turn()

    assert seen == [["a"]]


# -- how much is under way ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["publish", "transaction", "bulk"])
def test_publishers_wait_while_much_is_on_its_way_and_not_after_it(kind: str) -> None:
    engine = RefusingEngine()
    house = House(engine)
    told: list[bool] = []
    house.broker = Broker(engine, house.clock, house._soon.append, flow=Flow(100, 50))
    house.broker.on_flow["test"] = told.append
    house.broker.declare(QueueDefinition("q"))
    house.run()
    engine.is_closed_door = True

    if kind == "publish":
        house.broker.publish(house.message("x" * 101, "q"))
    elif kind == "transaction":
        house.broker.transaction([Publish(house.message("x" * 101, "q"))], [])
    else:
        bulk = house.broker.bulk()
        bulk.add(TO_QUEUE, "q", rows(house, "x" * 101))
        bulk.commit("id", 1, lambda _: None)
    house.turn()
    house.broker.publish(house.message("small", "q"))
    house.turn()
    assert told == [True]
    engine.open_door()
    house.turn()

    assert told == [True, False]


def test_what_could_not_be_stored_is_tried_again_in_the_moment_that_was_said() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    inbox = house.consume("q")
    house.publish("q", "a")
    engine.failure = FULL
    house.settle(REJECT, inbox.got[0])
    engine.failure = None

    due_us = house.broker.tick()
    house.clock.advance((due_us - house.clock.now_us()) / 1_000_000)
    house.broker.tick()
    house.turn()

    assert texts(house, "$dlq/q") == ["a"]


# -- waiting for storage -----------------------------------------------------------------------------------------------


def test_publishers_may_go_on_in_the_moment_that_was_said_after_storage_took_nothing() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    house.run()
    engine.failure = FULL
    house.publish("q", "lost")
    held_up = house.broker.blocked
    engine.failure = None

    due_us = house.broker.tick()
    house.clock.advance((due_us - house.clock.now_us()) / 1_000_000)
    due_us = house.broker.tick()

    assert (held_up, house.broker.blocked) == (True, False)
    assert due_us == 0, "nothing is left to come due"


def test_only_those_hear_of_an_ack_timeout_whose_queue_has_it_and_those_before_them() -> None:
    engine = RefusingEngine()
    house = House(engine)
    for name, seconds in (("quick", 2), ("slow", 5)):
        replication = {"enabled": True, "ack_timeout": f"{seconds}s"}
        house.broker.declare(configured({"name": name, "replication": replication}))
    house.run()
    engine.is_closed_door = True
    now_us, told = house.clock.now_us(), list[str]()
    for name in ("quick", "slow"):
        house.broker.publish(house.message(name, name), noting(told, name))
        house.turn()

    assert house.broker.tick() == now_us + 2_000_000
    house.clock.advance(2)
    assert house.broker.tick() == now_us + 5_000_000
    assert told == ["quick"]
    house.clock.advance(3)
    assert house.broker.tick() == 0
    assert told == ["quick", "slow"]


@pytest.mark.parametrize("names", [("quick", "slow"), ("slow", "quick")])
def test_of_publishers_in_one_batch_the_shortest_ack_timeout_counts(names: tuple[str, str]) -> None:
    engine = RefusingEngine()
    house = House(engine)
    for name, seconds in (("quick", 2), ("slow", 5)):
        replication = {"enabled": True, "ack_timeout": f"{seconds}s"}
        house.broker.declare(configured({"name": name, "replication": replication}))
    house.run()
    engine.is_closed_door = True
    now_us, told = house.clock.now_us(), list[str]()
    for name in names:
        house.broker.publish(house.message(name, name), noting(told, name))
    house.turn()

    assert house.broker.tick() == now_us + 2_000_000
    house.clock.advance(2)
    house.broker.tick()
    assert told == list(names)


def test_draining_stores_all_that_was_called_for_however_many_commits_that_takes(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    for number in range(0, 6, 2):
        house.broker.publish(house.message(str(number), "q"))
        house.broker.transaction([Publish(house.message(str(number + 1), "q"))], [])

    house.broker.drain()

    assert texts(House(house.engine), "q") == list("012345")


def test_draining_ends_transactions_that_need_no_storage(house: House) -> None:
    house.broker.declare(declared("q"))
    house.run()
    told: list[HeadraceError | None] = []
    for text in "abc":
        house.broker.transaction([Publish(house.message(text, "q"))], [], told.append)

    house.broker.drain()

    assert (told, texts(house, "q")) == ([None] * 3, ["a", "b", "c"])


def test_draining_stores_the_settlements_of_what_it_delivers(house: House) -> None:
    house.broker.declare(declared("q", durable=True))

    def acknowledge(deliveries: list[Delivery]) -> None:
        house.broker.acknowledge(deliveries)

    house.broker.consume("q", Consumer("consumer", acknowledge, 1))
    for text in "abc":
        house.broker.publish(house.message(text, "q"))

    house.broker.drain()

    assert texts(House(house.engine), "q") == []


def test_draining_ends_though_something_cannot_be_stored() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    inbox = house.consume("q")
    house.publish("q", "a", "b")
    engine.failure = FULL
    house.settle(REJECT, inbox.got[0])
    house.broker.settle(inbox.got[1], REJECT)

    house.broker.drain()

    assert texts(house, "$dlq/q") == []


def test_nobody_hears_that_all_is_safe_before_what_is_in_its_queue_ahead_is_synced(tmp_path: Path) -> None:
    ahead = Ahead(tmp_path)
    ahead.declare(declared("q", durable=True))
    ahead.disk.gate.clear()
    ahead.publish("a", "q")
    ahead.step()
    assert ahead.broker.queue("q").messages == 2

    ahead.broker.when_safe(noting(ahead.told, "safe"))
    ahead.step()
    assert ahead.told == []
    ahead.disk.gate.set()
    ahead.broker.drain()

    assert ahead.told == ["a confirmed", "safe"]
    ahead.engine.close()


@pytest.mark.parametrize("order", [("safe", "quick"), ("quick", "safe")])
@pytest.mark.parametrize("together", [True, False])
def test_a_turn_is_synced_if_one_of_its_publishers_waits_for_that(order: tuple[str, str], together: bool) -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("safe", ack_durability="fsync"))
    house.broker.declare(QueueDefinition("quick", ack_durability="buffered"))
    house.run()

    for name in order:
        if together:
            house.broker.publish_all([house.message("a", name)], lambda count, error: None)
        else:
            house.broker.publish(house.message("a", name), lambda error: None)
    house.turn()

    assert engine.waits[-1]


@_KINDS
def test_a_limit_counts_what_is_in_the_queue_and_not_what_was_once_on_its_way(world: World, durable: bool) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    world.house.broker.declare(declared("q", durable=durable, arguments=arguments))
    inbox = world.house.consume("q")

    for text in "abcde":
        assert world.house.publish("q", text) == [None]
        world.house.settle(ACK, *inbox.take())


def test_all_behind_a_turn_that_cannot_be_stored_hear_so_at_once_in_order_and_nothing_of_theirs_comes_later() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    house.broker.declare(declared("out", durable=True))
    inbox = house.consume("q")
    house.publish("q", "a", "b")
    engine.failure = FULL
    told: list[str] = []
    house.broker.settle(inbox.got[0], REJECT)
    for number in (1, 2):
        settlements = [(inbox.got[1], ACK)] if number == 1 else []
        publish = Publish(house.message(f"transaction {number}", "out"))
        house.broker.transaction([publish], settlements, noting(told, f"transaction {number}"))
        house.broker.publish(house.message(f"publish {number}", "out"), noting(told, f"publish {number}"))
    house.turn()
    assert told == ["transaction 1", "publish 1", "transaction 2", "publish 2"]

    engine.failure = None
    house.advance(2)

    again = House(engine)
    assert [texts(again, name) for name in ("q", "$dlq/q", "out")] == [["b"], ["a"], []]
    assert house.publish("out", "c") == [None]
    house.settle(ACK, inbox.got[-1])
    assert texts(House(engine), "q") == []


def test_storage_is_told_the_size_of_all_payloads_of_a_commit() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("dead", durable=True))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    inbox = house.consume("q")
    house.publish("q", "abc")
    engine.committed.clear()

    house.broker.settle(inbox.got[0], REJECT)
    house.broker.publish(house.message("defgh", "q"))
    house.turn()

    (commit,) = [each for each in engine.committed if each.appends]
    assert sorted(append.log for append in commit.appends) == ["dead", "q"]
    assert commit.size_bytes == 8

"""Claims are stored in time, and not at all for messages that are settled soon."""

import gc

from headrace.core.pipeline import HOLD_US
from headrace.core.queue.definition import declared
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK, NACK
from headrace.core.queue.leases import STORED_AFTER_US
from headrace.storage.group_state import ACKED, CLAIMED, Transition
from tests.house import House, Inbox
from tests.refusing_engine import RefusingEngine


def prepared(house: House) -> Inbox:
    for name in ("orders", "others"):
        house.broker.declare(declared(name, durable=True))
    return house.consume("orders")


def publish(house: House, *texts: str, queue: str = "orders") -> None:
    for text in texts:
        house.broker.publish(house.message(text, queue))
    house.turn()


def claims(refusing: RefusingEngine) -> list[tuple[int, int]]:
    steps: list[Transition] = [step for commit in refusing.committed for step in commit.steps]
    return [(step.start, step.stop) for step in steps if step.kind == CLAIMED]


def test_a_claim_that_ends_well_at_once_is_never_stored(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a", "b")

    for delivery in inbox.take():
        refused.broker.settle(delivery, ACK)
    publish(refused, "c", queue="others")
    refused.advance(1)

    assert claims(refusing) == []


def test_what_is_still_held_is_stored_along_with_what_comes_later(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a", "b", "c")
    refused.broker.settle(inbox.got[1], ACK)
    for _ in range(3):
        assert claims(refusing) == []
        refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
        publish(refused, "x", queue="others")
    refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
    publish(refused, "y", queue="others")

    assert claims(refusing) == [(0, 1), (2, 3)]


def test_where_nothing_else_is_stored_a_claim_does_not_wait_for_it(refusing: RefusingEngine, refused: House) -> None:
    prepared(refused)
    publish(refused, "a")
    assert claims(refusing) == []

    refused.clock.advance(HOLD_US / 1_000_000)
    refused.broker.tick()
    refused.turn()

    assert claims(refusing) == [(0, 1)]


def test_what_is_given_back_at_once_counts_as_an_attempt(refusing: RefusingEngine, refused: House) -> None:
    inbox = prepared(refused)
    publish(refused, "a")
    refused.broker.settle(inbox.got[0], NACK)
    refused.turn()
    refused.advance(10)

    inbox = House(refusing, refused.clock).consume("orders")

    assert [(each.attempts, each.redelivered) for each in inbox.got] == [(3, True)]


def test_an_engine_that_keeps_claims_is_told_of_each(refusing: RefusingEngine) -> None:
    refusing.keeps_claims = True
    house = House(refusing)
    inbox = prepared(house)
    publish(house, "a")

    house.settle(ACK, inbox.got[0])

    assert claims(refusing) == [(0, 1)]


def test_what_is_done_does_not_stay_in_memory_while_storage_takes_nothing(
    refusing: RefusingEngine, refused: House
) -> None:
    for name in ("orders", "others"):
        refused.broker.declare(declared(name, durable=True))
    publish(refused, *[str(number) for number in range(5000)])
    inbox = refused.consume("orders", credit=100)
    refusing.is_closed_door = True
    publish(refused, "x", queue="others")

    done = 0
    while deliveries := inbox.take():
        done += len(deliveries)
        refused.broker.acknowledge(deliveries)
        refused.turn()

    orders = refused.broker.queue("orders")
    left = [each for each in gc.get_objects() if isinstance(each, Delivery) and each.group.queue is orders]
    assert done == 5000
    assert len(left) < 1000


# -- settlements -------------------------------------------------------------------------------------------------------

MANY = 300
WORTH_A_STEP = 8


class ManyQueues:
    """Many queues with a consumer each."""

    def __init__(self, house: House, count: int = MANY) -> None:
        self.house = house
        self.names = [f"q{number}" for number in range(count)]
        for name in [*self.names, "others"]:
            house.broker.declare(declared(name, durable=True))
        self.inboxes = [house.consume(name) for name in self.names]

    def serve(self) -> None:
        """A message in each queue, delivered and acknowledged."""
        for name in self.names:
            self.house.broker.publish(self.house.message("x", name))
        self.house.turn()
        self.acknowledge()

    def acknowledge(self) -> None:
        self.house.broker.acknowledge([delivery for inbox in self.inboxes for delivery in inbox.take()])
        self.house.turn()


def settlements(refusing: RefusingEngine) -> list[tuple[str, int, int, int]]:
    steps: list[Transition] = [step for commit in refusing.committed for step in commit.steps]
    return [(step.log, step.start, step.stop, step.cut) for step in steps if step.kind == ACKED]


def test_settlements_in_few_queues_go_with_the_next_commit(refusing: RefusingEngine, refused: House) -> None:
    ManyQueues(refused, 10).serve()
    publish(refused, "x", queue="others")

    assert settlements(refusing) == [(f"q{number}", 0, 1, 1) for number in range(10)]


def test_settlements_in_many_queues_wait_until_there_are_several_in_each(
    refusing: RefusingEngine, refused: House
) -> None:
    queues = ManyQueues(refused)
    for _ in range(WORTH_A_STEP):
        assert settlements(refusing) == []
        queues.serve()
    publish(refused, "x", queue="others")

    assert settlements(refusing) == [(name, 0, WORTH_A_STEP, WORTH_A_STEP) for name in queues.names]
    assert {name: refusing.log(name).groups["default"].committed for name in queues.names} == dict.fromkeys(
        queues.names, 8
    )


def test_settlements_in_many_queues_do_not_wait_for_long(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
    publish(refused, "x", queue="others")
    assert settlements(refusing) == []
    refused.clock.advance(STORED_AFTER_US / 2 / 1_000_000)
    publish(refused, "y", queue="others")

    assert settlements(refusing) == [(name, 0, 1, 1) for name in queues.names]


def test_settlements_do_not_wait_for_a_clock_that_was_set_back(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    refused.clock.advance(-3600)
    publish(refused, "x", queue="others")

    assert settlements(refusing) == [(name, 0, 1, 1) for name in queues.names]


def test_where_nothing_else_is_stored_settlements_do_not_wait_for_it(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    refused.clock.advance(HOLD_US / 1_000_000)
    refused.broker.tick()
    refused.turn()

    assert settlements(refusing) == [(name, 0, 1, 1) for name in queues.names]


def test_settlements_are_in_the_commit_of_what_is_declared_after_them(refusing: RefusingEngine, refused: House) -> None:
    """Other stored state may depend on a settlement, as the identifiers of QoS 2 do."""
    queues = ManyQueues(refused)
    queues.serve()
    refused.broker.declare(declared("another", durable=True))
    refused.turn()

    assert settlements(refusing) == [(name, 0, 1, 1) for name in queues.names]


def test_whoever_waits_until_all_is_safe_waits_for_settlements(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    heard: list[object] = []
    refused.broker.when_safe(heard.append)
    refused.turn()

    assert heard == [None]
    assert len(settlements(refusing)) == MANY


def test_settlements_of_what_is_deleted_are_not_stored(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    refused.broker.delete("q0")
    refused.broker.delete("q1")
    refused.broker.declare(declared("q1", durable=True))
    refused.run()

    assert [log for log, *_ in settlements(refusing)] == queues.names[2:]
    assert refused.publish("q1", "new") == [None]
    assert refused.consume("q1").payloads == ["new"]


def test_what_another_group_needs_stays_when_settlements_are_stored_late(
    refusing: RefusingEngine, refused: House
) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    other = Inbox(refused, "other", 0, False, 0, None)
    refused.broker.consume("q0", other.consumer, group="second")
    publish(refused, "for both", queue="q0")
    queues.acknowledge()
    refused.run()

    assert (refused.broker.queue("q0").first_offset, other.payloads) == (1, ["for both"])
    assert refusing.log("q0").first_offset == 1


def test_what_is_settled_out_of_order_is_stored_as_such(refusing: RefusingEngine, refused: House) -> None:
    queues = ManyQueues(refused)
    queues.serve()
    publish(refused, "a", "b", "c", "d", queue="q1")
    held = queues.inboxes[1].take()
    refused.broker.acknowledge([held[2]])
    refused.broker.acknowledge([held[0]])
    refused.run()

    state = refusing.log("q1").groups["default"]
    assert (state.committed, list(state.settled)) == (2, [(3, 4)])


def test_whoever_has_everything_stored_has_it_stored_who_holds_what(refusing: RefusingEngine, refused: House) -> None:
    prepared(refused)

    for text in "ab":
        publish(refused, text)
        refused.broker.drain()

    assert claims(refusing) == [(0, 1), (1, 2)]

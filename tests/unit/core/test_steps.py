"""Many queues that go, or come due, at once: a bounded number in each turn, with all others served in between."""

from collections.abc import Callable, Iterator

import pytest

from headrace.core.hosts import Hosts
from headrace.core.pipeline import AT_ONCE
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import NACK, REJECT
from headrace.core.routing.exchange import Binding
from headrace.errors import HeadraceError, NotFound, ResourceLocked
from headrace.storage.api import BINDINGS, HOSTS, QUEUES, RETAINED, SESSIONS
from headrace.storage.group_state import CLAIMED
from tests.house import House
from tests.listeners import Listener
from tests.refusing_engine import RefusingEngine

COUNT = 5 * AT_ONCE + 1


def most_per_turn(house: House, count: Callable[[], int]) -> int:
    """Let everything happen; the largest change of a count within one turn."""
    most, before = 0, count()
    while house._soon:
        soon, house._soon[:] = list(house._soon), []
        for call in soon:
            call()
            now = count()
            most, before = max(most, abs(now - before)), now
        house.engine.sync()
    return most


def declare(house: House, owner: object = None, **options: object) -> None:
    for number in range(COUNT):
        house.broker.declare(QueueDefinition(f"q{number}", **options), owner)  # type: ignore[arg-type]
    house.run()


def test_exclusive_queues_of_a_connection_that_ends_go_a_few_in_each_turn(house: House) -> None:
    owner = object()
    declare(house, owner, durable=False, exclusive=True)
    queues = house.broker.topology.queues

    house.broker.release_owner(owner)

    assert len(queues) == COUNT - AT_ONCE
    assert most_per_turn(house, lambda: len(queues)) <= AT_ONCE
    assert not queues


def test_a_few_exclusive_queues_go_at_once(house: House) -> None:
    owner = object()
    house.broker.declare(QueueDefinition("mine", durable=False, exclusive=True), owner)

    house.broker.release_owner(owner)

    assert not house.broker.topology.queues


def test_a_name_is_free_while_its_exclusive_queue_waits_to_go(house: House) -> None:
    owner, other = object(), object()
    declare(house, owner, durable=False, exclusive=True)
    last, before = f"q{COUNT - 1}", f"q{COUNT - 2}"
    gone = house.broker.topology.queues[last]

    house.broker.release_owner(owner)

    assert last in house.broker.topology.queues
    with pytest.raises(NotFound):
        house.broker.declare(QueueDefinition(before, durable=False, exclusive=True), other, passive=True)
    made = house.broker.declare(QueueDefinition(last, durable=False, exclusive=True), other)
    assert made is not gone
    house.run()
    assert list(house.broker.topology.queues.values()) == [made]
    with pytest.raises(ResourceLocked):
        house.broker.declare(QueueDefinition(last, durable=False, exclusive=True), object())


def test_queues_that_expire_together_go_a_few_in_each_turn(house: House) -> None:
    declare(house, expires_ms=1000)
    queues = house.broker.topology.queues
    house.clock.advance(2)

    house.broker.tick()
    house.broker.tick()

    assert len(queues) == COUNT - AT_ONCE
    assert most_per_turn(house, lambda: len(queues)) <= AT_ONCE
    assert not queues
    house.broker.declare(QueueDefinition("later", expires_ms=1000))
    house.advance(2)
    assert not queues


def test_sessions_that_end_together_go_a_few_in_each_turn(house: House) -> None:
    for number in range(COUNT):
        Listener(house, f"client-{number}", lifetime_s=10).leave()
    sessions = house.broker.sessions
    assert len(sessions) == COUNT
    house.clock.advance(11)

    house.broker.tick()
    house.broker.tick()

    assert most_per_turn(house, lambda: len(sessions)) <= AT_ONCE
    assert len(sessions) == 0
    assert not list(house.engine.items(SESSIONS))


def test_a_large_virtual_host_goes_a_few_queues_in_each_turn_and_then_it_is_gone() -> None:
    house = House(host="large")
    hosts = Hosts(house.engine, lambda *_: house.broker)
    ended: list[HeadraceError | None] = []
    hosts.create("large", ended.append)
    house.engine.sync()
    declare(house)
    for number in range(COUNT):
        house.broker.bind(Binding("amq.fanout", f"q{number}"))
    house.run()
    queues = house.broker.topology.queues
    ended.clear()

    hosts.delete("large", ended.append)

    assert hosts.find("large") is None
    assert len(queues) == COUNT - AT_ONCE
    assert most_per_turn(house, lambda: len(queues)) <= AT_ONCE
    assert ended == [None]
    assert not any(list(house.engine.items(table)) for table in (HOSTS, QUEUES, BINDINGS))
    assert house.engine.logs() == []


def test_a_large_virtual_host_that_was_going_when_the_broker_failed_can_be_deleted_again() -> None:
    house = House(host="large")
    hosts = Hosts(house.engine, lambda *_: house.broker)
    hosts.create("large", lambda _: None)
    house.engine.sync()
    declare(house)
    hosts.delete("large", lambda _: None)
    house._soon.pop(0)()  # one turn is stored, and then the broker is killed
    house.engine.sync()

    again = House(house.engine, house.clock, "large")
    found = Hosts(house.engine, lambda *_: again.broker)
    left = len(again.broker.topology.queues)
    found.delete("large", lambda _: None)
    again.run()

    assert 0 < left < COUNT
    assert not any(list(house.engine.items(table)) for table in (HOSTS, QUEUES))


def test_a_large_virtual_host_goes_to_the_end_when_the_broker_stops() -> None:
    house = House(host="large")
    hosts = Hosts(house.engine, lambda *_: house.broker)
    hosts.create("large", lambda _: None)
    house.engine.sync()
    declare(house)

    hosts.delete("large", lambda _: None)
    house.broker.drain()

    assert not any(list(house.engine.items(table)) for table in (HOSTS, QUEUES))


def test_retained_messages_that_run_out_together_are_cleared_a_few_at_a_time(house: House) -> None:
    for number in range(COUNT):
        message = house.message("x", f"t/{number}", expires_us=house.clock.now_us() + 1_000_000)
        house.broker.publish_topic(message, retain=True)
    house.run()
    house.clock.advance(2)

    left = []
    for _ in range(4):
        house.broker.tick()
        house.run()
        left.append(len(list(house.engine.items(RETAINED))))

    assert left == [COUNT - 200, COUNT - 400, 0, 0]


def test_steps_are_taken_a_hundred_in_each_turn(house: House) -> None:
    done: list[int] = []

    def steps() -> Iterator[None]:
        for number in range(COUNT):
            done.append(number)
            yield

    house.broker.in_steps(steps())

    assert len(done) == AT_ONCE
    assert most_per_turn(house, lambda: len(done)) <= AT_ONCE
    assert len(done) == COUNT


def test_what_a_consumer_held_goes_back_in_order_a_bounded_number_in_each_turn(house: House) -> None:
    count = 5000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    gone = house.consume("q", "gone")
    assert len(gone.take()) == count
    queue = house.broker.queue("q")

    def leave() -> Iterator[None]:
        yield from house.broker.give_back(gone.consumer)
        house.broker.cancel(gone.consumer)
        yield

    gone.consumer.silence()
    house.broker.in_steps(leave())

    assert most_per_turn(house, lambda: queue.messages) <= 500
    assert (queue.messages, queue.unsettled, gone.got) == (count, 0, [])
    assert house.consume("q", "other").payloads == [str(number) for number in range(count)]


def test_a_queue_that_goes_while_a_consumer_gives_back_what_it_held_takes_it_along(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(3000)])
    gone = house.consume("q", "gone")
    gone.consumer.silence()

    house.broker.in_steps(house.broker.give_back(gone.consumer))
    house.broker.delete("q")
    house.run()

    assert gone.consumer.holding == 0
    assert not gone.is_cancelled


def test_messages_that_come_back_in_steps_are_delivered_before_newer_ones(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    gone = house.consume("q", "gone", credit=count)
    other = house.consume("q", "other")
    house.broker.publish(house.message("new", "q"))
    gone.consumer.silence()

    house.broker.in_steps(house.broker.give_back(gone.consumer))
    house.run()

    assert other.payloads == [*[str(number) for number in range(count)], "new"]
    assert [delivery.redelivered for delivery in other.got] == [True] * count + [False]


def test_many_rejected_deliveries_end_in_order_a_bounded_number_in_each_turn(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    house.publish("q", *[str(number) for number in range(count)])
    inbox = house.consume("q", "inbox")
    queue = house.broker.queue("q")

    house.broker.settle_all(inbox.take(), REJECT)

    assert queue.unsettled == count - 500
    assert most_per_turn(house, lambda: queue.unsettled) <= 500
    assert house.consume("$dlq/q", "reader").payloads == [str(number) for number in range(count)]


def test_many_deliveries_that_are_given_back_come_again_once_and_in_order(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    inbox = house.consume("q", "inbox")

    house.broker.settle_all(inbox.take(), NACK)
    house.publish("q", "new")

    assert inbox.payloads == [*[str(number) for number in range(count)], "new"]
    assert [delivery.redelivered for delivery in inbox.got] == [True] * count + [False]


def test_a_consumer_may_leave_while_its_deliveries_end_in_steps(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    gone = house.consume("q", "gone")

    house.broker.settle_all(gone.take(), NACK)
    house.broker.cancel(gone.consumer)
    other = house.consume("q", "other")
    house.run()

    assert other.payloads == [str(number) for number in range(count)]
    assert house.broker.queue("q").unsettled == count


def test_what_comes_back_in_steps_is_all_there_when_the_broker_dies_in_between(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    gone = house.consume("q", "gone")
    house.run()

    house.broker.settle_all(gone.take(), NACK)
    house._soon.pop(0)()
    house.engine.sync()
    again = House(house.engine, house.clock).consume("q", "again")

    assert again.payloads == [str(number) for number in range(count)]
    assert all(delivery.redelivered for delivery in again.got)


def test_a_consumer_without_a_limit_gets_a_bounded_number_in_each_turn(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(10_000)])
    got: list[Delivery] = []
    inbox = Consumer("inbox", got.extend)

    house.broker.consume("q", inbox)

    assert most_per_turn(house, lambda: len(got)) <= 9 * 256
    assert len(got) == 10_000


def test_claims_of_many_deliveries_are_stored_a_bounded_number_in_each_commit(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(QueueDefinition("q"))
    refused.publish("q", *[str(number) for number in range(10_000)])
    refusing.committed.clear()
    refused.consume("q", "inbox")
    for _ in range(3):
        refused.advance(1)
    sizes = [
        sum([step.stop - step.start for step in commit.steps if step.kind == CLAIMED]) for commit in refusing.committed
    ]

    assert max(sizes) <= 2000
    assert sum(sizes) == 10_000


def test_long_work_waits_while_much_of_it_waits_to_be_stored(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(10_000)])
    inbox = house.consume("q", "inbox")
    for _ in range(3):
        house.advance(1)
    queue = house.broker.queue("q")

    house.broker.settle_all(inbox.take(), NACK)
    for _ in range(50):
        soon, house._soon[:] = list(house._soon), []
        for call in soon:
            call()

    assert queue.unsettled > 5000
    house.run()
    assert len(inbox.got) == 10_000


def test_long_work_in_memory_alone_goes_on_while_something_else_is_stored(house: House) -> None:
    owner = object()
    declare(house, owner, durable=False, exclusive=True)
    house.broker.declare(QueueDefinition("q"))
    house._soon.pop(0)()

    house.broker.release_owner(owner)
    house.run()

    assert list(house.broker.topology.queues) == ["q"]


def test_claims_that_run_out_together_end_a_bounded_number_in_each_turn(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *[str(number) for number in range(count)])
    gone = house.consume("q", "gone")
    queue = house.broker.queue("q")
    gone.consumer.silence()
    house.clock.advance(queue.lease_us / 1_000_000 + 1)

    house.broker.tick()

    assert most_per_turn(house, lambda: queue.unsettled) <= 500
    assert queue.unsettled == 0
    assert house.consume("q", "other").payloads == [str(number) for number in range(count)]


def test_rejected_deliveries_stay_rejected_when_their_consumer_leaves_before_all_have_ended(house: House) -> None:
    count = 3000
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    house.publish("q", *[str(number) for number in range(count)])
    inbox = house.consume("q", "inbox")

    def leave(steps: Iterator[None]) -> Iterator[None]:
        yield from steps
        house.broker.cancel(inbox.consumer)
        yield

    inbox.consumer.silence()
    house.broker.in_steps(leave(house.broker.settle_all(inbox.take(), REJECT)))
    house.run()

    assert house.broker.queue("q").messages == 0
    assert house.consume("$dlq/q", "reader").payloads == [str(number) for number in range(count)]

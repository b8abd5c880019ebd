"""Publishers are told to slow down above the high watermark and released below the low one."""

import pytest

from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.queue.definition import declared
from headrace.errors import Unavailable
from tests.house import House
from tests.refusing_engine import RefusingEngine


def watched(engine: RefusingEngine, **marks: int) -> tuple[House, list[bool]]:
    """A house with low watermarks and what it tells its publishers."""
    house = House(engine)
    told: list[bool] = []
    house.broker = Broker(engine, house.clock, house._soon.append, flow=Flow(**marks))
    house.broker.on_flow["test"] = told.append
    house.broker.declare(declared("q", durable=True))
    house.broker.declare(declared("memory"))
    house.run()
    return house, told


def test_between_the_watermarks_nothing_changes() -> None:
    flow = Flow(100, 50)
    told: list[bool] = []
    flow.listeners["test"] = told.append

    for waiting in (100, 101, 60, 101, 50, 49, 60, 100):
        flow.update("/", waiting, 0)

    assert told == [True, False]


def test_what_virtual_hosts_have_under_way_counts_together() -> None:
    flow = Flow(100, 50)
    told: list[bool] = []
    flow.listeners["test"] = told.append

    flow.update("/", 60, 0)
    flow.update("eu", 60, 0)
    assert told == [True]
    flow.update("/", 0, 0)
    assert told == [True]
    flow.forget("eu")
    assert told == [True, False]


def test_publishers_wait_as_long_as_one_host_is_held() -> None:
    flow = Flow()
    for host in ("/", "eu"):
        flow.hold(host, True)
        flow.update(host, 0, 0)
    flow.hold("/", False)
    flow.update("/", 0, 0)
    assert flow.blocked
    flow.hold("eu", False)
    flow.update("eu", 0, 0)
    assert not flow.blocked


def test_publishers_are_blocked_while_too_much_waits_for_the_disk(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)
    refusing.is_closed_door = True
    house.publish("q", "x" * 60)
    assert told == []

    house.publish("q", "x" * 60)
    assert (told, house.broker.blocked) == ([True], True)
    refusing.open_door()
    house.run()

    assert (told, house.broker.blocked) == ([True, False], False)


def test_what_waits_in_the_open_turn_counts(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)

    for _ in range(3):
        house.broker.publish(house.message("x" * 60, "q"))

    assert told == [True]
    house.run()
    assert told == [True, False]


def test_a_message_counts_for_every_queue_that_takes_it(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)
    house.exchange("all", "fanout")
    for name in "abc":
        house.broker.declare(declared(name, durable=True))
        house.bind("all", name)

    house.broker.publish(house.message("x" * 40, "", "all"))

    assert told == [True]


def test_publishers_are_released_when_what_waited_could_not_be_stored(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)
    refusing.failure = Unavailable("full")

    for _ in range(3):
        house.broker.publish(house.message("x" * 60, "q"))
    house.run()
    assert told == [True], "storage takes nothing: they are not released to lose more"

    house.advance(2)
    assert told == [True, False]


def test_publishers_wait_a_second_each_time_that_storage_takes_nothing(refusing: RefusingEngine) -> None:
    house, told = watched(refusing)
    refusing.failure = Unavailable("full")
    for round_number in range(1, 3):
        house.broker.publish(house.message("x", "q"))
        house.run()
        assert told == [True, False] * (round_number - 1) + [True]
        house.advance(0.5)
        assert house.broker.blocked
        assert house.broker.tick() > 0, "it asks to be called again"
        house.advance(0.6)
        assert told == [True, False] * round_number

    refusing.failure = None
    house.broker.publish(house.message("x", "q"))
    house.run()
    assert told == [True, False] * 2
    assert house.broker.queue("q").messages == 1


def test_publishers_are_blocked_while_queues_in_memory_hold_too_much(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, memory_high_bytes=100, memory_low_bytes=50)
    inbox = house.consume("memory", credit=1)
    house.publish("memory", *("x" * 30 for _ in range(4)))
    assert told == [True]

    for _ in range(3):
        house.settle(1, *inbox.take())

    assert told == [True, False]


def test_queues_in_memory_that_are_consumed_at_once_block_nobody(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)
    inbox = house.consume("memory", auto_ack=True)

    for _ in range(20):
        house.broker.publish(house.message("x" * 60, "memory"))
        house.turn()

    assert len(inbox.got) == 20
    assert told == []


def test_messages_for_a_queue_that_is_deleted_in_the_same_turn_do_not_count(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)

    for name in ("q", "memory"):
        house.broker.publish(house.message("x" * 80, name))
        house.broker.delete(name)
    house.turn()
    house.broker.declare(declared("q", durable=True))
    house.broker.publish(house.message("x" * 80, "q"))

    assert told == []


def test_higher_watermarks_release_publishers_at_once(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, memory_high_bytes=100, memory_low_bytes=50)
    house.publish("memory", "x" * 200)
    assert told == [True]

    house.broker.administration.limit(1000, 1000, 1000)

    assert told == [True, False]


def test_a_queue_in_memory_that_is_deleted_makes_room(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, memory_high_bytes=100, memory_low_bytes=50)
    house.publish("memory", "x" * 200)

    house.broker.delete("memory")
    house.run()

    assert told == [True, False]


def test_one_virtual_host_does_not_block_another(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, high_bytes=100, low_bytes=50)
    other = House(refusing, host="other")

    house.broker.publish(house.message("x" * 200, "q"))

    assert told == [True]
    assert not other.broker.blocked


def test_publishers_that_cannot_wait_are_refused_while_queues_in_memory_are_full(refusing: RefusingEngine) -> None:
    house, _ = watched(refusing, memory_high_bytes=100, memory_low_bytes=50)
    house.broker.check_memory()
    house.publish("memory", "x" * 200)

    with pytest.raises(Unavailable, match="memory_bytes"):
        house.broker.check_memory()

    house.broker.delete("memory")
    house.run()
    house.broker.check_memory()


def test_who_fills_the_memory_with_exclusive_queues_is_ended_when_nothing_moves(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, memory_high_bytes=1000, memory_low_bytes=750)
    broker = house.broker
    ended: list[tuple[str, str]] = []
    for owner, size in (("small", 10), ("large", 600), ("other", 500)):
        broker.on_ended[owner] = lambda why, owner=owner: ended.append((owner, why))  # type: ignore[misc]
        broker.declare(declared(owner, exclusive=True), owner)
        house.publish(owner, "x" * size)
    house.publish("memory", "x")
    assert told == [True]

    for seconds in (1, 9):
        house.clock.advance(seconds)
        broker.tick()
        assert ended == []
    house.clock.advance(1)
    broker.tick()
    ((owner, why),) = ended
    assert owner == "large"
    assert "hold" in why
    assert "nobody consumes" in why

    broker.release_owner("large")
    house.run()
    assert told == [True, False]


def test_nobody_is_ended_for_memory_that_moves_or_that_others_fill(refusing: RefusingEngine) -> None:
    house, told = watched(refusing, memory_high_bytes=1000, memory_low_bytes=750)
    broker = house.broker
    ended: list[str] = []
    broker.on_ended["small"] = ended.append
    broker.declare(declared("mine", exclusive=True), "small")
    house.publish("mine", "x" * 10)
    house.publish("memory", *["x" * 100] * 12)
    assert told == [True]

    for _ in range(30):
        house.clock.advance(1)
        broker.tick()

    assert ended == []

"""Rounds of deliveries: one turn of the event loop serves a bounded number of messages, whatever waits for whom."""

from collections import Counter
from itertools import groupby, pairwise

from headrace.core.flow import SERVED_AT_ONCE
from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.model import Message, Source
from headrace.selector import parse
from tests.house import House

BACKLOG = 1500
READERS = 8
MOST = 2 * SERVED_AT_ONCE
"""A round ends with the reader that reaches its bound, which may be served as much once more."""


def fill(house: House, queue: str, definition: QueueDefinition, payloads: bytes = b"x") -> None:
    house.broker.declare(definition)
    source, now_us = Source(queue), house.clock.now_us()
    house.broker.publish_all([Message(source, payloads, now_us) for _ in range(BACKLOG)])
    house.run()


def join(house: House, queue: str, group: str = "", selector: str = "", position: object = None) -> list[int]:
    """A new consumer that gets nothing before the next round; returns the list that gets its offsets."""
    got: list[int] = []

    def deliver(deliveries: list[Delivery]) -> None:
        got.extend([delivery.offset for delivery in deliveries])

    consumer = Consumer(f"{queue} {group} {len(selector)}", deliver)
    consumer.selector = parse(selector) if selector else None
    house.broker.consume(queue, consumer, group=group, position=position)
    return got


def rounds(house: House) -> list[int]:
    """Serve round by round until nothing is left; returns the messages of each round."""
    statistics, served = house.broker.statistics, []
    for _ in range(READERS * BACKLOG):
        before = statistics.delivered + statistics.passed
        house.broker.flush()
        served.append(statistics.delivered + statistics.passed - before)
        if not served[-1]:
            return served
    raise AssertionError("it has no end")


def test_many_queues_are_served_a_bounded_number_of_messages_in_a_round(house: House) -> None:
    names = [f"q{number}" for number in range(READERS)]
    for name in names:
        fill(house, name, QueueDefinition(name))
    got = [join(house, name) for name in names]

    served = rounds(house)

    assert max(served) <= MOST
    assert got == [list(range(BACKLOG))] * READERS


def test_queues_that_a_round_did_not_come_to_are_served_next_without_any_other_call(house: House) -> None:
    names = [f"q{number}" for number in range(READERS)]
    for name in names:
        fill(house, name, QueueDefinition(name))
    order: list[str] = []
    for name in names:
        consumer = Consumer(name, lambda deliveries, name=name: order.extend([name] * len(deliveries)))  # type: ignore[misc]
        consumer.auto_ack = True
        house.broker.consume(name, consumer)

    house.turn()

    assert Counter(order) == dict.fromkeys(names, BACKLOG)
    assert [name for name, _ in groupby(order)][:READERS] == names


def test_many_groups_of_a_stream_take_turns(house: House) -> None:
    fill(house, "s", QueueDefinition("s", STREAM))
    got = [join(house, "s", f"g{number}", position="first") for number in range(READERS)]

    served = [house.broker.statistics.delivered]
    for _ in range(READERS):
        house.broker.flush()
        served.append(house.broker.statistics.delivered)
    counts = [len(offsets) for offsets in got]
    rounds(house)

    assert max(after - before for before, after in pairwise(served)) <= MOST
    assert min(counts) > 0
    assert got == [list(range(BACKLOG))] * READERS


def test_readers_whose_selectors_match_nothing_are_served_as_little(house: House) -> None:
    fill(house, "q", QueueDefinition("q"))
    for number in range(READERS):
        join(house, "q", selector=f"colour = 'red' AND number = {10**number}")

    served = rounds(house)

    assert max(served) <= MOST
    assert sum(served) == READERS * BACKLOG


def test_readers_of_a_stream_whose_selectors_match_nothing_are_served_as_little(house: House) -> None:
    fill(house, "s", QueueDefinition("s", STREAM))
    for number in range(READERS):
        join(house, "s", f"g{number}", "colour = 'red'", "first")

    served = rounds(house)

    assert max(served) <= MOST
    assert sum(served) == READERS * BACKLOG


def test_browsers_are_shown_a_bounded_number_in_a_round_and_take_turns(house: House) -> None:
    fill(house, "q", QueueDefinition("q"))
    shown: list[list[int]] = [[] for _ in range(READERS)]

    def browse(seen: list[int]) -> None:
        browser = house.broker.browse(
            "q", lambda found: seen.extend([offset for offset, _ in found]), None, lambda: None
        )
        house.broker.allow_browser(browser, BACKLOG)

    for seen in shown:
        browse(seen)

    served = rounds(house)

    assert max(served) <= MOST
    assert shown == [list(range(BACKLOG))] * READERS


def test_a_call_after_deliveries_waits_for_the_queues_that_are_due_and_not_for_later_ones(house: House) -> None:
    names = [f"q{number}" for number in range(READERS)]
    for name in names:
        fill(house, name, QueueDefinition(name))
    got = [join(house, name) for name in names]
    called: list[list[int]] = []

    house.broker.publish(Message(Source("q0"), b"x", house.clock.now_us()))
    assert house.broker.when_entered(lambda: called.append([len(offsets) for offsets in got]))
    for _ in range(4 * READERS):
        house.broker.flush()
        house.engine.sync()
        for name in names:  # they are always due
            house.broker.publish(Message(Source(name), b"x", house.clock.now_us()))

    assert len(called) == 1
    assert min(called[0]) > 0

"""Consumers with selectors: each gets what it wants of a queue, the rest stays for others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, NACK, RELEASE
from headrace.errors import Refused
from headrace.selector import MappingRow, parse
from headrace.storage.memory import MemoryEngine
from tests.house import House, Inbox


def _join(house: House, name: str, selector: str, credit: int = 0, queue: str = "q", **options: object) -> Inbox:
    inbox = Inbox(house, name, credit, False, 0, None)
    inbox.consumer.selector = parse(selector) if selector else None
    house.broker.consume(queue, inbox.consumer, **options)  # type: ignore[arg-type]
    house.run()
    return inbox


def _house(**options: object) -> House:
    house = House()
    house.broker.declare(QueueDefinition("q", **options))  # type: ignore[arg-type]
    return house


def _publish(house: House, *colours: str) -> None:
    for number, colour in enumerate(colours):
        house.publish("q", f"{colour}{number}", headers={"colour": colour})


def test_a_consumer_gets_only_what_its_selector_wants() -> None:
    house = _house()
    _publish(house, "red", "blue", "red", "green")

    red = _join(house, "red", "colour = 'red'")
    blue = _join(house, "blue", "colour = 'blue'")
    _publish(house, "blue", "red")

    assert red.texts() == ["red0", "red2", "red1"]
    assert blue.texts() == ["blue1", "blue0"]
    assert house.broker.queue("q").messages == 1


def test_what_nobody_wants_stays_for_a_consumer_without_a_selector() -> None:
    house = _house()
    red = _join(house, "red", "colour = 'red'", credit=1)
    _publish(house, "red", "blue", "red")

    rest = house.consume("q", "rest")

    assert red.texts() == ["red0"]
    assert rest.texts() == ["blue1", "red2"]


def test_credit_bounds_what_a_consumer_with_a_selector_holds() -> None:
    house = _house()
    _publish(house, "red", "red", "blue", "red")
    red = _join(house, "red", "colour = 'red'", credit=2)
    first = red.take()

    assert [delivery.offset for delivery in first] == [0, 1]
    house.settle(ACK, first[1])
    assert red.texts() == ["red3"]


def test_what_is_released_goes_to_another_that_wants_it() -> None:
    house = _house()
    _publish(house, "blue", "red")
    first = _join(house, "first", "colour = 'red'", credit=1)
    second = _join(house, "second", "colour = 'red'", credit=1)

    house.broker.cancel(first.consumer)
    house.run()

    assert second.texts() == ["red1"]


def test_what_failed_waits_out_its_delay() -> None:
    house = _house(retry=Retry(3, 5_000, 5_000, 1.0))
    _publish(house, "blue", "red")
    red = _join(house, "red", "colour = 'red'")
    house.settle(NACK, *red.take())

    assert red.take() == []
    house.advance(6)
    assert [(delivery.offset, delivery.attempts) for delivery in red.take()] == [(1, 2)]


def test_a_queue_with_one_active_consumer_takes_no_selector() -> None:
    house = _house(single_active=True)

    with pytest.raises(Refused, match="single active"):
        _join(house, "red", "colour = 'red'")


def test_a_length_limit_passes_over_what_is_picked() -> None:
    house = _house(max_length=1)
    red = _join(house, "red", "colour = 'red'")

    _publish(house, "red", "blue", "green", "blue")

    assert red.texts() == ["red0"]
    assert house.consume("q", "rest").texts() == ["blue3"]


def test_readers_of_a_stream_share_their_selector() -> None:
    house = _house(kind="stream")
    _publish(house, "red", "blue", "red")
    red = _join(house, "red", "colour = 'red'", group="g")

    assert red.texts() == ["red0", "red2"]
    with pytest.raises(Refused, match="all of them must agree"):
        _join(house, "blue", "colour = 'blue'", group="g")
    assert _join(house, "blue", "colour = 'blue'", group="other").texts() == ["blue1"]


def test_notes_of_one_consumer_reach_the_next_until_it_is_settled() -> None:
    house = _house()
    inbox = house.consume("q")
    _publish(house, "red")
    (delivery,) = inbox.take()
    delivery.notes = {"x-why": "busy"}
    house.settle(RELEASE, delivery)

    (again,) = inbox.take()
    assert again.notes == {"x-why": "busy"}
    house.settle(ACK, again)
    assert house.broker.queue("q").messages == 0


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(["red", "blue", "green"])),
        st.tuples(st.just("join"), st.sampled_from(["colour = 'red'", "colour <> 'green'", ""])),
        st.tuples(st.just("settle"), st.sampled_from([ACK, NACK, RELEASE])),
        st.tuples(st.just("leave"), st.integers(0, 3)),
        st.tuples(st.just("credit"), st.integers(1, 3)),
    ),
    max_size=30,
)


@given(_steps, st.sampled_from([0, 3]))
def test_nothing_is_lost_doubled_or_given_to_whom_it_is_not_for(
    steps: list[tuple[str, object]], priorities: int
) -> None:
    engine = MemoryEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q", max_priority=priorities))
    inboxes: list[tuple[Inbox, str]] = []
    held: dict[int, tuple[Consumer, Delivery]] = {}
    done: list[int] = []
    published = 0

    def collect() -> None:
        for inbox, selector in inboxes:
            for delivery in inbox.take():
                colour = delivery.message.payload.decode()
                assert not selector or parse(selector).matches(MappingRow(headers={"colour": colour}))
                assert delivery.offset not in held, "two hold it at once"
                assert delivery.offset not in done
                held[delivery.offset] = (inbox.consumer, delivery)

    for what, value in steps:
        if what == "publish":
            house.publish("q", str(value), headers={"colour": value}, priority=published % 3)
            published += 1
        elif what == "join":
            inboxes.append((_join(house, f"c{len(inboxes)}", str(value), credit=2), str(value)))
        elif what == "settle" and held:
            offset = min(held)
            delivery = held.pop(offset)[1]
            assert isinstance(value, int)
            if value == ACK:
                done.append(offset)
            house.settle(value, delivery)
        elif what == "leave" and inboxes and isinstance(value, int):
            gone = inboxes.pop(value % len(inboxes))[0].consumer
            held = {offset: pair for offset, pair in held.items() if pair[0] is not gone}
            house.broker.cancel(gone)
            house.run()
        elif what == "credit" and inboxes and isinstance(value, int):
            house.broker.set_credit(inboxes[0][0].consumer, value)
            house.run()
        collect()

    for inbox, _ in inboxes:
        house.broker.cancel(inbox.consumer)
    rest = house.consume("q", "rest")
    offsets = [delivery.offset for delivery in rest.take()]
    assert sorted([*offsets, *done]) == list(range(published))


def test_what_follows_an_expired_message_keeps_its_place_behind_one_that_was_picked_and_settled() -> None:
    house = _house()
    red = _join(house, "red", "colour = 'red'")
    house.publish("q", "short", headers={"colour": "blue"}, expires_us=house.clock.now_us() + 1_000_000)
    _publish(house, "red", "green", "blue")
    house.settle(ACK, *red.take())
    house.clock.advance(2)

    rest = house.consume("q", "rest")

    assert [(delivery.offset, delivery.message.payload) for delivery in rest.got] == [(2, b"green1"), (3, b"blue2")]
    assert rest.consumer.held() == [2, 3]

"""Exchanges of the type `x-delayed-message`: what they delay, for how long, and which queues wait."""

from decimal import Decimal

import pytest

from headrace.core.publishing import TO_EXCHANGE
from headrace.core.pubsub.session import AT_LEAST_ONCE
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.group import REJECT
from headrace.core.routing.delays import delay_of
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.transaction import Publish
from headrace.errors import PreconditionFailed
from headrace.model import AMQP091, Message, Source
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.staging import encoded
from headrace.wire.amqp091 import encode_properties
from headrace.wire.encodings import properties_of
from headrace.wire.properties import Properties
from tests.house import House, Inbox
from tests.listeners import Listener


def delaying(inner: str = "direct", **queue: object) -> tuple[House, Inbox]:
    """An exchange `x` that delays, with one queue."""
    house = House()
    house.exchange("x", "x-delayed-message", arguments={"x-delayed-type": inner})
    house.broker.declare(QueueDefinition("q", **queue))  # type: ignore[arg-type]
    house.bind("x", "q", "k")
    return house, house.consume("q")


def header(inbox: Inbox) -> list[object]:
    """The header of what came since the last look."""
    return [properties_of(delivery.message).headers.get("x-delay") for delivery in inbox.take()]


def test_a_message_waits_as_long_as_its_header_says_and_others_do_not() -> None:
    house, inbox = delaying()
    house.publish("k", "later", exchange="x", headers={"x-delay": 5000})
    house.publish("k", "now", exchange="x")

    assert inbox.texts() == ["now"]
    house.advance(4.9)
    assert inbox.texts() == []
    house.advance(0.2)
    assert header(inbox) == [-5000]


def test_messages_come_when_they_are_due_and_not_in_the_order_of_their_publishes() -> None:
    house, inbox = delaying()
    for seconds in (3, 1, 2):
        house.publish("k", str(seconds), exchange="x", headers={"x-delay": seconds * 1000})

    house.advance(1.5)
    house.advance(1)
    house.advance(1)

    assert inbox.texts() == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("value", "delay"),
    [
        (1, 1),
        ("250", 250),
        (2.9, 2),
        (Decimal("2.5"), 2),
        (4_294_967_295, 4_294_967_295),
        (4_294_967_296, 0),
        (0, 0),
        (-1, 0),
        (True, 0),
        ("soon", 0),
        ("9" * 5000, 0),
        (float("nan"), 0),
        ([1], 0),
        (None, 0),
    ],
)
def test_only_a_time_delays(value: object, delay: int) -> None:
    assert delay_of({"x-delay": value}) == delay


def test_a_header_that_does_not_delay_stays_as_it_is() -> None:
    house, inbox = delaying()

    house.publish("k", "now", exchange="x", headers={"x-delay": -7})

    assert header(inbox) == [-7]


@pytest.mark.parametrize("inner", ["direct", "topic", "headers", "fanout", "x-modulus-hash", "x-random"])
def test_it_routes_as_its_inner_type_does(inner: str) -> None:
    house, inbox = delaying(inner)
    house.publish("k", "1", exchange="x", headers={"x-delay": 1000})
    house.publish("other", "2", exchange="x", headers={"x-delay": 1000})

    house.advance(2)

    assert inbox.texts() == (["1"] if inner in ("direct", "topic") else ["1", "2"])


def test_only_queues_behind_it_wait() -> None:
    house, later = delaying()
    house.broker.declare(QueueDefinition("at-once"))
    house.exchange("front", "fanout")
    house.bind("front", "at-once")
    house.broker.bind(Binding("front", "x", to_exchange=True))
    at_once = house.consume("at-once")

    house.publish("k", "1", exchange="front", headers={"x-delay": 1000})

    assert (header(at_once), later.texts()) == ([1000], [])
    house.advance(1.1)
    assert (at_once.texts(), later.texts()) == ([], ["1"])


def test_a_queue_that_is_reached_both_ways_gets_it_once_and_at_once() -> None:
    house, inbox = delaying()
    house.exchange("front", "fanout")
    house.bind("front", "q")
    house.broker.bind(Binding("front", "x", to_exchange=True))

    house.publish("k", "1", exchange="front", headers={"x-delay": 1000})
    house.advance(2)

    assert inbox.texts() == ["1"]


def test_a_second_exchange_behind_it_delays_nothing_more() -> None:
    house, inbox = delaying()
    house.exchange("front", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    house.broker.bind(Binding("front", "x", to_exchange=True))

    house.publish("k", "1", exchange="front", headers={"x-delay": 1000})
    house.advance(1.1)

    assert inbox.texts() == ["1"]


def test_a_transaction_delays_too() -> None:
    house, inbox = delaying()
    now = Publish(house.message("now", "k", "x"))
    later = Publish(house.message("later", "k", "x"), {"x-delay": 1000})
    house.broker.transaction([later, now], [])
    house.run()

    assert inbox.texts() == ["now"]
    house.advance(1.1)
    assert inbox.texts() == ["later"]


def test_rows_in_bulk_are_delayed_one_by_one() -> None:
    house, inbox = delaying()
    source = Source("k", encoding=AMQP091)
    raws = [encode_properties(Properties(headers)) for headers in ({"x-delay": 1000}, {})]
    messages = [Message(source, b"%d" % at, house.clock.now_us(), raw) for at, raw in enumerate(raws)]
    bulk = house.broker.bulk()
    bulk.add(TO_EXCHANGE, "x", encoded(encode_block(0, messages)))
    bulk.commit("job", 1, lambda error: None)
    house.run()

    assert inbox.texts() == ["1"]
    house.advance(1.1)
    assert header(inbox) == [-1000]


def test_dead_letters_wait_and_those_that_waited_before_do_not() -> None:
    house, inbox = delaying()
    house.broker.declare(QueueDefinition("dying", dead_letter_exchange="x", dead_letter_key="k"))
    house.broker.declare(QueueDefinition("q2", dead_letter_exchange="x", dead_letter_key="k"))
    dying = house.consume("dying")
    house.publish("dying", "1", headers={"x-delay": 1000})
    house.settle(REJECT, *dying.take())

    assert inbox.texts() == []
    house.advance(1.1)
    assert header(inbox) == [-1000]

    again = house.consume("q2")
    house.publish("q2", "2", headers={"x-delay": -1000})
    house.settle(REJECT, *again.take())
    assert header(inbox) == [-1000]


@pytest.mark.parametrize(("seconds", "texts"), [(4.5, []), (5.5, ["1"]), (6.5, [])])
@pytest.mark.parametrize("is_of_queue", [True, False])
def test_the_time_to_live_begins_when_a_message_is_due(seconds: float, texts: list[str], is_of_queue: bool) -> None:
    house = House()
    house.exchange("x", "x-delayed-message", arguments={"x-delayed-type": "fanout"})
    house.broker.declare(QueueDefinition("q", message_ttl_ms=1000 if is_of_queue else None))
    house.bind("x", "q")
    expires_us = 0 if is_of_queue else house.clock.now_us() + 1_000_000
    house.publish("k", "1", exchange="x", headers={"x-delay": 5000}, expires_us=expires_us)

    house.advance(seconds)

    assert house.consume("q").texts() == texts


def test_subscribers_of_topics_do_not_wait() -> None:
    house, _ = delaying("fanout")
    house.broker.bind(Binding("x", "amq.topic", to_exchange=True))
    listener = Listener(house, "1")
    listener.subscribe("k", AT_LEAST_ONCE)

    house.publish("k", "1", exchange="x", headers={"x-delay": 1000})

    assert listener.texts() == ["1"]


def test_it_says_whether_a_message_is_routed() -> None:
    house, _ = delaying()

    counts = [house.broker.publish(house.message("1", key, "x"), None, {"x-delay": 1000}) for key in ("k", "nowhere")]

    assert counts == [1, 0]


@pytest.mark.parametrize("arguments", [{}, {"x-delayed-type": 5}, {"x-delayed-type": "x-delayed-message"}])
def test_an_inner_type_is_needed(arguments: dict[str, object]) -> None:
    with pytest.raises(PreconditionFailed, match="'x-delayed-type' must be an existing exchange type"):
        House().broker.declare_exchange(Exchange("x", "x-delayed-message", arguments=arguments))


def test_an_unknown_inner_type_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="unknown exchange type 'x-recent-history'"):
        House().broker.declare_exchange(
            Exchange("x", "x-delayed-message", arguments={"x-delayed-type": "x-recent-history"})
        )

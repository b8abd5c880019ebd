"""Promises to publishers, for one message or many: durability, waits, refusals."""

import pytest

from headrace.core.batch import ConfirmAll
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.pubsub.session import AT_LEAST_ONCE
from headrace.core.queue.definition import BUFFERED, FSYNC, STREAM, QueueDefinition, Retention
from headrace.errors import AccessRefused, Refused, Unavailable
from headrace.model import Message, Source
from tests.house import House
from tests.listeners import Listener
from tests.refusing_engine import RefusingEngine

WAYS = ["one", "many", "each"]


def waiting(seconds: int) -> dict[str, object]:
    """Arguments of a queue whose publishers wait so long."""
    return {"enabled": True, "mode": "sync", "ack_timeout_ms": seconds * 1000}


def send(house: House, way: str, source: Source, payload: str = "x", is_awaited: bool = True) -> list[object]:
    """Publish it by itself, or as the first of two with one key or keys of their own; the list has what is heard."""
    told: list[object] = []
    message = Message(source, payload.encode(), house.clock.now_us())
    if way == "one":
        house.broker.publish(message, told.append if is_awaited else None)
    else:
        messages = [message, Message(source, b"", house.clock.now_us())]
        confirm: ConfirmAll | None = (lambda count, error: told.append(error)) if is_awaited else None
        if way == "many":
            house.broker.publish_all(messages, confirm)
        else:
            queue = house.broker.straight_to(source.exchange, source.topic)
            house.broker.publish_each(messages, [queue, queue], confirm)
    return told


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("durabilities", "is_synced"),
    [
        ([FSYNC], True),
        ([BUFFERED], False),
        ([BUFFERED, FSYNC], True),
        ([FSYNC, BUFFERED], True),
        ([BUFFERED] * 2, False),
    ],
)
def test_publishers_wait_for_the_sync_if_one_of_the_queues_promises_it(
    refusing: RefusingEngine, refused: House, way: str, durabilities: list[str], is_synced: bool
) -> None:
    refused.exchange("x", "fanout")
    for at, durability in enumerate(durabilities):
        refused.broker.declare(QueueDefinition(f"q{at}", ack_durability=durability))
        refused.bind("x", f"q{at}")
    refusing.waits.clear()

    told = send(refused, way, Source("key", "x"))
    refused.turn()

    assert (told, refusing.waits) == ([None], [is_synced])


@pytest.mark.parametrize(
    ("definition", "told", "held"),
    [
        (QueueDefinition("q", max_length=2), [(3, None)], ["2", "3"]),
        (QueueDefinition("q", max_length_bytes=1), [(3, None)], ["3"]),
        (QueueDefinition("q", max_length=3, overflow="reject-publish"), [(3, None)], ["1", "2", "3"]),
        (QueueDefinition("q", message_ttl_ms=1000), [(3, None)], ["1", "2", "3"]),
        (
            QueueDefinition("q", max_length=2, overflow="reject-publish"),
            [(1, None), (1, None), (1, Refused)],
            ["1", "2"],
        ),
    ],
)
def test_a_queue_with_limits_takes_many_messages_as_one_row_if_it_takes_all(
    house: House, definition: QueueDefinition, told: list[object], held: list[str]
) -> None:
    queue = house.broker.declare(definition)
    heard: list[object] = []
    source = Source("q")

    messages = [Message(source, b"%d" % number, house.clock.now_us()) for number in (1, 2, 3)]
    house.broker.publish_all(messages, lambda count, error: heard.append((count, error and type(error))))
    house.run()

    assert heard == told
    assert [message.payload.decode() for _, message in queue.browse(0, 10)] == held
    house.advance(1)
    assert bool(queue.messages) is not bool(definition.message_ttl_ms)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [1, 2])
def test_publishers_hear_that_storage_takes_too_long_and_only_those_that_wait(
    refusing: RefusingEngine, refused: House, way: str, count: int
) -> None:
    refused.exchange("x", "fanout")
    for at in range(count):
        refused.broker.declare(QueueDefinition(f"q{at}", replication=waiting(2)))
        refused.bind("x", f"q{at}")
    refusing.is_closed_door = True
    send(refused, way, Source("key", "x"), is_awaited=False)
    refused.turn()
    assert refused.broker.tick() == 0

    told = send(refused, way, Source("key", "x"))
    refused.turn()
    assert refused.broker.tick() == refused.clock.now_us() + 2_000_000
    refused.clock.advance(2)
    refused.broker.tick()

    assert [type(error) for error in told] == [Unavailable]


@pytest.mark.parametrize("way", WAYS)
def test_publishers_are_held_up_at_once_when_more_is_on_its_way_than_allowed(way: str) -> None:
    engine = RefusingEngine()
    house = House(engine)
    told: list[bool] = []
    house.broker = Broker(engine, house.clock, house._soon.append, flow=Flow(100, 50))
    house.broker.on_flow["test"] = told.append
    house.broker.declare(QueueDefinition("q"))
    house.run()
    engine.is_closed_door = True

    send(house, way, Source("q"), "x" * 60)
    house.turn()
    send(house, way, Source("q"), "x" * 40)
    assert told == []
    send(house, way, Source("q"), "x")
    assert told == [True]
    engine.open_door()
    house.run()

    assert told == [True, False]


@pytest.mark.parametrize("way", WAYS)
def test_nothing_goes_to_an_exchange_that_is_for_others_exchanges(house: House, way: str) -> None:
    house.exchange("inner", "fanout", internal=True)

    with pytest.raises(AccessRefused):
        send(house, way, Source("key", "inner"))


@pytest.mark.parametrize(("topic", "fits"), [("t" * 65_535, True), ("t" * 65_536, False), ("é" * 32_768, False)])
@pytest.mark.parametrize("way", WAYS)
def test_a_topic_that_no_log_can_hold_is_refused_and_spoils_nothing(
    house: House, way: str, topic: str, fits: bool
) -> None:
    house.exchange("x", "fanout")
    house.broker.declare(QueueDefinition("q"))
    house.bind("x", "q")

    if fits:
        told = send(house, way, Source(topic, "x"))
        house.run()
        assert told == [None]
    else:
        with pytest.raises(Refused):
            send(house, way, Source(topic, "x"))


@pytest.mark.parametrize("priority", [-1, 0, 255, 256])
@pytest.mark.parametrize("is_known", [False, True])
def test_priorities_go_from_0_to_255_whether_the_topic_was_stored_before_or_not(
    house: House, priority: int, is_known: bool
) -> None:
    house.broker.declare(QueueDefinition("q"))
    source = Source("q")
    if is_known:
        send(house, "one", source)
        house.run()
    message = Message(source, b"y", house.clock.now_us(), priority=priority)

    if 0 <= priority <= 255:
        assert house.broker.publish(message) == 1
    else:
        with pytest.raises(Refused):
            house.broker.publish(message)


def test_a_verb_cannot_be_published_to_and_a_part_that_looks_like_one_can(house: House) -> None:
    house.broker.declare(QueueDefinition("q"))

    with pytest.raises(Refused):
        house.broker.publish_topic(house.message("x", "$queue/q/$ack"))
    assert house.broker.publish_topic(house.message("x", "$queue/q/price$")) == 1


# -- what a queue becomes ----------------------------------------------------------------------------------------------


def test_a_queue_that_is_altered_goes_by_what_it_is_now(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(QueueDefinition("q", ack_durability=FSYNC, replication=waiting(9)))
    inbox = refused.consume("q")
    after = QueueDefinition("q", ack_durability=BUFFERED, replication=waiting(2), lease_ms=7_000, history_ms=60_000)
    refused.broker.administration.alter(after)
    refused.run()

    refusing.waits.clear()
    told = send(refused, "one", Source("q"))
    refused.turn()
    assert (told, refusing.waits) == ([None], [False])
    refused.advance(6.999)
    assert len(inbox.take()) == 1
    refused.advance(0.001)
    (again,) = inbox.take()
    refused.broker.settle(again)
    refused.run()
    assert [entry["deliveries"] for _, entry in refused.broker.history("q")] == [2]

    refusing.is_closed_door = True
    told = send(refused, "one", Source("q"))
    refused.turn()
    refused.clock.advance(1.999)
    refused.broker.tick()
    assert told == []
    refused.clock.advance(0.001)
    refused.broker.tick()
    assert [type(error) for error in told] == [Unavailable]


@pytest.mark.parametrize(
    ("after", "lost"),
    [
        ({"max_length": 3}, 2),
        ({"max_length": 5}, 0),
        ({"max_length": 9}, 0),
        ({"max_length_bytes": 4}, 3),
        ({"max_length_bytes": 10}, 0),
        ({"max_length_bytes": 9}, 1),
        ({"max_length_bytes": 0}, 5),
        ({"max_length": 1, "max_length_bytes": 9}, 4),
        ({"max_length": 3, "overflow": "reject-publish"}, 0),
        ({}, 0),
    ],
)
def test_how_many_messages_new_limits_cost_is_known_before(house: House, after: dict[str, object], lost: int) -> None:
    house.broker.declare(QueueDefinition("q"))
    house.publish("q", *["xx"] * 5)
    wanted = QueueDefinition("q", **after)  # type: ignore[arg-type]

    assert house.broker.administration.loss(wanted) == lost

    house.broker.administration.alter(wanted)
    house.run()
    assert house.broker.queue("q").messages == 5 - lost


@pytest.mark.parametrize(("most", "lost"), [(1, 4), (5, 0), (9, 0)])
def test_how_many_messages_of_a_stream_new_limits_cost_is_known_before(house: House, most: int, lost: int) -> None:
    house.broker.declare(QueueDefinition("s", STREAM, retention=Retention(max_messages=5)))
    house.publish("s", *"1234567")
    assert house.broker.queue("s").first_offset == 2
    wanted = QueueDefinition("s", STREAM, retention=Retention(max_messages=most))

    assert house.broker.administration.loss(wanted) == lost

    house.broker.administration.alter(wanted)
    house.run()
    assert house.broker.queue("s").first_offset == 2 + lost


@pytest.mark.parametrize("only", ["a", "b", "c"])
def test_messages_that_several_queues_took_together_are_not_joined_by_those_for_one_of_them(
    house: House, only: str
) -> None:
    house.exchange("x", "fanout")
    for name in "abc":
        house.broker.declare(QueueDefinition(name))
        house.bind("x", name)
    house.broker.publish_all([house.message(text, "", exchange="x") for text in "12"])
    house.broker.publish(house.message("alone", only))
    house.broker.publish_all([house.message(text, "", exchange="x") for text in "34"])
    house.run()

    for name in "abc":
        assert house.consume(name).payloads == (["1", "2", "alone", "3", "4"] if name == only else list("1234"))


@pytest.mark.parametrize(("queue", "session"), [(True, True), (True, False), (False, True), (False, False)])
def test_publishers_of_a_topic_wait_for_the_sync_if_a_queue_or_a_session_keeps_it(
    refusing: RefusingEngine, refused: House, queue: bool, session: bool
) -> None:
    refused.broker.declare(QueueDefinition("q", topics=("a",), capture=True, durable=queue))
    listener = Listener(refused, "1", lifetime_s=3600 if session else 0)
    listener.subscribe("a", AT_LEAST_ONCE)
    if session:
        listener.leave()
    refused.run()
    refusing.waits.clear()

    refused.broker.publish_topic(refused.message("x", "a"), lambda error: None)
    refused.turn()

    assert any(refusing.waits) == (queue or session)

"""Many messages are published as one: to every queue they are for, by its rules, once, or not at all."""

from pathlib import Path

import pytest

from headrace.core.ledger import ONCE
from headrace.core.publishing import TO_EXCHANGE, TO_QUEUE, TO_TOPIC, Bulk
from headrace.core.pubsub.session import AT_LEAST_ONCE
from headrace.core.queue.definition import EPHEMERAL, REJECT_PUBLISH, STREAM, QueueDefinition, Retention
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import HeadraceError, NotFound, PreconditionFailed, Refused, TooLarge
from headrace.model import Message, Source
from headrace.storage.api import Encoded
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.staging import encoded
from headrace.wire.encodings import encode_properties
from headrace.wire.properties import Properties
from tests.house import House
from tests.listeners import Listener


def rows(
    house: House, *payloads: str, topic: str = "orders", headers: dict[str, object] | None = None, exchange: str = ""
) -> Encoded:
    source = Source(topic, exchange)
    raw = encode_properties(0, Properties(headers)) if headers else b""
    return encoded(encode_block(0, [Message(source, text.encode(), house.clock.now_us(), raw) for text in payloads]))


def mixed(house: House, *pairs: tuple[str, str]) -> Encoded:
    """Rows of several topics: (topic, payload)."""
    sources = {topic: Source(topic) for topic, _ in pairs}
    messages = [Message(sources[topic], text.encode(), house.clock.now_us()) for topic, text in pairs]
    return encoded(encode_block(0, messages))


def commit(house: House, bulk: Bulk, transaction: str = "job", sequence: int = ONCE) -> HeadraceError | None:
    told: list[HeadraceError | None] = []
    bulk.commit(transaction, sequence, told.append)
    house.run()
    assert len(told) == 1
    return told[0]


def declare(house: House, name: str, **options: object) -> None:
    house.broker.declare(QueueDefinition(name, **options))  # type: ignore[arg-type]
    house.run()


def waiting(house: House, queue: str) -> list[str]:
    return house.consume(queue, f"reader of {queue}", auto_ack=True).texts()


def test_rows_reach_consumers_once_they_are_committed_and_not_before() -> None:
    house = House()
    declare(house, "orders")
    inbox = house.consume("orders")
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "orders", rows(house, "a", "b"))
    bulk.add(TO_QUEUE, "orders", rows(house, "c"))
    house.run()
    assert inbox.texts() == []

    assert commit(house, bulk) is None

    assert inbox.texts() == ["a", "b", "c"]
    assert bulk.rows == 3


def test_nothing_comes_of_what_is_undone() -> None:
    house = House()
    declare(house, "orders", max_length=10, overflow=REJECT_PUBLISH)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "orders", rows(house, *"abcdefghij"))

    bulk.undo()
    house.run()

    assert house.broker.queue("orders").messages == 0
    again = house.broker.bulk()
    again.add(TO_QUEUE, "orders", rows(house, *"abcdefghij"))  # the room is free again
    assert commit(house, again) is None


def test_an_exchange_routes_rows_by_their_keys() -> None:
    house = House()
    for queue in ("eu", "us", "all"):
        declare(house, queue)
    house.exchange("sales", "topic")
    for queue, key in (("eu", "eu.*"), ("us", "us.*"), ("all", "#")):
        house.bind("sales", queue, key)
    bulk = house.broker.bulk()

    bulk.add(TO_EXCHANGE, "sales", mixed(house, ("eu.a", "1"), ("us.a", "2"), ("eu.b", "3"), ("x", "4")))

    assert commit(house, bulk) is None
    assert (waiting(house, "eu"), waiting(house, "us")) == (["1", "3"], ["2"])
    assert sorted(waiting(house, "all")) == ["1", "2", "3", "4"]
    assert bulk.unrouted == 0


def test_what_no_queue_is_bound_for_is_counted() -> None:
    house = House()
    house.exchange("sales", "direct")
    bulk = house.broker.bulk()

    bulk.add(TO_EXCHANGE, "sales", rows(house, "a", "b", topic="nowhere"))

    assert commit(house, bulk) is None
    assert (bulk.rows, bulk.unrouted) == (2, 2)


def test_an_exchange_of_headers_looks_at_every_message() -> None:
    house = House()
    declare(house, "red")
    house.broker.declare_exchange(Exchange("colours", "headers", durable=True))
    house.bind("colours", "red", "", {"colour": "red"})
    bulk = house.broker.bulk()

    bulk.add(TO_EXCHANGE, "colours", rows(house, "a", headers={"colour": "red"}))
    bulk.add(TO_EXCHANGE, "colours", rows(house, "b", headers={"colour": "blue"}))

    assert commit(house, bulk) is None
    assert waiting(house, "red") == ["a"]
    assert bulk.unrouted == 1


def test_rows_keep_their_order_whether_they_are_looked_at_or_not() -> None:
    house = House()
    declare(house, "red")
    house.broker.declare_exchange(Exchange("colours", "headers", durable=True))
    house.bind("colours", "red", "", {"colour": "red"})
    bulk = house.broker.bulk()

    for text in "abcd":
        bulk.add(TO_EXCHANGE, "colours", rows(house, text, headers={"colour": "red"}))
        bulk.add(TO_QUEUE, "red", rows(house, text.upper()))

    assert commit(house, bulk) is None
    assert waiting(house, "red") == list("aAbBcCdD")


def test_topics_go_to_the_queues_that_capture_them_and_addresses_to_theirs() -> None:
    house = House()
    declare(house, "plant", topics=("plant/#",), capture=True)
    declare(house, "orders")
    bulk = house.broker.bulk()

    bulk.add(TO_TOPIC, "", mixed(house, ("plant/1", "warm"), ("$queue/orders/x", "new")))

    assert commit(house, bulk) is None
    assert (waiting(house, "plant"), waiting(house, "orders")) == (["warm"], ["new"])


@pytest.mark.parametrize(("kind", "name"), [(TO_TOPIC, ""), (TO_EXCHANGE, "amq.topic"), (TO_EXCHANGE, "colours")])
@pytest.mark.parametrize("is_there", [True, False])
def test_subscribers_get_rows_too_and_sessions_keep_them(kind: str, name: str, is_there: bool) -> None:
    house = House()
    house.broker.declare_exchange(Exchange("colours", "headers", durable=True))
    house.broker.bind(Binding("colours", "amq.topic", "", {"colour": "red"}, to_exchange=True))
    declare(house, "plant", topics=("plant/#",), capture=True)
    house.bind("amq.topic", "plant", "plant.#")
    listener = Listener(house, "1", lifetime_s=3600)
    listener.subscribe("plant/+", AT_LEAST_ONCE)
    if not is_there:
        listener.leave()
    bulk = house.broker.bulk()
    topic = "plant/1" if kind == TO_TOPIC else "plant.1"

    bulk.add(kind, name, rows(house, "a", "b", topic=topic, headers={"colour": "red"}, exchange=name))
    assert (listener.texts(), commit(house, bulk)) == ([], None)

    if not is_there:
        listener = Listener(house, "1", lifetime_s=3600)
    assert listener.texts() + [delivery.message.payload.decode() for delivery in listener.got] == ["a", "b"]
    assert waiting(house, "plant") == ["a", "b"]
    assert bulk.unrouted == 0


def test_a_queue_with_a_filter_takes_only_what_it_admits() -> None:
    house = House()
    declare(house, "big", filter="size > 5")
    bulk = house.broker.bulk()

    bulk.add(TO_QUEUE, "big", rows(house, "a", headers={"size": 9}))
    bulk.add(TO_QUEUE, "big", rows(house, "b", headers={"size": 1}))

    assert commit(house, bulk) is None
    assert waiting(house, "big") == ["a"]


def test_of_rows_that_come_together_a_filter_lets_in_only_those_it_admits() -> None:
    house = House()
    declare(house, "orders", filter="topic LIKE '%large'")
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "orders", mixed(house, ("a/large", "1"), ("a/small", "2"), ("b/large", "3"), ("b/small", "4")))
    assert commit(house, bulk) is None

    assert waiting(house, "orders") == ["1", "3"]


def test_an_ephemeral_queue_takes_rows_too() -> None:
    house = House()
    declare(house, "now", kind=EPHEMERAL, durable=False)
    inbox = house.consume("now")
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "now", rows(house, "a", "b"))

    assert commit(house, bulk) is None
    assert inbox.texts() == ["a", "b"]


def test_the_time_to_live_of_the_queue_counts() -> None:
    house = House()
    declare(house, "orders", message_ttl_ms=1000)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "orders", rows(house, "a", "b"))
    assert commit(house, bulk) is None
    assert house.broker.queue("orders").messages == 2

    house.advance(2)

    assert house.broker.queue("orders").messages == 0


def test_limits_are_kept_by_refusing_all_or_by_dropping_the_oldest() -> None:
    house = House()
    declare(house, "strict", max_length=3, overflow=REJECT_PUBLISH)
    declare(house, "sliding", max_length=3)
    declare(house, "narrow", max_message_bytes=3)
    declare(house, "log", kind=STREAM, retention=Retention(max_messages=2))

    with pytest.raises(Refused, match="no room for 4 messages"):
        house.broker.bulk().add(TO_QUEUE, "strict", rows(house, *"abcd"))
    with pytest.raises(TooLarge, match="4 bytes is too large for queue 'narrow'"):
        house.broker.bulk().add(TO_QUEUE, "narrow", rows(house, "abcd"))
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "sliding", rows(house, *"abcde"))
    bulk.add(TO_QUEUE, "log", rows(house, *"abcde"))

    assert commit(house, bulk) is None
    assert waiting(house, "sliding") == ["c", "d", "e"]
    assert house.broker.queue("log").first_offset == 3


def test_a_queue_that_is_not_there_is_refused() -> None:
    house = House()
    with pytest.raises(NotFound, match="no queue 'nothing'"):
        house.broker.bulk().add(TO_QUEUE, "nothing", rows(house, "a"))


def test_a_transaction_is_remembered_with_its_messages_after_a_crash(tmp_path: Path) -> None:
    house = House(LocalEngine(tmp_path))
    declare(house, "orders")
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "orders", rows(house, "a", "b"))
    assert house.broker.ledger.rows_of("query", 4) == -1
    assert commit(house, bulk, "query", 4) is None

    house.engine.close()
    again = House(LocalEngine(tmp_path))

    ledger = again.broker.ledger
    assert [ledger.rows_of("query", number) for number in (3, 4, 5)] == [0, 2, -1]
    assert again.broker.queue("orders").messages == 2
    again.engine.close()


def test_a_transaction_cannot_be_committed_twice_at_once() -> None:
    house = House()
    declare(house, "orders")
    house.broker.bulk().commit("job", ONCE, lambda error: None)

    with pytest.raises(PreconditionFailed, match="being committed already"):
        house.broker.bulk().commit("job", ONCE, lambda error: None)

    house.run()
    told: list[HeadraceError | None] = []
    house.broker.bulk().commit("job", ONCE, told.append)
    house.run()
    assert told == [None]


def test_single_transactions_are_forgotten_after_a_week_and_queries_never() -> None:
    house = House()
    declare(house, "orders")
    for transaction, sequence in (("single", ONCE), ("query", 3)):
        assert commit(house, house.broker.bulk(), transaction, sequence) is None

    house.advance(8 * 86_400)
    assert commit(house, house.broker.bulk(), "later") is None

    ledger = house.broker.ledger
    assert (ledger.rows_of("single", ONCE), ledger.rows_of("query", 3)) == (-1, 0)

"""Rules for messages that enter a queue: damage, sizes, limits, times to live, and delays."""

import pytest

from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.publishing import TO_QUEUE
from headrace.core.queue.definition import REJECT_PUBLISH, STREAM
from headrace.core.queue.entry import accept_copy, no_copies
from headrace.core.queue.group import ACK
from headrace.errors import Corrupt, HeadraceError, Refused, TooLarge, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Encoded
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.staging import encoded
from headrace.wire.encodings import properties_of
from tests.house import House
from tests.refusing_engine import RefusingEngine
from tests.unit.core.feeds.test_assigner import contents, fill, publish, source
from tests.unit.core.test_bulk import commit, declare, rows
from tests.unit.core.test_distant_storage import DistantEngine

TORN = Corrupt("a file", 1, "it is torn")


def timed(house: House, *messages: tuple[str, float, float]) -> Encoded:
    """Rows of (payload, expires after, not before), both in seconds from now, 0 for neither."""
    now_us = house.clock.now_us()

    def at(seconds: float) -> int:
        return now_us + round(seconds * 1_000_000) if seconds else 0

    made = [
        Message(Source("q"), text.encode(), now_us, expires_us=at(expires), not_before_us=at(not_before))
        for text, expires, not_before in messages
    ]
    return encoded(encode_block(0, made))


def test_a_damaged_queue_takes_neither_one_message_nor_many(house: House) -> None:
    declare(house, "q")
    house.broker.queue("q").refuse(TORN)

    assert house.publish("q", "a") == [TORN]
    with pytest.raises(Corrupt):
        house.broker.bulk().add(TO_QUEUE, "q", rows(house, "b"))


def test_what_was_refused_for_the_length_died_without_a_delivery(house: House) -> None:
    declare(house, "q", max_length=1, overflow="reject-publish-dlx", dead_letter_queue="$dlq/q")
    house.publish("q", "a", "b")

    (letter,) = house.consume("$dlq/q").take()

    assert properties_of(letter.message).headers["_dlq_delivery_count"] == 0


def test_many_messages_as_large_as_the_queue_allows_are_taken(house: House) -> None:
    declare(house, "q", max_message_bytes=3)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "q", rows(house, "abc", "d"))

    assert commit(house, bulk) is None
    assert house.consume("q").texts() == ["abc", "d"]


def test_many_messages_for_a_queue_in_memory_enter_it_once_and_no_storage() -> None:
    engine = RefusingEngine()
    house = House(engine)
    declare(house, "q", durable=False)
    inbox = house.consume("q")
    engine.committed.clear()
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "q", rows(house, "a", "b"))

    assert commit(house, bulk) is None

    assert inbox.texts() == ["a", "b"]
    assert [append for each in engine.committed for append in each.appends] == []


def test_a_message_as_large_as_the_queue_allows_is_taken_and_a_larger_one_is_not(house: House) -> None:
    declare(house, "q", max_message_bytes=3)

    first, second = house.publish("q", "abc", "abcd")

    assert first is None
    assert isinstance(second, TooLarge)


def test_many_messages_that_are_on_their_way_take_up_room(house: House) -> None:
    declare(house, "q", max_length=3, overflow=REJECT_PUBLISH)
    declare(house, "bytes", max_length_bytes=3, overflow=REJECT_PUBLISH)
    for name in ("q", "bytes"):
        bulk = house.broker.bulk()
        bulk.add(TO_QUEUE, name, rows(house, "a", "b"))
        with pytest.raises(Refused):
            house.broker.bulk().add(TO_QUEUE, name, rows(house, "c", "d"))
        assert commit(house, bulk) is None


def test_the_time_to_live_of_many_messages_ends_to_the_moment(house: House) -> None:
    declare(house, "q", message_ttl_ms=1000)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "q", timed(house, ("own", 0.5, 0)))
    bulk.add(TO_QUEUE, "q", timed(house, ("queue's", 0, 0), ("also the queue's", 5, 0)))
    assert commit(house, bulk) is None

    left: list[int] = []
    for step in (0.4995, 0.001, 0.499, 0.001):
        house.advance(step)
        left.append(house.broker.queue("q").messages)
    assert left == [3, 2, 2, 0]


def test_the_time_to_live_of_a_stream_takes_the_place_of_that_of_many_messages(house: House) -> None:
    declare(house, "s", kind=STREAM, message_ttl_ms=1000)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "s", timed(house, ("a", 0.5, 0)))
    assert commit(house, bulk) is None

    (message,) = house.broker.queue("s").log.read(0, 1)
    assert message.expires_us == house.clock.now_us() + 1_000_000


def test_of_many_messages_the_first_to_expire_goes_first(house: House) -> None:
    declare(house, "q")
    bulk = house.broker.bulk()
    for text, seconds in (("soon", 1), ("late", 100), ("never", 0)):
        bulk.add(TO_QUEUE, "q", timed(house, (text, seconds, 0)))
    assert commit(house, bulk) is None

    house.advance(2)

    assert house.broker.queue("q").messages == 2


def test_of_many_messages_those_for_later_are_delivered_then(house: House) -> None:
    declare(house, "q")
    inbox = house.consume("q")
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "q", timed(house, ("later", 0, 5), ("now", 0, 0), ("too", 0, 0)))
    assert commit(house, bulk) is None
    assert (inbox.texts(), house.broker.queue("q").scheduled) == (["now", "too"], 1)

    house.advance(5)

    assert (inbox.texts(), house.broker.queue("q").scheduled) == (["later"], 0)


def test_a_message_that_will_expire_brings_none_forward_that_is_for_later(house: House) -> None:
    declare(house, "q")
    inbox = house.consume("q")
    now_us = house.clock.now_us()
    house.publish("q", "later", not_before_us=now_us + 5_000_000)

    house.broker.publish(house.message("expires", "q", expires_us=now_us + 10_000_000))
    house.run()

    assert inbox.texts() == ["expires"]


def test_a_stream_whose_messages_live_for_no_time_delivers_to_a_consumer_that_waits(house: House) -> None:
    declare(house, "s", kind=STREAM, message_ttl_ms=0)
    inbox = house.consume("s")

    house.publish("s", "a")

    assert inbox.texts() == ["a"]


def test_what_expired_while_it_could_not_be_read_goes_once_it_can() -> None:
    engine = DistantEngine()
    house = House(engine)
    declare(house, "q", message_ttl_ms=0)
    engine.is_away = True
    house.publish("q", "a")
    assert house.broker.queue("q").messages == 1

    engine.is_away = False
    house.advance(2)

    assert house.broker.queue("q").messages == 0


def test_a_queue_is_refused_whose_message_is_damaged_as_soon_as_it_came() -> None:
    engine = DistantEngine()
    house = House(engine)
    declare(house, "q", message_ttl_ms=0)
    engine.is_away, engine.error = True, TORN

    assert house.publish("q", "a") == [None]

    assert house.broker.queue("q").refusal is TORN


# -- room for what comes from a stream ---------------------------------------------------------------------------------


def test_room_for_one_message_is_used(house: House) -> None:
    source(house)
    fill(house, "few", max_length=2, overflow=REJECT_PUBLISH)
    publish(house, *range(4))

    house.consume("few", credit=1)

    assert contents(house, "few") == [0, 1, 2]


def test_copies_that_could_not_be_stored_arrive_later_once_and_in_order() -> None:
    engine = RefusingEngine()
    house = House(engine)
    source(house)
    fill(house, "copies")
    publish(house, 0)
    engine.is_closed_door = True
    publish(house, 1, 2)
    engine.let_one_in()
    engine.sync()
    engine.is_closed_door, engine.failure = False, Unavailable("the disk is full")
    house.run()
    engine.failure = None
    house.advance(2)
    publish(house, 3)

    assert contents(house, "copies") == [0, 1, 2, 3]


def test_room_is_found_later_when_what_is_held_cannot_be_read_now() -> None:
    engine = DistantEngine()
    house = House(engine)
    source(house)
    fill(house, "few", max_length_bytes=2, overflow=REJECT_PUBLISH)
    publish(house, *range(4))
    inbox = house.consume("few", credit=1)
    assert contents(house, "few") == [0, 1, 2]
    (held,) = inbox.take()

    engine.is_away = True
    house.settle(ACK, held)
    engine.is_away = False
    house.advance(2)

    assert contents(house, "few")[-1] == 3


@pytest.mark.parametrize("error", [Unavailable("the store does not answer"), TORN])
def test_a_queue_whose_room_cannot_be_found_out_looks_again_or_is_refused(
    error: HeadraceError,
) -> None:
    engine = DistantEngine()
    engine.error = error
    house = House(engine)
    source(house)
    fill(house, "few", max_length_bytes=2, overflow=REJECT_PUBLISH)
    publish(house, *range(5))
    inbox = house.consume("few", credit=2)
    assert contents(house, "few") == [0, 1, 2, 3]
    engine.is_away = True
    house.broker.set_credit(inbox.consumer, 2)
    house.turn()
    assert house.broker.queue("few").refusal is (TORN if error is TORN else None)
    engine.is_away = False
    if error is not TORN:
        house.settle(ACK, inbox.got[0])
        assert contents(house, "few")[-1] == 4


def test_copies_know_where_in_the_stream_they_come_from_and_how_large_they_are(house: House) -> None:
    declare(house, "q")
    queue = house.broker.queue("q")
    copies = no_copies(queue, "s")

    for offset, text in ((3, "ab"), (5, "c"), (9, "def")):
        assert accept_copy(queue, copies, offset, house.message(text, "s"), 0)

    assert copies.origin is not None
    assert (copies.origin.log, copies.origin.offsets) == ("s", [3, 5, 9])
    assert [message.payload for message in copies.messages] == [b"ab", b"c", b"def"]
    assert (copies.count, copies.size_bytes) == (3, 6)


# -- how much is under way ---------------------------------------------------------------------------------------------


def test_what_went_through_queues_in_memory_holds_no_publisher_up(house: House) -> None:
    told: list[bool] = []
    house.broker = Broker(house.engine, house.clock, house._soon.append, flow=Flow(100, 50))
    house.broker.on_flow["test"] = told.append
    for name in ("one", "other"):
        declare(house, name, durable=False)
        house.consume(name, auto_ack=True)
    for _ in range(5):
        house.publish("one", "x" * 40)
        house.publish("other", "x" * 40)

    assert told == []

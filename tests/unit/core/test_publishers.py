"""Publishers that number their messages: what is sent twice is stored once, and what storage refused is never known."""

import pytest

from headrace.clock import ManualClock
from headrace.core.publishing import Entries
from headrace.core.queue.definition import STREAM, QueueDefinition, declared
from headrace.core.queue.group import ACK
from headrace.core.queue.publishers import MAX_PUBLISHERS, Publisher
from headrace.errors import HeadraceError, PreconditionFailed, Unavailable
from headrace.model import AMQP10, Message, Source
from headrace.storage.api import PUBLISHERS, Engine
from tests.house import House
from tests.refusing_engine import RefusingEngine


class Mill:
    """A broker with the stream `s`, and the publisher `p` of it."""

    def __init__(self, engine: Engine | None = None, clock: ManualClock | None = None) -> None:
        self.house = House(engine, clock)
        self.queue = self.house.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))
        self.house.run()
        self.told: list[tuple[int, HeadraceError | None]] = []
        self.answers: list[int] = []

    @property
    def publisher(self) -> Publisher:
        return self.house.broker.publisher(self.queue, "p")

    def send(self, *numbers: int, counts: list[int] | None = None, run: bool = True) -> None:
        source = Source("s", "", "", "stream", AMQP10)
        total = len(numbers) if counts is None else sum(counts)
        messages = [Message(source, f"m{at}".encode(), self.house.clock.now_us()) for at in range(total)]
        self._stage(Entries(list(numbers), messages, counts))
        if run:
            self.house.run()

    def _stage(self, entries: Entries) -> None:
        def tell(count: int, error: HeadraceError | None) -> None:
            self.told.append((count, error))

        self.house.broker.publish_entries(self.queue, self.publisher, entries, tell)

    @property
    def stored(self) -> int:
        return self.queue.log.next_offset

    def confirmed(self) -> int:
        """Entries that were confirmed since the last look."""
        told, self.told = self.told, []
        return sum([count for count, error in told if error is None])

    def refused(self) -> int:
        """Entries that were refused since the last look."""
        told, self.told = self.told, []
        return sum([count for count, error in told if error is not None])

    def last(self) -> int:
        self.house.broker.tell_number(self.queue, "p", self.answers.append)
        self.house.run()
        return self.answers.pop()

    def again(self) -> "Mill":
        """The same after a restart."""
        return Mill(self.house.engine, self.house.clock)


def test_a_number_that_is_not_above_the_last_is_confirmed_and_not_stored_again() -> None:
    mill = Mill()

    mill.send(1, 2, 5)
    mill.send(2, 5, 6)
    mill.send(6)

    assert mill.stored == 4
    assert mill.confirmed() == 7


def test_a_number_twice_in_one_call_is_stored_once() -> None:
    mill = Mill()

    mill.send(1, 1, 2, 2, 1)

    assert (mill.stored, mill.confirmed()) == (2, 5)


def test_an_entry_of_several_messages_is_stored_whole_or_not() -> None:
    mill = Mill()

    mill.send(1, 2, counts=[3, 2])
    mill.send(2, 3, counts=[2, 4])

    assert (mill.stored, mill.confirmed()) == (9, 4)


def test_what_is_known_of_a_publisher_survives_a_restart() -> None:
    mill = Mill()
    mill.send(1, 2, 3)

    again = mill.again()
    again.send(2, 3, 4)

    assert (again.stored, again.confirmed(), again.last()) == (4, 3, 4)


def test_publishers_without_a_name_are_not_compared() -> None:
    mill = Mill()
    for _ in range(2):
        source = Source("s", "", "", "stream", AMQP10)
        entries = Entries([1], [Message(source, b"x", 1)])
        mill.house.broker.publish_entries(mill.queue, None, entries, lambda count, error: None)
        mill.house.run()

    assert mill.stored == 2


def test_numbers_that_storage_refused_are_taken_when_they_come_again() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    mill.send(1)
    engine.failure = Unavailable("full")
    mill.send(2, 3)
    assert mill.refused() == 2
    engine.failure = None
    mill.house.advance(2)

    mill.send(2, 2, 3, 4)

    assert (mill.stored, mill.confirmed(), mill.last()) == (4, 4, 4)


def test_numbers_that_storage_refused_are_not_known_after_a_restart_either() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    engine.failure = Unavailable("full")
    mill.send(1, 2)
    engine.failure = None
    mill.house.advance(2)
    mill.send(3)
    assert mill.stored == 1

    again = mill.again()
    again.send(1, 2, 3)

    assert (again.stored, again.confirmed()) == (3, 3)


def test_refused_numbers_are_not_stored_with_a_settlement_of_the_same_batch_that_is_tried_again() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    mill.house.broker.declare(declared("q", durable=True))
    inbox = mill.house.consume("q")
    mill.house.publish("q", "a")
    engine.failure = Unavailable("full")
    mill.house.broker.settle(inbox.got[0], ACK)
    mill.send(1, 2)
    engine.failure = None
    mill.house.advance(2)

    again = mill.again()
    assert list(engine.items(PUBLISHERS)) == []
    again.send(1, 2)

    assert list(again.house.broker.queue("q").browse(0, 10)) == []
    assert (again.stored, again.confirmed()) == (2, 2)


def test_a_message_that_the_stream_refuses_is_not_known() -> None:
    mill = Mill()
    mill.queue.definition = declared("s", durable=True, arguments={"x-queue-type": "stream"})
    object.__setattr__(mill.queue.definition, "max_message_bytes", 4)
    mill.queue.takes_bytes = 4
    source = Source("s", "", "", "stream", AMQP10)

    mill._stage(Entries([1, 2, 3], [Message(source, body, 1) for body in (b"a", b"too long", b"c")]))
    mill.house.run()
    assert [(count, error is None) for count, error in mill.told] == [(1, True), (1, False), (1, True)]
    mill.told.clear()
    mill._stage(Entries([1, 2, 3], [Message(source, body, 1) for body in (b"a", b"b", b"c")]))
    mill.house.run()

    assert (mill.stored, mill.confirmed()) == (3, 3)


def test_the_second_of_two_that_are_on_their_way_waits_for_the_first() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    engine.is_closed_door = True

    mill.send(1, run=False)
    mill.house.turn()
    mill.send(1, run=False)
    mill.house.turn()
    assert mill.told == []
    engine.open_door()
    mill.house.run()

    assert (mill.stored, mill.confirmed()) == (1, 2)


def test_an_entry_with_one_message_that_is_too_large_is_refused_as_a_whole() -> None:
    mill = Mill()
    mill.house.broker.declare(QueueDefinition("small", STREAM, max_message_bytes=4))
    mill.queue = mill.house.broker.queue("small")
    source = Source("small", "", "", "stream", AMQP10)
    messages = [Message(source, body, 1) for body in (b"a", b"four", b"b", b"too long", b"c")]

    mill._stage(Entries([1, 2, 3], messages, [2, 2, 1]))
    mill.house.run()

    assert [error is None for _, error in mill.told] == [True, False, True]
    assert [message.payload for _, message in mill.queue.browse(0, 10)] == [b"a", b"four", b"c"]


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_refused_number_waits_for_those_ahead_that_are_not_sent_yet(ahead: int) -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    source = Source("s", "", "", "stream", AMQP10)
    engine.is_closed_door = True
    mill.send(1, run=False)
    mill.house.turn()
    mill.publisher.refuse_one(5)
    for number in range(ahead):
        mill._stage(Entries([10 + number], [Message(source, b"m", 1)]))
    mill.house.broker.transaction([], [])  # what is ahead is closed now, and waits for the one on its way

    mill._stage(Entries([5], [Message(source, b"m", 1)]))
    engine.open_door()
    mill.house.run()
    assert (len(mill.told), mill.refused()) == (2 + ahead, 1)
    mill.send(5)

    assert (mill.stored, mill.confirmed()) == (2 + ahead, 1)


def test_the_last_number_is_told_when_it_is_durable() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    engine.is_closed_door = True
    mill.send(7, run=False)
    mill.house.broker.tell_number(mill.queue, "p", mill.answers.append)
    mill.house.turn()
    assert mill.answers == []

    engine.open_door()
    mill.house.run()

    assert mill.answers == [7]


def test_a_refused_number_is_not_told_as_the_last() -> None:
    engine = RefusingEngine()
    mill = Mill(engine)
    mill.send(1)
    engine.failure = Unavailable("full")
    mill.send(2, 3)
    engine.failure = None
    mill.house.advance(2)

    assert mill.last() == 1


def test_a_publisher_that_is_not_known_has_sent_nothing() -> None:
    assert Mill().last() == 0


def test_what_is_known_goes_with_the_stream() -> None:
    mill = Mill()
    mill.send(5)
    mill.house.broker.delete("s")
    mill.house.run()
    assert list(mill.house.engine.items(PUBLISHERS)) == []

    again = mill.again()
    again.send(1)

    assert (again.stored, again.last()) == (1, 1)


def test_a_stream_that_is_deleted_and_declared_at_once_knows_nothing() -> None:
    mill = Mill()
    mill.send(5)
    mill.house.broker.delete("s")
    mill.queue = mill.house.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))
    mill.send(1)

    assert (mill.confirmed(), mill.last(), mill.again().last()) == (2, 1, 1)


def test_a_stream_that_goes_takes_along_the_numbers_that_are_on_their_way_and_those_of_no_other() -> None:
    mill = Mill()
    other = mill.house.broker.declare(declared("other", durable=True, arguments={"x-queue-type": "stream"}))
    mill.house.run()
    mill.send(5, run=False)
    entries = Entries([7], [Message(Source("other", "", "", "stream", AMQP10), b"m", 1)])
    mill.house.broker.publish_entries(other, mill.house.broker.publisher(other, "p"), entries, lambda *_: None)

    mill.house.broker.delete("s")
    mill.house.run()

    again = mill.again()
    told: list[int] = []
    again.house.broker.tell_number(again.house.broker.queue("other"), "p", told.append)
    assert (again.last(), told) == (0, [7])
    assert len(list(mill.house.engine.items(PUBLISHERS))) == 1


def test_streams_of_one_name_in_two_virtual_hosts_know_their_own_publishers() -> None:
    mill = Mill()
    mill.send(5)
    other = House(mill.house.engine, mill.house.clock, host="5 s p")
    queue = other.broker.declare(declared("s", durable=True, arguments={"x-queue-type": "stream"}))
    other.run()
    told: list[int] = []

    other.broker.tell_number(queue, "p", told.append)
    other.run()

    assert told == [0]
    assert mill.again().last() == 5


def test_a_stream_forgets_the_publisher_that_was_silent_for_longest() -> None:
    mill = Mill()
    mill.send(1)
    for number in range(MAX_PUBLISHERS):
        mill.house.clock.advance(1)
        mill.house.broker.publisher(mill.queue, f"other {number}")
    mill.house.run()

    assert mill.last() == 0
    assert list(mill.house.engine.items(PUBLISHERS)) == []


@pytest.mark.parametrize("name", ["x" * 256, "a\0b"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    mill = Mill()

    with pytest.raises(PreconditionFailed):
        mill.house.broker.publisher(mill.queue, name)


def test_a_publisher_is_the_bytes_of_the_documentation() -> None:
    mill = Mill()
    mill.send(1, 2, 7)
    mill.publisher.refuse_one(8)
    mill.send(9)
    numbers = [mill.house.clock.now_us(), 9, 8, 8]

    ((key, value),) = mill.house.engine.items(PUBLISHERS)

    assert key == b"1 s p"
    assert value == b"\1" + b"".join([number.to_bytes(8) for number in numbers])

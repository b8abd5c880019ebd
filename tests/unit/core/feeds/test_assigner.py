"""Queues that a stream fills: present and new messages, in order, each once."""

import logging
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from headrace.core.feeds.feed import BEHIND, DAMAGED, FOLLOWING, FRONT, FULL, NO_SOURCE, FedQueue
from headrace.core.publishing import TO_QUEUE
from headrace.core.queue.configured import configured
from headrace.core.queue.definition import EPHEMERAL, REJECT_PUBLISH, STREAM, QueueDefinition, Retention, declared
from headrace.core.queue.group import ACK, REJECT
from headrace.errors import Corrupt, HeadraceError, NotFound, PreconditionFailed, Refused, Unavailable
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Commit, Done, Log
from headrace.storage.group_state import GroupState
from tests.house import House
from tests.refusing_engine import RefusingEngine
from tests.unit.core.conftest import World
from tests.unit.core.test_bulk import commit, rows

if TYPE_CHECKING:
    import pyarrow as pa

LARGE = "amount > 10"


def source(house: House, name: str = "papers", **options: object) -> None:
    house.broker.declare(QueueDefinition(name, STREAM, **options))  # type: ignore[arg-type]
    house.run()


def fill(house: House, name: str, expression: str = "", **options: object) -> None:
    """Declare a queue that the stream `papers` fills."""
    house.broker.declare(QueueDefinition(name, filter=expression, **{"source": "papers", **options}))  # type: ignore[arg-type]
    house.run()


def publish(house: House, *amounts: int, to: str = "papers") -> None:
    for amount in amounts:
        house.broker.publish(house.message(str(amount), to, headers={"amount": amount}))
    house.run()


def contents(house: House, name: str) -> list[int]:
    log = house.broker.queue(name).log
    return [int(message.payload) for message in log.read(log.first_offset, 1 << 20)]


def follower(house: House, name: str) -> FedQueue:
    found = house.broker.administration.fed_queue(house.broker.queue(name))
    assert found is not None
    return found


def places(house: House, name: str = "papers") -> dict[str, int]:
    """The stored positions of queues."""
    house.run()
    return {group: state.committed for group, state in house.broker.queue(name).log.groups.items()}


class WatchedLog(Log):
    """A log that records reads, and fails on demand."""

    def __init__(self, log: Log) -> None:
        self.name = log.name
        self._log = log
        self.follow()
        self.reads: list[tuple[int, int]] = []
        """Offset and number of messages of each read."""
        self.failure: HeadraceError | None = None

    def follow(self) -> None:
        """Number of messages in the log."""
        self.first_offset = self._log.first_offset
        self.next_offset = self._log.next_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return self._log.groups

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        if self.failure is not None:
            raise self.failure
        messages = self._log.read(offset, max_messages, max_bytes)
        self.reads.append((offset, len(messages)))
        return messages

    def find(self, timestamp_us: int) -> int:
        return self._log.find(timestamp_us)

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        return self._log.record_batches(start, stop)


class WatchingEngine(RefusingEngine):
    """An engine of such logs."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[str, WatchedLog] = {}

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        super().commit(commit, done, durable)
        for log in self.watched.values():
            log.follow()

    def log(self, name: str) -> Log:
        if name not in self.watched:
            self.watched[name] = WatchedLog(super().log(name))
        return self.watched[name]


@pytest.fixture
def watching() -> WatchingEngine:
    return WatchingEngine()


@pytest.fixture
def watched(watching: WatchingEngine) -> House:
    """A broker with such logs."""
    return House(watching)


# -- messages of a queue ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", "quorum", STREAM])
def test_a_queue_gets_what_was_there_and_what_comes_in_order(world: World, kind: str) -> None:
    source(world.house)
    publish(world.house, 5, 20, 7, 30)

    fill(world.house, "large", LARGE, kind=kind)
    publish(world.house, 40, 1, 50)

    assert contents(world.house, "large") == [20, 30, 40, 50]
    assert contents(world.house, "papers") == [5, 20, 7, 30, 40, 1, 50]


def test_a_queue_without_a_filter_gets_everything(house: House) -> None:
    source(house)
    publish(house, 1, 2)
    fill(house, "all")
    publish(house, 3)
    assert contents(house, "all") == [1, 2, 3]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("", [1, 2, 3, 4]),
        ("earliest", [1, 2, 3, 4]),
        ("first", [1, 2, 3, 4]),
        ("latest", [4]),
        ("1", [2, 3, 4]),
        ("offset=2", [3, 4]),
        ("99", [4]),
        ("timestamp=2000", [3, 4]),
    ],
)
def test_it_begins_where_it_is_told_to(house: House, start: str, expected: list[int]) -> None:
    source(house)
    house.clock.advance(1000 - house.clock.now_us() / 1_000_000)
    publish(house, 1, 2)
    house.clock.advance(1000)
    publish(house, 3)

    fill(house, "chosen", source_from=start)
    publish(house, 4)

    assert contents(house, "chosen") == expected


def test_nothing_comes_twice_and_nothing_is_left_out_over_restarts(world: World) -> None:
    source(world.house)
    publish(world.house, *range(30))
    fill(world.house, "large", LARGE)
    for step in range(1, 4):
        house = world.restart()
        publish(house, step * 100)
        fill(house, f"late{step}", LARGE)

    expected = [*range(11, 30), 100, 200, 300]
    assert [contents(world.restart(), name) for name in ("large", "late1", "late2", "late3")] == [expected] * 4


def test_messages_are_as_they_were_published_but_for_the_time_to_live_of_the_queue(house: House) -> None:
    source(house)
    message = house.message("9", "papers", headers={"amount": 9}, priority=3)
    house.broker.publish(message)
    fill(house, "same")
    fill(house, "short", message_ttl_ms=5000)

    (same,), (short,) = [house.broker.queue(name).log.read(0, 9) for name in ("same", "short")]

    for copy in (same, short):
        assert (copy.source.topic, copy.payload, copy.properties, copy.timestamp_us, copy.priority) == (
            "papers",
            b"9",
            message.properties,
            message.timestamp_us,
            3,
        )
    assert same.expires_us == 0
    assert short.expires_us == house.clock.now_us() + 5_000_000


def test_a_message_whose_time_is_over_is_for_no_queue(house: House) -> None:
    source(house)
    house.broker.publish(house.message("1", "papers", expires_us=house.clock.now_us() + 1_000_000))
    publish(house, 2)
    house.advance(2)
    fill(house, "alive")
    assert contents(house, "alive") == [2]


def test_a_stream_that_is_filled_from_a_stream_gets_what_expired_there(house: House) -> None:
    source(house)
    house.broker.publish(house.message("1", "papers", expires_us=house.clock.now_us() + 1_000_000))
    publish(house, 2)
    house.advance(2)
    fill(house, "kept", kind=STREAM)
    assert contents(house, "kept") == [1, 2]


def test_what_is_published_to_the_queue_itself_is_still_held_against_its_filter(house: House) -> None:
    source(house)
    fill(house, "large", LARGE)
    publish(house, 1, 11, to="large")
    publish(house, 12)
    assert contents(house, "large") == [11, 12]


def test_what_it_gets_is_work_like_any_other(house: House) -> None:
    source(house)
    publish(house, 1, 2, 3)
    fill(house, "work", dead_letter_queue="$dlq/work")
    inbox = house.consume("work")

    first, second, third = inbox.take()
    house.settle(ACK, first, third)
    house.settle(REJECT, second)

    assert [message.payload for _, message, _ in house.broker.dead_letters.list("work")] == [b"2"]
    assert house.broker.queue("work").messages == 0
    assert contents(house, "papers") == [1, 2, 3]


def test_a_stream_that_is_filled_fills_others(world: World) -> None:
    source(world.house)
    fill(world.house, "large", LARGE, kind=STREAM)
    world.house.broker.declare(QueueDefinition("huge", filter="amount > 100", source="large"))
    publish(world.house, 1, 50, 500)
    house = world.restart()
    publish(house, 600)
    assert contents(house, "large") == [50, 500, 600]
    assert contents(house, "huge") == [500, 600]


def test_a_large_backlog_goes_in_bounded_steps_between_which_others_are_served(house: House) -> None:
    source(house)
    house.broker.declare(QueueDefinition("other"))
    publish(house, *range(5000))
    most: list[int] = []
    other = house.consume("other", auto_ack=True)
    answered: list[int] = []

    def watch() -> None:
        most.append(len(house.broker.queue("all").log.read(0, 1 << 20)))
        if not answered or len(other.got) == len(answered):
            answered.append(most[-1])
            house.broker.publish(house.message("x", "other"))
        if most[-1] < 5000:
            house.broker.at_flush(watch)

    house.broker.declare(QueueDefinition("all", source="papers"))
    house.broker.at_flush(watch)
    house.run()

    assert contents(house, "all") == list(range(5000))
    assert max([after - before for before, after in pairwise(most)]) <= 1024
    assert answered == [0, 2048, 4096]
    assert len(other.got) == 3


def test_what_goes_in_one_step_is_bounded_in_bytes_however_many_queues_want_it(
    refused: House, refusing: RefusingEngine
) -> None:
    house = refused
    source(house)
    for name in ("a", "b", "c"):
        house.broker.declare(QueueDefinition(name, source="papers", max_message_bytes=100 << 20))
    house.run()
    refusing.committed.clear()
    payload = "x" * (3 << 20)
    for _ in range(2):
        house.broker.publish(house.message(payload, "papers"))
    house.run()

    assert [house.broker.queue(name).log.next_offset for name in ("a", "b", "c")] == [2, 2, 2]
    assert max([commit.size_bytes for commit in refusing.committed[1:]]) <= 4 << 20
    assert places(house) == {FRONT: 2}


# -- together --------------------------------------------------------------------------------------------------------


def test_queues_that_are_equally_far_are_served_by_one_read_and_have_one_place(
    watched: House, watching: WatchingEngine
) -> None:
    house = watched
    source(house)
    for number in range(200):
        house.broker.declare(QueueDefinition(f"q{number}", source="papers", filter=f"amount = {number % 10}"))
    house.run()
    assert places(house) == {FRONT: 0}
    log = watching.watched["papers"]
    log.reads.clear()

    publish(house, *range(10))

    assert log.reads == [(0, 10)]
    assert places(house) == {FRONT: 10}
    assert [contents(house, f"q{number}") for number in range(200)] == [[number % 10] for number in range(200)]


def test_a_new_queue_catches_up_by_itself_and_then_goes_on_with_the_others(
    watched: House, watching: WatchingEngine
) -> None:
    house = watched
    source(house)
    fill(house, "old")
    publish(house, *range(3000))
    log = watching.watched["papers"]
    log.reads.clear()

    fill(house, "new", "amount >= 2990")

    assert sum(count for _, count in log.reads) == 3000
    assert places(house) == {FRONT: 3000}
    log.reads.clear()
    publish(house, 3000)
    assert log.reads == [(3000, 1)]
    assert contents(house, "new") == list(range(2990, 3001))
    assert contents(house, "old") == list(range(3001))


def test_queues_that_are_declared_one_after_the_other_meet_on_their_way(
    watched: House, watching: WatchingEngine
) -> None:
    house = watched
    source(house)
    publish(house, *range(4000))
    log = watching.watched["papers"]
    log.reads.clear()
    for start in (0, 1000, 2000, 3000):
        house.broker.declare(QueueDefinition(f"from{start}", source="papers", source_from=str(start)))
    house.run()

    assert sum(count for _, count in log.reads) == 4000
    assert [contents(house, f"from{start}") == list(range(start, 4000)) for start in (0, 1000, 2000, 3000)] == [
        True
    ] * 4
    assert places(house) == {FRONT: 4000}


def test_the_front_goes_on_while_others_catch_up(house: House) -> None:
    source(house)
    publish(house, *range(8000))
    fill(house, "live", source_from="latest")
    house.broker.declare(QueueDefinition("late", source="papers"))
    house.broker.publish(house.message("8000", "papers"))
    seen: list[tuple[int, int]] = []

    def watch() -> None:
        seen.append((house.broker.queue("live").log.next_offset, house.broker.queue("late").log.next_offset))
        if seen[-1][1] < 8001:
            house.broker.at_flush(watch)

    house.broker.at_flush(watch)
    house.run()

    assert any([live == 1 and late < 4000 for live, late in seen])
    assert contents(house, "late") == list(range(8001))


# -- full queues -----------------------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for_while_the_others_go_on(world: World) -> None:
    house = world.house
    source(house)
    fill(house, "all")
    fill(house, "few", max_length=2, overflow=REJECT_PUBLISH)
    publish(house, *range(5))

    assert contents(house, "few") == [0, 1]
    assert contents(house, "all") == [0, 1, 2, 3, 4]
    assert follower(house, "few").state == FULL
    assert follower(house, "few").lag == 3

    house = world.restart()
    assert contents(house, "few") == [0, 1]
    got: list[int] = []
    for _ in range(5):
        inbox = house.consume("few", credit=1)
        (delivery,) = inbox.take()
        got.append(int(delivery.message.payload))
        house.settle(ACK, delivery)
        house.broker.cancel(inbox.consumer)
        house.run()
    assert got == [0, 1, 2, 3, 4]
    assert follower(house, "few").state == FOLLOWING
    assert places(house) == {FRONT: 5}


@pytest.mark.parametrize("limit", [{"max_length": 3}, {"max_length_bytes": 3}])
def test_room_that_a_purge_or_new_limits_make_is_used(house: House, limit: dict[str, int]) -> None:
    source(house)
    fill(house, "few", "", overflow=REJECT_PUBLISH, **limit)
    publish(house, *range(8))
    assert contents(house, "few") == [0, 1, 2]

    house.broker.purge("few")
    house.run()
    assert contents(house, "few") == [3, 4, 5]

    house.broker.administration.alter(QueueDefinition("few", source="papers", overflow=REJECT_PUBLISH))
    house.run()
    assert contents(house, "few") == [3, 4, 5, 6, 7]


def test_a_queue_that_drops_its_oldest_gets_everything(house: House) -> None:
    source(house)
    fill(house, "last", max_length=2)
    publish(house, *range(5))
    assert contents(house, "last") == [3, 4]


def test_a_message_that_is_too_large_for_a_queue_is_passed_over_and_counted(house: House) -> None:
    source(house)
    fill(house, "small", max_message_bytes=3)
    publish(house, 1, 2000, 2)
    assert contents(house, "small") == [1, 2]
    assert follower(house, "small").oversized == 1


# -- changes of sources ----------------------------------------------------------------------------------------------


def test_what_retention_took_first_is_counted_and_said(house: House, caplog: pytest.LogCaptureFixture) -> None:
    source(house, retention=Retention(max_messages=3))
    fill(house, "few", max_length=1, overflow=REJECT_PUBLISH)
    with caplog.at_level(logging.WARNING, "headrace.core"):
        publish(house, 0)
        publish(house, *range(1, 10))
        inbox = house.consume("few")

    assert inbox.texts() == ["0", "7", "8", "9"]
    assert follower(house, "few").missed == 6
    assert "took 6 messages before" in caplog.text


def test_a_queue_whose_source_is_deleted_keeps_what_it_has_and_waits_for_another(world: World) -> None:
    source(world.house)
    publish(world.house, 1, 2)
    fill(world.house, "all", source_from="latest")
    publish(world.house, 3)
    world.house.broker.delete("papers")
    world.house.run()
    assert follower(world.house, "all").state == NO_SOURCE

    house = world.restart()
    assert follower(house, "all").state == NO_SOURCE
    source(house)
    publish(house, 4)
    house = world.restart()
    publish(house, 5)

    assert contents(house, "all") == [3, 4, 5]
    assert follower(house, "all").state == FOLLOWING


def test_a_source_that_is_deleted_and_declared_again_at_once_is_another(world: World) -> None:
    source(world.house)
    fill(world.house, "all")
    publish(world.house, 1)
    world.house.broker.delete("papers")
    world.house.broker.declare(QueueDefinition("papers", STREAM))
    publish(world.house, 2)
    house = world.restart()
    publish(house, 3)
    assert contents(house, "all") == [1, 2, 3]


def test_with_the_queue_goes_its_place(world: World) -> None:
    source(world.house)
    fill(world.house, "all")
    fill(world.house, "few", max_length=1, overflow=REJECT_PUBLISH)
    publish(world.house, 1, 2)
    assert sorted(places(world.house)) == [FRONT, f"{FRONT}/few"]

    world.house.broker.delete("few")
    assert places(world.house) == {FRONT: 2}
    world.house.broker.delete("all")
    assert places(world.house) == {}

    fill(world.house, "all")
    assert contents(world.restart(), "all") == [1, 2]


def test_a_queue_that_is_deleted_and_declared_again_at_once_begins_anew(world: World) -> None:
    source(world.house)
    fill(world.house, "all")
    publish(world.house, 1)
    world.house.broker.delete("all")
    fill(world.house, "all")
    publish(world.house, 2)
    assert contents(world.restart(), "all") == [1, 2]


def test_another_source_is_followed_from_its_beginning_and_the_old_one_no_more(world: World) -> None:
    source(world.house)
    source(world.house, "letters")
    fill(world.house, "all")
    publish(world.house, 1)
    publish(world.house, 2, to="letters")

    world.house.broker.administration.alter(QueueDefinition("all", source="letters"))
    publish(world.house, 3)
    publish(world.house, 4, to="letters")
    house = world.restart()
    publish(house, 5, to="letters")

    assert contents(house, "all") == [1, 2, 4, 5]
    assert places(house) == {}


def test_a_compacted_stream_is_not_read_again_by_those_who_had_read_it(world: World) -> None:
    house = world.house
    source(house)
    fill(house, "all")
    publish(house, 1, 2, 3)
    bulk = house.broker.bulk()
    bulk.add(TO_QUEUE, "papers", rows(house, "3"))
    bulk.replace("papers", 3)
    commit(house, bulk)
    publish(house, 4)
    house = world.restart()
    publish(house, 5)
    assert contents(house, "papers") == [3, 4, 5]
    assert contents(house, "all") == [1, 2, 3, 4, 5]


def test_a_damaged_queue_holds_nobody_up(house: House) -> None:
    source(house)
    fill(house, "all")
    fill(house, "broken")
    house.broker.queue("broken").refuse(Corrupt("a file", 1, "it is torn"))
    publish(house, 1, 2)
    assert contents(house, "all") == [1, 2]
    assert follower(house, "broken").state == DAMAGED
    assert follower(house, "broken").position == 0


def test_a_damaged_source_is_refused_and_the_broker_goes_on(watched: House, watching: WatchingEngine) -> None:
    house = watched
    source(house)
    fill(house, "all")
    watching.watched["papers"].failure = Corrupt("a file", 1, "it is torn")
    publish(house, 1)
    assert house.broker.queue("papers").refusal is not None
    assert follower(house, "all").state == DAMAGED
    house.broker.declare(QueueDefinition("other"))
    publish(house, 2, to="other")
    assert contents(house, "other") == [2]


def test_a_source_that_cannot_be_read_now_is_tried_again(watched: House, watching: WatchingEngine) -> None:
    house = watched
    source(house)
    fill(house, "all")
    log = watching.watched["papers"]
    log.reads.clear()
    log.failure = Unavailable("the store is away")
    publish(house, 1, 2)
    house.advance(1)
    assert follower(house, "all").state == BEHIND
    log.failure = None
    house.advance(1)
    assert contents(house, "all") == [1, 2]


def test_storage_that_refuses_for_a_while_makes_nothing_come_twice(refused: House, refusing: RefusingEngine) -> None:
    source(refused)
    fill(refused, "all")
    publish(refused, 1)
    refusing.refusal = Unavailable("the disk is full")
    refused.broker.declare(QueueDefinition("late", source="papers"))
    refused.run()
    refused.advance(1)
    refusing.refusal = None
    refused.advance(1)
    publish(refused, 2)
    assert contents(refused, "all") == [1, 2]
    assert contents(refused, "late") == [1, 2]


def test_a_broker_that_stops_does_not_wait_for_queues_to_catch_up(house: House) -> None:
    source(house)
    publish(house, *range(5000))
    house.broker.declare(QueueDefinition("all", source="papers"))
    house.broker.flush()
    house.engine.sync()
    house.broker.drain()
    assert len(contents(house, "all")) < 5000

    house = House(house.engine, house.clock)
    house.broker.tick()
    house.run()
    assert contents(house, "all") == list(range(5000))


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("definition", "error", "words"),
    [
        (QueueDefinition("self", STREAM, source="self"), PreconditionFailed, "from itself"),
        (QueueDefinition("q", source="nothing"), NotFound, "no queue 'nothing' from which queue 'q'"),
        (
            QueueDefinition("q", source="work"),
            PreconditionFailed,
            "'work', a classic queue: its source must be a stream",
        ),
        (QueueDefinition("q", EPHEMERAL, durable=False, source="papers"), PreconditionFailed, "make it durable"),
        (QueueDefinition("q", exclusive=True, source="papers"), PreconditionFailed, "not exclusive"),
        (QueueDefinition("a", STREAM, source="c"), PreconditionFailed, "'a' from 'c' from 'b' from 'a'"),
    ],
)
def test_what_cannot_be_a_source_is_refused(
    house: House, definition: QueueDefinition, error: type[Refused], words: str
) -> None:
    source(house)
    house.broker.declare(QueueDefinition("work"))
    source(house, "a")
    source(house, "b", source="a")
    source(house, "c", source="b")
    house.broker.delete("a")
    house.run()

    with pytest.raises(error, match=words):
        house.broker.declare(definition)

    assert definition.name not in house.broker.topology.queues


def test_the_places_of_queues_are_nobodys_groups(house: House) -> None:
    source(house)
    fill(house, "all")
    publish(house, 1)
    assert list(house.broker.queue("papers").groups) == []
    assert house.broker.queue("papers").messages == 1
    with pytest.raises(Refused, match="the broker's own"):
        house.consume("papers", group=FRONT)
    with pytest.raises(Refused, match="the broker's own"):
        house.broker.groups.report("papers", f"{FRONT}/all", 0)


def test_a_declaration_says_it_with_arguments() -> None:
    arguments = {"x-source": "papers", "x-source-from": 7, "x-filter": LARGE}
    definition = declared("large", durable=True, arguments=arguments)
    assert (definition.source, definition.source_from) == ("papers", "7")
    with pytest.raises(PreconditionFailed, match="x-source"):
        definition.check_equivalent(declared("large", durable=True, arguments={"x-filter": LARGE}))
    with pytest.raises(PreconditionFailed, match=r"invalid arg 'x-source-from' for queue 'q': .*'soon'"):
        declared("q", arguments={"x-source": "papers", "x-source-from": "soon"})
    with pytest.raises(PreconditionFailed, match="'x-source' is missing"):
        declared("q", arguments={"x-source-from": "latest"})
    with pytest.raises(PreconditionFailed, match="expected a string"):
        declared("q", arguments={"x-source": 5})


def test_a_configuration_says_it_with_keys() -> None:
    definition = configured({"name": "large", "source": "papers", "source_from": 7})
    assert (definition.source, definition.source_from) == ("papers", "7")
    assert QueueDefinition.from_json(definition.to_json()) == definition
    with pytest.raises(Refused, match="source_from"):
        configured({"name": "large", "source": "papers", "source_from": "soon"})
    with pytest.raises(Refused, match="which is missing"):
        configured({"name": "large", "source_from": "latest"})

"""Batches on their way into storage: in order, one at a time, and what happens when storage does not take them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event, Timer

import pyarrow as pa
import pytest

from headrace.clock import ManualClock, SystemClock
from headrace.core.batch import Confirm
from headrace.core.broker import Broker
from headrace.core.pipeline import HOLD_STEPS, HOLD_US
from headrace.core.queue.configured import configured
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.group import ACK, REJECT, RELEASE
from headrace.core.transaction import Publish
from headrace.errors import Corrupt, Fatal, HeadraceError, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Commit, Done, Log
from headrace.storage.group_state import ACKED, GroupState
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.disks import FailingDisk
from tests.house import House
from tests.refusing_engine import RefusingEngine

FULL = Unavailable("the disk is full")


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def noting(seen: list[str], name: str) -> Confirm:
    return lambda _: seen.append(name)


def work(house: House, *payloads: str, **options: object) -> list[Delivery]:
    house.broker.declare(QueueDefinition("q", **options))  # type: ignore[arg-type]
    inbox = house.consume("q")
    house.publish("q", *payloads)
    return list(inbox.got)


# -- what storage hears ------------------------------------------------------------------------------------------------


def test_storage_hears_when_nobody_would_use_messages_before_they_are_durable(
    refusing: RefusingEngine, refused: House
) -> None:
    for name in ("q", "other"):
        refused.broker.declare(declared(name, durable=True))

    def is_consumed(*queues: str) -> bool:
        for queue in queues:
            refused.publish(queue, "a")
        refused.run()
        return [commit for commit in refusing.committed if commit.appends][-1].is_consumed

    assert not is_consumed("q")
    refused.consume("q")
    assert is_consumed("q")
    assert not is_consumed("other")


# -- order -------------------------------------------------------------------------------------------------------------


def test_what_is_staged_while_a_turn_is_being_stored_becomes_one_commit(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    refusing.is_closed_door = True
    before = refusing.attempts
    for text in "abc":
        refused.broker.publish(refused.message(text, "q"))
        refused.run()
    assert refusing.attempts == before + 1

    refusing.open_door()
    refused.run()

    sizes = [len(append.messages) for commit in refusing.committed for append in commit.appends]
    assert sizes == [1, 2]
    assert texts(refused, "q") == ["a", "b", "c"]


def test_a_queue_that_is_deleted_in_the_turn_of_its_messages_takes_them_along_and_no_other_s(house: House) -> None:
    for name in ("a", "b", "c"):
        house.broker.declare(declared(name, durable=True))
    house.run()
    for name, text in (("a", "1"), ("b", "2"), ("c", "3"), ("a", "4"), ("c", "5")):
        house.broker.publish(house.message(text, name))

    house.broker.delete("b")
    house.broker.declare(declared("b", durable=True))
    for name, text in (("c", "6"), ("b", "7"), ("a", "8")):
        house.broker.publish(house.message(text, name))
    house.run()

    assert [texts(house, name) for name in ("a", "b", "c")] == [["1", "4", "8"], ["7"], ["3", "5", "6"]]


def test_a_transaction_between_publishes_to_its_queue_keeps_their_order(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.broker.publish(house.message("a", "q"))
    house.broker.transaction([Publish(house.message("b", "q")), Publish(house.message("c", "q"))], [])
    for text in "de":
        house.broker.publish(house.message(text, "q"))
    house.run()

    assert texts(house, "q") == ["a", "b", "c", "d", "e"]


def test_confirms_come_in_the_order_of_the_publishes_whatever_the_queues(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("durable", durable=True))
    refused.broker.declare(declared("transient"))
    refused.run()
    confirmed: list[str] = []
    refusing.is_closed_door = True
    for name in ("durable", "transient", "durable"):
        refused.broker.publish(refused.message(name, name), noting(confirmed, name))
        refused.run()
    assert confirmed == []

    refusing.open_door()
    refused.run()

    assert confirmed == ["durable", "transient", "durable"]


def test_transient_queues_deliver_while_the_disk_is_busy(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(declared("durable", durable=True))
    refused.broker.declare(declared("transient"))
    inbox = refused.consume("transient", auto_ack=True)
    refusing.is_closed_door = True
    refused.publish("durable", "slow")

    refused.publish("transient", "fast")

    assert inbox.payloads == ["fast"]
    refusing.open_door()


def test_when_safe_comes_after_everything_before_it(refusing: RefusingEngine, refused: House) -> None:
    seen: list[str] = []
    refused.broker.declare(declared("q", durable=True))
    refusing.is_closed_door = True
    refused.broker.publish(refused.message("a", "q"), lambda _: seen.append("published"))
    refused.run()
    refused.broker.when_safe(lambda _: seen.append("safe"))
    refused.run()
    assert seen == []

    refusing.open_door()
    refused.run()

    assert seen == ["published", "safe"]


def test_a_buffered_queue_confirms_without_waiting_for_the_sync(refusing: RefusingEngine, refused: House) -> None:
    for name, durability in (("quick", "buffered"), ("safe", "fsync")):
        refused.broker.declare(QueueDefinition(name, ack_durability=durability))
        refused.run()
        refusing.waits.clear()
        refused.publish(name, "a")
        assert refusing.waits == [name == "safe"]


def test_draining_stores_what_is_staged_behind_a_turn_that_is_on_its_way(tmp_path: Path) -> None:
    engine = LocalEngine(tmp_path)
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    house.broker.publish(house.message("a", "q"))
    house.broker.flush()
    house.broker.publish(house.message("b", "q"))

    house.broker.drain()
    engine.close()

    again = LocalEngine(tmp_path)
    assert texts(House(again), "q") == ["a", "b"]
    again.close()


# -- a full disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attribute", ["refusal", "failure"])
def test_publishers_are_told_when_the_disk_is_full_and_nothing_of_it_comes_later(
    refusing: RefusingEngine, refused: House, attribute: str
) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    setattr(refusing, attribute, FULL)

    assert refused.publish("q", "lost") == [FULL]
    setattr(refusing, attribute, None)
    refused.advance(5)

    assert refused.publish("q", "kept") == [None]
    assert texts(refused, "q") == ["kept"]


def test_what_could_not_be_stored_does_not_count_against_the_queues_limit(
    refusing: RefusingEngine, refused: House
) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    refused.broker.declare(declared("q", durable=True, arguments=arguments))
    refused.run()
    refusing.failure = FULL
    refused.publish("q", "lost")
    refusing.failure = None

    assert refused.publish("q", "kept") == [None]


@pytest.mark.parametrize("attribute", ["refusal", "failure"])
def test_settlements_made_while_the_disk_is_full_are_stored_later(
    refusing: RefusingEngine, refused: House, attribute: str
) -> None:
    first, _ = work(refused, "a", "b")
    setattr(refusing, attribute, FULL)
    refused.broker.publish(refused.message("lost", "q"))
    refused.settle(ACK, first)
    setattr(refusing, attribute, None)

    refused.advance(2)

    assert texts(House(refusing), "q") == ["b"]


def test_a_dead_letter_made_while_the_disk_is_full_arrives_once(refusing: RefusingEngine, refused: House) -> None:
    (delivery,) = work(refused, "a", dead_letter_queue="$dlq/q")
    refusing.failure = FULL
    refused.settle(REJECT, delivery)
    for _ in range(5):
        refused.advance(2)
    refusing.failure = None
    refused.advance(2)

    again = House(refusing)
    assert (texts(again, "q"), texts(again, "$dlq/q")) == ([], ["a"])


def fail_once(refusing: RefusingEngine, house: House) -> None:
    """Have the commit that waits at the door fail, and take everything from then on."""
    refusing.failure, refusing.fails_all = FULL, True
    refusing.open_door()
    refusing.failure = None
    house.run()


def test_a_queue_deleted_before_its_declaration_could_be_stored_stays_deleted(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("out", durable=True))
    refused.run()
    refusing.is_closed_door = True
    refused.broker.declare(declared("brief", durable=True))
    refused.run()
    refused.broker.delete("brief")
    refused.broker.transaction([Publish(refused.message("a", "out"))], [])  # closes the turn before it

    fail_once(refusing, refused)

    assert sorted(House(refusing).broker.topology.queues) == ["out"]


def test_dead_letters_keep_their_order_when_the_first_could_not_be_stored(
    refusing: RefusingEngine, refused: House
) -> None:
    first, second = work(refused, "a", "b", dead_letter_queue="$dlq/q")
    refused.broker.declare(declared("out", durable=True))
    refused.run()
    refusing.is_closed_door = True
    refused.settle(REJECT, first)
    refused.broker.settle(second, REJECT)
    refused.broker.transaction([Publish(refused.message("a", "out"))], [])  # closes the turn before it

    fail_once(refusing, refused)

    assert texts(House(refusing), "$dlq/q") == ["a", "b"]


def test_publishers_behind_a_turn_that_cannot_be_stored_are_told_too(refusing: RefusingEngine, refused: House) -> None:
    (delivery,) = work(refused, "a", dead_letter_queue="$dlq/q")
    refusing.failure = FULL
    refused.settle(REJECT, delivery)
    confirmed: list[HeadraceError | None] = []
    refused.broker.publish(refused.message("b", "q"), confirmed.append)
    refused.run()

    refused.advance(2)

    assert confirmed == [FULL]


def test_what_cannot_be_stored_is_tried_again_once_a_second_and_not_all_the_time(
    refusing: RefusingEngine, refused: House
) -> None:
    (delivery,) = work(refused, "a", dead_letter_queue="$dlq/q")
    refusing.failure = FULL
    refused.settle(REJECT, delivery)
    before = refusing.attempts
    due_us = refused.broker.tick()
    assert refused.clock.now_us() < due_us <= refused.clock.now_us() + 1_000_000

    for _ in range(10):
        refused.advance(0.2)

    assert refusing.attempts - before == 2


def test_a_group_made_while_the_disk_is_full_is_made_once_later(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.publish("q", "a", "b")
    refusing.refusal = FULL
    inbox = refused.consume("q", group="workers", credit=1)
    refused.settle(ACK, *inbox.take())
    refused.broker.publish(refused.message("lost", "q"))
    refused.advance(1)
    refusing.refusal = None

    refused.advance(2)

    assert list(refusing.log("q").groups) == ["workers"]
    assert House(refusing).consume("q", group="workers").payloads == ["b"]


def test_a_queue_declared_while_the_disk_is_full_is_stored_later(refusing: RefusingEngine, refused: House) -> None:
    refusing.refusal = FULL
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    refusing.refusal = None

    refused.advance(2)

    assert "q" in House(refusing).broker.topology.queues


def test_a_queue_deleted_and_made_again_while_the_disk_is_full_is_the_new_one(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.publish("q", "old")
    refusing.refusal = FULL
    refused.broker.delete("q")
    refused.run()
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    refusing.refusal = None
    refused.advance(2)

    refused.publish("q", "new")

    assert texts(refused, "q") == ["new"]
    assert texts(House(refusing), "q") == ["new"]


def test_a_real_disk_that_runs_full_and_has_space_again_loses_no_settlement(tmp_path: Path) -> None:
    disk, clock = FailingDisk(), ManualClock()
    settings = LocalSettings(
        journal_file_bytes=32 << 10, checkpoint_bytes=64 << 10, tail_bytes=16 << 10, segment_bytes=64 << 10
    )
    engine = LocalEngine(tmp_path, settings=settings, disk=disk, clock=clock)
    house = House(engine, clock)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q", credit=10)
    disk.full = True
    refusals: list[HeadraceError | None] = []
    for _ in range(200):
        refusals += [error for error in house.publish("q", *["x" * 1000] * 10) if error is not None]
        house.settle(ACK, *inbox.take())
        if refusals:
            break
    assert {type(error) for error in refusals} == {Unavailable}
    disk.full = False
    house.advance(5)
    while inbox.got:
        house.settle(ACK, *inbox.take())
    assert house.publish("q", "after") == [None]
    engine.close()

    again = LocalEngine(tmp_path, clock=clock)
    assert House(again, clock).consume("q").payloads == ["after"]
    again.close()


# -- refusals and damage -----------------------------------------------------------------------------------------------


def test_a_commit_that_storage_refuses_for_its_messages_keeps_the_settlements(
    refusing: RefusingEngine, refused: House
) -> None:
    (delivery,) = work(refused, "a")
    refusing.failure = Refused("a message cannot be stored")
    confirmed: list[HeadraceError | None] = []
    refused.broker.publish(refused.message("bad", "q"), confirmed.append)
    refused.settle(ACK, delivery)

    assert [type(error) for error in confirmed] == [Refused]
    assert texts(House(refusing), "q") == []


def test_a_commit_that_storage_refuses_for_good_is_said_in_the_log_and_does_not_hold_up_the_rest(
    refusing: RefusingEngine, refused: House, caplog: pytest.LogCaptureFixture
) -> None:
    (delivery,) = work(refused, "a")
    refusing.refusal = Refused("no")
    with caplog.at_level(logging.ERROR):
        refused.settle(ACK, delivery)
    refusing.refusal = None

    assert "lost" in caplog.text
    assert refused.publish("q", "b") == [None]


def test_when_the_engine_is_dead_publishers_are_told(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    refusing.refusal = Fatal("a sync failed")

    assert [type(error) for error in refused.publish("q", "a")] == [Fatal]


def damaged(tmp_path: Path) -> LocalEngine:
    """Two durable queues with messages; what is stored of `bad` was overwritten."""
    engine = LocalEngine(tmp_path)
    house = House(engine)
    for name in ("bad", "good"):
        house.broker.declare(declared(name, durable=True))
        house.publish(name, *"abc")
        house.settle(ACK, house.consume(name, credit=1).got[0])
    engine.close()
    (segment,) = (tmp_path / "queues" / "bad" / "segments").glob("*.seg")
    segment.write_bytes(b"\0" * segment.stat().st_size)
    return LocalEngine(tmp_path)


def test_a_damaged_log_refuses_its_queue_and_no_other(tmp_path: Path) -> None:
    engine = damaged(tmp_path)
    house = House(engine)
    house.broker.tick()
    house.run()

    with pytest.raises(Corrupt):
        house.broker.get("bad", Consumer("getter", print))
    with pytest.raises(Corrupt):
        house.broker.purge("bad")
    confirmed = house.publish("bad", "x") + house.publish("good", "y")

    assert [type(error) for error in confirmed] == [Corrupt, type(None)]
    assert house.consume("good").payloads == ["b", "c", "y"]
    engine.close()


def test_consumers_of_a_queue_that_turns_out_damaged_are_told_and_hold_nothing(tmp_path: Path) -> None:
    engine = damaged(tmp_path)
    house = House(engine)

    inbox = house.consume("bad")

    assert (inbox.is_cancelled, inbox.got, inbox.consumer.group) == (True, [], None)
    engine.close()


def test_a_damaged_queue_can_be_deleted_and_declared_again(tmp_path: Path) -> None:
    engine = damaged(tmp_path)
    house = House(engine)
    house.broker.tick()
    house.run()
    house.broker.delete("bad")
    house.broker.declare(declared("bad", durable=True))
    house.run()

    assert house.publish("bad", "new") == [None]
    assert texts(house, "bad") == ["new"]
    engine.close()


class DamagedEngine(RefusingEngine):
    """An engine that has found the log `bad` damaged: it neither reads it nor takes a commit about it."""

    def __init__(self) -> None:
        super().__init__()
        self.damage: Corrupt | None = None

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        names = {append.log for append in commit.appends} | {step.log for step in commit.steps}
        if self.damage is not None and "bad" in names:
            raise self.damage
        super().commit(commit, done, durable)

    def log(self, name: str) -> Log:
        return DamagedLog(self.damage) if name == "bad" and self.damage is not None else super().log(name)


class DamagedLog(Log):
    """A log that cannot be read."""

    def __init__(self, damage: Corrupt) -> None:
        self.name = "bad"
        self.first_offset = 0
        self.next_offset = 0
        self._damage = damage

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return {}

    def find(self, timestamp_us: int) -> int:
        raise self._damage

    def record_batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        raise self._damage

    def read(self, offset: int, max_messages: int, max_bytes: int = 1 << 62) -> list[Message]:
        raise self._damage


def test_dead_letters_for_a_damaged_queue_are_left_out_and_those_for_others_arrive() -> None:
    engine = DamagedEngine()
    house = House(engine)
    for name, grave in (("one", "bad"), ("other", "good")):
        house.broker.declare(declared(grave, durable=True))
        house.broker.declare(QueueDefinition(name, dead_letter_queue=grave))
    one, other = house.consume("one"), house.consume("other")
    house.publish("one", "a")
    house.publish("other", "b")
    engine.damage = Corrupt("bad.seg", 0, "overwritten")

    for delivery in (*one.take(), *other.take()):
        house.broker.settle(delivery, REJECT)
    house.run()
    house.advance(2)

    assert texts(house, "good") == ["b"]
    assert house.publish("bad", "again") == [engine.damage]
    house = House(engine)
    assert [house.broker.queue(name).messages for name in ("one", "other", "good")] == [0, 0, 1]


def test_a_transaction_for_a_damaged_queue_fails_as_a_whole_and_finds_the_damage() -> None:
    engine = DamagedEngine()
    house = House(engine)
    for name in ("bad", "good"):
        house.broker.declare(declared(name, durable=True))
    house.run()
    engine.damage = Corrupt("bad.seg", 0, "overwritten")
    ended: list[HeadraceError | None] = []

    publishes = [Publish(house.message("x", name)) for name in ("good", "bad")]
    house.broker.transaction(publishes, [], ended.append)
    house.run()

    assert ended == [engine.damage]
    assert texts(house, "good") == []
    assert [house.broker.queue(name).refusal for name in ("good", "bad")] == [None, engine.damage]


def test_publishers_wait_after_a_transaction_that_a_full_disk_did_not_take(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    refusing.failure = FULL
    ended: list[HeadraceError | None] = []

    refused.broker.transaction([Publish(refused.message("x", "q"))], [], ended.append)
    refused.run()

    assert ended == [FULL]
    assert refused.broker.blocked
    refusing.failure = None
    refused.advance(2)
    assert not refused.broker.blocked


def test_a_log_found_damaged_by_a_commit_leaves_the_other_queues_alone() -> None:
    engine = DamagedEngine()
    house = House(engine)
    for name in ("bad", "good"):
        house.broker.declare(declared(name, durable=True))
    good, bad = house.consume("good"), house.consume("bad")
    house.publish("good", "a")
    house.publish("bad", "a")
    engine.damage = Corrupt("bad.seg", 0, "overwritten")

    confirmed: list[HeadraceError | None] = []
    house.broker.publish(house.message("x", "bad"), confirmed.append)
    house.settle(ACK, *good.take(), *bad.take())

    assert confirmed == [engine.damage]
    assert bad.is_cancelled
    assert house.publish("bad", "again") == [engine.damage]
    assert house.publish("good", "b") == [None]
    assert House(engine).broker.queue("good").messages == 1


def test_settlements_that_nobody_waits_for_ride_with_the_next_publish() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", "first")
    stored = len(engine.committed)

    for delivery in inbox.take():
        house.broker.settle(delivery, ACK)
    house.turn()
    assert len(engine.committed) == stored

    house.broker.publish(house.message("second", "q"), lambda _: None)
    house.turn()
    assert len(engine.committed) == stored + 1
    assert [(step.kind, step.start, step.stop) for step in engine.committed[-1].steps] == [(ACKED, 0, 1)]


def test_settlements_that_nothing_follows_are_stored_by_themselves_a_moment_later() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", "only")
    for delivery in inbox.take():
        house.broker.settle(delivery, ACK)
    house.turn()
    stored = len(engine.committed)

    due_us = house.broker.tick()
    house.turn()
    assert len(engine.committed) == stored
    assert due_us == house.clock.now_us() + HOLD_US

    house.clock.advance(HOLD_US / 1_000_000)
    house.broker.tick()
    house.turn()
    assert [(step.kind, step.start, step.stop) for step in engine.committed[-1].steps] == [(ACKED, 0, 1)]


def test_many_settlements_do_not_wait() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(declared("q", durable=True))
    inbox = house.consume("q")
    house.publish("q", *map(str, range(2 * HOLD_STEPS + 2)))
    stored = len(engine.committed)

    for delivery in inbox.take()[::2]:
        house.broker.settle(delivery, ACK)
    house.turn()

    assert len(engine.committed) == stored + 1


# -- ahead of the sync -------------------------------------------------------------------------------------------------


class GateDisk(Disk):
    """A disk whose syncs wait until the gate is open."""

    def __init__(self) -> None:
        self.gate = Event()
        self.gate.set()

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        assert self.gate.wait(10)
        super().write_synced(fd, buffers, position)

    def sync(self, fd: int) -> None:
        assert self.gate.wait(10)
        super().sync(fd)


class Ahead:
    """A broker over a disk whose syncs wait; `step` lets happen what needs no sync."""

    def __init__(self, root: Path) -> None:
        self.disk = GateDisk()
        self.soon: list[Callable[[], None]] = []
        self.engine = LocalEngine(root, disk=self.disk)
        self.broker = Broker(self.engine, SystemClock(), self.soon.append)
        self.told: list[str] = []

    def declare(self, definition: QueueDefinition) -> None:
        self.broker.declare(definition)
        self.broker.drain()
        self.publish("first", definition.name)  # makes the journal's first file
        self.broker.drain()
        self.told.clear()

    def consume(self, queue: str, exposes_offsets: bool = False, **options: object) -> Consumer:
        consumer = Consumer("consumer", self._deliver)
        consumer.exposes_offsets = exposes_offsets
        self.broker.consume(queue, consumer, **options)  # type: ignore[arg-type]
        return consumer

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.told.append(delivery.message.payload.decode())
            self.broker.settle(delivery, ACK)

    def publish(self, text: str, queue: str) -> None:
        message = Message(Source(queue), text.encode(), 1)
        self.broker.publish(message, lambda error: self.told.append(f"{text} confirmed" if error is None else "no"))

    def step(self) -> None:
        for _ in range(5):
            soon, self.soon[:] = list(self.soon), []
            for call in soon:
                call()
            self.engine.poll()


@pytest.fixture
def ahead(tmp_path: Path) -> Iterator[Ahead]:
    ahead = Ahead(tmp_path)
    yield ahead
    ahead.disk.gate.set()
    ahead.engine.close()


def test_a_work_queue_delivers_before_the_sync_and_confirms_after_it(ahead: Ahead) -> None:
    ahead.declare(declared("q", durable=True))
    ahead.consume("q")
    ahead.step()
    ahead.told.clear()
    ahead.disk.gate.clear()

    ahead.publish("a", "q")
    ahead.step()
    ahead.publish("b", "q")
    ahead.step()
    assert ahead.told == ["a", "b"]

    ahead.disk.gate.set()
    ahead.broker.drain()
    assert ahead.told == ["a", "b", "a confirmed", "b confirmed"]
    assert ahead.broker.queue("q").messages == 0


@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_whoever_learns_offsets_gets_messages_only_when_they_are_synced(ahead: Ahead, kind: str) -> None:
    ahead.declare(declared("q", durable=True, arguments={"x-queue-type": kind}))
    ahead.consume("q", exposes_offsets=True)
    ahead.step()
    ahead.broker.drain()
    ahead.told.clear()
    ahead.disk.gate.clear()

    ahead.publish("a", "q")
    ahead.step()
    assert ahead.told == []

    ahead.disk.gate.set()
    ahead.broker.drain()
    ahead.step()
    assert sorted(ahead.told) == ["a", "a confirmed"]


def test_one_that_learns_offsets_and_comes_later_waits_for_the_sync_too(ahead: Ahead) -> None:
    ahead.declare(declared("q", durable=True))
    ahead.disk.gate.clear()
    ahead.publish("a", "q")
    ahead.step()

    ahead.consume("q", exposes_offsets=True)
    ahead.step()
    assert ahead.told == []
    assert ahead.broker.queue("q").safe_offset == 1

    ahead.disk.gate.set()
    ahead.broker.drain()
    ahead.step()
    assert sorted(ahead.told) == ["a", "a confirmed", "first"]
    assert ahead.broker.queue("q").safe_offset == 2


def test_draining_waits_until_what_ran_ahead_is_synced(ahead: Ahead) -> None:
    ahead.declare(declared("q", durable=True))
    ahead.disk.gate.clear()
    ahead.publish("a", "q")
    ahead.step()
    Timer(0.05, ahead.disk.gate.set).start()

    ahead.broker.drain()

    assert ahead.told == ["a confirmed"]


@pytest.mark.parametrize("later", ["transient", "unroutable", "refused"])
def test_nobody_hears_of_a_later_publish_before_those_whose_messages_are_not_synced(ahead: Ahead, later: str) -> None:
    """Protocols know what is confirmed by its place in the row: one told too early would speak for another."""
    ahead.declare(declared("q", durable=True))
    ahead.broker.declare(declared("t"))
    ahead.broker.drain()
    ahead.disk.gate.clear()
    ahead.publish("a", "q")
    ahead.step()

    if later == "refused":
        endless = Message(Source("q"), b"b", 1, expires_us=1 << 70)  # storage has no room for such a number
        ahead.broker.publish(endless, lambda error: ahead.told.append(f"b {type(error).__name__}"))
    else:
        ahead.publish("b", "t" if later == "transient" else "nowhere")
    ahead.step()
    assert ahead.told == []

    ahead.disk.gate.set()
    ahead.broker.drain()
    assert ahead.told == ["a confirmed", "b Refused" if later == "refused" else "b confirmed"]


def test_a_publisher_behind_one_that_is_not_synced_hears_in_order_after_an_ack_timeout(ahead: Ahead) -> None:
    ahead.declare(configured({"name": "quick", "replication": {"enabled": True, "ack_timeout": "10ms"}}))
    ahead.broker.declare(declared("t"))
    ahead.broker.drain()
    ahead.disk.gate.clear()
    ahead.publish("a", "quick")
    ahead.step()
    ahead.publish("b", "t")
    ahead.step()
    assert ahead.told == []

    deadline_us = SystemClock().monotonic_us() + 10_000_000
    while not ahead.told and SystemClock().monotonic_us() < deadline_us:
        ahead.broker.tick()

    assert ahead.told == ["no", "b confirmed"]


@pytest.mark.parametrize("what", ["transaction", "purge"])
def test_what_clients_are_told_of_is_sent_to_be_synced(refusing: RefusingEngine, refused: House, what: str) -> None:
    (delivery,) = work(refused, "a")
    refusing.waits.clear()

    if what == "transaction":
        refused.broker.transaction([], [(delivery, ACK)])
    else:
        refused.settle(RELEASE, delivery)
        refused.broker.cancel(delivery.consumer)
        refused.run()
        refusing.waits.clear()
        refused.broker.purge("q")
    refused.run()

    assert True in refusing.waits


# -- replication -------------------------------------------------------------------------------------------------------


def outcomes(told: list[str], name: str) -> Confirm:
    return lambda error: told.append(f"{name}: {'stored' if error is None else type(error).__name__}")


def replicated(name: str, **more: object) -> QueueDefinition:
    return configured({"name": name, "replication": {"enabled": True, **more}})


def test_a_publisher_hears_after_the_ack_timeout_that_its_message_is_not_stored_and_in_order(
    refusing: RefusingEngine, refused: House
) -> None:
    refused.broker.declare(declared("patient", durable=True))
    refused.broker.declare(replicated("quick", ack_timeout="2s"))
    refused.run()
    told: list[str] = []
    refusing.is_closed_door = True
    for name in ("patient", "quick", "patient"):
        refused.broker.publish(refused.message(name, name), outcomes(told, name))
        refused.run()
    refused.clock.advance(1.9)
    refused.broker.tick()
    before = list(told)
    refused.clock.advance(0.1)
    refused.broker.tick()

    assert before == []
    assert told == ["patient: Unavailable", "quick: Unavailable", "patient: Unavailable"]
    refusing.open_door()
    refused.run()
    assert len(told) == 3, "what came of it later is for nobody to hear"
    assert texts(refused, "quick") == ["quick"]


def test_without_an_ack_timeout_a_publisher_waits_for_storage(refusing: RefusingEngine, refused: House) -> None:
    refused.broker.declare(replicated("none", ack_timeout="0s"))
    refused.broker.declare(configured({"name": "off", "replication": {"enabled": False, "ack_timeout": "1s"}}))
    refused.run()
    told: list[str] = []
    refusing.is_closed_door = True
    for name in ("none", "off"):
        refused.broker.publish(refused.message(name, name), outcomes(told, name))
        refused.run()
    refused.clock.advance(100)
    refused.broker.tick()
    before = list(told)
    refusing.open_door()
    refused.run()

    assert before == []
    assert told == ["none: stored", "off: stored"]


@pytest.mark.parametrize(("mode", "waits"), [("sync", True), ("async", False)])
def test_publishers_wait_for_the_store_unless_replication_is_asynchronous(
    refusing: RefusingEngine, refused: House, mode: str, waits: bool
) -> None:
    refused.broker.declare(replicated("q", mode=mode))
    refused.run()
    refused.broker.publish(refused.message("a", "q"), lambda _: None)
    refused.run()

    assert refusing.waits[-1] is waits


def test_when_kept_waits_for_the_last_declaration_and_stores_nothing_for_it(
    refusing: RefusingEngine, refused: House
) -> None:
    seen: list[HeadraceError | None] = []
    refused.run()
    assert not refused.broker.when_kept(seen.append), "nothing is on its way"
    refusing.is_closed_door = True
    refused.broker.declare(declared("q", durable=True))
    refused.run()
    attempts = refusing.attempts
    refused.broker.publish(refused.message("a", "q"))

    assert refused.broker.when_kept(seen.append)
    assert (seen, refusing.attempts) == ([], attempts)
    refusing.open_door()
    refused.run()

    assert seen == [None]
    assert not refused.broker.when_kept(seen.append)


def test_when_kept_tells_that_a_declaration_is_not_stored_and_waits_for_the_next_attempt(
    refusing: RefusingEngine, refused: House
) -> None:
    seen: list[HeadraceError | None] = []
    refused.run()
    refusing.failure, refusing.fails_all = Unavailable("away"), True
    refused.broker.declare(declared("q", durable=True))
    assert refused.broker.when_kept(seen.append)
    refused.run()
    assert [str(error) for error in seen] == ["away"]

    refusing.failure = None
    assert refused.broker.when_kept(seen.append), "it is still to be stored"
    refused.advance(2)

    assert seen[1:] == [None]


def test_it_is_known_since_when_storage_has_been_busy_with_the_oldest_commit() -> None:
    engine = RefusingEngine()
    house = House(engine)
    house.broker.declare(QueueDefinition("q"))
    house.run()
    assert house.broker.sent_us == 0

    engine.is_closed_door = True
    sent_us = house.clock.monotonic_us()
    house.broker.publish(house.message("a", "q"))
    house.broker.flush()
    house.clock.advance(10)
    assert house.broker.sent_us == sent_us

    engine.open_door()
    house.run()
    assert house.broker.sent_us == 0


def test_a_queue_in_memory_drops_settled_messages_and_keeps_no_second_state_of_its_groups() -> None:
    house = House()
    queue = house.broker.declare(declared("q", durable=False))
    inbox = house.consume("q")
    house.publish("q", "a", "b", "c")

    first, second, third = inbox.take()
    for delivery in (second, first):
        house.broker.settle(delivery, ACK)
    house.run()

    assert (queue.log.first_offset, queue.log.next_offset) == (2, 3)
    assert not queue.log.groups
    house.broker.settle(third, ACK)
    house.run()
    assert (queue.log.first_offset, queue.log.size_bytes) == (3, 0)

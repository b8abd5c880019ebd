"""Storage that cannot be read for a while: consumers wait, nothing is skipped or doubled, and it goes on by itself."""

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa
import pytest

from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.core.queue.group import ACK, RELEASE
from headrace.errors import HeadraceError, Unavailable
from headrace.model import Message
from headrace.storage.api import Commit, Done, Engine, Log
from headrace.storage.group_state import GroupState
from headrace.storage.memory import MemoryEngine
from tests.house import House


class DistantLog(Log):
    """A log of the engine below, as long as it is near."""

    def __init__(self, engine: "DistantEngine", name: str) -> None:
        self._engine = engine
        self.name = name
        self.refresh()

    @property
    def _log(self) -> Log:
        return self._engine.memory.log(self.name)

    def refresh(self) -> None:
        self.first_offset, self.next_offset = self._log.first_offset, self._log.next_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return self._log.groups

    def read(self, offset: int, max_messages: int, max_bytes: int = 1 << 62) -> list[Message]:
        if self._engine.is_away and offset >= self._engine.near:
            raise self._engine.error
        return self._log.read(offset, max_messages, max_bytes)

    def find(self, timestamp_us: int) -> int:
        return self._log.find(timestamp_us)

    def record_batches(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        return self._log.record_batches(start, stop)


class DistantEngine(Engine):
    """A memory engine whose messages from offset `near` on cannot be read while it is away."""

    def __init__(self) -> None:
        self.memory = MemoryEngine()
        self.is_away = False
        self.near = 0
        self.error: HeadraceError = Unavailable("the store does not answer")
        self.keeps_claims = False
        self.staged_bytes = 0
        self._logs: dict[str, DistantLog] = {}

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        def committed(error: HeadraceError | None) -> None:
            for log in self._logs.values():
                log.refresh()
            done(error)

        self.memory.commit(commit, committed, durable)

    def log(self, name: str) -> Log:
        if name not in self._logs:
            self._logs[name] = DistantLog(self, name)
        return self._logs[name]

    def logs(self) -> list[str]:
        return self.memory.logs()

    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        return self.memory.items(table)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.memory.get(table, key)

    def poll(self) -> None:
        self.memory.poll()

    def sync(self) -> None:
        self.memory.sync()

    def close(self) -> None:
        self.memory.close()


@pytest.fixture
def engine() -> DistantEngine:
    return DistantEngine()


@pytest.mark.parametrize("kind", ["classic", STREAM])
def test_consumers_wait_for_what_cannot_be_read_and_get_it_in_order_later(engine: DistantEngine, kind: str) -> None:
    house = House(engine)
    house.broker.declare(QueueDefinition("jobs", kind))
    house.publish("jobs", "0", "1", "2", "3")

    engine.is_away = True
    inbox = house.consume("jobs", credit=10)
    house.publish("jobs", "4")
    assert inbox.payloads == []

    engine.is_away = False
    house.advance(2)

    assert inbox.payloads == ["0", "1", "2", "3", "4"]


def test_what_was_given_back_keeps_its_place_while_it_cannot_be_read(engine: DistantEngine) -> None:
    house = House(engine)
    house.broker.declare(QueueDefinition("jobs"))
    house.publish("jobs", "0", "1", "2", "3")
    inbox = house.consume("jobs", credit=3)
    held = inbox.take()
    engine.is_away = True
    house.settle(RELEASE, *held)
    assert inbox.take() == []

    engine.near = 2
    house.advance(2)
    first = inbox.take()
    house.settle(ACK, *first)
    engine.is_away = False
    house.advance(2)

    assert [each.message.payload for each in [*first, *inbox.take()]] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("near", [1, 2, 4])
def test_what_can_be_read_comes_though_what_follows_it_cannot(engine: DistantEngine, near: int) -> None:
    """0 and 2 came back, 4 and 5 are new."""
    house = House(engine)
    house.broker.declare(QueueDefinition("jobs"))
    house.publish("jobs", *"012345")
    first = house.consume("jobs", "first", credit=4).got
    house.settle(ACK, first[1], first[3])
    engine.is_away, engine.near = True, near
    house.broker.cancel(first[0].consumer)
    house.run()

    inbox = house.consume("jobs", "second")
    assert inbox.payloads == [text for text in "024" if int(text) < near]
    engine.is_away = False
    house.advance(2)

    assert inbox.payloads == list("0245")

"""The reference engine: everything in plain lists and dicts, gone with the process. No files, no threads.

For tests, ephemeral queues and `headrace serve --memory`; every other engine must behave as this one.
"""

import secrets
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, final

from headrace.errors import Truncated, Unavailable
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Commit, Done, Engine, Log, Wake, check_commit, check_name, check_step
from headrace.storage.group_state import CREATED, DELETED, GroupState, Transition

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS_PER_BATCH = 8192
_RANDOM_BITS = 48


@final
class MemoryLog(Log):
    """A log as a deque of messages."""

    __slots__ = ("_groups", "_messages", "_size_bytes")

    def __init__(self, name: str, log_id: int) -> None:
        self.name = name
        self.id = log_id
        self.first_offset = 0
        self.next_offset = 0
        self._messages: deque[Message] = deque()
        self._groups: dict[str, GroupState] = {}
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return self._groups

    @property
    def exists(self) -> bool:
        return self.next_offset > 0 or bool(self._groups)

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        if offset < self.first_offset:
            raise Truncated(f"{self.name}: offset {offset} is gone, the log starts at {self.first_offset}")
        found: list[Message] = []
        for at in range(offset, min(self.next_offset, offset + max_messages)):
            message = self._messages[at - self.first_offset]
            max_bytes -= len(message.payload) + len(message.properties)
            if found and max_bytes < 0:
                break
            found.append(message)
        return found

    def find(self, timestamp_us: int) -> int:
        for index, message in enumerate(self._messages):
            if message.timestamp_us >= timestamp_us:
                return self.first_offset + index
        return self.next_offset

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        from headrace.storage.arrow import BATCH_BYTES, batch_of_messages

        stop = min(stop, self.next_offset)
        while start < stop:
            messages = self.read(start, min(stop - start, _ROWS_PER_BATCH), BATCH_BYTES)
            yield batch_of_messages(start, messages)
            start += len(messages)

    def append(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._messages.append(message)
            self._size_bytes += len(message.payload) + len(message.properties)
            self.next_offset += 1

    def step(self, step: Transition) -> None:
        if step.kind == CREATED:
            self._groups[step.group] = GroupState(step.group, step.mode, step.filter, step.start)
        elif step.kind == DELETED:
            del self._groups[step.group]
        else:
            self._groups[step.group].apply(step)

    def truncate(self, before: int) -> None:
        while self.first_offset < before and self._messages:
            message = self._messages.popleft()
            self._size_bytes -= len(message.payload) + len(message.properties)
            self.first_offset += 1


@final
class MemoryEngine(Engine):
    """All logs and tables of one process, in memory."""

    def __init__(self, wake: Wake | None = None) -> None:
        self.keeps_claims = False
        self.staged_bytes = 0
        self._wake = wake
        self._logs: dict[str, MemoryLog] = {}
        self._last_id = secrets.randbits(_RANDOM_BITS)
        """Ids begin anywhere, so that logs of an earlier process had others."""
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._done: deque[tuple[Done, int]] = deque()
        self._closed = False

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        if self._closed:
            raise Unavailable("the memory engine is closed; open a new one")
        check_commit(commit)
        for append in commit.appends:
            check_name("log", append.log)
        self._check_groups(commit)
        self._apply(commit)
        self.staged_bytes += commit.size_bytes
        self._done.append((done, commit.size_bytes))
        if self._wake is not None and len(self._done) == 1:
            self._wake()

    def log(self, name: str) -> Log:
        return self._log(name)

    def logs(self) -> list[str]:
        return [name for name, log in self._logs.items() if log.exists]

    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        return self._tables.get(table, {}).items()

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._tables.get(table, {}).get(key)

    def poll(self) -> None:
        for _ in range(len(self._done)):
            done, size_bytes = self._done.popleft()
            self.staged_bytes -= size_bytes
            done(None)

    def sync(self) -> None:
        while self._done:
            self.poll()

    def close(self) -> None:
        self.sync()
        self._closed = True

    def _log(self, name: str) -> MemoryLog:
        log = self._logs.get(name)
        if log is None:
            self._last_id += 1
            log = self._logs[name] = MemoryLog(name, self._last_id)
        return log

    def _check_groups(self, commit: Commit) -> None:
        """Raises Refused, before anything is changed, when a step names a group that does not exist."""
        staged: dict[tuple[str, str], bool] = {}
        for step in commit.steps:
            check_name("log", step.log)
            key = (step.log, step.group)
            exists = staged.get(key, step.group in self._log(step.log).groups)
            check_step(step, exists)
            staged[key] = step.kind != DELETED

    def _apply(self, commit: Commit) -> None:
        for append in commit.appends:
            log = self._log(append.log)
            append.base = log.next_offset
            encoded = append.encoded
            log.append(append.messages if encoded is None else encoded.messages(0, encoded.count))
        for step in commit.steps:
            log = self._log(step.log)
            log.step(step)
            if step.cut:
                log.truncate(step.cut)
        for (table, key), value in commit.puts.items():
            if value is None:
                self._tables.get(table, {}).pop(key, None)
            else:
                self._tables.setdefault(table, {})[key] = value
        for name, before in commit.truncations.items():
            self._log(name).truncate(before)
        for name in commit.drops:
            log = self._log(name)
            log.truncate(log.next_offset)  # holders of the log do not keep the messages
            del self._logs[name]

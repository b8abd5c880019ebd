"""One log in an object store: what is known of it, what of it is in memory, and how it is read. Only its owner uses it.

Two states are kept: what is stored, which readers see, and what is staged, which the next commit builds upon.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, final

from headrace.errors import Corrupt, Truncated
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Log
from headrace.storage.group_state import GroupState
from headrace.storage.objects.chunks import Chunk, Shelf, Stack
from headrace.storage.objects.keys import entry_prefix, log_name
from headrace.storage.objects.reader import StoreReader
from headrace.storage.objects.state import LogState

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage.objects.group import ObjectGroup

_ROWS_PER_BATCH: Final = 8192
_NO_TIME: Final = -(1 << 63)


@final
class Surroundings:
    """What all logs of an engine share."""

    __slots__ = ("instance", "kept", "reader", "recent")

    def __init__(self, instance: str, reader: StoreReader, recent: Stack, kept: Stack) -> None:
        self.instance = instance
        self.reader = reader
        self.recent = recent
        """New messages."""
        self.kept = kept
        """Messages that were read from the store."""


@final
class ObjectLog(Log):
    """The messages and groups of one queue."""

    __slots__ = (
        "_surroundings",
        "collected",
        "groups_by_name",
        "id",
        "is_lent",
        "is_stored",
        "prefix",
        "shelf",
        "staged",
        "staged_groups",
        "stored",
    )

    def __init__(self, name: str, surroundings: Surroundings) -> None:
        self.name = name
        self.id = -1
        """-1 until something is staged for it."""
        self.is_stored = False
        self.is_lent = False
        """Whether it is stored, or on its way, that payloads of its messages may be others' as well."""
        self.collected = 0
        """Up to where its messages are being removed from the store."""
        self.prefix = b""
        self.first_offset = 0
        self.next_offset = 0
        self.stored = LogState(name, 0, 0, 0, _NO_TIME, 0)
        self.staged = self.stored
        self.groups_by_name: dict[str, ObjectGroup] = {}
        self.staged_groups: dict[str, ObjectGroup] = {}
        self.shelf = Shelf()
        self._surroundings = surroundings

    def identify(self, log_id: int) -> None:
        """Be the log with this id."""
        self.id = log_id
        self.prefix = entry_prefix(log_name(self._surroundings.instance, log_id))

    def show(self, state: LogState) -> None:
        """This is what is stored now."""
        self.is_stored = True
        self.stored = state
        self.first_offset = state.first_offset
        self.next_offset = state.next_offset
        self.shelf.stored = state.next_offset
        self.shelf.drop_below(state.first_offset)
        self._surroundings.recent.trim()

    def revert(self) -> None:
        """Forget what is staged."""
        self.staged = self.stored
        self.staged_groups = dict(self.groups_by_name)
        self.shelf.cut(self.next_offset)
        if not self.is_stored:
            self.id = -1

    @property
    def size_bytes(self) -> int:
        return self.stored.size_bytes

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return {name: group.state for name, group in self.groups_by_name.items()}

    @property
    def exists(self) -> bool:
        return self.next_offset > 0 or bool(self.groups_by_name)

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        self._check(offset)
        found: list[Message] = []
        stop = min(self.next_offset, offset + max_messages)
        while offset < stop and max_bytes >= 0:
            chunk = self._chunk(offset)
            rows = chunk.messages[offset - chunk.base : stop - chunk.base]
            for message in rows:
                max_bytes -= len(message.payload) + len(message.properties)
                if max_bytes < 0 and found:
                    return found
                found.append(message)
            offset += len(rows)
        return found

    def find(self, timestamp_us: int) -> int:
        if timestamp_us > self.stored.latest_us or self.first_offset == self.next_offset:
            return self.next_offset
        at = self.first_offset
        while at < self.next_offset:
            chunk = self.shelf.find(at)
            if chunk is None:
                stop = self.shelf.next_base(at, self.next_offset)
                found = self._surroundings.reader.find(self.id, self.prefix, at, stop, timestamp_us)
                if found < stop:
                    return found
                at = stop
                continue
            for message in chunk.messages[at - chunk.base : self.next_offset - chunk.base]:
                if message.timestamp_us >= timestamp_us:
                    return at
                at += 1
        return self.next_offset

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        from headrace.storage.arrow import batch_of_messages

        stop = min(stop, self.next_offset)
        while start < stop:
            messages = self.read(start, min(stop - start, _ROWS_PER_BATCH))
            yield batch_of_messages(start, messages)
            start += len(messages)

    def about(self, offset: int) -> tuple[int, bytes] | None:
        """The id and the metadata of a message, staged ones too; None where there is none.

        Raises Corrupt and Unavailable.
        """
        if not self.staged.first_offset <= offset < self.staged.next_offset:
            return None
        chunk = self._chunk(offset)
        return chunk.ids[offset - chunk.base], chunk.metadata[offset - chunk.base]

    def _check(self, offset: int) -> None:
        if offset < self.first_offset:
            raise Truncated(f"{self.name}: offset {offset} is gone, the log starts at {self.first_offset}")

    def _chunk(self, offset: int) -> Chunk:
        """The messages around this offset, from memory or from the store."""
        chunk = self.shelf.find(offset)
        kept = self._surroundings.kept
        if chunk is None:
            stop = self.shelf.next_base(offset, self.next_offset)
            try:
                rows = self._surroundings.reader.read(self.prefix, offset, stop)
            except Corrupt as error:
                raise Corrupt(f"{self.name!r}: {error.file}", error.position, error.what) from error
            chunk = Chunk(self.shelf, offset, *rows)
            self.shelf.add(chunk, kept)
        elif chunk.stack is kept:
            kept.touch(chunk)
        return chunk

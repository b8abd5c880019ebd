"""One log in an object store: its state, its messages in memory, and the reading of others from the store.

A log has two states: the stored one, which readers see, and the staged one, which the next commit continues.

The engine's owner, and so every client, waits for reads. So reads have a short timeout, and after a failure the store
is not asked for a while.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, final

from headrace.errors import Corrupt, Truncated, Unavailable
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Log
from headrace.storage.group_state import GroupState
from headrace.storage.objects.database import Readable, Row
from headrace.storage.objects.keys import (
    PAYLOAD,
    PAYLOADS,
    TIME,
    decode_entry_key,
    describe,
    entry_key,
    entry_prefix,
    lexical_successor,
    log_name,
    payload_key,
    payloads_key,
    time_key,
    u64,
)
from headrace.storage.objects.records import (
    LogState,
    MetadataDecoder,
    decode_entry,
    decode_payloads,
    packed_runs,
    payload_length,
    timestamp_us,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.storage.objects.group import ObjectGroup

PATIENCE_MS: Final = 2000
_REST_US: Final = 5_000_000
"""The pause after the store did not answer."""
READ_ROWS: Final = 1000
READ_BYTES: Final = 1 << 20
_ENTRIES: Final = 16
_AT_ONCE: Final = 512
_GAP: Final = 8
"""Payloads at most this far apart are read together, with those of other logs between them."""


NO_MESSAGE: Final = 1 << 63
"""Added to an offset, the id of a message that is not in the log."""


class Rows(NamedTuple):
    """An entry of a metadata log: some messages without their payloads."""

    base: int
    ids: list[int]
    metadata: list[bytes]


@final
class StoreReader:
    """Reads logs of one database. For one thread: the decoder has a memory."""

    def __init__(self, database: Readable, patience_ms: int = PATIENCE_MS) -> None:
        self._database = database.within(patience_ms)
        self._decoder = MetadataDecoder()
        self._asked_again_us = 0

    def entries(self, prefix: bytes, offset: int, stop: int) -> Iterator[Rows]:
        """The entries of a metadata log from the one with `offset` up to `stop`. Raises Corrupt and Unavailable."""
        row = self._database.last(prefix, entry_key(prefix, offset + 1))
        start = entry_key(prefix, offset)
        if row is not None:  # often it is all that is wanted
            start = row[0] + b"\x00"
            yield Rows(decode_entry_key(row[0], prefix), *decode_entry(row[1], describe(row[0])))
        for found in self._database.scan(start, entry_key(prefix, stop), at_once=_ENTRIES):
            for key, value in found:
                yield Rows(decode_entry_key(key, prefix), *decode_entry(value, describe(key)))

    def read(self, prefix: bytes, offset: int, stop: int) -> tuple[list[int], list[Message]]:
        """Read at least one message from `offset` on, up to READ_ROWS or READ_BYTES. Raises Corrupt, Unavailable."""
        self._check()
        where = describe(prefix)
        plan = Plan()
        try:
            self._plan(plan, prefix, offset, stop)
            payloads = self._payloads(plan)
        except Unavailable:
            self._rest()
            raise
        decode = self._decoder.decode
        messages: list[Message] = []
        for message_id, about in zip(plan.ids, plan.metadata, strict=True):
            payload = payloads.get(message_id)
            if payload is None:
                raise Corrupt(describe(payload_key(message_id)), 0, "the payload is missing")
            messages.append(decode(about, payload, where))
        return plan.ids, messages

    def find(self, log_id: int, prefix: bytes, first: int, stop: int, time_us: int) -> int:
        """The offset of the first message with at least this time, or `stop`. Raises Corrupt and Unavailable."""
        self._check()
        try:
            return self._find(log_id, prefix, first, stop, time_us)
        except Unavailable:
            self._rest()
            raise

    def _check(self) -> None:
        if self._database.clock.monotonic_us() < self._asked_again_us:
            raise Unavailable(f"{self._database.place} does not answer, and is asked again in a few seconds")

    def _rest(self) -> None:
        self._asked_again_us = self._database.clock.monotonic_us() + _REST_US

    def _find(self, log_id: int, prefix: bytes, first: int, stop: int, time_us: int) -> int:
        row = self._database.last(TIME + u64(log_id), time_key(log_id, time_us))
        start = max(first, int.from_bytes(row[1], "little")) if row is not None else first
        for base, _, metadata in self.entries(prefix, start, stop) if start < stop else ():
            for offset, about in enumerate(metadata, base):
                if start <= offset < stop and timestamp_us(about, describe(prefix)) >= time_us:
                    return offset
        return stop

    def _plan(self, plan: "Plan", prefix: bytes, offset: int, stop: int) -> None:
        """Choose the messages to read: the rest of the first entry, and more entries that fit."""
        at = offset
        for entry in self.entries(prefix, offset, stop):
            end = entry.base + len(entry.ids)
            if entry.base > at or end <= at or not plan.add(entry, at, min(end, stop), describe(prefix)):
                break
            at = end
            if at >= stop or plan.is_enough:
                break
        if not plan.ids:
            raise Corrupt(describe(prefix), 0, f"no entry of the metadata log has offset {offset}")

    def _payloads(self, plan: "Plan") -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for key, value in self._records(PAYLOADS, _near(plan.packed)):
            payloads = decode_payloads(value, describe(key))
            start = _id_of(key)
            found.update(zip(range(start, start + len(payloads)), payloads, strict=True))
        for key, value in self._records(PAYLOAD, _near([(each, each) for each in sorted(plan.single)])):
            found[_id_of(key)] = value
        for message_id in plan.single:
            if message_id not in found:
                borrowed = self._borrowed(message_id)
                if borrowed is not None:
                    found[message_id] = borrowed
        return found

    def _records(self, kind: bytes, places: Iterable[tuple[int, int]]) -> Iterator[Row]:
        """The records of a kind from the first id to the last of each place; single ones are looked up together."""
        single: list[bytes] = []
        for first, last in places:
            if first == last:
                single.append(kind + u64(first))
                continue
            for found in self._database.scan(kind + u64(first), lexical_successor(kind + u64(last)), at_once=_AT_ONCE):
                yield from found
        for key, value in zip(single, self._database.get_all(single), strict=True):
            if value is not None:
                yield key, value

    def _borrowed(self, message_id: int) -> bytes | None:
        """A payload that another log has among others. The collector may give it a record of its own meanwhile."""
        row = self._database.last(PAYLOADS, payloads_key(message_id + 1))
        if row is not None:
            at = message_id - _id_of(row[0])
            payloads = decode_payloads(row[1], describe(row[0]))
            if at < len(payloads):
                return payloads[at]
        return self._database.get(payload_key(message_id))


@final
class Plan:
    """The messages to read in one go, and the records with their payloads."""

    __slots__ = ("_size", "ids", "metadata", "packed", "single")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.metadata: list[bytes] = []
        self.packed: list[tuple[int, int]] = []
        """The first and last ids of records with several payloads, in order."""
        self.single: list[int] = []
        """The ids of messages with a record of their own, or with one in another log."""
        self._size = 0

    @property
    def is_enough(self) -> bool:
        """True if looking for more is not worth it."""
        return len(self.ids) > READ_ROWS // 2 or self._size > READ_BYTES // 2

    def add(self, entry: Rows, start: int, stop: int, where: str) -> bool:
        """Add the rows of an entry from offset `start` to `stop`; returns whether all of them fitted.

        The first row always fits. So do rows with their payloads in one record: it is read as a whole. Raises Corrupt.
        """
        ids, metadata = entry.ids, entry.metadata
        at, end = start - entry.base, stop - entry.base
        for low, high in packed_runs(ids, metadata):
            if high <= at:
                continue
            if low >= end:
                break
            if not self._add_single(entry, at, low, where):
                return False
            at = max(at, low)
            high = min(high, end)
            size = sum([payload_length(about, where) for about in metadata[at:high]])
            if self._is_full(size, high - at):
                return False
            self._take(ids[at:high], metadata[at:high], size)
            self.packed.append((ids[low], ids[high - 1]))
            at = high
        return self._add_single(entry, at, end, where)

    def _add_single(self, entry: Rows, at: int, end: int, where: str) -> bool:
        for row in range(at, end):
            about = entry.metadata[row]
            size = payload_length(about, where)
            if self._is_full(size, 1):
                return False
            self._take(entry.ids[row : row + 1], [about], size)
            self.single.append(entry.ids[row])
        return True

    def _is_full(self, size: int, rows: int) -> bool:
        return bool(self.ids) and (self._size + size > READ_BYTES or len(self.ids) + rows > READ_ROWS)

    def _take(self, ids: list[int], metadata: list[bytes], size: int) -> None:
        self.ids += ids
        self.metadata += metadata
        self._size += size


def _id_of(key: bytes) -> int:
    """The message id in the key of a payload, or of several."""
    return int.from_bytes(key[len(PAYLOAD) :], "big")


def _near(places: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Groups of places that are near to each other: where the first place of each begins, and where the last does."""
    if not places:
        return
    first = begin = places[0][0]
    end = places[0][1]
    for place in places[1:]:
        if place[0] - end > _GAP:
            yield first, begin
            first = place[0]
        begin, end = place
    yield first, begin


MERGE_ROWS: Final = 256
"""Later messages extend a chunk of fewer, so that many small commits do not make many small chunks."""
_MESSAGE_BYTES: Final = 250
"""The memory of a message without its payload and properties."""


@final
class Chunk:
    """A run of one log's messages, with their ids."""

    __slots__ = ("base", "ids", "messages", "shelf", "size", "stack")

    def __init__(self, shelf: "Shelf", base: int, ids: list[int], messages: list[Message]) -> None:
        self.shelf = shelf
        self.stack: Stack | None = None
        self.base = base
        self.ids = ids
        self.messages = messages
        self.size = _size(messages)

    @property
    def next(self) -> int:
        return self.base + len(self.messages)

    def extend(self, ids: list[int], messages: list[Message]) -> None:
        """Append messages."""
        self.ids += ids
        self.messages += messages
        self._resize(self.size + _size(messages))

    def cut(self, stop: int) -> None:
        """Forget the messages from this offset on."""
        count = max(0, stop - self.base)
        del self.ids[count:], self.messages[count:]
        self._resize(_size(self.messages))

    def _resize(self, size: int) -> None:
        if self.stack is not None:
            self.stack.bytes += size - self.size
        self.size = size


@final
class Shelf:
    """The chunks of one log, in order; they may have gaps but no overlaps."""

    __slots__ = ("chunks", "stored")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.stored = 0
        """Messages below are in the store, so their chunks may be forgotten."""

    def find(self, offset: int) -> Chunk | None:
        """The chunk that has this offset."""
        at = bisect_right(self.chunks, offset, key=_base_of) - 1
        return self.chunks[at] if at >= 0 and offset < self.chunks[at].next else None

    def next_base(self, offset: int, otherwise: int) -> int:
        """The base of the next chunk behind this offset."""
        at = bisect_right(self.chunks, offset, key=_base_of)
        return self.chunks[at].base if at < len(self.chunks) else otherwise

    def add(self, chunk: Chunk, stack: "Stack") -> None:
        self.chunks.insert(bisect_right(self.chunks, chunk.base, key=_base_of), chunk)
        stack.add(chunk)

    def append(self, base: int, ids: list[int], messages: list[Message], stack: "Stack") -> None:
        """Append new messages."""
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last.next == base and last.stack is stack and len(last.messages) < MERGE_ROWS:
            last.extend(ids, messages)
            stack.trim()
        else:
            self.add(Chunk(self, base, ids, messages), stack)

    def drop_below(self, offset: int) -> None:
        """Forget chunks whose messages are all below this offset."""
        gone = 0
        while gone < len(self.chunks) and self.chunks[gone].next <= offset:
            _take_off(self.chunks[gone])
            gone += 1
        del self.chunks[:gone]

    def cut(self, offset: int) -> None:
        """Forget the messages from this offset on: they were not stored."""
        while self.chunks and self.chunks[-1].base >= offset:
            _take_off(self.chunks.pop())
        if self.chunks and self.chunks[-1].next > offset:
            self.chunks[-1].cut(offset)

    def forget(self, chunk: Chunk) -> None:
        at = bisect_right(self.chunks, chunk.base, key=_base_of) - 1
        del self.chunks[at]


@final
class Stack:
    """The chunks of all logs under one budget: the oldest, or the longest unused, goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.order: OrderedDict[Chunk, None] = OrderedDict()

    def add(self, chunk: Chunk) -> None:
        chunk.stack = self
        self.order[chunk] = None
        self.bytes += chunk.size
        self.trim()

    def touch(self, chunk: Chunk) -> None:
        self.order.move_to_end(chunk)

    def trim(self) -> None:
        """Forget chunks until the rest is within the budget, but no only copy, and never the last chunk."""
        while self.bytes > self.max_bytes and len(self.order) > 1:
            oldest = next(iter(self.order))
            if oldest.next > oldest.shelf.stored:
                return
            oldest.shelf.forget(oldest)
            _take_off(oldest)


def _take_off(chunk: Chunk) -> None:
    stack = chunk.stack
    if stack is not None:
        del stack.order[chunk]
        stack.bytes -= chunk.size
        chunk.stack = None


def _base_of(chunk: Chunk) -> int:
    return chunk.base


def _size(messages: list[Message]) -> int:
    payloads = sum([len(message.payload) + len(message.properties) for message in messages])
    return payloads + _MESSAGE_BYTES * len(messages)


_ROWS_PER_BATCH: Final = 8192
_NO_TIME: Final = -(1 << 63)


@final
class LogContext:
    """The parts that all logs of an engine share."""

    __slots__ = ("instance", "kept", "reader", "recent")

    def __init__(self, instance: str, reader: StoreReader, recent: Stack, kept: Stack) -> None:
        self.instance = instance
        self.reader = reader
        self.recent = recent
        """New messages."""
        self.kept = kept
        """Messages read from the store."""


@final
class ObjectLog(Log):
    """The messages and groups of one queue."""

    __slots__ = (
        "_context",
        "collected",
        "groups_by_name",
        "is_lent",
        "is_stored",
        "prefix",
        "shelf",
        "staged",
        "staged_groups",
        "stored",
    )

    def __init__(self, name: str, context: LogContext) -> None:
        self.name = name
        self.id = -1
        """-1 until a commit is staged for it."""
        self.is_stored = False
        self.is_lent = False
        """True if a stored or staged record says that other logs refer to its payloads."""
        self.collected = 0
        """The end of the messages that are being removed from the store."""
        self.prefix = b""
        self.first_offset = 0
        self.next_offset = 0
        self.stored = LogState(name, 0, 0, 0, _NO_TIME, 0)
        self.staged = self.stored
        self.groups_by_name: dict[str, ObjectGroup] = {}
        self.staged_groups: dict[str, ObjectGroup] = {}
        self.shelf = Shelf()
        self._context = context

    def identify(self, log_id: int) -> None:
        """Set the id of the log."""
        self.id = log_id
        self.prefix = entry_prefix(log_name(self._context.instance, log_id))

    def show(self, state: LogState) -> None:
        """Show a stored state to readers."""
        self.is_stored = True
        self.stored = state
        self.first_offset = state.first_offset
        self.next_offset = state.next_offset
        self.shelf.stored = state.next_offset
        self.shelf.drop_below(state.first_offset)
        self._context.recent.trim()

    def revert(self) -> None:
        """Forget the staged state."""
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
                found = self._context.reader.find(self.id, self.prefix, at, stop, timestamp_us)
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
        from headrace.storage.arrow import BATCH_BYTES, batch_of_messages

        stop = min(stop, self.next_offset)
        while start < stop:
            messages = self.read(start, min(stop - start, _ROWS_PER_BATCH), BATCH_BYTES)
            yield batch_of_messages(start, messages)
            start += len(messages)

    def staged_message(self, offset: int) -> tuple[int, Message] | None:
        """A message with its id, staged or stored; None if there is none. Raises Corrupt and Unavailable."""
        if not self.staged.first_offset <= offset < self.staged.next_offset:
            return None
        chunk = self._chunk(offset)
        return chunk.ids[offset - chunk.base], chunk.messages[offset - chunk.base]

    def staged_ids(self, start: int, stop: int) -> list[int]:
        """The ids of messages, staged or stored, and others for offsets without a message.

        Raises Corrupt and Unavailable.
        """
        found: list[int] = []
        at, end = max(start, self.staged.first_offset), min(stop, self.staged.next_offset)
        if at >= end:
            return [NO_MESSAGE | offset for offset in range(start, stop)]
        found += [NO_MESSAGE | offset for offset in range(start, at)]
        while at < end:
            chunk = self._chunk(at)
            ids = chunk.ids[at - chunk.base : end - chunk.base]
            found += ids
            at += len(ids)
        return found + [NO_MESSAGE | offset for offset in range(end, stop)]

    def _check(self, offset: int) -> None:
        if offset < self.first_offset:
            raise Truncated(f"{self.name}: offset {offset} is gone, the log starts at {self.first_offset}")

    def _chunk(self, offset: int) -> Chunk:
        """The messages around this offset, from memory or from the store."""
        chunk = self.shelf.find(offset)
        kept = self._context.kept
        if chunk is None:
            stop = self.shelf.next_base(offset, self.next_offset)
            try:
                ids, messages = self._context.reader.read(self.prefix, offset, stop)
            except Corrupt as error:
                raise Corrupt(f"{self.name!r}: {error.file}", error.position, error.what) from error
            chunk = Chunk(self.shelf, offset, ids, messages)
            self.shelf.add(chunk, kept)
        elif chunk.stack is kept:
            kept.touch(chunk)
        return chunk

"""One log of the local engine: the tail in memory, the segments on disk before it, and the reading of both.

Only the engine's owner thread uses a log. The flusher writes segments; upkeep tells the log the result.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from headrace.errors import Corrupt, HeadraceError, Truncated, Unavailable
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Log
from headrace.storage.group_state import GroupState, Transition
from headrace.storage.local.block import Block
from headrace.storage.local.checkpoint import LogEntry, Tail
from headrace.storage.local.encoding import decode_messages
from headrace.storage.local.files import encode_name
from headrace.storage.local.segment import BlockCache, Segment, segment_path

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_BYTES: Final = 160
"""The memory of a message object without its payload and properties."""

MERGE_ROWS: Final = 256
"""Runs of at least this many messages keep their encoded block, which goes to the segment unchanged. Smaller runs stay
messages and are encoded together, so that many small commits make large blocks."""


@final
@mypyc_attr(acyclic=True)
class Piece:
    """A run of the tail: messages, or rows of an encoded block."""

    __slots__ = ("base", "block", "messages", "next", "size", "start")

    def __init__(
        self, base: int, count: int, size: int, messages: list[Message], block: Block | None, start: int
    ) -> None:
        self.base = base
        self.next = base + count
        self.messages = messages
        self.block = block
        self.start = start
        self.size = size

    def shorten(self, first: int, least: int) -> int:
        """Forget the messages below `first` if there are at least `least`; returns the bytes freed.

        Otherwise settled messages fill most of the memory when there are many logs.
        """
        gone = first - self.base
        count = self.next - self.base
        if gone < least or self.block is not None:
            return 0
        freed = self.size * gone // count
        del self.messages[:gone]
        self.base = first
        self.size -= freed
        return freed

    def read(self, start: int, stop: int) -> list[Message]:
        """The messages with these offsets."""
        if self.block is None:
            if stop - start == 1:
                return [self.messages[start - self.base]]  # 100 instructions less than a slice
            return self.messages[start - self.base : stop - self.base]
        first = self.start - self.base
        return decode_messages(self.block, start + first, stop + first)


@final
class Memory:
    """The memory of all tails together."""

    __slots__ = ("tail_bytes",)

    def __init__(self) -> None:
        self.tail_bytes = 0


_SHORTENED_ROWS: Final = 8
_SMALL_BYTES: Final = 64 << 10


@final
class LocalGroup:
    """A group; `progress_seq` and `pending_seq` are the commits that its files held at the opening."""

    __slots__ = (
        "files_seq",
        "has_files",
        "has_pending_file",
        "id",
        "is_dirty",
        "is_shared",
        "log",
        "pending_seq",
        "progress_seq",
        "state",
    )

    def __init__(self, group_id: int, log: "LocalLog", state: GroupState, progress_seq: int, pending_seq: int) -> None:
        self.id = group_id
        self.log = log
        self.state = state
        self.progress_seq = progress_seq
        self.pending_seq = pending_seq
        self.files_seq = 0
        """The least commit that its files hold, for the checkpoint."""
        self.has_files = False
        self.has_pending_file = False
        self.is_dirty = False
        """True if it changed since the last checkpoint; the catalog sets it."""
        self.is_shared = False
        """True if its state is in the table of groups, where it then stays."""

    @property
    def directory(self) -> Path:
        return self.log.directory / "consumers" / encode_name(self.state.name)

    def replay(self, step: Transition, seq: int) -> None:
        """Make a step of the commit `seq`, as far as the files at the opening did not hold it."""
        if seq > self.progress_seq:
            self.state.apply_progress(step)
        if seq > self.pending_seq:
            self.state.apply_pending(step)


@final
class LocalLog(Log):
    """The messages and groups of one queue."""

    __slots__ = (
        "_cache",
        "_directory",
        "_memory",
        "_open_piece",
        "_pieces",
        "_single",
        "active",
        "batch",
        "damage",
        "dropped",
        "flushing",
        "group_files",
        "groups_by_name",
        "is_in_tails",
        "last_group",
        "loaded",
        "sealed",
        "sealed_lengths",
        "staged_next",
        "stored_bytes",
        "stored_first",
        "tail_bytes",
        "unloaded",
    )

    def __init__(self, name: str, root: Path, cache: BlockCache, memory: Memory) -> None:
        # Fields that every commit reads come first: thousands of logs do not fit into the cache.
        self.name = name
        self.first_offset = 0
        self.next_offset = 0
        self.stored_first = 0
        """The first offset after a crash: messages that were let go come back until a commit truncates them."""
        self.id = 0
        self.damage: HeadraceError | None = None
        self.staged_next = 0
        self.batch = 0
        """The number of its last batch: see batch.py."""
        self._single: Message | None = None
        """The tail, if it is one message. With one message in each of 1,000 queues this saves 1,800 of 19,200
        instructions a message: no list and no piece for each."""
        self._pieces: list[Piece] | None = None
        """The tail, if it is longer; made on first use."""
        self.tail_bytes = 0
        self._memory = memory
        self._open_piece: Piece | None = None
        """The last piece of the tail, if small appends extend it."""
        self.is_in_tails = False
        """True if the catalog counts it among the logs with a tail."""
        self.dropped = False
        self.flushing = 0
        """The number of pieces at the start of the tail that the flusher is writing."""
        self.last_group: LocalGroup | None = None
        """The group of the last step, while it exists; most logs have one group."""
        self.active: Segment | None = None
        self.unloaded: LogEntry | None = None
        """The checkpoint's entry until the segments are first used; it stays when they are damaged."""
        self.loaded: LogEntry | None = None
        """The checkpoint's entry from then on, until `check_segments` found that nothing is missing."""
        self.sealed: tuple[int, ...] = ()
        """Base offsets of the full segments; `sealed_lengths` has their lengths in bytes."""
        self.sealed_lengths: tuple[int, ...] = ()
        self.groups_by_name: dict[str, LocalGroup] | None = None
        self.stored_bytes = 0
        self._directory = root
        self._cache = cache

    def tail(self) -> list[Piece]:
        """The messages that are in no segment, the oldest first, as pieces: a single one becomes a piece."""
        pieces = self._pieces
        if pieces is None:
            pieces = self._pieces = []
        if self._single is not None:
            self._open_piece = Piece(self.next_offset - 1, 1, self.tail_bytes, [self._single], None, 0)
            self._single = None
            pieces.append(self._open_piece)
        return pieces

    @property
    def has_tail(self) -> bool:
        """True if any message is in no segment."""
        return self._single is not None or bool(self._pieces)

    @property
    def directory(self) -> Path:
        return self._directory / encode_name(self.name)

    @property
    def segments_directory(self) -> Path:
        return self.directory / "segments"

    @property
    def size_bytes(self) -> int:
        return self.stored_bytes + self.tail_bytes

    @property
    def groups(self) -> Mapping[str, GroupState]:
        if self.groups_by_name is None:
            return {}
        return {name: group.state for name, group in self.groups_by_name.items()}

    @property
    def exists(self) -> bool:
        return self.next_offset > 0 or bool(self.groups_by_name)

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        self._check(offset)
        stop = min(self.next_offset, offset + max_messages)
        if max_bytes == NO_LIMIT:
            return self._read_all(offset, stop)
        found: list[Message] = []
        while offset < stop and max_bytes >= 0:
            rows = self._rows(offset, stop)
            for message in rows:
                max_bytes -= len(message.payload) + len(message.properties)
                if max_bytes < 0 and found:
                    return found
                found.append(message)
            offset += len(rows)
        return found

    def single(self, offset: int) -> Message | None:
        return self._single if offset == self.next_offset - 1 and self.damage is None else None

    def _read_all(self, offset: int, stop: int) -> list[Message]:
        if offset >= stop:
            return []
        rows = self._rows(offset, stop)
        while offset + len(rows) < stop:
            rows += self._rows(offset + len(rows), stop)
        return rows

    def find(self, timestamp_us: int) -> int:
        self._check(self.first_offset)
        for base in [*self.sealed, -1]:
            segment = self.active if base < 0 else self._sealed_segment(base)
            if segment is None or not segment.times or segment.times[-1] < timestamp_us:
                continue
            found = self._find_in(segment, timestamp_us)
            if found >= 0:
                return found
        for piece in self.tail():
            for index, message in enumerate(piece.read(piece.base, piece.next)):
                if message.timestamp_us >= timestamp_us and piece.base + index >= self.first_offset:
                    return piece.base + index
        return self.next_offset

    def extents(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        stop = min(stop, self.next_offset)
        while start < stop:
            self._check(start)
            if self.tail() and start >= self.tail()[0].base:
                piece = self.tail()[bisect_right(self.tail(), start, key=_base_of) - 1]
                end = min(stop, piece.next)
                if piece.block is None:
                    yield from super().extents(start, end)
                else:
                    yield start, end, piece.size * (end - start) // (piece.next - piece.base)
            else:
                segment, number = self._place_of(start)
                end = min(stop, segment.stop(number))
                yield start, end, segment.extent(number)[1]
            start = end

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        from headrace.storage.arrow import BATCH_BYTES, batch_of_messages
        from headrace.storage.local.arrow import batch_of_block

        stop = min(stop, self.next_offset)
        while start < stop:
            self._check(start)  # for every batch: the log may be truncated between two of them
            if self.tail() and start >= self.tail()[0].base:
                piece = self.tail()[bisect_right(self.tail(), start, key=_base_of) - 1]
                end = min(stop, piece.next)
                if piece.block is None:
                    messages = self.read(start, end - start, BATCH_BYTES)
                    yield batch_of_messages(start, messages)
                    end = start + len(messages)
                else:
                    row = piece.start + start - piece.base
                    yield batch_of_block(piece.block, row, row + end - start, base=start)
            else:
                block = self._block(start)
                end = min(stop, block.next)
                yield batch_of_block(block, start - block.base, end - block.base)
            start = end

    def append_one(self, base: int, message: Message, size: int) -> None:
        """Append a written message of `size` bytes to the tail."""
        if self._single is not None or self._pieces:
            self.append(base, [message], size)
            return
        self._single = message
        self.next_offset = base + 1
        self._grow(size)

    def append(self, base: int, messages: list[Message], size: int) -> None:
        """Append a few messages; the log keeps the list."""
        tail = self.tail()
        piece = self._open_piece
        count = len(messages)
        self.next_offset = base + count
        self._grow(size)
        if piece is None:
            self._open_piece = Piece(base, count, size, messages, None, 0)
            tail.append(self._open_piece)
            return
        piece.messages += messages
        piece.next = base + count
        piece.size += size
        if len(piece.messages) >= MERGE_ROWS:
            self._open_piece = None

    def append_rows(self, base: int, block: Block, start: int, count: int) -> None:
        """Append many messages, as rows of an encoded block."""
        size = block.row_bytes * count
        self.tail().append(Piece(base, count, size, [], block, start))
        self._open_piece = None
        self.next_offset = base + count
        self._grow(size)

    def _grow(self, size: int) -> None:
        self.tail_bytes += size
        self._memory.tail_bytes += size

    def let_go(self, before: int) -> None:
        self.truncate(before)

    def cut(self, before: int) -> None:
        """Truncate the log for good: a commit says so."""
        self.stored_first = max(self.stored_first, min(before, self.next_offset))
        self.truncate(before)

    def truncate(self, before: int) -> None:
        """Forget messages below an offset. The engine removes files."""
        if self._single is not None and before >= self.next_offset and not self.flushing:
            self.first_offset = self.next_offset
            self._single = None
            self._grow(-self.tail_bytes)
            return
        self.first_offset = max(self.first_offset, min(before, self.next_offset))
        if self.flushing:
            return  # the flusher reads the tail; messages below go when it is done
        if not self.has_tail:
            return
        if self.first_offset == self.next_offset:
            self.drop_tail()
            return
        if self._single is not None:
            return
        gone = 0
        freed = 0
        for piece in self.tail():
            if piece.next > self.first_offset:
                break
            gone += 1
            freed += piece.size
        del self.tail()[:gone]
        piece = self.tail()[0]
        freed += piece.shorten(self.first_offset, max(_SHORTENED_ROWS, (piece.next - piece.base + 1) // 2))
        self._grow(-freed)

    def drop_tail(self) -> None:
        """Forget the tail."""
        self._grow(-self.tail_bytes)
        self._single = None
        self._pieces = None
        self._open_piece = None

    def forget_settled(self) -> None:
        """Free the memory of truncated messages."""
        pieces = self._pieces
        if pieces and not self.flushing:
            self._grow(-pieces[0].shorten(self.first_offset, 1))

    @property
    def has_segments(self) -> bool:
        """True if the log may have segments."""
        return self.active is not None or self.unloaded is not None or bool(self.sealed)

    @property
    def has_small_tail(self) -> bool:
        """True if the tail is not worth a file: making one takes as long as a few hundred messages."""
        return self.tail_bytes <= _SMALL_BYTES and not any([piece.block is not None for piece in self._pieces or ()])

    def copy_tail(self) -> Tail:
        """A copy of the tail without truncated messages."""
        base = max(self.first_offset, self.tail()[0].base)
        messages: list[Message] = []
        for piece in self.tail():
            if piece.next > base:
                messages += piece.read(max(base, piece.base), piece.next)
        return Tail(self.id, base, messages, self.tail_bytes)

    def begin_flush(self) -> list[Piece]:
        """The pieces of the tail to write to segments; later messages go to new pieces."""
        self.load()
        tail = self.tail()
        self._open_piece = None
        self.flushing = len(tail)
        return [piece for piece in tail if piece.next > self.first_offset]

    def flushed(self, pieces: int) -> None:
        """Remove the first pieces of the tail: they are in segments now."""
        self._grow(-sum(piece.size for piece in self.tail()[:pieces]))
        del self.tail()[:pieces]
        self.flushing = 0

    def load(self) -> None:
        """Read the list of segments on first use, so that opening a directory costs nothing for unused logs.

        Raises Unavailable, and changes nothing then.
        """
        entry = self.unloaded
        if entry is None or self.damage is not None:
            return
        self._cache.cut(self.segments_directory, entry.segment, entry.segment_length)
        files = self._cache.files(self.segments_directory)
        self.unloaded = None
        self.loaded = entry
        for base, path in files:
            if base != entry.segment:
                self.seal(base, path.stat().st_size)
                continue
            try:
                self.active = self._cache.scan(path, base, self.id, entry.segment_length)
            except Corrupt as error:
                self.damage = error
                self.unloaded = entry
            except Unavailable:
                self.sealed = self.sealed_lengths = ()
                self.unloaded = entry
                self.loaded = None
                raise

    def seal(self, base: int, length: int) -> None:
        """Note that the segment with this base is full."""
        self.sealed += (base,)
        self.sealed_lengths += (length,)

    def trim(self) -> list[Path]:
        """Forget segments without messages; returns the files to remove."""
        if self.flushing:
            return []
        try:
            self.load()
        except Unavailable:
            return []  # a later truncation removes them
        if self.damage is not None:
            return []
        # The active segment says where the last full one ends; without it, that stays until all messages are gone.
        end = self.active.base if self.active is not None else self.next_offset
        if self.sealed and self.stored_first < (self.sealed[1] if len(self.sealed) > 1 else end):
            return []
        bases = [*self.sealed[1:], end]
        empty = bisect_right(bases, self.stored_first, hi=len(self.sealed))
        gone = list(self.sealed[:empty])
        self.stored_bytes -= sum(self.sealed_lengths[:empty])
        self.sealed, self.sealed_lengths = self.sealed[empty:], self.sealed_lengths[empty:]
        if self.active is not None and self.active.bases and self.active.next <= self.stored_first:
            gone.append(self.active.base)
            self.stored_bytes -= self.active.length
            self.active = None
        for base in gone:
            self._cache.forget(self.id, base)
        return [segment_path(self.segments_directory, base) for base in gone]

    def _check(self, offset: int) -> None:
        self.load()
        if self.loaded is not None:
            self.check_segments(self.loaded)
        if self.damage is not None:
            raise self.damage
        if offset < self.first_offset:
            raise Truncated(f"{self.name}: offset {offset} is gone, the log starts at {self.first_offset}")

    def check_segments(self, entry: LogEntry) -> None:
        """Mark the log as damaged if the last segment of the checkpoint or the first needed one is missing."""
        self.loaded = None
        if self.damage is not None:
            return
        bases = [*self.sealed, *([self.active.base] if self.active is not None else [])]
        path = segment_path(self.segments_directory, entry.segment)
        lost = entry.segment
        if lost < 0 or lost in bases or self.first_offset >= self._base_behind(lost):
            path = self.segments_directory  # the first segment may begin with older messages: its name is unknown
            lost = self.first_offset
            if lost >= self._base_behind(-1):
                return
        what = f"the segment with the messages of {self.name!r} from offset {lost} on is missing"
        self.damage = Corrupt(str(path), 0, f"{what}; restore it from a copy")
        if self.active is None:
            self.unloaded = entry

    def _base_behind(self, base: int) -> int:
        """The first offset behind the segment with this base."""
        for sealed in self.sealed:
            if sealed > base:
                return sealed
        if self.active is not None and self.active.base > base:
            return self.active.base
        if self._single is not None:
            return self.next_offset - 1
        return self._pieces[0].base if self._pieces else self.next_offset

    def _rows(self, offset: int, stop: int) -> list[Message]:
        """Messages from `offset` on, from one piece of the tail or one block."""
        single = self._single
        if single is not None and offset == self.next_offset - 1:
            return [single]
        tail = self._pieces
        if tail and offset >= tail[0].base:
            piece = tail[-1]
            if offset < piece.base:
                piece = tail[bisect_right(tail, offset, key=_base_of) - 1]
            return piece.read(offset, min(stop, piece.next))
        block = self._block(offset)
        return decode_messages(block, offset - block.base, min(stop, block.next) - block.base)

    def _block(self, offset: int) -> Block:
        segment, number = self._place_of(offset)
        block = self._cache.block(self.id, segment, number)
        if not block.base <= offset < block.next:
            raise self._missing(offset)
        return block

    def _place_of(self, offset: int) -> tuple[Segment, int]:
        """The segment and the number of the last block that starts at or before this offset. Raises Corrupt."""
        segment = self.active
        if segment is None or offset < segment.base:
            at = bisect_right(self.sealed, offset) - 1
            if at < 0:
                raise self._missing(offset)
            segment = self._sealed_segment(self.sealed[at])
        number = segment.block_of(offset)
        if number < 0:
            raise self._missing(offset)
        return segment, number

    def _missing(self, offset: int) -> Corrupt:
        return Corrupt(str(self.segments_directory), 0, f"no segment of {self.name!r} holds offset {offset}")

    def _sealed_segment(self, base: int) -> Segment:
        segment = self._cache.segment(self.id, base)
        if segment is None:
            segment, fits = self._cache.load(segment_path(self.segments_directory, base), base, self.id)
            following = self._base_behind(base)
            if max(segment.next, self.first_offset) < following:
                try:  # a damaged header of the last block may say that it ends early
                    self._cache.block(self.id, segment, len(segment.bases) - 1)
                finally:
                    self._cache.forget(self.id, base)  # the next reader gets the error too
                what = f"the messages of {self.name!r} from offset {segment.next} to {following - 1} are missing"
                path = segment_path(self.segments_directory, segment.next) if fits else segment.path
                raise Corrupt(str(path), 0 if fits else segment.length, f"{what}; restore the segments from a copy")
        return segment

    def _find_in(self, segment: Segment, timestamp_us: int) -> int:
        for number in range(segment.block_at_time(timestamp_us), len(segment.bases)):
            block = self._cache.block(self.id, segment, number)
            if block.next <= self.first_offset or block.max_time_us < timestamp_us:
                continue
            for offset, time in enumerate(block.timestamps(), block.base):
                if time >= timestamp_us and offset >= self.first_offset:
                    return offset
        return -1


def _base_of(piece: Piece) -> int:
    return piece.base

"""One log of the local engine: a tail in memory, segments on disk behind it, and how both are read.

Only the engine's owner thread uses a log. Writing segments is the flusher's work; the engine tells the log what came
of it.
"""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from headrace.errors import Corrupt, HeadraceError, Truncated, Unavailable
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, Log
from headrace.storage.group_state import GroupState
from headrace.storage.local.block import Block
from headrace.storage.local.checkpoint import LogEntry, Tail
from headrace.storage.local.encoding import decode_messages
from headrace.storage.local.files import encode_name
from headrace.storage.local.segment import BlockCache, Segment, segment_path

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_BYTES: Final = 160
"""What a message object costs in memory besides its payload and properties."""

MERGE_ROWS: Final = 256
"""Runs of at least this many messages keep their encoded block, which goes to the segment as it is; smaller ones are
kept as messages and encoded together, so that many small commits still make large blocks."""


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
        """Forget messages below `first` if they are as many as that; returns how many bytes of memory that gives back.

        With many logs most of what is in memory would else be messages that everybody is done with.
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
        """The messages of these offsets."""
        if self.block is None:
            if stop - start == 1:
                return [self.messages[start - self.base]]  # a hundred instructions less than a slice
            return self.messages[start - self.base : stop - self.base]
        first = self.start - self.base
        return decode_messages(self.block, start + first, stop + first)


@final
class Memory:
    """How many bytes the tails of all logs take together."""

    __slots__ = ("tail_bytes",)

    def __init__(self) -> None:
        self.tail_bytes = 0


_SHORTENED_ROWS: Final = 8
_SMALL_BYTES: Final = 64 << 10


@final
class LocalGroup:
    """A group and how far its files are: `progress_seq` and `pending_seq` are what was stored when they were read."""

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
        """As of which commit its files are, at least; what the checkpoint says of them."""
        self.has_files = False
        self.has_pending_file = False
        self.is_dirty = False
        """Whether it is among those that changed since the last checkpoint: the catalog's to say."""
        self.is_shared = False
        """Whether its state is in the table of groups; it then stays there."""

    @property
    def directory(self) -> Path:
        return self.log.directory / "consumers" / encode_name(self.state.name)


@final
class LocalLog(Log):
    """The messages and groups of one queue."""

    __slots__ = (
        "_cache",
        "_directory",
        "_lone",
        "_memory",
        "_open_piece",
        "_pieces",
        "active",
        "batch",
        "damage",
        "dropped",
        "flushing",
        "group_files",
        "groups_by_name",
        "id",
        "is_in_tails",
        "last_group",
        "loaded",
        "sealed",
        "sealed_lengths",
        "staged_next",
        "stored_bytes",
        "tail_bytes",
        "unloaded",
    )

    def __init__(self, name: str, root: Path, cache: BlockCache, memory: Memory) -> None:
        # What every commit looks at comes first: with thousands of logs it is read from memory, line by line.
        self.name = name
        self.first_offset = 0
        self.next_offset = 0
        self.id = 0
        self.damage: HeadraceError | None = None
        self.staged_next = 0
        self.batch = 0
        """The number of the batch that it was last in: see batch.py."""
        self._lone: Message | None = None
        """The tail, if it is one message: with one in each of many queues it is nothing else, and a piece of its own
        would be made and thrown away for each."""
        self._pieces: list[Piece] | None = None
        """The tail, if it is more; made when it is needed."""
        self.tail_bytes = 0
        self._memory = memory
        self._open_piece: Piece | None = None
        """The last piece of the tail, while small appends go to it."""
        self.is_in_tails = False
        """Whether it is among those with a tail: the catalog's to say."""
        self.dropped = False
        self.flushing = 0
        """How many pieces at the start of the tail are being written to segments right now."""
        self.last_group: LocalGroup | None = None
        """The group that last made a step, as long as it is there; most logs have one."""
        self.active: Segment | None = None
        self.unloaded: LogEntry | None = None
        """What the checkpoint says of the segments, until they are first needed; it stays when they are damaged."""
        self.loaded: LogEntry | None = None
        """The same from then on, until it is known that nothing is missing: replaying the journal is done by then."""
        self.sealed: tuple[int, ...] = ()
        """Base offsets of the full segments; their lengths in bytes are in `sealed_lengths`."""
        self.sealed_lengths: tuple[int, ...] = ()
        self.groups_by_name: dict[str, LocalGroup] | None = None
        self.stored_bytes = 0
        self._directory = root
        self._cache = cache

    @property
    def tail(self) -> list[Piece]:
        """What is in memory and in no segment, the oldest first."""
        pieces = self._pieces
        if pieces is None:
            pieces = self._pieces = []
        if self._lone is not None:
            self._open_piece = Piece(self.next_offset - 1, 1, self.tail_bytes, [self._lone], None, 0)
            self._lone = None
            pieces.append(self._open_piece)
        return pieces

    @property
    def has_tail(self) -> bool:
        """Whether there is any of it."""
        return self._lone is not None or bool(self._pieces)

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

    def lone(self, offset: int) -> Message | None:
        return self._lone if offset == self.next_offset - 1 and self.damage is None else None

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
        for piece in self.tail:
            for index, message in enumerate(piece.read(piece.base, piece.next)):
                if message.timestamp_us >= timestamp_us and piece.base + index >= self.first_offset:
                    return piece.base + index
        return self.next_offset

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        from headrace.storage.arrow import batch_of_messages
        from headrace.storage.local.arrow import batch_of_block

        stop = min(stop, self.next_offset)
        while start < stop:
            self._check(start)  # again for every batch: the log may be shortened between two of them
            if self.tail and start >= self.tail[0].base:
                piece = self.tail[bisect_right(self.tail, start, key=_base_of) - 1]
                end = min(stop, piece.next)
                if piece.block is None:
                    yield batch_of_messages(start, piece.read(start, end))
                else:
                    row = piece.start + start - piece.base
                    yield batch_of_block(piece.block, row, row + end - start, base=start)
            else:
                block = self._block(start)
                end = min(stop, block.next)
                yield batch_of_block(block, start - block.base, end - block.base)
            start = end

    def append_one(self, base: int, message: Message, size: int) -> None:
        """Add a committed message to the tail, which takes `size` bytes of memory."""
        if self.has_tail:
            self.append(base, [message], size)
            return
        self._lone = message
        self.next_offset = base + 1
        self._grow(size)

    def append(self, base: int, messages: list[Message], size: int) -> None:
        """The same for a few; the list becomes the tail's own."""
        tail = self.tail
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
        """Add many, as rows of an encoded block."""
        size = block.row_bytes * count
        self.tail.append(Piece(base, count, size, [], block, start))
        self._open_piece = None
        self.next_offset = base + count
        self._grow(size)

    def _grow(self, size: int) -> None:
        self.tail_bytes += size
        self._memory.tail_bytes += size

    def let_go(self, before: int) -> None:
        self.truncate(before)

    def truncate(self, before: int) -> None:
        """Forget what is below. Files are the engine's to remove."""
        if self._lone is not None and before >= self.next_offset and not self.flushing:
            self.first_offset = self.next_offset
            self._lone = None
            self._grow(-self.tail_bytes)
            return
        self.first_offset = max(self.first_offset, min(before, self.next_offset))
        if self.flushing:
            return  # the flusher reads the tail; what is below goes when it is done
        if not self.has_tail:
            return
        if self.first_offset == self.next_offset:
            self.drop_tail()
            return
        if self._lone is not None:
            return
        gone = 0
        freed = 0
        for piece in self.tail:
            if piece.next > self.first_offset:
                break
            gone += 1
            freed += piece.size
        del self.tail[:gone]
        piece = self.tail[0]
        freed += piece.shorten(self.first_offset, max(_SHORTENED_ROWS, (piece.next - piece.base + 1) // 2))
        self._grow(-freed)

    def drop_tail(self) -> None:
        """Forget what is in memory."""
        self._grow(-self.tail_bytes)
        self._lone = None
        self._pieces = None
        self._open_piece = None

    def forget_settled(self) -> None:
        """Let go of every message in memory that is truncated."""
        pieces = self._pieces
        if pieces and not self.flushing:
            self._grow(-pieces[0].shorten(self.first_offset, 1))

    @property
    def has_segments(self) -> bool:
        """Whether there may be any."""
        return self.active is not None or self.unloaded is not None or bool(self.sealed)

    @property
    def has_small_tail(self) -> bool:
        """Whether what is in memory is hardly worth a file: making one takes as long as a few hundred messages do."""
        return self.tail_bytes <= _SMALL_BYTES and not any([piece.block is not None for piece in self._pieces or ()])

    def copy_tail(self) -> Tail:
        """What is in memory and not truncated; the tail goes on as it is."""
        base = max(self.first_offset, self.tail[0].base)
        messages: list[Message] = []
        for piece in self.tail:
            if piece.next > base:
                messages += piece.read(max(base, piece.base), piece.next)
        return Tail(self.id, base, messages, self.tail_bytes)

    def begin_flush(self) -> list[Piece]:
        """What of the tail has to go to segments; nothing is added to it any more."""
        self.load()
        tail = self.tail
        self._open_piece = None
        self.flushing = len(tail)
        return [piece for piece in tail if piece.next > self.first_offset]

    def flushed(self, pieces: int) -> None:
        """The first pieces of the tail are in segments now."""
        self._grow(-sum(piece.size for piece in self.tail[:pieces]))
        del self.tail[:pieces]
        self.flushing = 0

    def load(self) -> None:
        """Learn the segments from the disk, on first use: opening a directory costs nothing for logs nobody touches.

        Raises Unavailable, and knows nothing of them then.
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
        """The segment that begins there is full."""
        self.sealed += (base,)
        self.sealed_lengths += (length,)

    def trim(self) -> list[Path]:
        """Let go of segments in which nothing is left; returns the files to remove."""
        if self.flushing:
            return []
        try:
            self.load()
        except Unavailable:
            return []  # they go another time
        if self.damage is not None:
            return []
        # Where the last full segment ends is known from the active one; without that it stays until all is gone.
        end = self.active.base if self.active is not None else self.next_offset
        if self.sealed and self.first_offset < (self.sealed[1] if len(self.sealed) > 1 else end):
            return []
        bases = [*self.sealed[1:], end]
        empty = bisect_right(bases, self.first_offset, hi=len(self.sealed))
        gone = list(self.sealed[:empty])
        self.stored_bytes -= sum(self.sealed_lengths[:empty])
        self.sealed, self.sealed_lengths = self.sealed[empty:], self.sealed_lengths[empty:]
        if self.active is not None and self.active.bases and self.active.next <= self.first_offset:
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
        """Find out whether a segment is missing: the last one that the checkpoint names, or the first one needed."""
        self.loaded = None
        if self.damage is not None:
            return
        bases = [*self.sealed, *([self.active.base] if self.active is not None else [])]
        path = segment_path(self.segments_directory, entry.segment)
        lost = entry.segment
        if lost < 0 or lost in bases or self.first_offset >= self._base_behind(lost):
            path = self.segments_directory  # the name of the first one is not known, it may begin with older messages
            lost = self.first_offset
            if lost >= self._base_behind(-1):
                return
        what = f"the segment with the messages of {self.name!r} from offset {lost} on is missing"
        self.damage = Corrupt(str(path), 0, f"{what}; restore it from a copy")
        if self.active is None:
            self.unloaded = entry

    def _base_behind(self, base: int) -> int:
        """Where the messages begin that come behind those of the segment with this base."""
        for sealed in self.sealed:
            if sealed > base:
                return sealed
        if self.active is not None and self.active.base > base:
            return self.active.base
        if self._lone is not None:
            return self.next_offset - 1
        return self._pieces[0].base if self._pieces else self.next_offset

    def _rows(self, offset: int, stop: int) -> list[Message]:
        """Messages from `offset` on, from one piece of the tail or one block."""
        lone = self._lone
        if lone is not None and offset == self.next_offset - 1:
            return [lone]
        tail = self._pieces
        if tail and offset >= tail[0].base:
            piece = tail[-1]
            if offset < piece.base:
                piece = tail[bisect_right(tail, offset, key=_base_of) - 1]
            return piece.read(offset, min(stop, piece.next))
        block = self._block(offset)
        return decode_messages(block, offset - block.base, min(stop, block.next) - block.base)

    def _block(self, offset: int) -> Block:
        segment = self.active
        if segment is None or offset < segment.base:
            at = bisect_right(self.sealed, offset) - 1
            if at < 0:
                raise self._missing(offset)
            segment = self._sealed_segment(self.sealed[at])
        number = segment.block_of(offset)
        if number < 0:
            raise self._missing(offset)
        block = self._cache.block(self.id, segment, number)
        if not block.base <= offset < block.next:
            raise self._missing(offset)
        return block

    def _missing(self, offset: int) -> Corrupt:
        return Corrupt(str(self.segments_directory), 0, f"no segment of {self.name!r} holds offset {offset}")

    def _sealed_segment(self, base: int) -> Segment:
        segment = self._cache.segment(self.id, base)
        if segment is None:
            segment, fits = self._cache.load(segment_path(self.segments_directory, base), base, self.id)
            following = self._base_behind(base)
            if max(segment.next, self.first_offset) < following:
                self._cache.forget(self.id, base)  # whoever asks next is told as well
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

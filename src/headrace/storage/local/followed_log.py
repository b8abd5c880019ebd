"""One log as a Follower knows it: which offsets the checkpoint has in segments, and where the rest is. No files."""

from typing import Final, final

from headrace.storage.local.block import BlockHead
from headrace.storage.local.checkpoint import LogEntry
from headrace.storage.local.record import Record
from headrace.storage.local.spans import BLOCK, JOURNAL, Span

STRETCH_BYTES: Final = 256 << 10
"""Records that stand next to each other in the journal are one stretch up to this size."""


@final
class Stretch:
    """Records of the journal that stand next to each other and all append to one log, or one block of a large one."""

    __slots__ = ("base", "end", "kind", "max_time_us", "next", "path", "proof", "start")

    def __init__(
        self, kind: str, path: str, start: int, end: int, proof: int, base: int, stop: int, max_time_us: int
    ) -> None:
        self.kind = kind
        self.path = path
        self.start = start
        self.end = end
        self.proof = proof
        self.base = base
        self.next = stop
        self.max_time_us = max_time_us

    def span(self, start: int, stop: int) -> Span:
        """As much of it as these offsets need."""
        return self.kind, self.path, self.start, self.end, max(start, self.base), min(stop, self.next), self.proof


@final
class FollowedLog:
    """One log: what the checkpoint says of it, and what the journal added."""

    __slots__ = ("entry", "first", "id", "name", "next", "stored_next", "stretches")

    def __init__(self, log_id: int, name: str, entry: LogEntry | None) -> None:
        self.id = log_id
        self.name = name
        self.entry = entry
        self.first = entry.first if entry is not None else 0
        self.next = entry.next if entry is not None else 0
        self.stored_next = self.next
        """Behind the last message that is in segments, as far as the checkpoint says."""
        self.stretches: list[Stretch] = []

    def add_record(self, path: str, at: int, record: Record, base: int, stop: int) -> None:
        """The record at this position appends these offsets, in its only block."""
        end = at + record.length
        max_time_us = record.heads[0].max_time_us
        last = self.stretches[-1] if self.stretches else None
        is_next = last is not None and last.kind == JOURNAL and last.path == path and last.end == at
        if last is not None and is_next and end - last.start <= STRETCH_BYTES:
            last.end = end
            last.next = stop
            last.max_time_us = max(last.max_time_us, max_time_us)
        else:
            self.stretches.append(Stretch(JOURNAL, path, at, end, record.seq, base, stop, max_time_us))
        self.next = stop

    def add_block(self, path: str, at: int, head: BlockHead, base: int, stop: int) -> None:
        """The block at this position, one of several of its record, holds these offsets."""
        self.stretches.append(Stretch(BLOCK, path, at, at + head.length, head.crc, base, stop, head.max_time_us))
        self.next = stop

    def truncate(self, offset: int) -> None:
        """What is below this offset is gone."""
        self.first = max(self.first, min(offset, self.next))
        self.stretches = [stretch for stretch in self.stretches if stretch.next > self.first]

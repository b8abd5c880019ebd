"""The journal of a directory that a broker may write to, read on as far as it has come. No logs: see follower.py."""

from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.block import HEADER_BYTES as BLOCK_HEADER_BYTES
from headrace.storage.local.block import decode_block, decode_head
from headrace.storage.local.disk import Disk
from headrace.storage.local.journal import HEADER_BYTES, PAGE, Position, decode_header
from headrace.storage.local.record import HEADER_BYTES as RECORD_HEADER_BYTES
from headrace.storage.local.record import (
    Record,
    blocks_length,
    check_version,
    decode_outline,
    decode_record,
    record_length,
    record_seq,
)

_OUTLINE_BYTES: Final = 64 << 10
"""Records that are larger than this are not read whole where that can be avoided."""


@final
class Found:
    """A record, and where it stands: the position counts up to the record before it."""

    __slots__ = ("path", "position", "record")

    def __init__(self, record: Record, path: str, position: Position) -> None:
        self.record = record
        self.path = path
        self.position = position


@final
class FollowedJournal:
    """The files of a journal, and how far they have been read."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self._files: dict[str, int] = {}
        self._listed_ns = -1
        self._synced_seq = 0
        self.position = Position(0, 0, PAGE)
        """Behind the last whole record that was taken in."""

    def close(self) -> None:
        for fd in self._files.values():
            self._disk.close(fd)
        self._files.clear()

    def begin(self, position: Position) -> None:
        """Read on from here, where a checkpoint was: all before it is synced."""
        self.position = position
        self._synced_seq = position.seq

    def find_next(self) -> Found | None:
        """The next record, if it is there and whole; a file's end leads to the next file."""
        self._list_files()
        position = self.position
        path = self._file_of(position.index)
        record = self._read(path, position) if path else None
        if record is None:
            position = Position(position.seq, position.index + 1, PAGE)
            path = self._file_of(position.index)
            record = self._read(path, position) if path else None
        return Found(record, path, position) if record is not None else None

    def take(self, found: Found) -> None:
        """The record was taken in: those behind it are next."""
        record, position = found.record, found.position
        self.position = Position(record.seq, position.index, position.at + record.length)
        self._synced_seq = max(self._synced_seq, record.synced)

    def sync(self) -> None:
        """What was read may be in the operating system's memory only: have it on the disk before it is shown."""
        if self.position.seq > self._synced_seq:
            path = self._file_of(self.position.index)
            if path:
                self._disk.sync(self._files[path])
            self._synced_seq = self.position.seq

    def _read(self, path: str, position: Position) -> Record | None:
        fd = self._files[path]
        head = self._disk.read(fd, position.at, RECORD_HEADER_BYTES)
        length = record_length(head)
        if not length or record_seq(head, 0) != position.seq + 1:
            return None
        if length > _OUTLINE_BYTES:
            # A record is written from its start to its end, and the next one then: what is followed by another, or ends
            # in a whole block, is there. Whoever reads its messages verifies each of them.
            is_followed = self._has_record(fd, position.at + length, position.index, position.seq + 2)
            return self._outline(fd, position.at, head, length, is_followed)
        data = self._disk.read(fd, position.at, length)
        record = decode_record(data, 0)
        if record is None:
            check_version(data, 0, path)
        return record

    def _has_record(self, fd: int, at: int, index: int, seq: int) -> bool:
        """Whether the record with this number begins there, or in the next file where this one ends there."""
        head = self._disk.read(fd, at, RECORD_HEADER_BYTES)
        if not record_length(head):
            path = self._file_of(index + 1)
            head = self._disk.read(self._files[path], PAGE, RECORD_HEADER_BYTES) if path else b""
        return len(head) == RECORD_HEADER_BYTES and record_seq(head, 0) == seq

    def _outline(self, fd: int, at: int, head: bytes, length: int, is_followed: bool) -> Record | None:
        """What a record appends where, without the messages; None when its end is not there yet."""
        before = length - blocks_length(head)
        data = self._disk.read(fd, at, before)
        headers: list[bytes] = []
        position = at + before
        while position < at + length:
            headers.append(self._disk.read(fd, position, BLOCK_HEADER_BYTES))
            try:
                found = decode_head(headers[-1], "", position).length
                if not is_followed and position + found >= at + length:
                    body = self._disk.read(fd, position + BLOCK_HEADER_BYTES, found - BLOCK_HEADER_BYTES)
                    decode_block(headers[-1], body, "", position)
            except Corrupt:
                return None
            position += found
        return decode_outline(data, headers, length)

    def _file_of(self, index: int) -> str:
        """The path of the journal file with this index, "" when there is none."""
        if index:
            for path, fd in self._files.items():
                if decode_header(self._disk.read(fd, 0, HEADER_BYTES), Path(path))[0] == index:
                    return path
        return ""

    def _list_files(self) -> None:
        """Have all journal files open. They are few and used again; new ones show in the directory's time."""
        changed_ns = self._directory.stat().st_mtime_ns
        if changed_ns == self._listed_ns:
            return
        self.close()
        for path in sorted(self._directory.glob("*.jnl")):
            try:
                self._files[str(path)] = self._disk.open_to_read(path)
            except FileNotFoundError:
                continue
        self._listed_ns = changed_ns

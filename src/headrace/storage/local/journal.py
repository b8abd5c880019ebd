"""The journal: records appended to a ring of preallocated, recycled files, one write and one sync each. No decisions.

A journal file, little-endian; its name says nothing, its header says where in the ring's history it stands:

       0  4  magic "HRJF"
       4  4  crc32 of bytes 8 to 32
       8  4  version 1
      12  4  zero
      16  8  index: 1 for the first journal file ever, then counting up
      24  8  sequence number of the first record in the file
      32     zeros up to 4096
    4096     records (see record.py), one behind the other; then zeros, or what an earlier use left

Files are filled with zeros when made and overwritten later: syncing over written blocks took 0.10 ms here against
0.15 ms for growing a file, because no metadata changes. Every write covers whole pages (the bytes already in the first
page are written again), so a recycled page never has to be read back from the disk.
"""

import errno
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.block import Block
from headrace.storage.local.disk import Disk, is_full
from headrace.storage.local.record import MAGIC as RECORD_MAGIC
from headrace.storage.local.record import Record, Run, check_version, decode_record, encode_record, record_seq

MAGIC: Final = b"HRJF"
VERSION: Final = 1
PAGE: Final = 4096
_CHECKED: Final = struct.Struct("<IIQQ")
_HEADER: Final = struct.Struct("<4sIIIQQ")
_ZEROS: Final = bytes(1 << 20)
_MAX_AHEAD: Final = 1 << 24
"""More records than the journal can hold. A directory's first sequence number is random, so that no publisher can write
a payload which, left behind in a recycled file, would be taken for a record that proves others missing."""


@final
class JournalFile:
    """One file of the ring: where it is and, when it is in use, its place in history."""

    __slots__ = ("first_seq", "index", "path", "size")

    def __init__(self, path: Path, size: int, index: int = 0, first_seq: int = 0) -> None:
        self.path = path
        self.size = size
        self.index = index
        self.first_seq = first_seq


@final
class Position:
    """A place in the journal: behind the record with sequence number `seq`."""

    __slots__ = ("at", "index", "seq")

    def __init__(self, seq: int, index: int, at: int) -> None:
        self.seq = seq
        self.index = index
        self.at = at


@final
class Journal:
    """The writing end, used by the writer thread; `recycle` and `prepare` may be called from others."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_bytes: int,
        max_spares: int,
        files: list[JournalFile],
        end: Position,
    ) -> None:
        """Go on writing at `end`, which lies in the newest of the files or, with no files, nowhere."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._max_spares = max_spares
        self._naming = Lock()
        self._fd = -1
        self._file: JournalFile | None = None
        self._index = end.index
        self._at = end.at
        self._carry = b""
        self._unsynced = False
        self._reserve: JournalFile | None = None
        self._on_reserve = False
        self._spares: deque[JournalFile] = deque()
        self._used: deque[JournalFile] = deque()
        self._slots = {file.path.name for file in files}
        self.synced_seq = end.seq
        for file in sorted(files, key=lambda file: file.index):
            if 0 < file.index <= end.index:
                self._used.append(file)
            elif self._reserve is None and file.size == file_bytes:
                self._reserve = file
            else:
                self._spares.append(file)
        if self._used and self._used[-1].index == end.index:
            self._resume(self._used[-1])

    @property
    def unsynced(self) -> bool:
        """Whether a record was written and not synced yet."""
        return self._unsynced

    @property
    def needs_spare(self) -> bool:
        """Whether it is time to prepare a file for the next change of files."""
        half_full = self._file is None or self._at > self._file.size // 2
        return self._reserve is None or (half_full and not self._spares)

    def write(self, seq: int, operations: bytes, runs: list[Run], block: Block | None, synced: bool) -> Position:
        """Append one record; with `synced`, return when it and all before it would survive a power loss.

        An OSError leaves the journal where it was: the next record goes to the same place.
        """
        parts = encode_record(seq, self.synced_seq, operations, runs, block)
        length = sum(map(len, parts))
        if self._file is None or self._at + length > self._file.size:
            self._roll(seq, length, block is None)
        elif self._on_reserve and block is not None:
            raise OSError(errno.ENOSPC, "the journal's last file is kept for settlements", str(self._directory))
        end = self._at + length
        self._put([self._carry, *parts, _ZEROS[: -end % PAGE]], self._at - len(self._carry), synced)
        self._carry = _tail(self._carry, parts, end % PAGE)
        self._at = end
        if synced:
            self.synced_seq = seq
        else:
            self._unsynced = True
        return Position(seq, self._index, end)

    def sync(self, seq: int) -> None:
        """Sync what was written without; `seq` is the last record written."""
        if self._unsynced:
            self._disk.sync(self._fd)
            self._unsynced = False
            self.synced_seq = seq

    def recycle(self, before_index: int) -> None:
        """Free the files older than this one: nothing in them is needed any more."""
        while self._used and self._used[0].index < before_index:
            file = self._used.popleft()
            if self._reserve is None and file.size == self._file_bytes:
                self._reserve = file
            elif len(self._spares) < self._max_spares and file.size == self._file_bytes:
                self._spares.append(file)
            else:
                self._disk.unlink(file.path)
                self._slots.discard(file.path.name)

    def prepare(self) -> None:
        """Make a spare file ready, so that the next change of files does not have to wait for one."""
        if self._reserve is None:
            self._reserve = self._create(self._file_bytes)
        if not self._spares:
            self._spares.append(self._create(self._file_bytes))

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _put(self, buffers: list[bytes], page: int, synced: bool) -> None:
        if synced and not self._unsynced:
            self._disk.write_synced(self._fd, buffers, page)
            return
        self._disk.write(self._fd, buffers, page)
        if synced:
            self._disk.sync(self._fd)
            self._unsynced = False

    def _roll(self, seq: int, length: int, may_use_reserve: bool) -> None:
        """Turn to a free file that can hold a record of this length."""
        self.sync(seq - 1)
        file = self._take_spare(PAGE + length, may_use_reserve)
        self._on_reserve = file is self._reserve
        if self._on_reserve:
            self._reserve = None
        fd = self._disk.open(file.path)
        self.close()
        self._fd = fd
        self._file = file
        self._index += 1
        file.index = self._index
        file.first_seq = seq
        self._used.append(file)
        self._at = PAGE
        self._carry = encode_header(self._index, seq)

    def _take_spare(self, length: int, may_use_reserve: bool) -> JournalFile:
        for _ in range(len(self._spares)):
            file = self._spares.popleft()
            if file.size >= length:
                return file
            self._spares.append(file)
        try:
            return self._create(max(self._file_bytes, -(-length // PAGE) * PAGE))
        except OSError as error:
            # Settling messages is what frees space on a full disk, so there is always a file left for that.
            reserve = self._reserve
            if not is_full(error) or not may_use_reserve or reserve is None or reserve.size < length:
                raise
            return reserve

    def _create(self, size: int) -> JournalFile:
        with self._naming:
            number = 0
            while f"{number:04d}.jnl" in self._slots:
                number += 1
            path = self._directory / f"{number:04d}.jnl"
            self._slots.add(path.name)
        fd = self._disk.open(path, create=True)
        try:
            for at in range(0, size, len(_ZEROS)):
                self._disk.write(fd, [_ZEROS[: size - at]], at)
            self._disk.sync(fd)
            self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.unlink(path)
            self._slots.discard(path.name)
            raise
        finally:
            self._disk.close(fd)
        return JournalFile(path, size)

    def _resume(self, file: JournalFile) -> None:
        self._file = file
        self._fd = self._disk.open(file.path)
        page = self._at - self._at % PAGE
        self._carry = self._disk.read(self._fd, page, self._at - page)


def _tail(carry: bytes, parts: list[bytes], length: int) -> bytes:
    """The last `length` bytes of what was written: the start of the page that the next write begins in."""
    if len(parts[-1]) >= length:
        return parts[-1][len(parts[-1]) - length :]
    written = b"".join([carry, *parts])
    return written[len(written) - length :]


def encode_header(index: int, first_seq: int) -> bytes:
    checked = _CHECKED.pack(VERSION, 0, index, first_seq)
    header = MAGIC + zlib.crc32(checked).to_bytes(4, "little") + checked
    return header + bytes(PAGE - len(header))


def read_files(disk: Disk, directory: Path) -> list[JournalFile]:
    """All journal files of a directory. Raises Corrupt when the version of one is not known."""
    return [read_file(disk, path) for path in sorted(directory.glob("*.jnl"))]


def read_file(disk: Disk, path: Path) -> JournalFile:
    """One journal file; when its header is not valid it has index 0. Raises Corrupt when its version is not known."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        header = disk.read(fd, 0, _HEADER.size)
    finally:
        disk.close(fd)
    return JournalFile(path, size, *_decode_header(header, path))


def _decode_header(header: bytes, path: Path) -> tuple[int, int]:
    if len(header) < _HEADER.size:
        return 0, 0
    magic, crc, version, _, index, first_seq = _HEADER.unpack(header)
    if magic != MAGIC or zlib.crc32(header[8:]) != crc:
        return 0, 0
    if version != VERSION:
        raise Corrupt(str(path), 8, f"journal version {version} is not known to this release; use a newer one")
    return index, first_seq


@final
class JournalReader:
    """Reads the journal from a position on and changes nothing.

    After the last record, `end` and `torn` say where and how it ended, and `headless` which files it went on in
    although their headers are damaged: those have to be mended before the journal is written to.
    """

    def __init__(self, disk: Disk, files: list[JournalFile], start: Position) -> None:
        self._disk = disk
        self._files = files
        self.end = start
        self.headless: list[JournalFile] = []
        self.torn = False
        """Whether something that was never finished stands behind the last whole record."""

    def records(self) -> Iterator[Record]:
        """Every record behind the start, in order.

        Raises Corrupt when a record is damaged or missing that is known to have been synced: that is never the
        trace of a crash.
        """
        # The start may lie in no file at all: before the first one, or behind the last record of one that is damaged.
        data: bytes | None = self._open(self.end.index, self.end.at) or b""
        while data is not None:
            at = self.end.at
            while (record := decode_record(data, at)) is not None and record.seq == self.end.seq + 1:
                at += record.length
                self.end = Position(record.seq, self.end.index, at)
                yield record
            if record_seq(data, at) == self.end.seq + 1:
                check_version(data, at, self._where()[0])
            data = self._open(self.end.index + 1, PAGE)
            if data is not None:
                self.end = Position(self.end.seq, self.end.index + 1, PAGE)
        self._check_end()

    def _open(self, index: int, at: int) -> bytes | None:
        """The bytes of the file that goes on at this place, or None when there is none."""
        if index == 0:
            return None
        for file in self._files:
            if file.index == index:
                return self._read(file) if at > PAGE or file.first_seq == self.end.seq + 1 else None
        # A file whose header was damaged, or torn by a crash, still goes on if the very next record stands there.
        for file in self._files:
            if file.index == 0:
                data = self._read(file)
                record = decode_record(data, at)
                if record is not None and record.seq == self.end.seq + 1:
                    file.index = index
                    file.first_seq = record.seq
                    self.headless.append(file)
                    return data
        return None

    def _check_end(self) -> None:
        """Nothing behind the end may prove that something is missing."""
        expected = self.end.seq + 1
        for file in self._files:
            if 0 < file.index < self.end.index:
                continue
            current = file.index == self.end.index and file.index > 0
            start = self.end.at if current else PAGE
            data = self._read(file)
            for record in _scan(data, start, expected):
                self.torn = True
                if record.synced >= expected:
                    where, position = self._where()
                    raise Corrupt(
                        where,
                        position,
                        f"the journal's record {expected} cannot be read, but record {record.seq} behind it proves "
                        f"that it was stored; restore the file from a copy (stored commits are never cut away)",
                    )
            if current and data[start : start + 4] == RECORD_MAGIC:
                self.torn = self.torn or expected <= record_seq(data, start) < expected + _MAX_AHEAD

    def _where(self) -> tuple[str, int]:
        for file in self._files:
            if file.index == self.end.index and file.index:
                return str(file.path), self.end.at
        return str(self._files[0].path.parent), 0

    def _read(self, file: JournalFile) -> bytes:
        fd = self._disk.open(file.path)
        try:
            return self._disk.read(fd, 0, file.size)
        finally:
            self._disk.close(fd)


def _scan(data: bytes, start: int, least_seq: int) -> Iterator[Record]:
    """Every whole record that could come after the one before `least_seq`, wherever in these bytes it stands."""
    at = data.find(RECORD_MAGIC, start)
    while at >= 0:
        if at % 8 == 0 and least_seq <= record_seq(data, at) < least_seq + _MAX_AHEAD:
            record = decode_record(data, at)
            if record is not None:
                yield record
        at = data.find(RECORD_MAGIC, at + 4)


def mend_headers(disk: Disk, files: list[JournalFile]) -> None:
    """Write the headers of these files anew, durably."""
    for file in files:
        fd = disk.open(file.path)
        try:
            disk.write_synced(fd, [encode_header(file.index, file.first_seq)], 0)
        finally:
            disk.close(fd)


def wipe_behind(disk: Disk, files: list[JournalFile], end: Position) -> None:
    """Overwrite with zeros what stands behind the end, so that it can never be taken for records again."""
    for file in files:
        if 0 < file.index < end.index:
            continue
        current = file.index == end.index and file.index > 0
        fd = disk.open(file.path)
        try:
            for at in range(end.at if current else 0, file.size, len(_ZEROS)):
                disk.write(fd, [_ZEROS[: file.size - at]], at)
            disk.sync(fd)
        finally:
            disk.close(fd)
        if not current:
            file.index = 0

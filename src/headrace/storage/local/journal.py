"""The journal: records in a ring of preallocated, recycled files; writing, syncing and reading them. No decisions.

A journal file, little-endian. Its header says which place in the ring's history it has, its name says nothing:

       0  4  magic "HRJF"
       4  4  crc32 of bytes 8 to 32
       8  4  version 1
      12  4  zero
      16  8  index: 1 for the first journal file ever, then counting up
      24  8  sequence number of the first record in the file
      32     zeros up to 4096
    4096     records (see record.py) in a row; then zeros, or the remains of an earlier use

New files are filled with zeros and overwritten later: syncing over written blocks took 0.10 ms, growing a file
0.15 ms, because no metadata changes. Every write covers whole pages (the bytes already in the first
page are written again), so a recycled page never has to be read back from the disk.

A file is begun in three steps, each synced: its header, the statement in journal/newest, the first record. So a file
that was begun and cannot be found is lost.

journal/newest, little-endian, 8192 bytes. Files with even index have their statement at byte 0, odd ones at byte 4096;
a write torn by a power loss leaves the statement before it:

     0  4  magic "HRJN"
     4  4  crc32 of bytes 8 to 40
     8  4  version 1
    12  4  number of the file: 3 for 0003.jnl
    16  8  index of the file, as in its header
    24  8  sequence number of the first record in it
    32  8  length of the file in bytes

So the file that it names must exist, and all records before that file were synced.
"""

import errno
import struct
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.block import Block
from headrace.storage.local.disk import Disk, is_full, opened, opened_to_read
from headrace.storage.local.files import crc32
from headrace.storage.local.record import HEADER_BYTES as RECORD_HEADER_BYTES
from headrace.storage.local.record import MAGIC as RECORD_MAGIC
from headrace.storage.local.record import Record, check_version, decode_record, encode_record, record_length, record_seq

NEWEST_NAME: Final = "newest"
NEWEST_MAGIC: Final = b"HRJN"
NEWEST_VERSION: Final = 1
NEWEST_SLOT: Final = 4096
NEWEST_LENGTH: Final = 2 * NEWEST_SLOT
_NEWEST_CHECKED: Final = struct.Struct("<IIQQQ")
_NEWEST_BYTES: Final = 8 + _NEWEST_CHECKED.size


@final
class Newest:
    """The statement that a journal file is the newest; `size` is its length in bytes."""

    __slots__ = ("first_seq", "index", "name", "size")

    def __init__(self, name: str, index: int, first_seq: int, size: int) -> None:
        self.name = name
        self.index = index
        self.first_seq = first_seq
        self.size = size


def encode_newest(newest: Newest) -> bytes:
    """The statement as bytes."""
    number = int(newest.name.partition(".")[0])
    checked = _NEWEST_CHECKED.pack(NEWEST_VERSION, number, newest.index, newest.first_seq, newest.size)
    return NEWEST_MAGIC + crc32(checked).to_bytes(4, "little") + checked


def position_of(newest: Newest) -> int:
    """The position of the statement in the file."""
    return newest.index % 2 * NEWEST_SLOT


def decode_newest(data: bytes, path: Path) -> tuple[list[Newest], bool]:
    """The readable statements, the latest last, and whether one is damaged.

    Raises Corrupt for an unknown version, and when all are damaged: a power loss never damages both.
    """
    found: list[Newest] = []
    is_damaged = False
    for at in (0, NEWEST_SLOT):
        fields = data[at : at + _NEWEST_BYTES]
        if not any(fields):
            continue
        if (
            len(fields) < _NEWEST_BYTES
            or fields[:4] != NEWEST_MAGIC
            or crc32(fields[8:]) != int.from_bytes(fields[4:8], "little")
        ):
            is_damaged = True
            continue
        version, number, index, first_seq, size = _NEWEST_CHECKED.unpack_from(fields, 8)
        if version != NEWEST_VERSION:
            raise Corrupt(str(path), at + 8, f"version {version} is not known to this release; use a newer one")
        found.append(Newest(f"{number:04d}.jnl", index, first_seq, size))
    if is_damaged and not found:
        what = "what it said of the newest journal file cannot be read"
        remedy = "restore it from a copy or, where `headrace doctor` finds nothing else, remove it"
        raise Corrupt(str(path), 0, f"{what}; {remedy}")
    return sorted(found, key=_index_of), is_damaged


def _index_of(newest: Newest) -> int:
    return newest.index


def read_newest(disk: Disk, directory: Path) -> tuple[list[Newest], bool]:
    """The statements in this directory, and whether one is damaged. Raises Corrupt.

    Earlier releases made none, so a missing file is no damage.
    """
    path = directory / NEWEST_NAME
    try:
        with opened_to_read(disk, path) as fd:
            return decode_newest(disk.read(fd, 0, NEWEST_LENGTH), path)
    except FileNotFoundError:
        return [], False


MAGIC: Final = b"HRJF"
VERSION: Final = 1
PAGE: Final = 4096
_CHECKED: Final = struct.Struct("<IIQQ")
_HEADER: Final = struct.Struct("<4sIIIQQ")
HEADER_BYTES: Final = _HEADER.size
ZEROS: Final = bytes(1 << 20)


@final
class JournalFile:
    """One file of the ring: its path and, while in use, its place in history; index 0 when unused."""

    __slots__ = ("first_seq", "index", "path", "size")

    def __init__(self, path: Path, size: int, index: int = 0, first_seq: int = 0) -> None:
        self.path = path
        self.size = size
        self.index = index
        self.first_seq = first_seq


@final
class Position:
    """A place in the journal: the end of the record with sequence number `seq`."""

    __slots__ = ("at", "index", "seq")

    def __init__(self, seq: int, index: int, at: int) -> None:
        self.seq = seq
        self.index = index
        self.at = at


@final
class Journal:
    """The writing end, used by one thread at a time. Other threads may call `sync`, `recycle` and `prepare`."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        file_bytes: int,
        max_spares: int,
        files: list[JournalFile],
        end: Position,
    ) -> None:
        """Continue at `end`, which is in the newest file; without files it is nowhere."""
        self._disk = disk
        self._directory = directory
        self._file_bytes = file_bytes
        self._max_spares = max_spares
        self._naming = Lock()
        self._fd = -1
        self._newest_fd = -1
        self._file: JournalFile | None = None
        self._index = end.index
        self._at = end.at
        self.room = 0
        """A record up to this length goes into the current file, without a change of files."""
        self._carry = b""
        self._written_seq = end.seq
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
            self._state_newest(self._used[-1])

    @property
    def unsynced(self) -> bool:
        """True if a written record is not synced yet."""
        return self._written_seq > self.synced_seq

    @property
    def needs_spare(self) -> bool:
        """True if `prepare` should make a file for the next change of files."""
        half_full = self._file is None or self._at > self._file.size // 2
        return self._reserve is None or (half_full and not self._spares)

    def write(self, seq: int, operations: bytes, runs: bytes, blocks: list[Block], synced: bool) -> Position:
        """Append one record; with `synced`, it and all records before it are durable on return.

        An OSError leaves the journal unchanged: the next record goes to the same place.
        """
        parts = encode_record(seq, self.synced_seq, operations, runs, blocks)
        length = sum([len(part) for part in parts])
        if self._file is None or self._at + length > self._file.size:
            self._roll(seq, length, not blocks)
        elif self._on_reserve and blocks:
            raise OSError(errno.ENOSPC, "the journal's last file is kept for settlements", str(self._directory))
        end = self._at + length
        page = self._at - len(self._carry)
        carry, padding = self._carry, ZEROS[: -end % PAGE]
        if length <= PAGE:  # fewer buffers: 5,000 instructions less for a record of one message
            carry, parts = b"", [b"".join([carry, *parts])]
        buffers = [carry, *parts, padding] if carry else [*parts, padding]
        if synced and not self.unsynced:
            self._disk.write_synced(self._fd, buffers, page)
        else:
            self._disk.write(self._fd, buffers, page)
            if synced:
                self._disk.sync(self._fd)
        self._carry = _tail(carry, parts, end % PAGE)
        self._at = end
        self.room = max(0, self.room - length)
        self._written_seq = seq
        if synced:
            self.synced_seq = seq
        return Position(seq, self._index, end)

    def sync(self) -> None:
        """Sync all written records. Another thread may write meanwhile, as long as `room` allows."""
        seq = self._written_seq
        if seq > self.synced_seq:
            self._disk.sync(self._fd)
            self.synced_seq = seq

    def recycle(self, before_index: int) -> None:
        """Free all files with a lower index: nobody needs their records."""
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
        """Make spare files, so that the next change of files need not wait for one."""
        if self._reserve is None:
            self._reserve = self._create(self._file_bytes)
        if not self._spares:
            self._spares.append(self._create(self._file_bytes))

    def close(self) -> None:
        for fd in (self._fd, self._newest_fd):
            if fd >= 0:
                self._disk.close(fd)
        self._fd = self._newest_fd = -1

    def _roll(self, seq: int, length: int, may_use_reserve: bool) -> None:
        """Change to a free file with room for a record of this length."""
        self.sync()
        file = self._take_spare(PAGE + length, may_use_reserve)
        is_reserve = file is self._reserve
        try:
            fd = self._begin(file, seq)
        except OSError:
            if not is_reserve:  # its header may be written, so it must be the next file to begin
                self._spares.appendleft(file)
            raise
        if is_reserve:
            self._reserve = None
        self._on_reserve = is_reserve
        if self._fd >= 0:
            self._disk.close(self._fd)
        self._fd = fd
        self._file = file
        self._index = file.index
        self._used.append(file)
        self._at = PAGE
        self.room = 0 if is_reserve else file.size - PAGE
        self._carry = b""

    def _begin(self, file: JournalFile, seq: int) -> int:
        """Make this the newest file, durably; returns its descriptor."""
        fd = self._disk.open(file.path)
        try:
            self._disk.write_synced(fd, [encode_header(self._index + 1, seq)], 0)
            file.index = self._index + 1
            file.first_seq = seq
            self._state_newest(file)
        except OSError:
            self._disk.close(fd)
            raise
        return fd

    def _state_newest(self, file: JournalFile) -> None:
        """Write the statement that this file, whose header is durable, is the newest."""
        if self._newest_fd < 0:
            try:
                self._newest_fd = self._open_newest()
            except OSError as error:
                if not is_full(error):
                    raise
                return  # the statement about an earlier file stays true
        newest = Newest(file.path.name, file.index, file.first_seq, file.size)
        self._disk.write_synced(self._newest_fd, [encode_newest(newest)], position_of(newest))

    def _open_newest(self) -> int:
        fd = self._disk.open(self._directory / NEWEST_NAME, create=True)
        try:
            if self._disk.size(fd) != NEWEST_LENGTH:
                self._disk.truncate(fd, 0)
                self._disk.write(fd, [ZEROS[:NEWEST_LENGTH]], 0)
                self._disk.sync(fd)
                self._disk.sync_directory(self._directory)
        except OSError:
            self._disk.close(fd)
            raise
        return fd

    def _take_spare(self, length: int, may_use_reserve: bool) -> JournalFile:
        for _ in range(len(self._spares)):
            file = self._spares.popleft()
            if file.size >= length:
                return file
            self._spares.append(file)
        try:
            return self._create(max(self._file_bytes, -(-length // PAGE) * PAGE))
        except OSError as error:
            # Settlements free space on a full disk, so the reserve file is for them.
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
        try:
            fd = self._disk.open(path, create=True)
        except OSError:
            self._slots.discard(path.name)
            raise
        try:
            for at in range(0, size, len(ZEROS)):
                self._disk.write(fd, [ZEROS[: size - at]], at)
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
        self.room = max(0, file.size - self._at)


def _tail(carry: bytes, parts: list[bytes], length: int) -> bytes:
    """The last `length` bytes written: the start of the page in which the next write begins."""
    last = parts[-1]
    if len(last) >= length:
        return last[len(last) - length :]
    needed: list[bytes] = []
    size = 0
    for part in [*reversed(parts), carry]:
        needed.append(part)
        size += len(part)
        if size >= length:
            break
    needed.reverse()
    written = b"".join(needed)
    return written[size - length :]


def encode_header(index: int, first_seq: int) -> bytes:
    checked = _CHECKED.pack(VERSION, 0, index, first_seq)
    header = MAGIC + crc32(checked).to_bytes(4, "little") + checked
    return header + bytes(PAGE - len(header))


def decode_header(header: bytes, path: Path) -> tuple[int, int]:
    """The index and the first sequence number of a journal file; both 0 when it has no valid header."""
    if len(header) < _HEADER.size:
        return 0, 0
    magic, crc, version, _, index, first_seq = _HEADER.unpack(header)
    if magic != MAGIC or crc32(header[8:]) != crc:
        return 0, 0
    if version != VERSION:
        raise Corrupt(str(path), 8, f"journal version {version} is not known to this release; use a newer one")
    return index, first_seq


_MAX_AHEAD: Final = 1 << 24
"""More records than the journal can hold. A directory's first sequence number is random, so no publisher can forge a
payload that, left in a recycled file, looks like a record and proves others missing."""
_CUT: Final = (
    "the file was cut here; made in full before its first use, it is never cut by a crash. "
    "Restore it from a copy (stored commits are never cut away)"
)
_RESTORE: Final = "restore the file from a copy (stored commits are never cut away)"


def read_files(disk: Disk, directory: Path) -> list[JournalFile]:
    """All journal files of a directory. Raises Corrupt for an unknown version."""
    return [read_file(disk, path) for path in sorted(directory.glob("*.jnl"))]


def read_file(disk: Disk, path: Path) -> JournalFile:
    """One journal file; its index is 0 if its header is not valid. Raises Corrupt for an unknown version."""
    with opened(disk, path) as fd:
        size = disk.size(fd)
        header = disk.read(fd, 0, HEADER_BYTES)
    return JournalFile(path, size, *decode_header(header, path))


@final
class JournalReader:
    """Reads the journal from a position on and changes nothing.

    After the last record, `end` and `torn` say where and how the journal ended. `headless` are files with damaged
    headers and needed records: `mend_headers` must mend them before the next write.
    """

    def __init__(
        self, disk: Disk, directory: Path, files: list[JournalFile], start: Position, stated: list[Newest]
    ) -> None:
        """Read the files of a directory from `start` on; `stated` are the statements about the newest of them."""
        self._disk = disk
        self._directory = directory
        self._files = files
        self._stated = stated
        self.end = start
        self.headless: list[JournalFile] = []
        self.torn = False
        """True if an unfinished record follows the last whole one."""

    def records(self) -> Iterator[Record]:
        """Every record behind the start, in order.

        Raises Corrupt when a synced record or a begun file is damaged or missing: no crash does that.
        """
        data: bytes | None = self._begin()
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

    def _begin(self) -> bytes:
        """The bytes of the file with the start. Raises Corrupt when it is not whole up to there."""
        start = self.end
        if start.index == 0:
            return b""
        data = self._open(start.index, start.at)
        if data is None and self._find(start.index + 1, PAGE) is not None:
            return b""  # the next file begins at the start: this one has no needed record
        if data is None:
            what = f"journal file number {start.index}, in which the checkpoint's commit {start.seq} ends, is missing"
            raise self._lost(start.index, what)
        file, _ = self._where()
        if len(data) < start.at or len(data) % PAGE:
            raise Corrupt(file, len(data), _CUT)
        at, seq = PAGE, record_seq(data, PAGE) - 1 if start.at > PAGE else start.seq
        while at < start.at and record_seq(data, at) == seq + 1:
            length = record_length(data[at : at + RECORD_HEADER_BYTES])
            if not length:
                break
            at += length
            seq += 1
        if (at, seq) != (start.at, start.seq):
            what = (
                f"commit {start.seq}, at which the checkpoint was written, does not end at byte {start.at} of this file"
            )
            raise Corrupt(file, min(at, start.at), f"{what}; restore journal/ from a copy")
        return data

    def _find(self, index: int, at: int) -> JournalFile | None:
        """The file with this index that continues behind the end. Raises Corrupt when there are two."""
        found: JournalFile | None = None
        for file in self._files:
            if file.index != index or (
                file.first_seq != self.end.seq + 1 if at == PAGE else file.first_seq > self.end.seq
            ):
                continue
            if found is not None and found.first_seq == file.first_seq:
                what = f"it says that it is journal file number {index}, and so does {found.path.name}"
                raise Corrupt(str(file.path), 16, f"{what}; move away the one that is a copy")
            if found is None or found.first_seq < file.first_seq:
                found = file
        return found

    def _open(self, index: int, at: int) -> bytes | None:
        """The bytes of the file that continues at this place; None if there is none."""
        if index == 0:
            return None
        found = self._find(index, at)
        if found is not None:
            return self._read(found)
        # A file with a damaged or torn header still continues the journal if it has the very next record.
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

    def _check_newest(self) -> None:
        """Check that the newest file exists, and every record before it: they were synced when it was begun."""
        newest = self._stated[-1] if self._stated else None
        if newest is None or newest.index < self.end.index:
            return
        if self.end.seq + 1 < newest.first_seq:
            where, position = self._where_next()
            what = f"the journal's record {self.end.seq + 1} cannot be read, and all up to {newest.first_seq - 1} were"
            raise Corrupt(where, position, f"{what} stored; {_RESTORE}")
        if newest.index > self.end.index:
            what = f"{newest.name}, which is journal file number {newest.index} and the newest, is missing"
            raise self._lost(newest.index, what)
        for file in self._files:
            if file.index == newest.index and file.first_seq == newest.first_seq and file.size < newest.size:
                raise Corrupt(str(file.path), file.size, _CUT)

    def _lost(self, index: int, what: str) -> Corrupt:
        """The error for a missing file; the statements have its name if it is one of the last two."""
        path = self._directory
        for newest in self._stated:
            if newest.index == index:
                path = self._directory / newest.name
        return Corrupt(str(path), 0, f"{what}, or it is damaged; {_RESTORE}")

    def _check_end(self) -> None:
        """Check that no record behind the end proves that others are missing."""
        expected = self.end.seq + 1
        following = self.end.index + 1
        indexes = {file.index for file in self._files} | {newest.index for newest in self._stated}
        if max(indexes, default=0) > following and all(file.index != following for file in self._files):
            raise self._lost(following, f"journal file number {following}, behind which there are others, is missing")
        for file in self._files:
            if 0 < file.index < self.end.index:
                continue
            current = file.index == self.end.index and file.index > 0
            start = self.end.at if current else PAGE
            data = self._read(file)
            for record in _scan(data, start, expected):
                self.torn = True
                if record.synced >= expected:
                    where, position = self._where_next()
                    raise Corrupt(
                        where,
                        position,
                        f"the journal's record {expected} cannot be read, but record {record.seq} behind it proves "
                        f"that it was stored; {_RESTORE}",
                    )
            if current and data[start : start + 4] == RECORD_MAGIC:
                self.torn = self.torn or expected <= record_seq(data, start) < expected + _MAX_AHEAD
        self._check_newest()

    def _where_next(self) -> tuple[str, int]:
        """The place of the next record: at the end or, if a statement says so, first in the next file."""
        for newest in self._stated:
            if newest.index == self.end.index + 1 and newest.first_seq == self.end.seq + 1:
                return str(self._directory / newest.name), PAGE
        return self._where()

    def _where(self) -> tuple[str, int]:
        for file in self._files:
            if file.index == self.end.index and file.index:
                return str(file.path), self.end.at
        return str(self._directory), 0

    def _read(self, file: JournalFile) -> bytes:
        with opened(self._disk, file.path) as fd:
            return self._disk.read(fd, 0, file.size)


def _scan(data: bytes, start: int, least_seq: int) -> Iterator[Record]:
    """Every whole record in these bytes that may follow the record before `least_seq`."""
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
        with opened(disk, file.path) as fd:
            disk.write_synced(fd, [encode_header(file.index, file.first_seq)], 0)


def wipe_behind(disk: Disk, files: list[JournalFile], end: Position) -> None:
    """Overwrite everything behind the end with zeros, so that nobody takes it for records again."""
    for file in files:
        if 0 < file.index < end.index:
            continue
        current = file.index == end.index and file.index > 0
        with opened(disk, file.path) as fd:
            for at in range(end.at if current else 0, file.size, len(ZEROS)):
                disk.write(fd, [ZEROS[: file.size - at]], at)
            disk.sync(fd)
        if not current:
            file.index = 0

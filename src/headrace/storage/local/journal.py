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
from collections import deque
from pathlib import Path
from threading import Lock
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.block import Block
from headrace.storage.local.checksum import crc32
from headrace.storage.local.disk import Disk, is_full
from headrace.storage.local.record import encode_record

MAGIC: Final = b"HRJF"
VERSION: Final = 1
PAGE: Final = 4096
_CHECKED: Final = struct.Struct("<IIQQ")
_HEADER: Final = struct.Struct("<4sIIIQQ")
HEADER_BYTES: Final = _HEADER.size
ZEROS: Final = bytes(1 << 20)


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
    """The writing end, used by one thread at a time; `sync`, `recycle` and `prepare` may be called from others."""

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

    @property
    def unsynced(self) -> bool:
        """Whether a record was written and not synced yet."""
        return self._written_seq > self.synced_seq

    @property
    def needs_spare(self) -> bool:
        """Whether it is time to prepare a file for the next change of files."""
        half_full = self._file is None or self._at > self._file.size // 2
        return self._reserve is None or (half_full and not self._spares)

    def write(self, seq: int, operations: bytes, runs: bytes, blocks: list[Block], synced: bool) -> Position:
        """Append one record; with `synced`, return when it and all before it would survive a power loss.

        An OSError leaves the journal where it was: the next record goes to the same place.
        """
        parts = encode_record(seq, self.synced_seq, operations, runs, blocks)
        length = sum(map(len, parts))
        if self._file is None or self._at + length > self._file.size:
            self._roll(seq, length, not blocks)
        elif self._on_reserve and blocks:
            raise OSError(errno.ENOSPC, "the journal's last file is kept for settlements", str(self._directory))
        end = self._at + length
        self._put([self._carry, *parts, ZEROS[: -end % PAGE]], self._at - len(self._carry), synced)
        self._carry = _tail(self._carry, parts, end % PAGE)
        self._at = end
        self._written_seq = seq
        if synced:
            self.synced_seq = seq
        return Position(seq, self._index, end)

    def has_room(self, length: int) -> bool:
        """Whether a record of this length goes into the present file, whatever it holds."""
        return self._file is not None and not self._on_reserve and self._at + length <= self._file.size

    def sync(self) -> None:
        """Sync what was written without. Meanwhile another thread may go on writing, as long as `has_room` says so."""
        seq = self._written_seq
        if seq > self.synced_seq:
            self._disk.sync(self._fd)
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
        if synced and not self.unsynced:
            self._disk.write_synced(self._fd, buffers, page)
            return
        self._disk.write(self._fd, buffers, page)
        if synced:
            self._disk.sync(self._fd)

    def _roll(self, seq: int, length: int, may_use_reserve: bool) -> None:
        """Turn to a free file that can hold a record of this length."""
        self.sync()
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


def _tail(carry: bytes, parts: list[bytes], length: int) -> bytes:
    """The last `length` bytes of what was written: the start of the page that the next write begins in."""
    if len(parts[-1]) >= length:
        return parts[-1][len(parts[-1]) - length :]
    written = b"".join([carry, *parts])
    return written[len(written) - length :]


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

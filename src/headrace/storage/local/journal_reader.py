"""Reading the journal: its files, the records behind a position, and how it ended. Writes only what recovery asks for.

The layout of the files is in journal.py.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.storage.local.disk import Disk
from headrace.storage.local.journal import (
    HEADER_BYTES,
    PAGE,
    ZEROS,
    JournalFile,
    Position,
    decode_header,
    encode_header,
)
from headrace.storage.local.record import MAGIC as RECORD_MAGIC
from headrace.storage.local.record import Record, check_version, decode_record, record_seq

_MAX_AHEAD: Final = 1 << 24
"""More records than the journal can hold. A directory's first sequence number is random, so that no publisher can write
a payload which, left behind in a recycled file, would be taken for a record that proves others missing."""


def read_files(disk: Disk, directory: Path) -> list[JournalFile]:
    """All journal files of a directory. Raises Corrupt when the version of one is not known."""
    return [read_file(disk, path) for path in sorted(directory.glob("*.jnl"))]


def read_file(disk: Disk, path: Path) -> JournalFile:
    """One journal file; when its header is not valid it has index 0. Raises Corrupt when its version is not known."""
    fd = disk.open(path)
    try:
        size = disk.size(fd)
        header = disk.read(fd, 0, HEADER_BYTES)
    finally:
        disk.close(fd)
    return JournalFile(path, size, *decode_header(header, path))


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
            for at in range(end.at if current else 0, file.size, len(ZEROS)):
                disk.write(fd, [ZEROS[: file.size - at]], at)
            disk.sync(fd)
        finally:
            disk.close(fd)
        if not current:
            file.index = 0

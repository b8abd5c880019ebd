"""Encoded messages, and the staging area of bulk transactions that are not committed yet. No engine.

Parts are not durable: a commit carries the messages themselves, and fails if a power loss took a part of it. A part is
a line of JSON, its blocks, and the bytes kept beside them:

    {"format": 2, "target": {...}, "blocks": [[length, largest payload, first expiry], ...], "beside": length}

A transaction that is too large for one commit is stored part by part. Before the first one, all parts are made durable,
and `commit.json` has their names, so that a commit that was interrupted goes on with the same rows. A broker over an
object store has the directory for as long as it runs, and keeps these files in the store as well:

    {"sequence": number, "parts": [name, ...]}

A writer may name its attempt at a job; once that attempt is over, its later parts are refused.
"""

import contextlib
import hashlib
import json
from abc import ABC, abstractmethod
from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, final

from mypy_extensions import mypyc_attr

from headrace.errors import Corrupt, NotFound, PreconditionFailed, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import Encoded
from headrace.storage.local.block import EXPIRES, HEADER_BYTES, NOT_BEFORE, Block, cut_block, decode_block
from headrace.storage.local.disk import PRIVATE_DIRECTORY, Disk, is_out_of_files, open_privately
from headrace.storage.local.encoding import decode_messages, encode_block
from headrace.storage.local.files import encode_name


@final
class EncodedBlock(Encoded):
    """The messages of one block, with the facts that limits and expiry need."""

    def __init__(self, block: Block, largest_bytes: int, first_expiry_us: int) -> None:
        self.block = block
        self.count = block.count
        self.payload_bytes = block.payload_bytes
        self.largest_bytes = largest_bytes
        self.first_expiry_us = first_expiry_us

    def sources(self) -> list[Source]:
        return self.block.sources()

    def source_index(self) -> Sequence[int] | None:
        return self.block.source_index()

    def messages(self, start: int, stop: int) -> list[Message]:
        return decode_messages(self.block, start, stop)

    def take(self, rows: Sequence[int]) -> Encoded:
        messages = decode_messages(self.block, 0, self.count)
        return encoded(encode_block(0, [messages[row] for row in rows]))

    def due_times(self) -> Sequence[int]:
        return self.block.not_before(0, self.count) if self.block.columns & NOT_BEFORE else ()

    def expiring(self, ttl_us: int, now_us: int, keeps_earlier: bool = True) -> Encoded:
        block = self.block
        limits = array("q", [now_us + ttl_us]) * self.count
        if block.columns & NOT_BEFORE:
            due = block.not_before(0, self.count)
            limits = array("q", [max(now_us, time_us) + ttl_us for time_us in due])
        if keeps_earlier and block.columns & EXPIRES:
            own = block.expires(0, self.count)
            limits = array("q", [min(limit, at) if at else limit for limit, at in zip(limits, own, strict=True)])
        return EncodedBlock(block.with_expiry(limits), self.largest_bytes, min(limits))


@final
class EncodedRows(Encoded):
    """Messages of one log, as rows of a block that other logs share."""

    def __init__(
        self, block: Block, start: int, count: int, payload_bytes: int, largest_bytes: int, first_expiry_us: int
    ) -> None:
        self.block = block
        self.start = start
        self.count = count
        self.payload_bytes = payload_bytes
        self.largest_bytes = largest_bytes
        self.first_expiry_us = first_expiry_us

    def alone(self) -> EncodedBlock:
        """The same messages in a block of their own."""
        rows = cut_block(self.block, self.start, self.start + self.count, 0)
        return EncodedBlock(rows, self.largest_bytes, self.first_expiry_us)

    def sources(self) -> list[Source]:
        return self.alone().sources()

    def source_index(self) -> Sequence[int] | None:
        return self.alone().source_index()

    def messages(self, start: int, stop: int) -> list[Message]:
        return decode_messages(self.block, self.start + start, self.start + stop)

    def take(self, rows: Sequence[int]) -> Encoded:
        return self.alone().take(rows)

    def due_times(self) -> Sequence[int]:
        stop = self.start + self.count
        return self.block.not_before(self.start, stop) if self.block.columns & NOT_BEFORE else ()

    def expiring(self, ttl_us: int, now_us: int, keeps_earlier: bool = True) -> Encoded:
        return self.alone().expiring(ttl_us, now_us, keeps_earlier)


def encoded(block: Block) -> EncodedBlock:
    """The messages of a block, with the facts read from its columns."""
    bounds = block.payload_bounds()
    largest = max([stop - start for start, stop in pairwise(bounds)])
    expiries = [time_us for time_us in block.expires(0, block.count) if time_us]
    return EncodedBlock(block, largest, min(expiries, default=0))


FORMAT: Final = 2
EXPIRE_SECONDS: Final = 3600
"""The age at which the parts of a silent transaction are removed."""
_SUFFIX: Final = ".part"
_DRAFT: Final = ".draft"
_ENDED: Final = ".ended"
_COMMIT: Final = "commit.json"
_KEPT_SECONDS: Final = 7 * 86_400
"""The age at which the parts of a commit are removed that was begun and not ended."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Keeper(ABC):
    """A place that outlasts the staging directory, for the files of commits that are stored part by part."""

    @abstractmethod
    def keep(self, folder: str, name: str, data: bytes) -> None:
        """Store a file durably. Raises Unavailable."""

    @abstractmethod
    def fetch(self, folder: str, name: str) -> bytes | None:
        """Return a file, None if there is none. Raises Unavailable."""

    @abstractmethod
    def remove(self, folder: str) -> None:
        """Remove the files of a folder. Raises Unavailable."""

    @abstractmethod
    def sweep(self, before_s: float) -> None:
        """Remove the files that are older. Raises Unavailable."""


Target = Mapping[str, str]
"""The target of a part: one of queue, exchange and topic, and its name."""


@final
class StagingArea:
    """The parts of all open transactions, in one directory. Several threads may call it."""

    def __init__(self, root: Path, max_bytes: int, keeper: Keeper | None = None) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._keeper = keeper
        """The place of parts that must last, where the messages of the engine outlast the directory."""

    def put(
        self,
        transaction: str,
        part: str,
        target: Target,
        blocks: Sequence[EncodedBlock],
        beside: bytes = b"",
        attempt: str = "",
    ) -> int:
        """Store a part, replacing one of the same name; returns its size. `beside` describes its rows.

        Raises Unavailable when there is no room, and PreconditionFailed when the attempt is over.
        """
        size = sum(each.block.length for each in blocks)
        if self.used_bytes() + size + len(beside) > self._max_bytes:
            raise Unavailable(
                f"{self._max_bytes >> 20} MiB of uncommitted writes are kept already; commit or abort some of them"
            )
        folder = self._folder(transaction)
        self._root.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        folder.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        known = [[each.block.length, each.largest_bytes, each.first_expiry_us] for each in blocks]
        said = {"format": FORMAT, "target": dict(target), "blocks": known, "beside": len(beside)}
        head = json.dumps(said).encode() + b"\n"
        path = folder / _file_of(part)
        draft = path.with_suffix(_DRAFT)
        try:
            with open(draft, "wb", opener=open_privately) as file:
                file.write(head)
                for each in blocks:
                    file.write(each.block.header)
                    file.write(each.block.body)
                file.write(beside)
            draft.replace(path)
        except FileNotFoundError as error:  # aborted meanwhile
            raise PreconditionFailed(
                f"transaction {transaction!r} was aborted while a part of it was written"
            ) from error
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise Unavailable(f"a part cannot be kept: {error.strerror or error}") from error
        if attempt and self._mark(transaction, attempt).exists():  # checked last: `remove` marks first, then deletes
            path.unlink(missing_ok=True)
            raise PreconditionFailed(
                f"transaction {transaction!r} was committed or aborted before this part of it was written"
            )
        return size

    def get(self, transaction: str, part: str) -> tuple[Target, list[EncodedBlock], bytes]:
        """A part: its target, its blocks and the bytes beside them. Raises NotFound when it is missing or not whole."""
        path = self._found(transaction, _file_of(part))
        try:
            data = path.read_bytes()
        except OSError as error:
            if is_out_of_files(error):
                raise Unavailable(f"a part cannot be read now: {error.strerror}") from error
            raise self._missing(transaction, part) from error
        try:
            return _decode(data, str(path))
        except (ValueError, KeyError, Corrupt) as error:
            raise self._missing(transaction, part) from error

    def outline(self, transaction: str, part: str) -> tuple[Target, int]:
        """The target of a part, and its size in bytes. Raises NotFound."""
        path = self._found(transaction, _file_of(part))
        try:
            with path.open("rb") as file:
                head = json.loads(file.readline())
            return {str(name): str(value) for name, value in head["target"].items()}, path.stat().st_size
        except (OSError, ValueError, KeyError) as error:
            raise self._missing(transaction, part) from error

    def begin(self, transaction: str, sequence: int, parts: Sequence[str]) -> None:
        """Make these parts durable, to be stored one after the other. Raises Unavailable."""
        folder, disk = self._folder(transaction), Disk()
        files = [folder / _file_of(part) for part in parts]
        commit = json.dumps({"sequence": sequence, "parts": list(parts)}).encode()
        try:
            if self._keeper is not None:
                for file in files:
                    self._keeper.keep(folder.name, file.name, file.read_bytes())
                self._keeper.keep(folder.name, _COMMIT, commit)
            else:
                disk.sync_files(files)
            disk.write_file(folder / _COMMIT, [commit])
            disk.sync_directories([self._root.parent, self._root, folder])
        except OSError as error:
            raise Unavailable(f"the parts of a transaction cannot be kept: {error.strerror or error}") from error

    def begun(self, transaction: str, sequence: int) -> list[str]:
        """The parts that `begin` was given. Raises NotFound when they are gone."""
        path = self._found(transaction, _COMMIT)
        try:
            document = json.loads(path.read_bytes())
            if document["sequence"] == sequence:
                return [str(part) for part in document["parts"]]
        except (OSError, ValueError, KeyError) as error:
            raise self._gone(transaction) from error
        raise self._gone(transaction)

    def _gone(self, transaction: str) -> NotFound:
        return NotFound(
            f"some parts of transaction {transaction!r} are stored, and the others are gone: the staging directory of "
            f"the broker was removed, or the commit was not asked for again within a week"
        )

    def _missing(self, transaction: str, part: str) -> NotFound:
        return NotFound(
            f"part {part!r} of transaction {transaction!r} is not there: it was never written, or it was given up "
            f"because nothing was heard of the transaction for too long. Write it again"
        )

    def remove(self, transaction: str, attempt: str = "") -> None:
        """Remove a transaction, if it exists, and refuse later parts of this attempt."""
        if attempt:
            mark = self._mark(transaction, attempt)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        folder = self._folder(transaction)
        if self._keeper is not None and (folder / _COMMIT).exists():
            self._keeper.remove(folder.name)
        _remove_folder(folder)

    def sweep(self, before_s: float) -> int:
        """Remove transactions without a write since then; returns their number."""
        gone = 0
        for folder in self._folders():
            try:
                is_begun = (folder / _COMMIT).exists()
                if folder.stat().st_mtime < before_s - is_begun * _KEPT_SECONDS:
                    _remove_folder(folder)
                    gone += 1
            except FileNotFoundError:
                continue
        for mark in (self._root / _ENDED).glob("*"):
            with contextlib.suppress(FileNotFoundError):  # swept by another thread
                if mark.stat().st_mtime < before_s:
                    mark.unlink()
        return gone

    def sweep_all(self, before_s: float) -> None:
        """Sweep, also what earlier brokers left with the keeper. Errors there leave it for the next time."""
        self.sweep(before_s)
        if self._keeper is not None:
            with contextlib.suppress(Unavailable):
                self._keeper.sweep(before_s - _KEPT_SECONDS)

    @property
    def is_used(self) -> bool:
        """True if a sweep could find anything."""
        return self._root.is_dir()

    def used_bytes(self) -> int:
        """The size of all parts."""
        total = 0
        for folder in self._folders():
            for path in folder.glob("*"):
                try:
                    total += path.stat().st_size
                except FileNotFoundError:
                    continue
        return total

    def _folders(self) -> list[Path]:
        return [folder for folder in self._root.iterdir() if folder.name != _ENDED] if self._root.is_dir() else []

    def _mark(self, transaction: str, attempt: str) -> Path:
        """The file that marks an attempt as over."""
        name = hashlib.sha256(f"{transaction}\0{attempt}".encode()).hexdigest()
        return self._root / _ENDED / name

    def _folder(self, transaction: str) -> Path:
        return self._root / encode_name(transaction).replace("/", "+")

    def _found(self, transaction: str, name: str) -> Path:
        """The path of a file, which is fetched from the keeper if only that has it. Raises Unavailable."""
        folder = self._folder(transaction)
        path = folder / name
        if self._keeper is None or path.exists():
            return path
        data = self._keeper.fetch(folder.name, name)
        if data is not None:
            self._root.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            folder.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
            draft = path.with_suffix(_DRAFT)
            try:
                with open(draft, "wb", opener=open_privately) as file:
                    file.write(data)
                draft.replace(path)
            except OSError as error:
                raise Unavailable(f"a part cannot be read now: {error.strerror or error}") from error
        return path


def _file_of(part: str) -> str:
    return encode_name(part).replace("/", "+") + _SUFFIX


def _decode(data: bytes, file: str) -> tuple[Target, list[EncodedBlock], bytes]:
    end = data.index(b"\n")
    head = json.loads(data[:end])
    if head["format"] != FORMAT:
        raise ValueError("written by another release")
    at = end + 1
    blocks: list[EncodedBlock] = []
    for length, largest, expiry in head["blocks"]:
        body_at = at + HEADER_BYTES
        if length < HEADER_BYTES:
            raise ValueError("a block without a header")
        block = decode_block(data[at:body_at], data[body_at : at + length], file, at)
        blocks.append(EncodedBlock(block, largest, expiry))
        at += length
    target: Target = {str(name): str(value) for name, value in head["target"].items()}
    if len(data) - at != head["beside"]:
        raise ValueError("not whole")
    return target, blocks, data[at:]


def _remove_folder(folder: Path) -> None:
    """Remove a folder and its files, if it exists."""
    import shutil  # it loads compressors: half a MB that a broker without bulk writes does not need

    shutil.rmtree(folder, ignore_errors=True)

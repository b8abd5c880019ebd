"""What is written in bulk and not committed yet: parts in files, by transaction, until they are taken or too old.

Nothing here is promised: a commit carries the messages themselves, so parts that a power failure took are only
missing, and whoever commits hears so. A part is a line of JSON, the blocks that it counts, and what is kept with them:

    {"format": 2, "target": {...}, "blocks": [[length, largest payload, first expiry], ...], "beside": length}

Writers that say which attempt at a job they belong to are refused once that attempt is over, however late they come.
"""

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, NotFound, PreconditionFailed, Unavailable
from headrace.storage.local.block import HEADER_BYTES, decode_block
from headrace.storage.local.disk import PRIVATE_DIRECTORY, open_privately
from headrace.storage.local.encoded import EncodedBlock
from headrace.storage.local.names import encode_name

FORMAT: Final = 2
EXPIRE_SECONDS: Final = 3600
"""Parts of a transaction of which nothing was heard for so long are given up."""
_SUFFIX: Final = ".part"
_DRAFT: Final = ".draft"
_ENDED: Final = ".ended"

Target = Mapping[str, str]
"""Where the messages of a part go: one of queue, exchange and topic, and its name."""


@final
class StagingArea:
    """The parts of all open transactions, in one directory. Safe to call from several threads."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes

    def put(
        self,
        transaction: str,
        part: str,
        target: Target,
        blocks: Sequence[EncodedBlock],
        beside: bytes = b"",
        attempt: str = "",
    ) -> int:
        """Keep a part, instead of one of the same name; returns its size. `beside` is what has to be known of its rows.

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
        path = folder / (encode_name(part).replace("/", "+") + _SUFFIX)
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
        if attempt and self._mark(transaction, attempt).exists():  # looked at last: whoever ends it removes after that
            path.unlink(missing_ok=True)
            raise PreconditionFailed(
                f"transaction {transaction!r} was committed or aborted before this part of it was written"
            )
        return size

    def get(self, transaction: str, part: str) -> tuple[Target, list[EncodedBlock], bytes]:
        """A part, with what is kept beside it. Raises NotFound when it is not there, or not whole."""
        path = self._folder(transaction) / (encode_name(part).replace("/", "+") + _SUFFIX)
        try:
            data = path.read_bytes()
            return _decode(data, str(path))
        except (OSError, ValueError, KeyError, Corrupt) as error:
            raise NotFound(
                f"part {part!r} of transaction {transaction!r} is not there: it was never written, or it was given up "
                f"because nothing was heard of the transaction for too long. Write it again"
            ) from error

    def remove(self, transaction: str, attempt: str = "") -> None:
        """Forget a transaction, and take nothing of this attempt any more; one that is not there is fine."""
        if attempt:
            mark = self._mark(transaction, attempt)
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()
        shutil.rmtree(self._folder(transaction), ignore_errors=True)

    def sweep(self, before_s: float) -> int:
        """Forget transactions of which nothing was heard since; returns how many."""
        gone = 0
        for folder in self._folders():
            try:
                if folder.stat().st_mtime < before_s:
                    shutil.rmtree(folder, ignore_errors=True)
                    gone += 1
            except FileNotFoundError:
                continue
        for mark in (self._root / _ENDED).glob("*"):
            with contextlib.suppress(FileNotFoundError):  # swept by another thread
                if mark.stat().st_mtime < before_s:
                    mark.unlink()
        return gone

    @property
    def is_used(self) -> bool:
        """Whether there is anything that a sweep could find."""
        return self._root.is_dir()

    def used_bytes(self) -> int:
        """What all parts take together."""
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
        """What is there once an attempt is over."""
        name = hashlib.sha256(f"{transaction}\0{attempt}".encode()).hexdigest()
        return self._root / _ENDED / name

    def _folder(self, transaction: str) -> Path:
        return self._root / encode_name(transaction).replace("/", "+")


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

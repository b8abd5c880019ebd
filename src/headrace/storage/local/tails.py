"""The tails of many logs in one file, where a checkpoint leaves those too small for files of their own. No engine.

journal/<generation>.tails has journal records (see record.py) one behind the other: without operations, with the
messages of many logs in one block, and one run for each log. Their numbers count up from that of the checkpoint's
commit. It is written whole, under another generation than the checkpoint before it names, and removed once the
next is there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from librt.strings import BytesWriter

from headrace.errors import Corrupt
from headrace.model import Message
from headrace.storage.local.block_encoding import encode_block
from headrace.storage.local.record import Record, check_version, decode_record, encode_record, write_run

SUFFIX: Final = ".tails"
RECORD_BYTES: Final = 256 << 10
RECORD_ROWS: Final = 4096


@final
class Tail:
    """The messages of one log that no segment holds; `size` is about what they take."""

    __slots__ = ("base", "log_id", "messages", "size")

    def __init__(self, log_id: int, base: int, messages: list[Message], size: int) -> None:
        self.log_id = log_id
        self.base = base
        self.messages = messages
        self.size = size


def tails_path(root: Path, generation: int) -> Path:
    return root / "journal" / f"{generation}{SUFFIX}"


def encode_tails(tails: list[Tail], seq: int) -> Iterator[list[bytes]]:
    """The file, record by record, for a checkpoint of commit `seq`."""
    number = seq
    for part in _parts(tails):
        runs = BytesWriter()
        for tail in part:
            write_run(runs, tail.log_id, len(tail.messages), tail.base)
        rows = [message for tail in part for message in tail.messages]
        block = encode_block(part[0].base if len(part) == 1 else 0, rows)
        yield encode_record(number, seq, b"", runs.getvalue(), [block])
        number += 1


def decode_tails(data: bytes, length: int, path: Path) -> Iterator[tuple[int, Record]]:
    """Every record of the file, with its position. Raises Corrupt when it is not whole."""
    file = str(path)
    if len(data) != length:
        raise Corrupt(file, min(length, len(data)), f"{length} bytes were stored, the file has {len(data)}")
    at = 0
    while at < length:
        record = decode_record(data, at)
        if record is None:
            check_version(data, at, file)
            raise Corrupt(file, at, "the messages here are damaged: a checksum is wrong")
        yield at, record
        at += record.length


def _parts(tails: list[Tail]) -> Iterator[list[Tail]]:
    """The tails by records: large enough to be cheap to write, and no larger, as readers of one log read the whole."""
    part: list[Tail] = []
    rows = size = 0
    for tail in tails:
        part.append(tail)
        rows += len(tail.messages)
        size += tail.size
        if rows >= RECORD_ROWS or size >= RECORD_BYTES:
            yield part
            part = []
            rows = size = 0
    if part:
        yield part

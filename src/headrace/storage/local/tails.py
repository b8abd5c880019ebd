"""The tails of many logs in one file, where a checkpoint leaves those too small for files of their own. No engine.

journal/<generation>.tails has journal records (see record.py) one behind the other: without operations, with the
messages of many logs in one block, and one run for each log. Their numbers count up from that of the checkpoint's
commit. It is written whole, under another generation than the checkpoint before it names, and removed once the
next is there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt
from headrace.model import Message
from headrace.storage.local.record import Record, check_version, decode_record

SUFFIX: Final = ".tails"


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

"""The checkpoint, which says what the files hold without the journal, and the file of small tails. No decisions.

journal/checkpoint.json:

    {"format": 1, "seq": last commit the files hold, "journal": [file index, byte position behind it], "next_id": ...,
     "logs": [[id, name, first offset, next offset, base offset of the last segment or -1, its length, stored bytes,
               [[group id, group name], ...]], ...],
     "tables": {name: [generation, length], ...}, "crc32": "8 hex digits"}

Format 2 adds "tails": [generation, length] of the file of small tails behind the tables, [0, 0] without one; and the
table `groups` has the states of groups without files of their own. The broker writes it only if it needs one of the
two, so earlier releases can open a directory of few logs.

Both formats end with "files": {group id: [the seq of its files, 1 if it has a pel.log], ...} for groups with files of
their own. Earlier releases ignore it and leave it out.

journal/<generation>.tails has journal records (see record.py) in a row: each without operations, with the messages of
many logs in one block and one run for each log. Their numbers count up from the checkpoint's commit. Each checkpoint
writes the file whole under a new generation, and removes the old one afterwards.
"""

from collections.abc import Iterator
from json.encoder import encode_basestring as quoted
from pathlib import Path
from typing import Any, Final, final

from headrace.errors import Corrupt
from headrace.model import Message
from headrace.storage.local.files import crc32_json, decode_json, seal_json
from headrace.storage.local.journal import Position
from headrace.storage.local.record import Record, check_version, decode_record

SUFFIX: Final = ".tails"


@final
class Tail:
    """The messages of one log that no segment holds; `size` is roughly their memory."""

    __slots__ = ("base", "log_id", "messages", "size")

    def __init__(self, log_id: int, base: int, messages: list[Message], size: int) -> None:
        self.log_id = log_id
        self.base = base
        self.messages = messages
        self.size = size


def tails_path(root: Path, generation: int) -> Path:
    return root / "journal" / f"{generation}{SUFFIX}"


def decode_tails(data: bytes, length: int, path: Path) -> Iterator[tuple[int, Record]]:
    """Decode every record of the file, with its position. Raises Corrupt when the file is not whole."""
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


FORMAT: Final = 1
SHARED_FORMAT: Final = 2
"""The format with a file of small tails and a table of groups."""

_PIECE: Final = 512
"""Logs that are encoded in one go: 1 ms at most, for compiled code keeps the interpreter until it writes."""

GROUPS: Final = "groups"
"""The table with the states of groups without files of their own."""


@final
class LogEntry:
    """One log in a checkpoint."""

    __slots__ = ("first", "groups", "id", "name", "next", "segment", "segment_length", "stored_bytes")

    def __init__(self, log_id: int, name: str, first: int, next: int) -> None:  # noqa: A002
        self.id = log_id
        self.name = name
        self.first = first
        self.next = next
        self.segment = -1
        self.segment_length = 0
        self.stored_bytes = 0
        self.groups: list[tuple[int, str]] = []


@final
class Checkpoint:
    """The contents of a checkpoint."""

    __slots__ = ("files", "logs", "next_id", "position", "tables", "tails")

    def __init__(self, position: Position, next_id: int) -> None:
        self.position = position
        self.next_id = next_id
        self.logs: list[LogEntry] = []
        self.tables: dict[str, tuple[int, int]] = {}
        self.tails = (0, 0)
        """Generation and length of the file of small tails; length 0 without one."""
        self.files: dict[int, tuple[int, bool]] = {}
        """For each group with files: the least commit that they hold, and whether there is a pel.log."""


def checkpoint_path(root: Path) -> Path:
    return root / "journal" / "checkpoint.json"


def encode_checkpoint(checkpoint: Checkpoint) -> Iterator[bytes]:
    """The bytes to write, in pieces: other threads run while each is written.

    A JSON encoder takes twice as long.
    """
    position = checkpoint.position
    is_shared = GROUPS in checkpoint.tables or checkpoint.tails != (0, 0)
    piece = (
        f'{{"format":{SHARED_FORMAT if is_shared else FORMAT},"seq":{position.seq},'
        f'"journal":[{position.index},{position.at}],"next_id":{checkpoint.next_id},"logs":['
    )
    crc = 0
    for start in range(0, len(checkpoint.logs), _PIECE):
        piece += ",".join([_encode_log(log) for log in checkpoint.logs[start : start + _PIECE]])
        data = piece.encode()
        crc = crc32_json(data, crc)
        yield data
        piece = "," if start + _PIECE < len(checkpoint.logs) else ""
    tables = [f"{quoted(name)}:[{generation},{length}]" for name, (generation, length) in checkpoint.tables.items()]
    piece += f'],"tables":{{{",".join(tables)}}}'
    if is_shared:
        generation, length = checkpoint.tails
        piece += f',"tails":[{generation},{length}]'
    if checkpoint.files:
        files = [f'"{group_id}":[{seq},{int(has_list)}]' for group_id, (seq, has_list) in checkpoint.files.items()]
        piece += f',"files":{{{",".join(files)}}}'
    yield seal_json((piece + "}").encode(), crc)


def _encode_log(log: LogEntry) -> str:
    groups = ",".join([f"[{group_id},{quoted(name)}]" for group_id, name in log.groups])
    return (
        f"[{log.id},{quoted(log.name)},{log.first},{log.next},"
        f"{log.segment},{log.segment_length},{log.stored_bytes},[{groups}]]"
    )


def decode_checkpoint(data: bytes, path: Path) -> Checkpoint:
    """Raises Corrupt."""
    values = decode_json(data, path, SHARED_FORMAT)
    try:
        index, at = values["journal"]
        checkpoint = Checkpoint(Position(values["seq"], index, at), values["next_id"])
        for fields in values["logs"]:
            checkpoint.logs.append(_decode_log(fields))
        for name, (generation, length) in values["tables"].items():
            checkpoint.tables[name] = (generation, length)
        if values["format"] == SHARED_FORMAT:
            generation, length = values["tails"]
            checkpoint.tails = (generation, length)
        for group_id, (seq, has_list) in values.get("files", {}).items():
            checkpoint.files[int(group_id)] = (seq, bool(has_list))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Corrupt(str(path), 0, f"a field is missing or of the wrong kind: {error!r}") from error
    return checkpoint


def _decode_log(fields: list[Any]) -> LogEntry:
    log_id, name, first, following, segment, segment_length, stored_bytes, groups = fields
    log = LogEntry(log_id, name, first, following)
    log.segment = segment
    log.segment_length = segment_length
    log.stored_bytes = stored_bytes
    log.groups = [(group_id, group) for group_id, group in groups]
    return log

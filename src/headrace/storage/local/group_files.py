"""A group's two files: state.json (its progress) and pel.log (its pending entries). Bytes and values, no engine.

Each says by itself up to which commit it holds, so a crash between writing one and the other does no harm.

state.json: {"format": 1, "seq": ..., "id": ..., "queue": ..., "group": ..., "mode": "work" | "stream", "filter": ...,
             "cursor": ..., "committed": ..., "settled": [[start, stop], ...], "crc32": "8 hex digits"}
             where crc32 is that of the same JSON without it, keys in this order, no spaces.

pel.log, little-endian:

     0  4  magic "HRPE"
     4  4  crc32 of all that follows
     8  4  version 1
    12  4  count of entries n
    16  8  sequence number of the last commit it holds
    24  4  group id
    28  4  count of consumers c
    32     entries, each: offset u64, due i64, attempts u32, consumer i32 (-1: nobody, the message was requeued)
           consumers, each: u16 length and UTF-8
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import Corrupt
from headrace.storage.group_state import MODE_NAMES, GroupState, Pending
from headrace.storage.local.json_file import decode_json, encode_json

FORMAT: Final = 1
MAGIC: Final = b"HRPE"
VERSION: Final = 1
_CHECKED: Final = struct.Struct("<IIQII")
_HEADER: Final = struct.Struct("<4sIIIQII")
_ENTRY: Final = struct.Struct("<QqIi")
_TEXT: Final = struct.Struct("<H")
_MODES: Final = {name: mode for mode, name in MODE_NAMES.items()}


def encode_progress(queue: str, group_id: int, state: GroupState, seq: int) -> bytes:
    """The contents of state.json."""
    return encode_json(
        {
            "format": FORMAT,
            "seq": seq,
            "id": group_id,
            "queue": queue,
            "group": state.name,
            "mode": MODE_NAMES[state.mode],
            "filter": state.filter,
            "cursor": state.cursor,
            "committed": state.committed,
            "settled": [[start, stop] for start, stop in state.settled],
        }
    )


def decode_progress(data: bytes, path: Path, group_id: int) -> tuple[GroupState, int]:
    """The group of a state.json and the sequence number it holds. Raises Corrupt."""
    values = decode_json(data, path, FORMAT)
    try:
        if values["id"] != group_id:
            raise Corrupt(str(path), 0, f"it belongs to group {values['id']}, not to group {group_id}")
        state = GroupState(values["group"], _MODES[values["mode"]], values["filter"], values["committed"])
        state.cursor = values["cursor"]
        for start, stop in values["settled"]:
            state.settled.add(start, stop)
        return state, values["seq"]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(str(path), 0, f"a field is missing or of the wrong kind: {error!r}") from error


def encode_pending(group_id: int, state: GroupState, seq: int) -> bytes:
    """The contents of pel.log."""
    consumers: dict[str, int] = {}
    entries: list[bytes] = []
    for offset, entry in state.pending.items():
        consumer = consumers.setdefault(entry.consumer, len(consumers)) if entry.consumer else -1
        entries.append(_ENTRY.pack(offset, entry.due_us, entry.attempts, consumer))
    parts = [_CHECKED.pack(VERSION, len(entries), seq, group_id, len(consumers)), *entries]
    for name in consumers:
        raw = name.encode()
        parts += [_TEXT.pack(len(raw)), raw]
    checked = b"".join(parts)
    return MAGIC + zlib.crc32(checked).to_bytes(4, "little") + checked


def decode_pending(data: bytes, path: Path, group_id: int) -> tuple[dict[int, Pending], int]:
    """The entries of a pel.log and the sequence number it holds. Raises Corrupt."""
    file = str(path)
    if len(data) < _HEADER.size:
        raise Corrupt(file, 0, f"a pending list needs {_HEADER.size} bytes, the file has {len(data)}")
    magic, crc, version, count, seq, found_id, consumer_count = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC:
        raise Corrupt(file, 0, f"this is not a pending list (found {magic!r})")
    if zlib.crc32(data[8:]) != crc:
        raise Corrupt(file, 4, "the pending list's checksum is wrong")
    if version != VERSION:
        raise Corrupt(file, 8, f"pending list version {version} is not known to this release; use a newer one")
    if found_id != group_id:
        raise Corrupt(file, 24, f"it belongs to group {found_id}, not to group {group_id}")
    at = _HEADER.size + count * _ENTRY.size
    entries = data[_HEADER.size : at]
    consumers: list[str] = []
    for _ in range(consumer_count):
        (length,) = _TEXT.unpack_from(data, at)
        at += _TEXT.size
        consumers.append(data[at : at + length].decode())
        at += length
    pending = {
        offset: Pending(attempts, due_us, consumers[consumer] if consumer >= 0 else "")
        for offset, due_us, attempts, consumer in _ENTRY.iter_unpack(entries)
    }
    return pending, seq


def entry_positions(data: bytes) -> Iterator[tuple[int, int]]:
    """The offset of each entry of a pel.log that decodes, and where in the file the entry stands."""
    count = int(_HEADER.unpack_from(data)[3])
    for at in range(_HEADER.size, _HEADER.size + count * _ENTRY.size, _ENTRY.size):
        yield int(_ENTRY.unpack_from(data, at)[0]), at

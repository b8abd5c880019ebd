"""The state of a group as bytes, in two files of its own or as a value of the table `groups`. No engine.

state.json has the group's progress and pel.log its pending entries. Each has the last commit that it holds, so a crash
between the writes of both does no harm.

state.json: {"format": 1, "seq": ..., "id": ..., "queue": ..., "group": ..., "mode": "work" | "stream", "filter": ...,
             "cursor": ..., "committed": ..., "settled": [[start, stop], ...], "crc32": "8 hex digits"}
             where crc32 is the checksum of the same JSON without it, keys in this order, no spaces.

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

A value of the table `groups`, with the group's id as u32 for a key, has the state as of the checkpoint, little-endian:

     0  1  version 1
     1  1  mode: 1 work, 2 stream
     2  2  length of the filter
     4  4  count of settled ranges
     8  4  count of pending entries
    12  4  count of consumers
    16  8  cursor
    24  8  committed
    32     ranges, each: start u64, stop u64
           entries and consumers as in pel.log
           filter
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from headrace.errors import Corrupt
from headrace.storage.group_state import MODE_NAMES, GroupState, Pending
from headrace.storage.local.files import crc32, decode_json, encode_json

FORMAT: Final = 1
MAGIC: Final = b"HRPE"
VERSION: Final = 1
_CHECKED: Final = struct.Struct("<IIQII")
_HEADER: Final = struct.Struct("<4sIIIQII")
_ENTRY: Final = struct.Struct("<QqIi")
_TEXT: Final = struct.Struct("<H")
_STATE: Final = struct.Struct("<BBHIIIQQ")
_RANGE: Final = struct.Struct("<QQ")
_MODES: Final = {name: mode for mode, name in MODE_NAMES.items()}


def encode_progress(queue: str, group_id: int, state: GroupState, seq: int) -> bytes:
    """Encode state.json."""
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
    """Decode a state.json; returns the state and its commit. Raises Corrupt."""
    values = decode_json(data, path, FORMAT)
    try:
        if values["id"] != group_id:
            raise Corrupt(str(path), 0, f"it belongs to group {values['id']}, not to group {group_id}")
        state = GroupState(values["group"], _MODES[values["mode"]], values["filter"], values["committed"])
        state.cursor = values["cursor"]
        for start, stop in values["settled"]:
            state.add_settled(start, stop)
        return state, values["seq"]
    except (KeyError, TypeError, ValueError) as error:
        raise Corrupt(str(path), 0, f"a field is missing or of the wrong kind: {error!r}") from error


def encode_pending(group_id: int, state: GroupState, seq: int) -> bytes:
    """Encode pel.log."""
    consumers, parts = _encode_entries(state)
    checked = _CHECKED.pack(VERSION, len(state.pending), seq, group_id, consumers) + b"".join(parts)
    return MAGIC + crc32(checked).to_bytes(4, "little") + checked


def decode_pending(data: bytes, path: Path, group_id: int) -> tuple[dict[int, Pending], int]:
    """Decode a pel.log; returns its entries and its commit. Raises Corrupt."""
    file = str(path)
    if len(data) < _HEADER.size:
        raise Corrupt(file, 0, f"a pending list needs {_HEADER.size} bytes, the file has {len(data)}")
    magic, crc, version, count, seq, found_id, consumer_count = _HEADER.unpack(data[: _HEADER.size])
    if magic != MAGIC:
        raise Corrupt(file, 0, f"this is not a pending list (found {magic!r})")
    if crc32(data[8:]) != crc:
        raise Corrupt(file, 4, "the pending list's checksum is wrong")
    if version != VERSION:
        raise Corrupt(file, 8, f"pending list version {version} is not known to this release; use a newer one")
    if found_id != group_id:
        raise Corrupt(file, 24, f"it belongs to group {found_id}, not to group {group_id}")
    return _decode_entries(data, _HEADER.size, count, consumer_count)[0], seq


def check_age(path: Path, seq: int, least_seq: int) -> None:
    """Raises Corrupt when a file is older than the checkpoint says."""
    if seq < least_seq:
        what = f"it is an old version, as of commit {seq}; the one of commit {least_seq} was stored"
        raise Corrupt(str(path), 0, f"{what}; restore it from the copy that the checkpoint is from")


def entry_positions(data: bytes) -> Iterator[tuple[int, int]]:
    """The offset and the position of each entry of a sound pel.log."""
    count = int(_HEADER.unpack_from(data)[3])
    for at in range(_HEADER.size, _HEADER.size + count * _ENTRY.size, _ENTRY.size):
        yield int(_ENTRY.unpack_from(data, at)[0]), at


def group_key(group_id: int) -> bytes:
    """The key of a group in the table of groups."""
    return group_id.to_bytes(4, "little")


def encode_state(state: GroupState) -> bytes:
    """Encode the value of a group in the table of groups."""
    raw = state.filter.encode()
    if state.is_plain:  # the usual case: a fifth of the instructions
        return _STATE.pack(VERSION, state.mode, len(raw), 0, 0, 0, state.cursor, state.committed) + raw
    consumers, parts = _encode_entries(state)
    ranges = [_RANGE.pack(start, stop) for start, stop in state.settled]
    counts = (len(ranges), len(state.pending), consumers)
    head = _STATE.pack(VERSION, state.mode, len(raw), *counts, state.cursor, state.committed)
    return b"".join([head, *ranges, *parts, raw])


def decode_state(value: bytes, path: Path, group_id: int, name: str) -> GroupState:
    """Decode a value of the table of groups, which is in that file. Raises Corrupt."""
    file = str(path)
    if not value or value[0] != VERSION:
        what = f"the state of group {group_id} ({name!r}) has version {value[:1].hex() or 'none'}, which is not known"
        raise Corrupt(file, 0, f"{what} to this release; use a newer one")
    try:
        return _decode_state(value, name)
    except (struct.error, IndexError, ValueError) as error:
        raise Corrupt(file, 0, f"the state of group {group_id} ({name!r}) makes no sense: {error}") from error


def _decode_state(value: bytes, name: str) -> GroupState:
    _, mode, filter_length, ranges, count, consumers, cursor, committed = _STATE.unpack_from(value)
    at = _STATE.size + ranges * _RANGE.size
    if at + count * _ENTRY.size > len(value) or mode not in MODE_NAMES:
        raise ValueError(f"mode {mode}, {ranges} ranges and {count} entries in {len(value)} bytes")
    pending, end = _decode_entries(value, at, count, consumers)
    if end + filter_length != len(value):
        raise ValueError(f"{len(value)} bytes instead of {end + filter_length}")
    state = GroupState(name, mode, value[end:].decode() if filter_length else "", committed)
    state.cursor = cursor
    state.pending = pending
    for start, stop in _RANGE.iter_unpack(value[_STATE.size : at]):
        state.add_settled(start, stop)
    return state


def _encode_entries(state: GroupState) -> tuple[int, list[bytes]]:
    """The number of consumers, and the entries followed by the consumers."""
    consumers: dict[str, int] = {}
    parts: list[bytes] = []
    for offset, entry in state.pending.items():
        consumer = consumers.setdefault(entry.consumer, len(consumers)) if entry.consumer else -1
        parts.append(_ENTRY.pack(offset, entry.due_us, entry.attempts, consumer))
    for name in consumers:
        raw = name.encode()
        parts += [_TEXT.pack(len(raw)), raw]
    return len(consumers), parts


def _decode_entries(data: bytes, at: int, count: int, consumer_count: int) -> tuple[dict[int, Pending], int]:
    """Decode entries and the consumers behind them; returns the entries and the end."""
    end = at + count * _ENTRY.size
    entries = data[at:end]
    consumers: list[str] = []
    for _ in range(consumer_count):
        (length,) = _TEXT.unpack_from(data, end)
        end += _TEXT.size
        consumers.append(data[end : end + length].decode())
        end += length
    pending = {
        offset: Pending(attempts, due_us, consumers[consumer] if consumer >= 0 else "")
        for offset, due_us, attempts, consumer in _ENTRY.iter_unpack(entries)
    }
    return pending, end

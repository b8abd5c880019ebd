"""Our own records beside OpenData-Queue's: what a log and a group need to be opened again. Bytes and values only.

log        version u8 = 1 | first offset u64 | next offset u64 | bytes u64 | latest time i64
               | indexed offset u64 | name Utf8
progress   version u8 = 1 | mode u8 | log id u64 | cursor u64 | committed u64 | name Utf8
           then, for each range of settled offsets above committed: gap var_u64 | length var_u64
instance   version u8 = 1 | instance id Utf8
"""

import struct
from typing import Final, NamedTuple

from headrace.errors import Corrupt
from headrace.storage.group_state import MODE_NAMES, GroupState
from headrace.storage.objects.encodings import Reader, encode_utf8, encode_var_u64

VERSION: Final = 1

_LOG: Final = struct.Struct("<BQQQqQ")
_PROGRESS: Final = struct.Struct("<BBQQQ")


class LogState(NamedTuple):
    name: str
    first_offset: int
    next_offset: int
    size_bytes: int
    latest_us: int
    """The latest timestamp of all messages the log ever had."""
    indexed: int
    """The offset at which times were last indexed."""


class Progress(NamedTuple):
    log_id: int
    state: GroupState
    """Without pending entries and filter, which are in other records."""


def encode_log(log: LogState) -> bytes:
    numbers = (log.first_offset, log.next_offset, log.size_bytes, log.latest_us, log.indexed)
    return _LOG.pack(VERSION, *numbers) + encode_utf8(log.name)


def decode_log(data: bytes, where: str) -> LogState:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(VERSION)
    first, following, size, latest_us, indexed = reader.u64(), reader.u64(), reader.u64(), reader.i64(), reader.u64()
    name = reader.utf8()
    reader.end()
    if first > following or indexed > following:
        raise Corrupt(where, 1, f"the log goes from {first} to {following}, and its index to {indexed}")
    return LogState(name, first, following, size, latest_us, indexed)


def encode_progress(log_id: int, state: GroupState) -> bytes:
    parts = [
        _PROGRESS.pack(VERSION, state.mode, log_id, state.cursor, state.committed),
        encode_utf8(state.name),
    ]
    at = state.committed
    for start, stop in state.settled:
        parts.append(encode_var_u64(start - at))
        parts.append(encode_var_u64(stop - start))
        at = stop
    return b"".join(parts)


def decode_progress(data: bytes, where: str) -> Progress:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(VERSION)
    mode, log_id, cursor, committed = reader.u8(), reader.u64(), reader.u64(), reader.u64()
    if mode not in MODE_NAMES:
        raise Corrupt(where, 1, f"there is no mode {mode}")
    state = GroupState(reader.utf8(), mode, "", committed)
    state.cursor = cursor
    at = committed
    while reader.at < len(data):
        start = at + reader.var_u64()
        at = start + reader.var_u64()
        if at == start:
            raise Corrupt(where, reader.at, "a range of settled offsets is empty")
        state.settled.add(start, at)
    return Progress(log_id, state)


def encode_instance(instance: str) -> bytes:
    return bytes((VERSION,)) + encode_utf8(instance)


def decode_instance(data: bytes, where: str) -> str:
    """Raises Corrupt."""
    reader = Reader(data, where)
    reader.version(VERSION)
    instance = reader.utf8()
    reader.end()
    return instance

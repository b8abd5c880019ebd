"""The metadata of many messages as columns, with numpy. Its bytes are those of metadata.py and records.py.

Entries of a metadata log are arrays of elements back to back, so those of many entries make one. Where all elements
have the same length and flags, as they have when messages differ by number and not by kind, they are columns already;
where not, each is taken apart by itself.
"""

import struct
from typing import Any, Final, NamedTuple

import numpy as np

from headrace.errors import Corrupt
from headrace.storage.objects.encodings import Reader
from headrace.storage.objects.metadata import EXPIRES, HEAD, KNOWN_FLAGS, NOT_BEFORE, SHARED, VERSION, VISIBLE, head_of

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENT: Final = struct.Struct("<QI")
_FLAGS_AT: Final = _ELEMENT.size + 1
_HEAD_END: Final = _ELEMENT.size + HEAD.size


class Facts(NamedTuple):
    """What is known of messages besides their payloads, a row for each."""

    ids: Array
    sizes: Array
    times: Array
    expires: Array
    """0 where a message never does."""
    not_before: Array
    priorities: Array
    encodings: Array
    kinds: list[bytes]
    """What follows the times in the metadata: the texts of the source and the properties, each distinct value once."""
    which: Array
    """Which of the kinds each message has."""

    def cut(self, start: int, stop: int) -> "Facts":
        """These rows only."""
        return Facts(
            self.ids[start:stop],
            self.sizes[start:stop],
            self.times[start:stop],
            self.expires[start:stop],
            self.not_before[start:stop],
            self.priorities[start:stop],
            self.encodings[start:stop],
            self.kinds,
            self.which[start:stop],
        )


def facts_of(elements: bytes, count: int, where: str) -> Facts:
    """Take the elements of entries apart, of which there are so many. Raises Corrupt."""
    if count and len(elements) % count == 0:
        stride = len(elements) // count
        if stride >= _HEAD_END:
            rows = np.frombuffer(elements, np.uint8).reshape(count, stride)
            if _are_alike(rows, stride):
                return _columns(rows)
    return _one_by_one(elements, count, where)


def texts_of(kind: bytes, where: str) -> tuple[str, str, str, str, bytes]:
    """Topic, exchange, client id and protocol of a kind, and its properties. Raises Corrupt."""
    reader = Reader(kind, where)
    return reader.utf8(), reader.utf8(), reader.utf8(), reader.utf8(), kind[reader.at :]


def _are_alike(rows: Array, stride: int) -> bool:
    lengths = _numbers(rows, 8, "<u4")
    flags = int(rows[0, _FLAGS_AT])
    return bool(
        (lengths == stride - _ELEMENT.size).all()
        and (rows[:, _FLAGS_AT - 1] == VERSION).all()
        and (rows[:, _FLAGS_AT] == flags).all()
        and not flags & ~(EXPIRES | NOT_BEFORE | SHARED)
        and stride >= _HEAD_END + 8 * bool(flags & EXPIRES) + 8 * bool(flags & NOT_BEFORE)
    )


def _columns(rows: Array) -> Facts:
    flags = int(rows[0, _FLAGS_AT])
    at = _HEAD_END
    none = np.zeros(len(rows), np.int64)
    expires = not_before = none
    if flags & EXPIRES:
        expires, at = _numbers(rows, at, "<i8"), at + 8
    if flags & NOT_BEFORE:
        not_before, at = _numbers(rows, at, "<i8"), at + 8
    kinds, which = _distinct(rows[:, at:])
    times = _numbers(rows, _ELEMENT.size + 8, "<i8")
    sizes = _numbers(rows, _ELEMENT.size + 4, "<u4").astype(np.int64)
    encodings, priorities = rows[:, _FLAGS_AT + 1].copy(), rows[:, _FLAGS_AT + 2].copy()
    return Facts(_numbers(rows, 0, "<u8"), sizes, times, expires, not_before, priorities, encodings, kinds, which)


def _numbers(rows: Array, at: int, kind: str) -> Array:
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, at : at + size]).view(kind).ravel()


def _distinct(tails: Array) -> tuple[list[bytes], Array]:
    if not tails.size or (tails == tails[0]).all():
        return [tails[0].tobytes()], np.zeros(len(tails), np.int32)
    values = np.ascontiguousarray(tails).view(np.dtype((np.void, tails.shape[1]))).ravel()
    found, index = np.unique(values, return_inverse=True)
    return [value.tobytes() for value in found], index.astype(np.int32).ravel()


def _one_by_one(elements: bytes, count: int, where: str) -> Facts:
    rows: list[tuple[int, ...]] = []
    kinds: dict[bytes, int] = {}
    at = 0
    for _ in range(count):
        if at + _ELEMENT.size > len(elements):
            raise Corrupt(where, at, "the entry ends too early")
        message_id, length = _ELEMENT.unpack_from(elements, at)
        metadata = elements[at + _ELEMENT.size : at + _ELEMENT.size + length]
        at += _ELEMENT.size + length
        numbers, kind = _take_apart(metadata, where)
        rows.append((message_id, *numbers, kinds.setdefault(kind, len(kinds))))
    if at != len(elements):
        raise Corrupt(where, min(at, len(elements)), "the entry has another length than its messages")
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    ids, sizes, times, expires, not_before, priorities, encodings, which = columns
    return Facts(
        np.array(ids, np.uint64),
        np.array(sizes, np.int64),
        np.array(times, np.int64),
        np.array(expires, np.int64),
        np.array(not_before, np.int64),
        np.array(priorities, np.uint8),
        np.array(encodings, np.uint8),
        list(kinds),
        np.array(which, np.int32),
    )


def _take_apart(metadata: bytes, where: str) -> tuple[tuple[int, ...], bytes]:
    """Size, time, expiry, not before, priority, encoding; and the rest."""
    _, flags, encoding, priority, size, time_us = head_of(metadata, where)
    assert not flags & ~KNOWN_FLAGS
    reader = Reader(metadata, where)
    reader.at = HEAD.size + (8 if flags & VISIBLE else 0)
    expires = reader.i64() if flags & EXPIRES else 0
    not_before = reader.i64() if flags & NOT_BEFORE else 0
    return (size, time_us, expires, not_before, priority, encoding), metadata[reader.at :]

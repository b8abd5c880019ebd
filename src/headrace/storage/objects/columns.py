"""Messages of a view as Arrow record batches, and their metadata as columns. Imports numpy and pyarrow.

A record of several payloads is a column already, if its lengths are those that the metadata has. For messages with
payload records of their own, the lengths give the positions in the library's answer, which are verified.

Entries of a metadata log are arrays of elements back to back, so the elements of many entries join into one array. If
all elements have the same length and flags, as is usual, their bytes are columns already; else each is decoded alone.
"""

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import Corrupt
from headrace.model import Source
from headrace.storage.arrow import SCHEMA, columns_of_sources, counting
from headrace.storage.objects.database import Readable
from headrace.storage.objects.keys import (
    PAYLOAD,
    PAYLOADS,
    Reader,
    decode_entry_key,
    describe,
    entry_key,
    entry_prefix,
    lexical_successor,
    log_name,
    payload_key,
    payloads_key,
)
from headrace.storage.objects.records import (
    EXPIRES,
    HEAD,
    KNOWN_FLAGS,
    NOT_BEFORE,
    PACKED,
    SHARED,
    VERSION,
    VISIBLE,
    head_of,
    payload_places,
)

Array = np.ndarray[Any, np.dtype[Any]]

_ELEMENT: Final = struct.Struct("<QI")
_FLAGS_AT: Final = _ELEMENT.size + 1
_HEAD_END: Final = _ELEMENT.size + HEAD.size
_TYPES: Final = (np.uint64, np.int64, np.int64, np.int64, np.int64, np.uint8, np.uint8, np.bool_, np.int32)
"""The types of the columns of Facts, without the kinds."""


class Facts(NamedTuple):
    """The metadata of messages as columns."""

    ids: Array
    sizes: Array
    times: Array
    expires: Array
    """0 for never."""
    not_before: Array
    priorities: Array
    encodings: Array
    packed: Array
    """True for payloads in a record of several."""
    kinds: list[bytes]
    """The distinct ends of the metadata: the texts of the source, and the properties."""
    which: Array
    """The number of each message's kind."""

    def cut(self, start: int, stop: int) -> "Facts":
        """Only these rows."""
        return Facts._make([each if isinstance(each, list) else each[start:stop] for each in self])


def facts_of(elements: bytes, count: int, where: str) -> Facts:
    """Decode `count` elements of entries. Raises Corrupt."""
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
        and not flags & ~(EXPIRES | NOT_BEFORE | SHARED | PACKED)
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
    packed = np.full(len(rows), bool(flags & PACKED))
    ids = _numbers(rows, 0, "<u8")
    return Facts(ids, sizes, times, expires, not_before, priorities, encodings, packed, kinds, which)


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
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(_TYPES)
    found: list[Array] = [np.array(column, kind) for column, kind in zip(columns, _TYPES, strict=True)]
    return Facts._make([*found[:-1], list(kinds), found[-1]])


def _take_apart(metadata: bytes, where: str) -> tuple[tuple[int, ...], bytes]:
    """Size, time, expiry, not before, priority, encoding and whether it is packed; and the rest of the metadata."""
    _, flags, encoding, priority, size, time_us = head_of(metadata, where)
    assert not flags & ~KNOWN_FLAGS
    reader = Reader(metadata, where)
    reader.at = HEAD.size + (8 if flags & VISIBLE else 0)
    expires = reader.i64() if flags & EXPIRES else 0
    not_before = reader.i64() if flags & NOT_BEFORE else 0
    numbers = (size, time_us, expires, not_before, priority, encoding, bool(flags & PACKED))
    return numbers, metadata[reader.at :]


_ROWS: Final = 8192
_BYTES: Final = 8 << 20
_EXTENT_BYTES: Final = 1 << 20
_ENTRIES: Final = 16
_COUNT: Final = struct.Struct("<H")
_TIME: Final = pa.timestamp("us", tz="UTC")
_BEFORE: Final = 18
"""The bytes before a payload in the library's answer: the key's length, the key, the payload's length."""
_AFTER: Final = 17
"""The bytes behind it: a number, a time, and a flag that it never expires."""
_KEY_AT: Final = 4 + len(PAYLOAD)
_NEAR: Final = 8
"""Ids at most this far apart are read together, with the payloads of other logs between them."""
_SHORT: Final = 32
"""If runs of ids are shorter than this on average, payloads are looked up one by one."""


@final
class ColumnReader:
    """Reads one log of a view."""

    def __init__(self, view: Readable, instance: str, log_id: int) -> None:
        self._view = view
        self._prefix = entry_prefix(log_name(instance, log_id))
        self._where = describe(self._prefix)

    def batches(self, start: int, stop: int, names: Sequence[str] = SCHEMA.names) -> Iterator[pa.RecordBatch]:
        """The messages from `start` up to but not including `stop` in these columns of SCHEMA, each exactly once.

        Raises Corrupt when some of them are missing or damaged, Unavailable when the store cannot be read.
        """
        at = start
        for base, facts in self._facts(start, stop) if start < stop else ():
            found = facts.cut(max(0, start - base), stop - base)
            first = max(base, start)
            if first != at:
                break
            for low, high in _parts(found.sizes if "payload" in names else None, len(found.ids)):
                yield self._batch(first + low, found.cut(low, high), names)
            at = first + len(found.ids)
        if at < stop:
            raise Corrupt(self._where, 0, f"no entry of the metadata log has offset {at}")

    def extents(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Neighbouring messages of a range, in order: the first offset, the one behind the last, and their bytes.

        Only metadata is read. Raises as `batches` does.
        """
        for base, facts in self._facts(start, stop) if start < stop else ():
            found = facts.cut(max(0, start - base), stop - base)
            first = max(base, start)
            sizes = found.sizes + np.array([len(kind) for kind in found.kinds], np.int64)[found.which]
            for low, high in _parts(sizes, len(sizes), _EXTENT_BYTES):
                yield first + low, first + high, int(sizes[low:high].sum())

    def _facts(self, start: int, stop: int) -> Iterator[tuple[int, Facts]]:
        """The metadata from the entry with `start` on, in runs of contiguous entries, each with its first offset."""
        row = self._view.last(self._prefix, entry_key(self._prefix, start + 1))
        begin = row[0] if row is not None else entry_key(self._prefix, start)
        base = count = size = 0
        elements: list[bytes] = []
        for rows in self._view.scan(begin, entry_key(self._prefix, stop), at_once=_ENTRIES):
            for key, value in rows:
                offset = decode_entry_key(key, self._prefix)
                if elements and (offset != base + count or count >= _ROWS or size >= _BYTES):
                    yield base, facts_of(b"".join(elements), count, self._where)
                    elements, count, size = [], 0, 0
                if not elements:
                    base = offset
                elements.append(value[_COUNT.size :])
                count += _count(value, key)
                size += len(value)
        if elements:
            yield base, facts_of(b"".join(elements), count, self._where)

    def _batch(self, base: int, facts: Facts, names: Sequence[str]) -> pa.RecordBatch:
        count = len(facts.ids)
        texts = [texts_of(kind, self._where) for kind in facts.kinds]
        index = pa.array(facts.which) if len(texts) > 1 else None
        columns = columns_of_sources([Source(*each[:4]) for each in texts], index, count, names)
        for name in names:
            if name == "offset":
                columns[name] = counting(base, base + count)
            elif name == "payload":
                columns[name] = self._payloads(facts)
            elif name == "properties":
                distinct = pa.array([each[4] for each in texts], pa.binary())
                columns[name] = distinct.take(index) if index is not None else pa.repeat(distinct[0], count)
            elif name in _NUMBERS:
                columns[name] = _NUMBERS[name](facts)
        schema = pa.schema([SCHEMA.field(name) for name in names])
        return pa.RecordBatch.from_arrays([columns[name] for name in names], schema=schema)

    # -- payloads ----------------------------------------------------------------------------------------------------

    def _payloads(self, facts: Facts) -> pa.Array:
        if not facts.packed.any():
            return self._own_payloads(facts)
        if facts.packed.all():
            return self._packed_payloads(facts.ids, facts.sizes)
        own = ~facts.packed
        single = self._single_payloads(facts.ids[own], facts.sizes[own])
        packed = self._packed_payloads(facts.ids[facts.packed], facts.sizes[facts.packed])
        place = np.where(own, np.cumsum(own) - 1, len(single) + np.cumsum(facts.packed) - 1)
        return pa.concat_arrays([single, packed]).take(pa.array(place))

    def _packed_payloads(self, ids: Array, sizes: Array) -> pa.Array:
        """The payloads of messages in records of several. Raises Corrupt when one is missing."""
        parts: list[pa.Array] = []
        at = 0
        for low, high in _runs(ids):
            first, last = int(ids[low]), int(ids[high - 1])
            row = self._view.last(PAYLOADS, payloads_key(first + 1))
            begin = row[0] if row is not None else payloads_key(first)
            end = lexical_successor(payloads_key(last))
            for rows in self._view.scan(begin, end, at_once=_ENTRIES):
                for key, value in rows:
                    start = int.from_bytes(key[len(PAYLOADS) :], "big")
                    if at < high and int(ids[at]) < start:
                        raise _missing(int(ids[at]))
                    found = _packed(value, start, ids[at:high], sizes[at:high], describe(key))
                    if len(found):
                        parts.append(found)
                        at += len(found)
            if at < high:
                raise _missing(int(ids[at]))
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _own_payloads(self, facts: Facts) -> pa.Array:
        cuts = np.flatnonzero(np.diff(facts.ids) != 1) + 1
        bounds = [0, *cuts.tolist(), len(facts.ids)]
        if len(bounds) - 1 > max(1, len(facts.ids) // _SHORT):
            return self._single_payloads(facts.ids, facts.sizes)
        runs = [self._run(facts.ids[low:high], facts.sizes[low:high]) for low, high in itertools.pairwise(bounds)]
        return runs[0] if len(runs) == 1 else pa.concat_arrays(runs)

    def _run(self, ids: Array, sizes: Array) -> pa.Array:
        """The payloads of consecutive ids, from one answer of the library."""
        count = len(ids)
        end = lexical_successor(payload_key(int(ids[-1])))
        raw = next(self._view.scan_raw(payload_key(int(ids[0])), end, at_once=count))
        ends = np.cumsum(sizes + (_BEFORE + _AFTER)) + 4
        if len(raw) != ends[-1]:
            return self._single_payloads(ids, sizes)
        starts = np.concatenate([[4], ends[:-1]])
        data = np.frombuffer(raw, np.uint8)
        found = np.ascontiguousarray(data[starts[:, None] + np.arange(_KEY_AT, _KEY_AT + 8)]).view(">u8").ravel()
        if not (found == ids).all():
            return self._single_payloads(ids, sizes)
        offsets = pa.array(np.concatenate([starts, ends[-1:]]).astype(np.int32))
        rows = pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], pa.py_buffer(raw)])
        return pc.binary_slice(rows, _BEFORE, -_AFTER)

    def _single_payloads(self, ids: Array, sizes: Array) -> pa.Array:
        """The payloads of any ids. Raises Corrupt when one is missing."""
        wanted = np.unique(ids)
        found: dict[int, bytes] = {}
        for low, high in _runs(wanted):
            end = lexical_successor(payload_key(int(wanted[high - 1])))
            for rows in self._view.scan(payload_key(int(wanted[low])), end, at_once=high - low + _SHORT):
                found.update([(int.from_bytes(key[len(PAYLOAD) :], "big"), value) for key, value in rows])
        for each in wanted.tolist():
            if each not in found:
                self._borrow(each, found)
        payloads = [found.get(each) for each in ids.tolist()]
        for message_id, payload, size in zip(ids.tolist(), payloads, sizes.tolist(), strict=True):
            if payload is None or len(payload) != size:
                what = "the payload is missing" if payload is None else f"{size} bytes expected, not {len(payload)}"
                raise Corrupt(describe(payload_key(message_id)), 0, what)
        return pa.array(payloads, pa.binary())

    def _borrow(self, message_id: int, found: dict[int, bytes]) -> None:
        """Find a payload that another log has in a record of several. Raises Corrupt."""
        row = self._view.last(PAYLOADS, payloads_key(message_id + 1))
        if row is None:
            return
        at, lengths = payload_places(row[1], describe(row[0]))
        place = message_id - int.from_bytes(row[0][len(PAYLOADS) :], "big")
        if place < len(lengths):
            at += sum(lengths[:place])
            found[message_id] = row[1][at : at + lengths[place]]


def _missing(message_id: int) -> Corrupt:
    return Corrupt(describe(payloads_key(message_id)), 0, "the payload is missing")


def _packed(value: bytes, start: int, ids: Array, sizes: Array, where: str) -> pa.Array:
    """The payloads of these messages as far as the record has them; `start` is the id of its first. Raises Corrupt."""
    at, lengths = payload_places(value, where)
    count = int(np.searchsorted(ids, start + len(lengths)))
    rows = (ids[:count] - np.uint64(start)).astype(np.int64)
    if not (np.array(lengths, np.int64)[rows] == sizes[:count]).all():
        raise Corrupt(where, 1, "the payloads have other lengths than the metadata says")
    ends = np.cumsum(np.array((at, *lengths), np.int64)).astype(np.int32)
    column = pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(ends.tobytes()), pa.py_buffer(value)])
    if count == 0 or int(rows[-1]) - int(rows[0]) + 1 == count:
        return column.slice(int(rows[0]) if count else 0, count)
    return column.take(pa.array(rows))


def _runs(ids: Array) -> Iterator[tuple[int, int]]:
    """The bounds of ids that are near to each other, to read together."""
    cuts = np.flatnonzero(np.diff(ids) > _NEAR) + 1
    bounds = [0, *cuts.tolist(), len(ids)]
    yield from itertools.pairwise(bounds)


def _parts(sizes: Array | None, count: int, most_bytes: int = _BYTES) -> Iterator[tuple[int, int]]:
    """The bounds of rows to read together."""
    if sizes is None:
        yield 0, count
        return
    sums = np.cumsum(sizes)
    low = 0
    while low < count:
        before = int(sums[low - 1]) if low else 0
        high = min(low + _ROWS, max(low + 1, int(np.searchsorted(sums, before + most_bytes, "right"))))
        yield low, min(high, count)
        low = high


def _count(value: bytes, key: bytes) -> int:
    if len(value) < _COUNT.size:
        raise Corrupt(describe(key), 0, "the entry ends too early")
    return int(_COUNT.unpack_from(value)[0])


def _times(values: Array) -> pa.Array:
    return pa.array(values).cast(_TIME)


def _optional_times(values: Array) -> pa.Array:
    """A column of times, where 0 becomes null."""
    if not values.any():
        return pa.nulls(len(values), _TIME)
    return pa.array(values, mask=values == 0).cast(_TIME)


_NUMBERS: Final[dict[str, Callable[[Facts], pa.Array]]] = {
    "timestamp": lambda facts: _times(facts.times),
    "expires_at": lambda facts: _optional_times(facts.expires),
    "not_before": lambda facts: _optional_times(facts.not_before),
    "priority": lambda facts: pa.array(facts.priorities),
    "encoding": lambda facts: pa.array(facts.encodings),
}

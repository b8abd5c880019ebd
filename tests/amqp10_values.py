"""Values of every AMQP 1.0 type for Hypothesis, and proton's objects as these values."""

import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import proton
from hypothesis import strategies as st

from headrace.wire import amqp10_values as codes
from headrace.wire import types as t
from headrace.wire.amqp10 import HEADER
from headrace.wire.amqp10_values import encode_described, encode_value

_INTEGERS: list[tuple[type[int], int, int]] = [
    (t.UByte, 0, 2**8 - 1),
    (t.UShort, 0, 2**16 - 1),
    (t.UInt, 0, 2**32 - 1),
    (t.ULong, 0, 2**64 - 1),
    (t.Byte, -(2**7), 2**7 - 1),
    (t.Short, -(2**15), 2**15 - 1),
    (t.Int, -(2**31), 2**31 - 1),
    (int, -(2**63), 2**63 - 1),
    (t.Timestamp, -(2**63), 2**63 - 1),
]
# Few letters of each length in UTF-8, and texts shorter and longer than one byte can count.
ascii_texts = st.one_of(st.text("ax-:\0\x7f", max_size=6), st.sampled_from(["x-basic-type", "x" * 255, "x" * 256]))
texts = st.one_of(st.text("aé€😀\0\ud7ff\uffff", max_size=6), st.sampled_from(["x" * 255, "é" * 128]))
_chars = st.sampled_from("a\0\x7fé€😀\ud7ff\ue000\U0010ffff")
_bytes = st.one_of(st.binary(max_size=8), st.sampled_from([b"x" * 255, b"x" * 256]))


def _wrapped(kind: type[int], least: int, most: int) -> st.SearchStrategy[object]:
    return st.integers(least, most).map(kind)


_floats32 = st.floats(width=32, allow_nan=False).map(t.Float)
_of_code: dict[int, st.SearchStrategy[object]] = {
    codes.BOOLEAN: st.booleans(),
    codes.UBYTE: _wrapped(*_INTEGERS[0]),
    codes.USHORT: _wrapped(*_INTEGERS[1]),
    codes.UINT: _wrapped(*_INTEGERS[2]),
    codes.ULONG: _wrapped(*_INTEGERS[3]),
    codes.BYTE: _wrapped(*_INTEGERS[4]),
    codes.SHORT: _wrapped(*_INTEGERS[5]),
    codes.INT: _wrapped(*_INTEGERS[6]),
    codes.LONG: _wrapped(*_INTEGERS[7]),
    codes.TIMESTAMP: _wrapped(*_INTEGERS[8]),
    codes.FLOAT: _floats32,
    codes.DOUBLE: st.floats(allow_nan=False),
    codes.CHAR: _chars.map(t.Char),
    codes.DECIMAL32: st.binary(min_size=4, max_size=4).map(t.Decimal32),
    codes.DECIMAL64: st.binary(min_size=8, max_size=8).map(t.Decimal64),
    codes.DECIMAL128: st.binary(min_size=16, max_size=16).map(t.Decimal128),
    codes.UUID: st.uuids(),
    codes.VBIN32: _bytes,
    codes.STR32: texts,
    codes.SYM32: ascii_texts.map(t.Symbol),
}
primitives: st.SearchStrategy[object] = st.one_of(st.none(), *_of_code.values())


@st.composite
def arrays(draw: st.DrawFn) -> t.Array:
    """Return arrays of every primitive type, some described, some empty."""
    code = draw(st.sampled_from(sorted(_of_code)))
    items = draw(st.lists(_of_code[code], max_size=5))
    descriptor = draw(st.one_of(st.none(), st.builds(t.Symbol, ascii_texts)))
    return t.Array(code, items, descriptor)


def _nested(inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    lists = st.lists(inner, max_size=5)
    maps = st.lists(st.tuples(primitives, inner), max_size=4).map(t.Map)
    # No described value is described again: proton loses count of that, too.
    undescribed = inner.filter(lambda value: not isinstance(value, t.Described))
    described = st.builds(t.Described, st.one_of(st.builds(t.Symbol, ascii_texts), _of_code[codes.ULONG]), undescribed)
    # Primitives only: proton loses count of described values inside an array.
    primitive_lists = st.lists(st.lists(primitives, max_size=3), max_size=3)
    compound_arrays = primitive_lists.map(lambda items: t.Array(codes.LIST32, list(items)))
    return st.one_of(lists, maps, described, arrays(), compound_arrays)


values: st.SearchStrategy[object] = st.recursive(primitives, _nested, max_leaves=12)

# -- sections of messages ---------------------------------------------------------------------------------------------

_ids = st.one_of(st.none(), texts, st.binary(max_size=5), st.uuids(), st.just(t.ULong(7)))
_times = st.one_of(st.none(), st.integers(0, 2**60).map(t.Timestamp))
_symbols = st.one_of(st.none(), st.just(t.Symbol("text/plain")))


def section(number: int, body: bytes) -> bytes:
    return bytes((0x00, 0x53, number)) + body


_headers = st.tuples(
    st.sampled_from([None, True, False]),
    st.one_of(st.none(), st.integers(0, 255).map(t.UByte)),
    st.one_of(st.none(), st.integers(0, 2**32 - 1).map(t.UInt)),
    st.sampled_from([None, True, False]),
    st.one_of(st.none(), st.integers(0, 9).map(t.UInt)),
).map(lambda fields: encode_described(HEADER, list(fields)))
_texts = st.one_of(st.none(), texts)
_properties = st.tuples(
    _ids, st.one_of(st.none(), st.binary(max_size=5)), _texts, _texts, _texts, _ids, _symbols, _symbols, _times, _times
).map(lambda fields: encode_described(0x73, list(fields)))


def _table(pairs: Sequence[tuple[object, object]]) -> t.Map:
    return t.Map(list(pairs))


ascii_tables = st.lists(st.tuples(ascii_texts.map(t.Symbol), primitives), max_size=3).map(_table)
_application = st.lists(st.tuples(texts, primitives), max_size=3).map(_table)


@st.composite
def heads(draw: st.DrawFn) -> bytes:
    sections = (
        _headers,
        ascii_tables.map(lambda table: section(0x71, encode_value(table))),
        ascii_tables.map(lambda table: section(0x72, encode_value(table))),
        _properties,
        _application.map(lambda table: section(0x74, encode_value(table))),
    )
    return b"".join([draw(one) for one in sections if draw(st.booleans())])


_PROTON: list[tuple[type, Callable[[Any], object]]] = [
    (proton.ubyte, t.UByte),
    (proton.ushort, t.UShort),
    (proton.uint, t.UInt),
    (proton.ulong, t.ULong),
    (proton.byte, t.Byte),
    (proton.short, t.Short),
    (proton.int32, t.Int),
    (proton.timestamp, t.Timestamp),
    (proton.float32, t.Float),
    (proton.symbol, t.Symbol),
    (proton.char, t.Char),
]
_CODES = {
    proton.Data.BOOL: codes.BOOLEAN,
    proton.Data.UBYTE: codes.UBYTE,
    proton.Data.USHORT: codes.USHORT,
    proton.Data.UINT: codes.UINT,
    proton.Data.ULONG: codes.ULONG,
    proton.Data.BYTE: codes.BYTE,
    proton.Data.SHORT: codes.SHORT,
    proton.Data.INT: codes.INT,
    proton.Data.LONG: codes.LONG,
    proton.Data.TIMESTAMP: codes.TIMESTAMP,
    proton.Data.FLOAT: codes.FLOAT,
    proton.Data.DOUBLE: codes.DOUBLE,
    proton.Data.CHAR: codes.CHAR,
    proton.Data.DECIMAL32: codes.DECIMAL32,
    proton.Data.DECIMAL64: codes.DECIMAL64,
    proton.Data.DECIMAL128: codes.DECIMAL128,
    proton.Data.UUID: codes.UUID,
    proton.Data.BINARY: codes.VBIN32,
    proton.Data.STRING: codes.STR32,
    proton.Data.SYMBOL: codes.SYM32,
    proton.Data.LIST: codes.LIST32,
}


def is_read_by_proton(value: object) -> bool:
    """True if proton reads the value correctly. It does not if a described value is described again."""
    if isinstance(value, t.Described):
        return not isinstance(value.value, t.Described) and is_read_by_proton(value.value)
    if isinstance(value, t.Map):
        return all(is_read_by_proton(one) for pair in value.pairs for one in pair)
    if isinstance(value, t.Array):
        return not isinstance(value.descriptor, t.Described) and all(is_read_by_proton(one) for one in value.items)
    return all(is_read_by_proton(one) for one in value) if isinstance(value, list) else True


def read_by_proton(data: proton.Data) -> object:
    """Return the value at the position of proton's reader, as one of ours."""
    kind = data.type()
    if kind == proton.Data.DESCRIBED:
        return t.Described(*_children(data))
    if kind == proton.Data.LIST:
        return _children(data)
    if kind == proton.Data.MAP:
        items = _children(data)
        return t.Map(list(zip(items[::2], items[1::2], strict=True)))
    if kind == proton.Data.ARRAY:
        _, is_described, item_kind = data.get_array()
        items = _children(data)
        descriptor = items.pop(0) if is_described else None
        return t.Array(_CODES[item_kind], items, descriptor)
    return _simple(kind, data)


def _children(data: proton.Data) -> list[object]:
    items: list[object] = []
    data.enter()
    while data.next():
        items.append(read_by_proton(data))
    data.exit()
    return items


def _simple(kind: int | None, data: proton.Data) -> object:
    if kind == proton.Data.DECIMAL32:
        return t.Decimal32(struct.pack(">I", data.get_decimal32()))
    if kind == proton.Data.DECIMAL64:
        return t.Decimal64(struct.pack(">Q", data.get_decimal64()))
    if kind == proton.Data.DECIMAL128:
        return t.Decimal128(data.get_decimal128())
    value = data.get_object()
    for theirs, ours in _PROTON:
        if type(value) is theirs:
            return ours(value)
    if isinstance(value, memoryview):
        return bytes(value)
    return uuid.UUID(bytes=value.bytes) if isinstance(value, uuid.UUID) else value

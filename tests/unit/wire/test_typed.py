"""A header is a table's row with the name of its type and the bytes of its value."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from headrace.wire.typed import typed_value
from headrace.wire.types import Byte, Described, Float, Int, LongString, Seconds, Symbol, UInt, ULong, UShort


@pytest.mark.parametrize(
    ("value", "kind", "raw"),
    [
        (None, "null", None),
        (True, "boolean", b"\1"),
        (Byte(-1), "byte", b"\xff"),
        (UShort(513), "ushort", b"\2\1"),
        (Int(-2), "int", b"\xff\xff\xff\xfe"),
        (UInt(5), "uint", b"\0\0\0\5"),
        (7, "long", bytes(7) + b"\7"),
        (ULong(1 << 63), "ulong", b"\x80" + bytes(7)),
        (1 << 63, "ulong", b"\x80" + bytes(7)),
        (1.5, "double", b"\x3f\xf8" + bytes(6)),
        (Float(1.5), "float", b"\x3f\xc0\0\0"),
        ("\u00e4", "string", b"\xc3\xa4"),
        (Symbol("a"), "symbol", b"a"),
        (b"\xff", "binary", b"\xff"),
        (LongString(b"\xff"), "string", b"\xff"),
        (Decimal("1.50"), "decimal", b"1.50"),
        (datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "timestamp", b"\0\0\0\0\0\0\3\xe8"),
        (Seconds(1 << 40), "seconds", b"\0\0\1" + bytes(5)),
        ([1, {"a": b"x"}], "list", b'[1,{"a":{"$bytes":"eA=="}}]'),
        ({"a": None}, "map", b'{"a":null}'),
        (Described(1, 2), "other", None),
    ],
)
def test_a_value_has_the_name_of_its_type_and_its_bytes(value: object, kind: str, raw: bytes | None) -> None:
    assert typed_value(value) == (kind, raw)

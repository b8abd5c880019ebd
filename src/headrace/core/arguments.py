"""Values of arguments and headers: how they compare, and how JSON holds them. Wire bytes are elsewhere."""

from base64 import b64decode, b64encode
from collections.abc import Hashable, Mapping
from datetime import datetime
from decimal import Decimal
from math import isfinite
from typing import Final

from headrace.errors import Refused

MAX_DEPTH: Final = 64  # tables within tables; far beyond any use, well within the interpreter's stack

# JSON has no bytes, times, decimals or infinities: each is an object with one member, named by a tag.
_BYTES: Final = "$bytes"
_TIME: Final = "$time"
_DECIMAL: Final = "$decimal"
_FLOAT: Final = "$float"
_TABLE: Final = "$table"  # a table that has one member itself, whose name looks like a tag


def frozen(value: object, depth: int = MAX_DEPTH) -> Hashable:
    """A value that is equal to another one's exactly when both have the same type and the same content.

    All integers are of one type, and so are all floats and all byte strings; True is not 1, 1 is not 1.0.
    Raises Refused when it holds what no table can hold, or is nested too deep.
    """
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return ("float", value if value == value else "nan")
    if isinstance(value, (bytes, bytearray)):
        return ("bytes", bytes(value))
    if isinstance(value, datetime):
        return ("time", value)
    if isinstance(value, Decimal):
        return ("decimal", value if value.is_finite() else str(value))
    _check_depth(depth)
    if isinstance(value, (list, tuple)):
        return ("list", tuple([frozen(item, depth - 1) for item in value]))
    if isinstance(value, Mapping):
        return ("table", frozenset([(_name(key), frozen(item, depth - 1)) for key, item in value.items()]))
    raise Refused(f"a value of type {type(value).__name__} cannot be in a table of arguments")


def to_json(value: object, depth: int = MAX_DEPTH) -> object:
    """The value as JSON can hold it. Raises Refused for what no table can hold, or when nested too deep."""
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else {_FLOAT: str(value)}
    if isinstance(value, (bytes, bytearray)):
        return {_BYTES: b64encode(value).decode()}
    if isinstance(value, datetime):
        return {_TIME: value.isoformat()}
    if isinstance(value, Decimal):
        return {_DECIMAL: str(value)}
    _check_depth(depth)
    if isinstance(value, (list, tuple)):
        return [to_json(item, depth - 1) for item in value]
    if isinstance(value, Mapping):
        table = {_name(key): to_json(item, depth - 1) for key, item in value.items()}
        return {_TABLE: table} if _looks_tagged(table) else table
    raise Refused(f"a value of type {type(value).__name__} cannot be in a table of arguments")


def from_json(value: object, depth: int = MAX_DEPTH) -> object:
    """The value that `to_json` was given. Raises Refused when it is not such JSON."""
    if not isinstance(value, (list, dict)):
        return value
    _check_depth(depth)
    if isinstance(value, list):
        return [from_json(item, depth - 1) for item in value]
    table = {_name(key): item for key, item in value.items()}
    if _looks_tagged(table):
        tag, content = next(iter(table.items()))
        return table_from_json(content, depth - 1) if tag == _TABLE else _untagged(tag, content)
    return {key: from_json(item, depth - 1) for key, item in table.items()}


def table_to_json(table: Mapping[str, object]) -> dict[str, object]:
    """A whole table of arguments, each value as JSON can hold it; its own names are never taken for tags."""
    return {name: to_json(value) for name, value in table.items()}


def table_from_json(value: object, depth: int = MAX_DEPTH) -> dict[str, object]:
    """The table that `table_to_json` was given. Raises Refused when it is not such JSON."""
    if not isinstance(value, dict):
        raise Refused(f"arguments must be a table, not {type(value).__name__}")
    return {_name(name): from_json(item, depth) for name, item in value.items()}


def _untagged(tag: str, content: object) -> object:
    if isinstance(content, str):
        try:
            if tag == _BYTES:
                return b64decode(content, validate=True)
            if tag == _TIME:
                return datetime.fromisoformat(content)
            if tag == _DECIMAL:
                return Decimal(content)
            if tag == _FLOAT:
                return float(content)
        except (ValueError, ArithmeticError):
            raise Refused(f"{content!r} is not what {tag!r} stands for") from None
    raise Refused(f"{tag!r} is not a tag that stands for a value like {content!r}")


def _looks_tagged(table: dict[str, object]) -> bool:
    return len(table) == 1 and next(iter(table)).startswith("$")


def _name(key: object) -> str:
    if isinstance(key, str):
        return key
    raise Refused(f"a table's names are strings, not {type(key).__name__}")


def _check_depth(depth: int) -> None:
    if depth <= 0:
        raise Refused(f"arguments are nested more than {MAX_DEPTH} deep")

"""The fields of a described list, each read as the type it must have. Which fields there are is in performatives.py."""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.amqp10.frames import DECODE_ERROR
from headrace.protocols.amqp10.types import Array, Described, Map, Symbol, UByte, UInt, ULong, UShort

MAX_UINT: Final = 0xFFFFFFFF


@final
class Fields:
    """One list; fields beyond its end are null. Raises ProtocolError that names the field and what it should be."""

    __slots__ = ("_name", "_values")

    def __init__(self, name: str, values: list[object]) -> None:
        self._name = name
        self._values = values

    def get(self, index: int) -> object:
        return self._values[index] if index < len(self._values) else None

    def text(self, index: int, field: str) -> str | None:
        """A string, or a symbol where a careless client sends one."""
        value = self.get(index)
        if value is None or isinstance(value, str):
            return None if value is None else str(value)
        raise self._wrong(field, "a string", value)

    def required_text(self, index: int, field: str) -> str:
        value = self.text(index, field)
        if value is None:
            raise self._missing(field)
        return value

    def binary(self, index: int, field: str) -> bytes | None:
        value = self.get(index)
        if value is None or isinstance(value, bytes):
            return value
        raise self._wrong(field, "binary", value)

    def number(self, index: int, field: str, default: int = 0) -> int:
        value = self.get(index)
        if value is None:
            return default
        if isinstance(value, UInt | UShort | UByte | ULong):
            return int(value)
        raise self._wrong(field, "an unsigned number", value)

    def optional_number(self, index: int, field: str) -> int | None:
        return None if self.get(index) is None else self.number(index, field)

    def required_number(self, index: int, field: str) -> int:
        if self.get(index) is None:
            raise self._missing(field)
        return self.number(index, field)

    def flag(self, index: int, field: str, default: bool = False) -> bool:
        value = self.get(index)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        raise self._wrong(field, "true or false", value)

    def required_flag(self, index: int, field: str) -> bool:
        if self.get(index) is None:
            raise self._missing(field)
        return self.flag(index, field)

    def table(self, index: int, field: str) -> Map:
        value = self.get(index)
        if value is None:
            return Map()
        if isinstance(value, Map):
            return value
        raise self._wrong(field, "a map", value)

    def optional_table(self, index: int, field: str) -> Map | None:
        return None if self.get(index) is None else self.table(index, field)

    def symbols(self, index: int, field: str) -> list[str]:
        """None, one or an array of them."""
        value = self.get(index)
        if value is None:
            return []
        items = value.items if isinstance(value, Array) else [value]
        names: list[str] = []
        for item in items:
            if not isinstance(item, str):
                raise self._wrong(field, "symbols", item)
            names.append(str(item))
        return names

    def described(self, index: int, field: str) -> Described | None:
        value = self.get(index)
        if value is None or isinstance(value, Described):
            return value
        raise self._wrong(field, "a described value", value)

    def _wrong(self, field: str, expected: str, value: object) -> ProtocolError:
        what = type(value).__name__.lower()
        return ProtocolError(DECODE_ERROR, f"the field '{field}' of {self._name} must be {expected}, not {what}")

    def _missing(self, field: str) -> ProtocolError:
        return ProtocolError(DECODE_ERROR, f"{self._name} lacks its field '{field}'")


def symbols(names: list[str]) -> Array | None:
    """How several symbols are written; None for none."""
    return Array(0xB3, [Symbol(name) for name in names]) if names else None


def uint(value: int | None) -> UInt | None:
    return None if value is None else UInt(value)


def symbol(text: str | None) -> Symbol | None:
    return None if text is None else Symbol(text)

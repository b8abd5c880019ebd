"""Keys and tables of keys: what may be written where. Reads values and says what is wrong with them, and where."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, cast, final

from headrace.config.kinds import Kind, Unfit, shown
from headrace.errors import Refused

Path = tuple[str | int, ...]
"""Where a value is: the keys, and the numbers of list items, that lead to it."""
Values = dict[str, object]


class Fault(Refused):
    """A value or a key that cannot be; `path` leads to it."""

    def __init__(self, path: Path, where: str, what: str) -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.path = path
        self.what = what

    def within(self, path: Path) -> "Fault":
        """The same, seen from further out."""
        fault = Fault(path + self.path, "", str(self))
        fault.what = self.what
        return fault


@final
@dataclass(frozen=True)
class Key:
    """One key: its kind, what it is without being set, and what it does."""

    name: str
    kind: "Kind | Table | Tables"
    default: object
    help: str
    is_live: bool = False
    """Whether a reload changes it while the broker serves."""


@final
class Table:
    """Some keys with a value each."""

    def __init__(self, *keys: Key, help: str = "", required: tuple[str, ...] = ()) -> None:  # noqa: A002
        self.keys: Final = {key.name: key for key in keys}
        self.help: Final = help
        self.required: Final = required

    def read(self, values: object, where: str = "", path: Path = ()) -> Values:
        """Every key with its value, the default where none is given. Raises Fault for the first that is wrong."""
        for fault in self.faults(values, where, path):
            raise fault
        given = cast("Mapping[object, object]", values or {})
        return {name: self._value(key, given.get(name), where, path) for name, key in self.keys.items()}

    def faults(self, values: object, where: str = "", path: Path = ()) -> Iterator[Fault]:
        """All that is wrong: keys that mean nothing and keys that are missing, then values."""
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            yield Fault(path, where, f"must be a table of keys, not {shown(values)}")
            return
        for name in values:
            if name not in self.keys:
                known = ", ".join(sorted(self.keys))
                yield Fault((*path, name), where, f"there is no key {shown(name)}; known are {known}")
        for name in self.required:
            if name not in values:
                yield Fault(path, where, f"the key {name!r} is missing")
        for name, key in self.keys.items():
            yield from self._faults(key, values.get(name), where, path)

    def _faults(self, key: Key, value: object, where: str, path: Path) -> Iterator[Fault]:
        kind, here = key.kind, (*path, key.name)
        if value is None:
            return
        if isinstance(kind, Table | Tables):
            if isinstance(value, Mapping if isinstance(kind, Table) else list):
                yield from kind.faults(value, _inner(where, key), here)
            else:
                noun = "a table of keys" if isinstance(kind, Table) else "a list"
                yield Fault(here, where, f"{key.name!r} must be {noun}, not {shown(value)}")
            return
        try:
            kind.read(value)
        except Unfit as error:
            yield Fault(here, where, f"{key.name!r} {error}, not {shown(value)}")

    def _value(self, key: Key, value: object, where: str, path: Path) -> object:
        kind = key.kind
        if isinstance(kind, Table | Tables):
            return kind.read(value, _inner(where, key), (*path, key.name))
        return key.default if value is None else kind.read(value)

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Key]]:
        """Every single key with its path, tables entered; lists of tables are given as one."""
        for name, key in self.keys.items():
            if isinstance(key.kind, Table):
                yield from key.kind.walk((*path, name))
            else:
                yield (*path, name), key

    def schema(self) -> dict[str, object]:
        """What JSON schema says of it."""
        properties = {name: _described(key) for name, key in self.keys.items()}
        found: dict[str, object] = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**found, "required": list(self.required)} if self.required else found


@final
class Tables:
    """A list of tables with the same keys."""

    def __init__(self, item: Table) -> None:
        self.item: Final = item

    def read(self, values: object, where: str = "", path: Path = ()) -> list[Values]:
        if values is None:
            return []
        assert isinstance(values, list)
        return [self.item.read(value, f"{where}[{at}]", (*path, at)) for at, value in enumerate(values)]

    def faults(self, values: object, where: str, path: Path) -> Iterator[Fault]:
        assert isinstance(values, list)
        for at, value in enumerate(values):
            yield from self.item.faults(value, f"{where}[{at}]", (*path, at))

    def schema(self) -> dict[str, object]:
        return {"type": "array", "items": self.item.schema()}


def _inner(where: str, key: Key) -> str:
    return f"{where}, {key.name}" if where else key.name


def _described(key: Key) -> dict[str, object]:
    described = key.kind.schema()
    if key.help:
        described["description"] = key.help
    if isinstance(key.kind, Kind) and key.kind.show(key.default):
        described["default"] = key.kind.plain(key.default)
    return described

"""Tables of keys: which keys a table may have, how it is read, where it is wrong. Kinds of values are in kinds.py.

A model is a dataclass whose fields are made by `option` and `required`. `read_model` reads settings, HTTP bodies and
query parameters into one; `table_of` gives its table, from which JSON schemas and reference pages are made.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, TypeVar, cast, final

from headrace.config.kinds import Kind, Number, Unfit, called, shown
from headrace.errors import PreconditionFailed, Refused

Path = tuple[str | int, ...]
"""Keys and numbers of list items that lead to a value."""
Values = dict[str, object]
Default = TypeVar("Default")
Model = TypeVar("Model")


class Fault(Refused):
    """A wrong value or key; `path` leads to it."""

    def __init__(self, path: Path, where: str, what: str, expected: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what)
        self.path = path
        self.what = what
        self.expected = expected
        """Text of Unfit; "" unless a value is not of its kind."""

    def within(self, path: Path) -> "Fault":
        """Return the same fault with a path that begins further out."""
        fault = Fault(path + self.path, "", str(self), self.expected)
        fault.what = self.what
        return fault


@final
@dataclass(frozen=True)
class Key:
    """One key: its kind, its default, its meaning."""

    name: str
    kind: "Kind | Table | Tables"
    default: object
    help: str
    is_live: bool = False
    """True if a reload changes it while the broker serves."""


@final
class Table:
    """Keys with a value each."""

    def __init__(self, *keys: Key, help: str = "", required: tuple[str, ...] = ()) -> None:  # noqa: A002
        self.keys: Final = {key.name: key for key in keys}
        self.help: Final = help
        self.required: Final = required

    def read(self, values: object, where: str = "", path: Path = (), is_lenient: bool = False) -> Values:
        """Return every key with its value or default. Raises Fault for the first that is wrong.

        A lenient reader ignores unknown keys and takes numbers and flags as text, too.
        """
        for fault in self.faults(values, where, path, is_lenient):
            raise fault
        given = cast("Mapping[object, object]", values or {})
        return {name: self._value(key, given.get(name), where, path, is_lenient) for name, key in self.keys.items()}

    def faults(self, values: object, where: str = "", path: Path = (), is_lenient: bool = False) -> Iterator[Fault]:
        """Find everything wrong: unknown keys, missing keys, then values."""
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            yield Fault(path, where, f"must be a table of keys, not {shown(values)}")
            return
        for name in values if not is_lenient else ():
            if name not in self.keys:
                known = ", ".join(sorted(self.keys))
                yield Fault((*path, name), where, f"there is no key {shown(name)}; known are {known}")
        for name in self.required:
            if values.get(name) is None:
                yield Fault(path, where, f"the key {name!r} is missing")
        for name, key in self.keys.items():
            if values.get(name) is not None:
                yield from self._faults(key, values[name], where, path, is_lenient)

    def _faults(self, key: Key, value: object, where: str, path: Path, is_lenient: bool) -> Iterator[Fault]:
        kind, here = key.kind, (*path, key.name)
        if isinstance(kind, Table | Tables):
            if isinstance(value, Mapping if isinstance(kind, Table) else list):
                yield from kind.faults(value, _inner(where, key), here, is_lenient)
            else:
                noun = "a table of keys" if isinstance(kind, Table) else "a list"
                yield Fault(here, where, f"{key.name!r} must be {noun}, not {shown(value)}", f"must be {noun}")
            return
        try:
            _read(kind, value, is_lenient)
        except Unfit as error:
            given = called(value) if kind.is_secret else shown(value)
            yield Fault(here, where, f"{key.name!r} {error}, not {given}", str(error))

    def _value(self, key: Key, value: object, where: str, path: Path, is_lenient: bool) -> object:
        kind = key.kind
        if isinstance(kind, Table | Tables):
            return kind.read(value, _inner(where, key), (*path, key.name), is_lenient)
        return key.default if value is None else _read(kind, value, is_lenient)

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Key]]:
        """Yield every key with its path; enter tables, but not lists of tables."""
        for name, key in self.keys.items():
            if isinstance(key.kind, Table):
                yield from key.kind.walk((*path, name))
            else:
                yield (*path, name), key

    def schema(self) -> dict[str, object]:
        """Return the JSON schema of the table."""
        properties = {name: described(key) for name, key in self.keys.items()}
        found: dict[str, object] = {"type": "object", "properties": properties, "additionalProperties": False}
        return {**found, "required": list(self.required)} if self.required else found


@final
class Tables:
    """A list of tables with the same keys."""

    def __init__(self, item: Table) -> None:
        self.item: Final = item

    def read(self, values: object, where: str = "", path: Path = (), is_lenient: bool = False) -> list[Values]:
        if values is None:
            return []
        assert isinstance(values, list)
        return [self.item.read(value, f"{where}[{at}]", (*path, at), is_lenient) for at, value in enumerate(values)]

    def faults(self, values: object, where: str, path: Path, is_lenient: bool = False) -> Iterator[Fault]:
        assert isinstance(values, list)
        for at, value in enumerate(values):
            yield from self.item.faults(value, f"{where}[{at}]", (*path, at), is_lenient)

    def schema(self) -> dict[str, object]:
        return {"type": "array", "items": self.item.schema()}


def _read(kind: Kind, value: object, is_lenient: bool) -> object:
    return kind.parse(value) if is_lenient and isinstance(value, str) else kind.read(value)


def _inner(where: str, key: Key) -> str:
    return f"{where}, {key.name}" if where else key.name


def described(key: Key) -> dict[str, object]:
    """Return the JSON schema of a key, with its meaning and its default."""
    found = key.kind.schema()
    if key.help:
        found["description"] = key.help
    if isinstance(key.kind, Kind) and key.kind.show(key.default):
        found["default"] = key.kind.plain(key.default)
    return found


def read_arguments(table: Table, given: Mapping[str, object], of: str = "") -> Values:
    """Read the arguments of a table and ignore all others. Raises PreconditionFailed; `of` says whose they are."""
    try:
        return table.read({name: given[name] for name in table.keys if name in given})
    except Fault as fault:
        name = str(fault.path[-1])
        raise PreconditionFailed(f"invalid arg '{name}'{of}: {fault.expected}, not {shown(given[name])}") from fault


# -- models ----------------------------------------------------------------------------------------------------------


def option(default: Default, kind: Kind | type, help: str = "", is_live: bool = False) -> Default:  # noqa: A002
    """Make the field of a key that may be left out; its kind may be another model."""
    return field(default=default, metadata={"kind": kind, "help": help, "is_live": is_live})


def required(kind: Kind, help: str = "") -> Any:  # noqa: A002
    """Make the field of a key that must be there."""
    return field(metadata={"kind": kind, "help": help, "is_live": False})


_TABLES: Final[dict[type, Table]] = {}


def table_of(model: type) -> Table:
    """Return the table of a model."""
    if model not in _TABLES:
        _TABLES[model] = _table(model)
    return _TABLES[model]


def _table(model: type) -> Table:
    keys = [
        Key(
            part.name,
            table_of(part.metadata["kind"]) if isinstance(part.metadata["kind"], type) else part.metadata["kind"],
            None if part.default is MISSING else part.default,
            part.metadata["help"],
            part.metadata["is_live"],
        )
        for part in fields(model)
    ]
    missing = tuple(part.name for part in fields(model) if part.default is MISSING)
    return Table(*keys, help=model.__doc__ or "", required=missing)


def build(model: type[Model], values: Mapping[str, Any]) -> Model:
    """Make the model of values that its table has read."""
    found: dict[str, Any] = {}
    for part in fields(model):  # type: ignore[arg-type]
        kind, value = part.metadata["kind"], values[part.name]
        found[part.name] = build(kind, value) if isinstance(kind, type) else value
    return model(**found)


def read_model(model: type[Model], values: object, where: str = "", is_lenient: bool = False) -> Model:
    """Read a table into its model. Raises Fault for the first value or key that is wrong."""
    return build(model, table_of(model).read(values, where, is_lenient=is_lenient))


def parse_model(model: type[Model], texts: Mapping[str, str]) -> Model:
    """Read query parameters into their model; unknown ones are ignored. Raises Fault."""
    table = table_of(model)
    given = {
        name: text
        for name, text in texts.items()
        if name in table.keys and (text or not isinstance(table.keys[name].kind, Number))  # `?limit=` is the default
    }
    return build(model, table.read(given, is_lenient=True))

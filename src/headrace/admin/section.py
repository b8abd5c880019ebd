"""The JSON body of a request: reads its members, says what is wrong with them, knows which nobody read."""

from collections.abc import Mapping
from typing import Final, final

from headrace.errors import Refused

_MAX: Final = 1 << 53


@final
class Section:
    """One table of a body."""

    def __init__(self, where: str, values: Mapping[str, object]) -> None:
        self._where = where
        self._values = values
        self._read: list[str] = []
        self._sections: list[Section] = []

    def check_all_read(self) -> None:
        """Raises Refused when there is a key that means nothing."""
        for name in self._values:
            if name not in self._read:
                known = ", ".join(sorted(set(self._read)))
                raise Refused(f"{self._where}: there is no key {name!r}; known are {known}")
        for section in self._sections:
            section.check_all_read()

    def get(self, name: str) -> object:
        self._read.append(name)
        return self._values.get(name)

    def section(self, name: str) -> "Section":
        value = self.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.bad(name, value, "must be a table")
        section = Section(f"{self._where}, {name}", value or {})
        self._sections.append(section)
        return section

    def text(self, name: str, default: str) -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise Refused(f"{self._where}: {name!r} must be a text, not {_kind(value)}")  # it may be a secret
        return value

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in choices:
            raise self.bad(name, value, f"must be one of {', '.join(choices)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(name, value, "must be true or false")
        return value

    def number(self, name: str, default: int, least: int = 0, most: int = _MAX) -> int:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(name, value, f"must be a whole number from {least} to {most}")
        return value

    def bad(self, name: str, value: object, what: str) -> Refused:
        return Refused(f"{self._where}: {name!r} {what}, not {value!r}")


def _kind(value: object) -> str:
    """What JSON calls it."""
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else "true or false" if isinstance(value, bool) else "a number"

"""The kinds of values that a configuration key may have, lengths of time among them. No keys."""

import re
from abc import ABC, abstractmethod
from math import isfinite
from pathlib import Path
from typing import Final, final

from headrace.errors import Refused

_UNITS_MS: Final = {
    "ns": 1e-6,
    "us": 1e-3,
    "µs": 1e-3,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "D": 86_400_000,
    "d": 86_400_000,
    "W": 604_800_000,
    "w": 604_800_000,
    "M": 2_592_000_000,
    "Y": 31_536_000_000,
}
_PART: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(ns|us|µs|ms|s|m|h|D|d|W|w|M|Y)")
_SECONDS: Final = re.compile(r"[0-9]{1,18}")
MAX_MS: Final = 1 << 52
"""More than a hundred thousand years: whoever writes more has mistaken the unit."""


def parse_duration_ms(value: object, what: str) -> int:
    """Milliseconds in a duration; a bare number is seconds. Raises Refused, naming `what`, when it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _bad(value, what)
    if isinstance(value, int | float):
        if not isfinite(value):
            raise _bad(value, what)
        return _checked(value * 1000, value, what)
    text = value.strip()
    if _SECONDS.fullmatch(text):
        return _checked(int(text) * 1000, value, what)
    total = 0.0
    at = 0
    for part in _PART.finditer(text):
        if part.start() != at:
            break
        total += float(part.group(1)) * _UNITS_MS[part.group(2)]
        at = part.end()
    if not text or at != len(text):
        raise _bad(value, what)
    return _checked(total, value, what)


def _checked(milliseconds: float, value: object, what: str) -> int:
    if milliseconds < 0:
        raise Refused(f"{what} must not be negative, it is {value!r}")
    if milliseconds > MAX_MS:
        raise Refused(f"{what} is too long: {str(value)[:40]}")
    return round(milliseconds)


def _bad(value: object, what: str) -> Refused:
    return Refused(f"{what} must be a duration such as '168h', '30m' or '7D', not {str(value)[:40]!r}")


MAX_NUMBER: Final = 1 << 53
MAX_PORT: Final = 65535
OFF: Final = "off"
BY_CERTIFICATE: Final = -1
"""A port that is not set: there is one where there is a certificate."""
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*(B|KiB|MiB|GiB|TiB)?")
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SHOWN: Final = 60


class Unfit(Exception):
    """A value is not of its kind; the text says what was expected, as in "must be a text"."""


class Kind(ABC):
    """One kind of value."""

    noun: str
    """How the reference calls it."""

    @abstractmethod
    def read(self, value: object) -> object:
        """The value as the program uses it. Raises Unfit."""

    def parse(self, text: str) -> object:
        """The same from the text of an environment variable or a flag. Raises Unfit."""
        return self.read(text)

    @abstractmethod
    def schema(self) -> dict[str, object]:
        """What JSON schema says of it."""

    def show(self, value: object) -> str:
        """A value as one would write it into the file; "" where there is none."""
        return "" if value is None else str(value)

    def plain(self, value: object) -> object:
        """A value as JSON holds it, such that `read` takes it."""
        return self.show(value)


@final
class Text(Kind):
    noun = "text"

    def read(self, value: object) -> object:
        if not isinstance(value, str):
            raise Unfit("must be a text")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string"}

    def show(self, value: object) -> str:
        return str(value) or '""'

    def plain(self, value: object) -> object:
        return value


@final
class Name(Kind):
    """A text that is not empty and not long."""

    def __init__(self, max_bytes: int) -> None:
        self.noun = f"text of 1 to {max_bytes} bytes"
        self._max_bytes = max_bytes

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not 1 <= len(value.encode(errors="replace")) <= self._max_bytes:
            raise Unfit(f"must be a {self.noun}")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "minLength": 1, "maxLength": self._max_bytes}


@final
class Address(Kind):
    noun = "host:port"

    def read(self, value: object) -> object:
        host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
            raise Unfit("must be host:port, with a port up to 65535")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": ".+:[0-9]+"}


@final
class Flag(Kind):
    noun = "true or false"

    def read(self, value: object) -> object:
        if not isinstance(value, bool):
            raise Unfit("must be true or false")
        return value

    def parse(self, text: str) -> object:
        if text not in ("true", "false"):
            raise Unfit("must be true or false")
        return text == "true"

    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}

    def show(self, value: object) -> str:
        return "" if value is None else str(value).lower()

    def plain(self, value: object) -> object:
        return value


@final
class Number(Kind):
    def __init__(self, least: int = 0, most: int = MAX_NUMBER) -> None:
        self._least = least
        self._most = most
        self.noun = "number" if most == MAX_NUMBER else f"number up to {most}"

    def read(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= self._most:
            raise Unfit(f"must be a whole number from {self._least} to {self._most}")
        return value

    def parse(self, text: str) -> object:
        return self.read(int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else text)

    def schema(self) -> dict[str, object]:
        return {"type": "integer", "minimum": self._least, "maximum": self._most}

    def plain(self, value: object) -> object:
        return value


@final
class Factor(Kind):
    noun = "number from 1 to 1000"

    def read(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
            raise Unfit("must be a number from 1 to 1000")
        return float(value)

    def schema(self) -> dict[str, object]:
        return {"type": "number", "minimum": 1, "maximum": 1000}

    def plain(self, value: object) -> object:
        return value


@final
class Duration(Kind):
    """A length of time; the program has it in milliseconds."""

    noun = "duration"

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def read(self, value: object) -> object:
        try:
            found = parse_duration_ms(value, "")
        except Refused as error:
            what = str(error).removeprefix(" ").split(", not ")[0].split(", it is ")[0]
            raise Unfit(what) from error
        if found < self._least_ms:
            raise Unfit(f"must be at least {self._least_ms} ms")
        return found

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "number"], "description": "Such as 168h, 30m, 500ms, or a number of seconds."}

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return ""
        for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return f"{value}ms" if value else "0"


@final
class Size(Kind):
    """A number of bytes."""

    noun = "size"

    def __init__(self, least: int = 0, most: int = MAX_NUMBER) -> None:
        self._least = least
        self._most = most

    def read(self, value: object) -> object:
        found = value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            found = int(match.group(1)) * _UNITS[match.group(2) or "B"]
        if isinstance(found, bool) or not isinstance(found, int):
            raise Unfit("must be a number of bytes, or a size such as 64MiB")
        if not self._least <= found <= self._most:
            raise Unfit(f"must be from {self.show(self._least)} to {self.show(self._most)}")
        return found

    def schema(self) -> dict[str, object]:
        return {"type": ["string", "integer"], "description": "Bytes, or a size such as 64MiB.", "minimum": self._least}

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return ""
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if value and value % _UNITS[unit] == 0:
                return f"{value // _UNITS[unit]}{unit}"
        return str(value)


@final
class Port(Kind):
    """A port, 0 for any free one; the program has None where there is to be no listener."""

    noun = "port or `off`"

    def read(self, value: object) -> object:
        if value == OFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PORT:
            raise Unfit(f"takes a port from 0 to {MAX_PORT}, or {OFF}")
        return value

    def parse(self, text: str) -> object:
        return self.read(int(text) if text.isascii() and text.isdecimal() and len(text) < 8 else text)

    def schema(self) -> dict[str, object]:
        return {"oneOf": [{"type": "integer", "minimum": 0, "maximum": MAX_PORT}, {"const": OFF}]}

    def show(self, value: object) -> str:
        if value == BY_CERTIFICATE:
            return ""
        return OFF if value is None else str(value)

    def plain(self, value: object) -> object:
        return OFF if value is None else value


@final
class File(Kind):
    noun = "path"

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not value or "\0" in value:
            raise Unfit("must be a path")
        return Path(value)

    def schema(self) -> dict[str, object]:
        return {"type": "string", "minLength": 1}


@final
class Choice(Kind):
    def __init__(self, *choices: str) -> None:
        self.choices = choices
        self.noun = "one of " + ", ".join(f"`{choice}`" for choice in choices)

    def read(self, value: object) -> object:
        if value not in self.choices:
            raise Unfit(f"must be one of {', '.join(self.choices)}")
        return value

    def schema(self) -> dict[str, object]:
        return {"enum": list(self.choices)}


@final
class Texts(Kind):
    noun = "list of texts"

    def read(self, value: object) -> object:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Unfit("must be a list of texts")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "array", "items": {"type": "string"}}

    def show(self, value: object) -> str:
        return "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, list | tuple) else ""

    def plain(self, value: object) -> object:
        return list(value) if isinstance(value, list | tuple) else []


def shown(value: object) -> str:
    """A value in an error: short, whatever was given."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."

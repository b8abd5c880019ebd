"""Kinds of typed values: how each is read, shown and described in JSON schema. Keys and tables are in table.py."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Final, final

MAX_NUMBER: Final = 1 << 53
MAX_PORT: Final = 65535
MAX_MS: Final = 1 << 52
"""Longest duration: more than a hundred thousand years, so a longer one has the wrong unit."""
OFF: Final = "off"
BY_CERTIFICATE: Final = -1
"""Default of TLS ports: the usual port with a certificate, else off."""
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
_SIZE: Final = re.compile(r"([0-9]{1,15})\s*(B|KiB|MiB|GiB|TiB)?")
_UNITS: Final = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SHOWN: Final = 60


class Unfit(Exception):
    """The value is not of its kind; the text completes a sentence about it, as in "must be a text"."""


class Kind(ABC):
    """One kind of value."""

    noun: str
    """Name of the kind on the reference page."""
    expected: str = ""
    """End of the sentence that refuses a value of another kind."""
    is_secret = False
    """True if errors must not repeat the value."""
    json: Mapping[str, object] = {"type": "string"}
    """JSON schema of the kind."""

    @abstractmethod
    def read(self, value: object) -> object:
        """Return the value as the program uses it. Raises Unfit."""

    def parse(self, text: str) -> object:
        """Read the text of an environment variable, a flag or a query parameter. Raises Unfit."""
        return self.read(text)

    def schema(self) -> dict[str, object]:
        return dict(self.json)

    def show(self, value: object) -> str:
        """Write a value as a file would; "" for none."""
        return "" if value is None else str(value)

    def plain(self, value: object) -> object:
        """Return a value as JSON holds it, in a form that `read` takes."""
        return value


class Text(Kind):
    noun = "text"

    def __init__(self, expected: str = "must be a text") -> None:
        self.expected = expected

    def read(self, value: object) -> object:
        if not isinstance(value, str):
            raise Unfit(self.expected)
        return value

    def show(self, value: object) -> str:
        return str(value) or '""'


@final
class Secret(Text):
    """A text that errors do not repeat."""

    is_secret = True


@final
class Unicode(Text):
    """A text that UTF-8 can hold: JSON allows half characters, messages do not."""

    def read(self, value: object) -> object:
        text = str(super().read(value))
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise Unfit(f"is not Unicode at character {error.start + 1}") from error
        return text


@final
class Name(Kind):
    """A text that is neither empty nor long."""

    def __init__(self, max_bytes: int) -> None:
        self.noun = f"text of 1 to {max_bytes} bytes"
        self.expected = f"must be a {self.noun}"
        self.json = {"type": "string", "minLength": 1, "maxLength": max_bytes}
        self._max_bytes = max_bytes

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not 1 <= len(value.encode(errors="replace")) <= self._max_bytes:
            raise Unfit(self.expected)
        return value


@final
class Address(Kind):
    noun = "host:port"
    json: Mapping[str, object] = {"type": "string", "pattern": ".+:[0-9]+"}

    def read(self, value: object) -> object:
        host, colon, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not (host and colon and port.isascii() and port.isdecimal() and int(port) <= MAX_PORT):
            raise Unfit("must be host:port, with a port up to 65535")
        return value


@final
class Flag(Kind):
    noun = "true or false"
    expected = "must be true or false"
    json: Mapping[str, object] = {"type": "boolean"}

    def __init__(self, ignores_case: bool = False) -> None:
        self._ignores_case = ignores_case

    def read(self, value: object) -> object:
        if not isinstance(value, bool):
            raise Unfit(self.expected)
        return value

    def parse(self, text: str) -> object:
        word = text.lower() if self._ignores_case else text
        if word not in ("true", "false"):
            raise Unfit(self.expected)
        return word == "true"

    def show(self, value: object) -> str:
        return "" if value is None else str(value).lower()


@final
class Number(Kind):
    def __init__(self, least: int = 0, most: int = MAX_NUMBER, expected: str = "") -> None:
        self._least = least
        self._most = most
        self.json = {"type": "integer", "minimum": least, "maximum": most}
        self.noun = "number" if most == MAX_NUMBER else f"number up to {most}"
        self.expected = expected or f"must be a whole number from {least} to {most}"

    def read(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int) or not self._least <= value <= self._most:
            raise Unfit(self.expected)
        return value

    def parse(self, text: str) -> object:
        return self.read(_digits(text, 20))


@final
class Factor(Kind):
    noun = "number from 1 to 1000"
    json: Mapping[str, object] = {"type": "number", "minimum": 1, "maximum": 1000}

    def read(self, value: object) -> object:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= 1000:
            raise Unfit("must be a number from 1 to 1000")
        return float(value)


@final
class Duration(Kind):
    """A length of time; `read` returns milliseconds."""

    noun = "duration"
    json: Mapping[str, object] = {
        "type": ["string", "number"],
        "description": "Such as 168h, 30m, 500ms, or a number of seconds.",
    }

    def __init__(self, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def read(self, value: object) -> object:
        found = _milliseconds(value)
        if found < self._least_ms:
            raise Unfit(f"must be at least {self._least_ms} ms")
        return found

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return ""
        for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000)):
            if value and value % size == 0:
                return f"{value // size}{unit}"
        return f"{value}ms" if value else "0"

    def plain(self, value: object) -> object:
        return self.show(value)


def _milliseconds(value: object) -> int:
    """Raises Unfit."""
    total = -1.0
    if isinstance(value, str):
        total = _text_ms(value.strip())
    elif isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        if value < 0:
            raise Unfit("must not be negative")
        total = value * 1000
    if total < 0:
        raise Unfit("must be a duration such as '168h', '30m' or '7D'")
    if total > MAX_MS:
        raise Unfit("must be a shorter duration")
    return round(total)


def _text_ms(text: str) -> float:
    """Return the milliseconds that a text stands for; -1 for a text that is no duration."""
    if _SECONDS.fullmatch(text):
        return int(text) * 1000
    total, at = 0.0, 0
    for part in _PART.finditer(text):
        if part.start() != at:
            return -1
        total += float(part.group(1)) * _UNITS_MS[part.group(2)]
        at = part.end()
    return total if text and at == len(text) else -1


@final
class Size(Kind):
    """A number of bytes."""

    noun = "size"

    def __init__(self, least: int = 0, most: int = MAX_NUMBER) -> None:
        self._least = least
        self._most = most
        self.json = {"type": ["string", "integer"], "description": "Bytes, or a size such as 64MiB.", "minimum": least}

    def read(self, value: object) -> object:
        found = value
        if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
            found = int(match.group(1)) * _UNITS[match.group(2) or "B"]
        if isinstance(found, bool) or not isinstance(found, int):
            raise Unfit("must be a number of bytes, or a size such as 64MiB")
        if not self._least <= found <= self._most:
            raise Unfit(f"must be from {self.show(self._least)} to {self.show(self._most)}")
        return found

    def show(self, value: object) -> str:
        if not isinstance(value, int):
            return ""
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if value and value % _UNITS[unit] == 0:
                return f"{value // _UNITS[unit]}{unit}"
        return str(value)

    def plain(self, value: object) -> object:
        return self.show(value)


@final
class Port(Kind):
    """A port, 0 for any free one; `read` returns None for `off`."""

    noun = "port or `off`"
    json: Mapping[str, object] = {"oneOf": [{"type": "integer", "minimum": 0, "maximum": MAX_PORT}, {"const": OFF}]}

    def read(self, value: object) -> object:
        if value == OFF:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PORT:
            raise Unfit(f"takes a port from 0 to {MAX_PORT}, or {OFF}")
        return value

    def parse(self, text: str) -> object:
        return self.read(_digits(text, 8))

    def show(self, value: object) -> str:
        if value == BY_CERTIFICATE:
            return ""
        return OFF if value is None else str(value)

    def plain(self, value: object) -> object:
        return OFF if value is None else value


@final
class File(Kind):
    noun = "path"
    json: Mapping[str, object] = {"type": "string", "minLength": 1}

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not value or "\0" in value:
            raise Unfit("must be a path")
        return Path(value)

    def plain(self, value: object) -> object:
        return self.show(value)


@final
class Choice(Kind):
    def __init__(self, *choices: str, expected: str = "") -> None:
        self.choices = choices
        self.json = {"enum": list(choices)}
        self.noun = "one of " + ", ".join(f"`{choice}`" for choice in choices)
        self.expected = expected or f"must be one of {', '.join(choices)}"

    def read(self, value: object) -> object:
        if value not in self.choices:
            raise Unfit(self.expected)
        return value


@final
class Texts(Kind):
    noun = "list of texts"
    json: Mapping[str, object] = {"type": "array", "items": {"type": "string"}}

    def read(self, value: object) -> object:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Unfit("must be a list of texts")
        return value

    def show(self, value: object) -> str:
        return "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, list | tuple) else ""

    def plain(self, value: object) -> object:
        return list(value) if isinstance(value, list | tuple) else []


def is_switched_on(text: str) -> bool:
    """Return the meaning of a flag that a client has written as a text: on, unless it says no."""
    return text.lower() not in ("false", "0", "no")


@final
class Switch(Kind):
    """A flag that clients also write as a text."""

    noun = "true or false, or a text for one of them"

    def read(self, value: object) -> object:
        if isinstance(value, str):
            return is_switched_on(value)
        if not isinstance(value, bool):
            raise Unfit("must be true or false")
        return value


@final
class Object(Kind):
    """A JSON object with any members."""

    noun = "object"
    json: Mapping[str, object] = {"type": "object"}

    def __init__(self, expected: str = "must be an object") -> None:
        self.expected = expected

    def read(self, value: object) -> object:
        if not isinstance(value, dict):
            raise Unfit(self.expected)
        return value


@final
class Unchecked(Kind):
    """A JSON value that its room reads: headers, arguments, positions."""

    noun = "value"

    def __init__(self, **schema: object) -> None:
        self.json = schema

    def read(self, value: object) -> object:
        return value


def _digits(text: str, length: int) -> object:
    """Return the number that a text of fewer digits than `length` stands for, and any other text as it is."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < length else text


def shown(value: object) -> str:
    """Write a value for an error, at most 60 characters of it."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def called(value: object) -> str:
    """Name the JSON type of a value that an error must not repeat."""
    if isinstance(value, Mapping):
        return "an object"
    return "a list" if isinstance(value, list) else "true or false" if isinstance(value, bool) else "a number"

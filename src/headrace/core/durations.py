"""Lengths of time as people write them: `168h`, `500ms`, `1h30m`, `7D`, or a number of seconds."""

import re
from typing import Final

from headrace.errors import Refused

_UNITS_MS: Final = {
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
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|D|d|W|w|M|Y)")


def parse_duration_ms(value: object, what: str) -> int:
    """Milliseconds in a duration; a bare number is seconds. Raises Refused, naming `what`, when it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Refused(f"{what} must be a duration such as '168h', '30m' or '7D', not {value!r}")
    if isinstance(value, int | float):
        if value < 0:
            raise Refused(f"{what} must not be negative, it is {value!r}")
        return round(value * 1000)
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text) * 1000
    total = 0.0
    at = 0
    for part in _PART.finditer(text):
        if part.start() != at:
            break
        total += float(part.group(1)) * _UNITS_MS[part.group(2)]
        at = part.end()
    if not text or at != len(text):
        raise Refused(f"{what} must be a duration such as '168h', '30m' or '7D', not {value!r}")
    return round(total)

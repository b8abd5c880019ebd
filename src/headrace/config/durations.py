"""Lengths of time as people write them: `168h`, `500ms`, `1h30m`, `7D`, or a number of seconds."""

import re
from math import isfinite
from typing import Final

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

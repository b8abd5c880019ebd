"""LIKE patterns as tests on text. One regular expression serves Python and Spark."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

ONE: Final = 1
MANY: Final = 2


class Shape(NamedTuple):
    """A pattern without inner wildcards: its text, and whether anything may precede or follow it."""

    text: str
    open_start: bool
    open_end: bool


def misplaced_escape(pattern: str, escape: str | None) -> bool:
    """True if an escape precedes anything but %, _ and itself, or ends the pattern. SQL-92 8.5: an error."""
    if escape is None:
        return False
    at = pattern.find(escape)
    while at >= 0:
        following = pattern[at + 1 : at + 2]
        if following not in ("%", "_", escape):
            return True
        at = pattern.find(escape, at + 2)
    return False


def shape_of(pattern: str, escape: str | None) -> Shape | None:
    """The pattern as a Shape, or None when it needs a regular expression."""
    parts = _parts(pattern, escape)
    open_start = len(parts) > 1 and parts[0] == MANY
    open_end = bool(parts) and parts[-1] == MANY
    inner = parts[open_start : len(parts) - open_end]
    if not inner:
        return Shape("", open_start, open_end)
    only = inner[0]
    return Shape(only, open_start, open_end) if len(inner) == 1 and isinstance(only, str) else None


def regex_of(pattern: str, escape: str | None) -> str:
    """The pattern as a regular expression from the start of a text to its end.

    Every run between two % takes its first match and keeps it (an atomic group), which is always right for LIKE and
    never backtracks: the time to match `%a%a%a%a%b` grows with the text, not with its power.
    """
    runs = [""]
    for part in _parts(pattern, escape):
        if part == MANY:
            runs.append("")
        else:
            runs[-1] += re.escape(part) if isinstance(part, str) else "."
    first, middle = runs[0], [run for run in runs[1:-1] if run]
    last = f".*{runs[-1]}" if len(runs) > 1 else ""
    return f"(?s)^{first}{''.join(f'(?>.*?{run})' for run in middle)}{last}(?!.)"


def matcher_of(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """Return a test for texts that are LIKE the pattern."""
    shape = shape_of(pattern, escape)
    if shape is None:
        search = re.compile(regex_of(pattern, escape)).match
        return lambda text: search(text) is not None
    wanted = shape.text
    if shape.open_start and shape.open_end:
        return lambda text: wanted in text
    if shape.open_start:
        return lambda text: text.endswith(wanted)
    if shape.open_end:
        return lambda text: text.startswith(wanted)
    return lambda text: text == wanted


def _parts(pattern: str, escape: str | None) -> list[str | int]:
    """Runs of plain text, ONE for _, MANY for any number of % in a row."""
    parts: list[str | int] = []
    letters = iter(pattern)
    for letter in letters:
        part: str | int = letter
        if letter == escape:
            part = next(letters)
        elif letter == "_":
            part = ONE
        elif letter == "%":
            part = MANY
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != MANY or not parts or parts[-1] != MANY:
            parts.append(part)
    return parts

"""Where a stream is to be read from, as clients say it: words, numbers, times; and which offset that is by now."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from headrace.errors import Refused

if TYPE_CHECKING:
    from headrace.core.queue import Queue

RESUME: Final = "resume"
FIRST: Final = "first"
NEXT: Final = "next"
OFFSET: Final = "offset"
TIMESTAMP: Final = "timestamp"

_LATEST_US: Final = (1 << 63) - 1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_position(value: object) -> tuple[str, int]:
    """What `x-stream-offset` asks for: (resume|first|next, 0), ("offset", n) or ("timestamp", microseconds).

    Raises Refused when it is none of the forms.
    """
    if value is None or value == "":
        return RESUME, 0
    if isinstance(value, bool):
        raise _bad_position(value)
    if isinstance(value, int):
        return _offset(value, value)
    if isinstance(value, datetime):
        since = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return TIMESTAMP, (since - _EPOCH) // timedelta(microseconds=1)
    if not isinstance(value, str):
        raise _bad_position(value)
    if value in ("first", "earliest"):
        return FIRST, 0
    if value in ("last", "next", "latest"):
        return NEXT, 0
    form, equals, number = value.partition("=")
    digits = number if equals else form
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19) or (
        equals and form not in (OFFSET, TIMESTAMP)
    ):
        raise _bad_position(value)
    if form == TIMESTAMP:
        time = int(digits)
        return TIMESTAMP, min(time * 1000 if time > 10**12 else time * 1_000_000, _LATEST_US)
    return _offset(int(digits), value)


def position_text(value: object) -> str:
    """The same as a text that can be kept; "" where nothing is asked for. Raises Refused."""
    kind, number = parse_position(value)
    if kind == TIMESTAMP:
        return f"{TIMESTAMP}={number // 1000}" if isinstance(value, datetime) else str(value)
    return {RESUME: "", FIRST: "earliest", NEXT: "latest"}.get(kind, str(number))


def offset_at(queue: "Queue", place: tuple[str, int]) -> int:
    """The offset of a stream that a place stands for, as `parse_position` gives it."""
    kind, value = place
    if kind == FIRST:
        return queue.first_offset
    if kind == NEXT:
        return queue.log.next_offset
    return queue.log.find(value) if kind == TIMESTAMP else value


def _offset(offset: int, value: object) -> tuple[str, int]:
    if not 0 <= offset < 1 << 63:
        raise _bad_position(value)
    return OFFSET, offset


def _bad_position(value: object) -> Refused:
    return Refused(
        f"stream offset {value!r} is none of: first, last, next, a number, offset=<number>, timestamp=<unix time>"
    )

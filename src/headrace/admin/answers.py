"""What pages answer with: JSON, by the page where there may be much of it. What it says is elsewhere."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from starlette.responses import Response

Item = TypeVar("Item")


def answer(value: object, status: int = 200) -> Response:
    """JSON in ASCII: texts that clients sent need not be valid Unicode, and must not spoil the answer."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text.encode("ascii"), status, media_type="application/json")


def nothing(status: int = 204) -> Response:
    return Response(status_code=status)


def after(names: Iterable[str], last: str, limit: int) -> tuple[list[str], str | None]:
    """The names behind `last` in order, and the one to go on after, None at the end."""
    found = sorted([name for name in names if name > last or not last])
    return found[:limit], found[limit - 1] if len(found) > limit else None


def listed(items: Sequence[Item], next_after: object, shown: Callable[[Item], object]) -> Response:
    """A part of a list, with where the next part begins."""
    return answer({"items": [shown(item) for item in items], "next": next_after})

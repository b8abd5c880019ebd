"""What RabbitMQ's pages have in common: lists that are sorted, cut into pages and columns; flags sent as words."""

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Final

from starlette.responses import Response

from headrace.admin.answers import answer
from headrace.admin.pages import Call
from headrace.admin.problems import BadRequest
from headrace.core.broker import Broker

MAX_PAGE: Final = 500
DEFAULT_EXCHANGE: Final = "amq.default"
RABBITMQ_VERSION: Final = "3.13.0"
"""The release whose pages these are: clients decide by it what they may ask for."""

Row = dict[str, object]


def node_name() -> str:
    return f"headrace@{platform.node() or 'localhost'}"


def hosts(call: Call) -> list[tuple[str, Broker]]:
    """The virtual host that the address names, or all that the visitor sees."""
    if "vhost" in call.request.path_params:
        name = call.path("vhost")
        return [(name, call.broker(name))]
    return [(name, call.broker(name)) for name in call.site.hosts.names() if call.sees(name)]


def rows(call: Call, found: Sequence[Row]) -> Response:
    """A list as asked for: `name`, `sort`, `sort_reverse`, `columns`, `page` and `page_size`. Raises BadRequest."""
    total = len(found)
    part = call.text("name")
    if part and call.text("use_regex") == "true":
        raise BadRequest("'use_regex' is not taken here; 'name' finds the names that it is a part of")
    kept = [row for row in found if part in str(row.get("name", ""))] if part else list(found)
    sort = call.text("sort")
    if sort:
        kept.sort(key=lambda row: _sortable(_member(row, sort)), reverse=call.text("sort_reverse") == "true")
    if not call.text("page"):
        return answer([_cut(call, row) for row in kept])
    size = call.number("page_size", 100, 1, MAX_PAGE)
    count = max(1, math.ceil(len(kept) / size))
    page = call.number("page", 1, 1, count)
    shown = kept[(page - 1) * size : page * size]
    return answer(
        {
            "filtered_count": len(kept),
            "item_count": len(shown),
            "items": [_cut(call, row) for row in shown],
            "page": page,
            "page_count": count,
            "page_size": size,
            "total_count": total,
        }
    )


def row(call: Call, found: Row) -> Response:
    """One thing, with the columns that were asked for."""
    return answer(_cut(call, found))


def _cut(call: Call, found: Row) -> Row:
    columns = [column for column in call.text("columns").split(",") if column]
    if not columns:
        return found
    shown: Row = {}
    for column in columns:
        value = _member(found, column)
        if value is None:
            continue
        at = shown
        *above, last = column.split(".")
        for name in above:
            inner = at.setdefault(name, {})
            if not isinstance(inner, dict):
                break
            at = inner
        at[last] = value
    return shown


def _member(found: object, path: str) -> object:
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _sortable(value: object) -> tuple[int, float, str]:
    """Numbers before texts, nothing first."""
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


def flag(body: Mapping[str, object], name: str, default: bool = False) -> bool:
    """True or false, also where they are sent as words. Raises BadRequest."""
    value = body.get(name, default)
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise BadRequest(f"{name!r} must be true or false, not {value!r}")


def number(body: Mapping[str, object], name: str, default: int, most: int) -> int:
    """A whole number, also where it is sent as a text. Raises BadRequest."""
    value = body.get(name, default)
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise BadRequest(f"{name!r} must be a whole number from 0 to {most}, not {value!r}")
    return value


def text(body: Mapping[str, object], name: str, default: str | None = None) -> str:
    """Raises BadRequest when it is missing or no text."""
    value = body.get(name, default)
    if not isinstance(value, str):
        # what it is may be a secret, and is not repeated
        raise BadRequest(f"{name!r} must be a string" if name in body else f"{name!r} is missing")
    return value


def details(rate: float) -> Row:
    return {"rate": rate}


def exchange_name(path: str) -> str:
    """The exchange that an address means: the default one has a name there only."""
    return "" if path == DEFAULT_EXCHANGE else path

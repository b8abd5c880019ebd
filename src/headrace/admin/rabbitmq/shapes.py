"""Forms that RabbitMQ's pages share: lists with sorting, pages and columns; names of nodes and exchanges."""

import math
import platform
import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Final, TypeVar

from starlette.responses import Response

from headrace.admin.pages import BadRequest, Call, answer, array, streamed
from headrace.admin.resources import hosts
from headrace.admin.slices import ordered, sliced
from headrace.core.broker import Broker

MAX_PAGE: Final = 500
DEFAULT_EXCHANGE: Final = "amq.default"
RABBITMQ_VERSION: Final = "3.13.0"
"""Release whose pages these are: clients choose their requests by it."""

Row = dict[str, object]
Item = TypeVar("Item")


def node_name() -> str:
    return f"headrace@{platform.node() or 'localhost'}"


def named_host(call: Call) -> str:
    """Return the virtual host that the address names; "" for an address without one."""
    return call.path("vhost") if "vhost" in call.request.path_params else ""


def asked_hosts(call: Call) -> list[tuple[str, Broker]]:
    """Return the virtual host that the address names, or all that the visitor sees."""
    return hosts(call, named_host(call))


async def rows(call: Call, found: Iterable[Item], shown: Callable[[Item], Row | None]) -> Response:
    """Answer with a list by `name`, `use_regex`, `sort`, `sort_reverse`, `columns`, `page` and `page_size`.

    Raises BadRequest. `shown` returns None for an item that is gone.
    """
    part, sort, columns = call.text("name"), call.text("sort"), _columns(call)
    expression = _expression(part) if part and call.text("use_regex") == "true" else None

    def cut(item: Item) -> Row | None:
        row = shown(item)
        return row if row is None or not columns else _cut(row, columns)

    items = [item async for item in sliced(found)]
    kept = items
    if part or sort:
        keyed: list[tuple[tuple[int, float, str], Item]] = []
        async for item in sliced(items):
            row = shown(item)
            if row is not None and _has_name(row, part, expression):
                keyed.append((_sortable(_member(row, sort)), item))
        if sort:
            keyed = await ordered(keyed, itemgetter(0), call.text("sort_reverse") == "true")
        kept = [item for _, item in keyed]
    if not call.text("page"):
        return streamed(array(kept, cut))
    size = call.number("page_size", 100, 1, MAX_PAGE)
    count = max(1, math.ceil(len(kept) / size))
    page = call.number("page", 1, 1, count)
    listed = [row async for item in sliced(kept[(page - 1) * size : page * size]) if (row := cut(item)) is not None]
    return answer(
        {
            "filtered_count": len(kept),
            "item_count": len(listed),
            "items": listed,
            "page": page,
            "page_count": count,
            "page_size": size,
            "total_count": len(items),
        }
    )


_MAX_REPEATS: Final = 3
_REPEATS: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\)[*+{])|([*+{])", re.DOTALL)
"""Escapes and sets of characters, which are passed over; repeated groups; other repeats."""


def _expression(text: str) -> re.Pattern[str]:
    """Compile a regular expression that takes little time for any name. Raises BadRequest."""
    repeats = [(found[1], found[2]) for found in _REPEATS.finditer(text) if found[1] or found[2]]
    if len(repeats) > _MAX_REPEATS or any([group for group, _ in repeats]):
        raise BadRequest(f"a regular expression for 'name' may repeat no group, and {_MAX_REPEATS} times a character")
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadRequest(f"'name' is not a regular expression: {error}") from error


def _has_name(row: Row, part: str, expression: re.Pattern[str] | None) -> bool:
    name = str(row.get("name", ""))
    return expression.search(name) is not None if expression is not None else part in name


def row(call: Call, found: Row) -> Response:
    """Answer with one row, cut to the columns of the query."""
    columns = _columns(call)
    return answer(_cut(found, columns) if columns else found)


def _columns(call: Call) -> list[str]:
    return [column for column in call.text("columns").split(",") if column]


def _cut(found: Row, columns: list[str]) -> Row:
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
    """Return a sort key: None first, then numbers, then texts."""
    if isinstance(value, bool | int | float):
        return 1, float(value), ""
    return (0, 0.0, "") if value is None else (2, 0.0, str(value))


def details(rate: float) -> Row:
    return {"rate": rate}


def exchange_name(path: str) -> str:
    """Return the exchange of an address; only there the default exchange has a name."""
    return "" if path == DEFAULT_EXCHANGE else path

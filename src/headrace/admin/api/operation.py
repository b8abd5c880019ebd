"""One operation of the API: path, models of query and body, schema of the answer. Its route and its part of the
OpenAPI document are made from it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.admin.pages import Page
from headrace.admin.site import MANAGEMENT
from headrace.config.kinds import Number, Text
from headrace.config.table import option

PREFIX: Final = "/api/v1"
MAX_LIMIT: Final = 1000
DEFAULT_LIMIT: Final = 100
MAX_OFFSET: Final = (1 << 63) - 1

Schema = Mapping[str, object]

TEXT: Final[Schema] = {"type": "string"}
TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_KINDS: Final[dict[str, Schema]] = {
    "": TEXT,
    "texts": TEXTS,
    "time": {"type": ["string", "null"]},
    "flag": {"type": "boolean"},
    "count": COUNT,
    "count-or-null": {"type": ["integer", "null"]},
    "numbers": {"type": "object", "additionalProperties": {"type": "number"}},
    "table": {"type": "object"},
    "tables": {"type": "array", "items": {"type": "object"}},
}


@dataclass(frozen=True)
class Paged:
    """Query of a list by name: the last name of the page before, and the size of a page."""

    after: str = option("", Text())
    limit: int = option(DEFAULT_LIMIT, Number(1, MAX_LIMIT))


@dataclass(frozen=True)
class FromOffset:
    """Query of a list by offset."""

    offset: int = option(0, Number(0, MAX_OFFSET))
    limit: int = option(DEFAULT_LIMIT, Number(1, MAX_LIMIT))


def table(words: str, /, **described: Schema) -> Schema:
    """Return the schema of an object in an answer: a word `<name>` or `<name>:<kind>` for each member.

    A member is a text without a kind; one with `?` behind it may be missing. Those described replace the kind.
    """
    members: dict[str, Schema] = {}
    required: list[str] = []
    for word in words.split():
        name, _, kind = word.rstrip("?").partition(":")
        members[name] = described.get(name) or _KINDS[kind]
        required += [] if word.endswith("?") else [name]
    return {"type": "object", "properties": members, "required": required}


def page_of(item: str) -> Schema:
    """Return the schema of a page of a list."""
    following = {"description": "`after` (or `offset`) of the next page; null at the end."}
    return table("items next", items=array_of(ref(item)), next=following)


def array_of(item: Schema) -> Schema:
    return {"type": "array", "items": item}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    page: Page
    summary: str
    answer: Schema | None = None
    query: type | None = None
    """Model of the query parameters."""
    body: type | Schema | None = None
    """Model of the body; a schema where core reads the body."""
    status: int = 200
    needs: str = MANAGEMENT
    """Tag that a user must have."""

    @property
    def parameters(self) -> list[str]:
        """Return the names in the path's braces."""
        return re.findall(r"\{(\w+)\}", self.path)

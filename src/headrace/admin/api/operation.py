"""What one operation of the API is: where it is found, what it takes and gives. One value makes its route and its page
in the OpenAPI document, so that neither can say what the other does not.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headrace.admin.pages import Page
from headrace.admin.site import MANAGEMENT

PREFIX: Final = "/api/v1"
MAX_LIMIT: Final = 1000
DEFAULT_LIMIT: Final = 100
MAX_OFFSET: Final = (1 << 63) - 1

Schema = Mapping[str, object]

TEXT: Final[Schema] = {"type": "string"}
FLAG: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TABLE: Final[Schema] = {"type": "object"}
LIMIT: Final[Schema] = {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT}
OFFSET: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": MAX_OFFSET}

PAGED: Final[Mapping[str, Schema]] = {"after": TEXT, "limit": LIMIT}
"""The parameters of every list: where to go on, and how many to give."""


def table(required: tuple[str, ...] = (), **members: Schema) -> Schema:
    """The schema of an object."""
    found: dict[str, object] = {"type": "object", "properties": dict(members)}
    return {**found, "required": list(required)} if required else found


def page_of(item: str) -> Schema:
    """The schema of a part of a list."""
    return table(
        ("items", "next"),
        items={"type": "array", "items": {"$ref": f"#/components/schemas/{item}"}},
        next={"description": "Give this as `after` (or `offset`) to get what follows; null at the end."},
    )


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    page: Page
    summary: str
    query: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    answer: Schema | None = None
    status: int = 200
    needs: str = MANAGEMENT
    """The tag that a user must have."""

    @property
    def parameters(self) -> list[str]:
        """The names in the path's braces."""
        return re.findall(r"\{(\w+)\}", self.path)

"""Names of replication groups, and the default group. No databases, no leases."""

import re
from typing import Final, final

from headrace.config.kinds import Kind, Unfit

MAIN: Final = "main"
"""Default group, and the name of its database."""
_ALSO_MAIN: Final = ("", "default")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")
_TAKEN: Final = re.compile(r"cluster|probe-.*")
"""Names in a store that are no databases: see cluster/lease.py and storage/objects/database.py."""


def meant(name: str) -> str:
    """Return the group that a name stands for."""
    return MAIN if name in _ALSO_MAIN else name


@final
class GroupName(Kind):
    """Name of a group, as written."""

    noun = "name of letters, digits, `-` and `_`"

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not is_name(value):
            raise Unfit("must be a name of up to 64 letters, digits, - and _, and neither cluster nor probe-...")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^{_NAME.pattern}$"}

    def show(self, value: object) -> str:
        return str(value) or '""'


def is_name(text: str) -> bool:
    """Return True for a valid name of a group, and for the empty name."""
    return _NAME.fullmatch(text) is not None and _TAKEN.fullmatch(text) is None

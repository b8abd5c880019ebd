"""Replication groups: what they may be called, which is meant where none is named. No databases, no leases."""

import re
from typing import Final, final

from headrace.config.kinds import Kind, Unfit

MAIN: Final = "main"
"""The group of everybody who names none; so is the database of that group."""
_ALSO_MAIN: Final = ("", "default")
_NAME: Final = re.compile(r"[A-Za-z0-9_-]{0,64}")
_TAKEN: Final = re.compile(r"cluster|probe-.*")
"""What lies beside the databases of a store: see cluster/lease.py and storage/objects/probe.py."""


def meant(name: str) -> str:
    """The group that a name stands for."""
    return MAIN if name in _ALSO_MAIN else name


@final
class GroupName(Kind):
    """The name of a group, as it is written."""

    noun = "name of letters, digits, `-` and `_`"

    def read(self, value: object) -> object:
        if not isinstance(value, str) or not is_name(value):
            raise Unfit("must be a name of up to 64 letters, digits, - and _, and neither cluster nor probe-...")
        return value

    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^{_NAME.pattern}$"}

    def show(self, value: object) -> str:
        return str(value) or '""'

    def plain(self, value: object) -> object:
        return value


def is_name(text: str) -> bool:
    """Whether a group may be called so, or not at all."""
    return _NAME.fullmatch(text) is not None and _TAKEN.fullmatch(text) is None

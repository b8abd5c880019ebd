"""A consumer group in the report of a doctor, for all engines. Each engine's doctor does the reading."""

from dataclasses import dataclass
from typing import final

from headrace.storage.group_state import MODE_NAMES, GroupState


@final
@dataclass(frozen=True)
class GroupRow:
    """One consumer group as the next start of the broker finds it."""

    name: str
    mode: str
    committed: int
    cursor: int
    pending: int


def group_row(name: str, state: GroupState) -> GroupRow:
    return GroupRow(name, MODE_NAMES[state.mode], state.committed, state.cursor, len(state.pending))

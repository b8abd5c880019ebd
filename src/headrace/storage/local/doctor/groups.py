"""A group under examination: its files state.json and pel.log, or its state in the table of groups. No journal."""

import struct
from pathlib import Path
from typing import Any, Final, final

from headrace.errors import Corrupt
from headrace.storage.group_row import GroupRow, group_row
from headrace.storage.group_state import GroupState
from headrace.storage.local import group_files
from headrace.storage.local.disk import Disk
from headrace.storage.local.doctor.findings import Problem, problem_of, read_whole
from headrace.storage.local.group_files import decode_pending, decode_progress, decode_state, entry_positions
from headrace.storage.local.json_file import decode_json

_REMEDY: Final = "restore the file from a copy, or drop the queue; until then this queue is refused"


@final
class ExpectedGroup:
    """A group as its files and the journal make it; `state` is None when its files cannot be read."""

    __slots__ = (
        "directory",
        "id",
        "is_shared",
        "name",
        "pending_at",
        "pending_file",
        "pending_seq",
        "problems",
        "progress_seq",
        "state",
    )

    def __init__(self, group_id: int, name: str, directory: Path) -> None:
        self.id = group_id
        self.name = name
        self.directory = directory
        self.is_shared = False
        """Whether its state is in the table of groups: files of its own are left from before."""
        self.pending_file = directory / "pel.log"
        self.state: GroupState | None = None
        self.progress_seq = 0
        self.pending_seq = 0
        self.pending_at: dict[int, int] = {}
        """Where in pel.log the entry of an offset stands."""
        self.problems: list[Problem] = []

    def row(self) -> GroupRow:
        return (
            group_row(self.name, self.state) if self.state is not None else GroupRow(self.name, "unreadable", 0, 0, 0)
        )


def read_group(disk: Disk, queue: str, group: ExpectedGroup) -> None:
    """Take in the files of a group that the checkpoint knows; what is wrong with them is among its problems."""
    try:
        state = _read_progress(disk, queue, group)
        path = group.directory / "pel.log"
        if path.exists():
            _read_pending(disk, path, group, state)
    except Corrupt as error:
        group.problems.append(problem_of(error, _REMEDY))
        return
    group.state = state


def read_shared_group(group: ExpectedGroup, value: bytes, path: Path) -> None:
    """Take in the state of a group from the table of groups, which is in that file."""
    group.is_shared = True
    group.pending_file = path
    try:
        state = decode_state(value, path, group.id, group.name)
    except Corrupt as error:
        group.problems.append(problem_of(error, _REMEDY))
        return
    group.state = state
    if state.committed > state.cursor or any(start <= state.committed for start, _ in state.settled):
        what = f"group {group.name!r}: what is settled does not fit the committed offset {state.committed}"
        group.problems.append(Problem(str(path), 0, f"{what} and the cursor {state.cursor}", _REMEDY))


def check_group(group: ExpectedGroup, next_offset: int, end_seq: int) -> None:
    """Whether the group, with the journal replayed, fits its log and the journal's end."""
    state = group.state
    if state is None:
        return
    for name, seq in (("state.json", group.progress_seq), ("pel.log", group.pending_seq)):
        if seq > end_seq:
            what = f"it holds everything up to commit {seq}, but the journal ends at commit {end_seq}"
            group.problems.append(Problem(str(group.directory / name), 0, what, "restore journal/ from a copy"))
    beyond = sorted(offset for offset in state.pending if offset >= next_offset)
    _report_pending(group, beyond, f"the log ends at {next_offset}")
    settled = sorted(offset for offset in state.pending if offset < state.committed or offset in state.settled)
    _report_pending(group, settled, "it is settled already")


def _read_progress(disk: Disk, queue: str, group: ExpectedGroup) -> GroupState:
    path = group.directory / "state.json"
    data = read_whole(disk, path)
    state, group.progress_seq = decode_progress(data, path, group.id)
    group.pending_seq = group.progress_seq
    values = decode_json(data, path, group_files.FORMAT)
    found = _nonsense(values, queue, group.name)
    if found:
        raise Corrupt(str(path), 0, found)
    return state


def _nonsense(values: dict[str, Any], queue: str, group: str) -> str:
    """What is impossible in a state.json whose checksum fits, or nothing."""
    if (values["queue"], values["group"]) != (queue, group):
        return f"it is that of group {values['group']!r} of queue {values['queue']!r}"
    numbers = [values["seq"], values["cursor"], values["committed"], *(n for pair in values["settled"] for n in pair)]
    if any(type(number) is not int or number < 0 for number in numbers):
        return "an offset is not a number, or is negative"
    if values["committed"] > values["cursor"]:
        return f"the committed offset {values['committed']} is past the cursor {values['cursor']}"
    reached = values["committed"]
    for start, stop in values["settled"]:
        if start <= reached or stop <= start:
            return f"the settled range {start}..{stop} does not lie behind {reached}, as it must"
        reached = stop
    return ""


def _read_pending(disk: Disk, path: Path, group: ExpectedGroup, state: GroupState) -> None:
    data = read_whole(disk, path)
    try:
        state.pending, group.pending_seq = decode_pending(data, path, group.id)
    except (struct.error, IndexError, ValueError) as error:
        raise Corrupt(str(path), 0, f"its entries make no sense: {error}") from error
    for offset, at in entry_positions(data):
        if offset in group.pending_at:
            raise Corrupt(str(path), at, f"offset {offset} has two entries")
        group.pending_at[offset] = at


def _report_pending(group: ExpectedGroup, offsets: list[int], why: str) -> None:
    """One problem for all entries of one kind, at the first that stands in the file."""
    if not offsets:
        return
    more = f" (and {len(offsets) - 1} more like it)" if len(offsets) > 1 else ""
    what = f"offset {offsets[0]} is pending, but {why}{more}"
    at = group.pending_at.get(offsets[0], 0)
    group.problems.append(Problem(str(group.pending_file), at, what, _REMEDY))

"""Looking ahead: logs and groups that are about to be needed come from memory at once. Nothing is decided here.

Why that is quicker, with a message in each of thousands of logs, is in core/glance.py.
"""

from typing import Final

from headrace.storage.api import Commit
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.version import IS_COMPILED

AT_A_TIME: Final = 64


def glance_at_commit(commit: Commit) -> int:
    """This is about to be staged."""
    if not IS_COMPILED:
        return 0
    seen = 0
    for append in commit.appends:
        log = append.at
        if isinstance(log, LocalLog):
            seen += log.staged_next + log.stored_bytes
    for step in commit.steps:
        log = step.at
        group = log.last_group if isinstance(log, LocalLog) else None
        if group is not None:
            seen += group.log.staged_next + group.pending_seq + group.state.glance()
    return seen


def glance_at_groups(groups: list[LocalGroup]) -> int:
    """These are about to step on, and their logs to be cut."""
    if not IS_COMPILED:
        return 0
    seen = 0
    for group in groups:
        log = group.log
        seen += group.state.glance() + group.pending_seq + log.next_offset + log.tail_bytes + log.stored_bytes
    return seen


def glance_at_logs(logs: list[LocalLog]) -> int:
    """These are about to be appended to."""
    if not IS_COMPILED:
        return 0
    seen = 0
    for log in logs:
        seen += log.next_offset + log.tail_bytes
    return seen

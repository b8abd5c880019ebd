"""Commits on their way into the journal: names become objects, messages become rows of one block. Values only."""

from typing import Final, final

from headrace.model import Message
from headrace.storage.api import Commit, Done
from headrace.storage.group_state import Transition
from headrace.storage.local.block import Block
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.record import Run

STEP: Final = 0


@final
class Change:
    """One operation with the objects it is about; `kind` is that of the record, or 0 for a group's step."""

    __slots__ = ("group", "key", "kind", "log", "offset", "replacement", "step", "table", "value")

    def __init__(self, kind: int, log: LocalLog | None = None) -> None:
        self.kind = kind
        self.log = log
        self.group: LocalGroup | None = None
        self.step: Transition | None = None
        self.offset = 0
        self.replacement: LocalLog | None = None
        self.table = ""
        self.key = b""
        self.value: bytes | None = None


@final
class Staged:
    """A commit whose names have become objects: what to append where, and what else to change."""

    __slots__ = ("changes", "commit", "done", "durable", "logs", "operations")

    def __init__(self, commit: Commit, logs: list[LocalLog], done: Done, durable: bool) -> None:
        self.commit = commit
        self.logs = logs
        """Where each of the commit's appends goes."""
        self.done = done
        self.durable = durable
        self.changes: list[Change] = []
        self.operations: list[bytes] = []

    @property
    def is_encoded(self) -> bool:
        """Whether some of its messages came encoded."""
        return any([append.encoded is not None for append in self.commit.appends])


@final
class Batch:
    """Commits that go into the journal as one record.

    What is appended is kept as columns, a run for each log: with a message for each of a thousand logs, an object for
    each run was a fifth of what storing it took.
    """

    __slots__ = ("bases", "blocks", "changes", "commits", "counts", "logs", "messages", "operations")

    def __init__(self, commits: list[Staged]) -> None:
        self.commits = commits
        self.changes: list[Change] = []
        self.operations = b""
        self.logs: list[LocalLog] = []
        self.bases: list[int] = []
        self.counts: list[int] = []
        self.messages: list[Message] = []
        """Those of all runs in turn."""
        self.blocks: list[Block] = []
        """One for all runs, or one for each."""

    def add(self, log: LocalLog, base: int, count: int) -> None:
        """Have the next `count` messages go to this log."""
        self.logs.append(log)
        self.bases.append(base)
        self.counts.append(count)

    def runs(self) -> list[Run]:
        ids = [log.id for log in self.logs]
        return list(zip(ids, self.counts, self.bases, strict=True))

"""Commits on their way into the journal: names become objects, messages become rows of one block. Values only."""

from typing import Final, final

from headrace.model import Message
from headrace.storage.api import Append, Commit, Done
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

    __slots__ = ("appends", "changes", "commit", "done", "durable", "operations")

    def __init__(self, commit: Commit, done: Done, durable: bool) -> None:
        self.commit = commit
        self.done = done
        self.durable = durable
        self.appends: list[tuple[LocalLog, Append]] = []
        self.changes: list[Change] = []
        self.operations: list[bytes] = []

    @property
    def is_encoded(self) -> bool:
        """Whether some of its messages came encoded."""
        return any([append.encoded is not None for append in self.commit.appends])


@final
class Rows:
    """Messages for one log in a batch: rows `start` on of a block, which is shared unless they came encoded."""

    __slots__ = ("base", "block", "count", "log", "messages", "start")

    def __init__(
        self, log: LocalLog, base: int, messages: list[Message], start: int, count: int, block: Block | None = None
    ) -> None:
        self.log = log
        self.base = base
        self.messages = messages
        self.start = start
        self.count = count
        self.block = block


@final
class Batch:
    """Commits that go into the journal as one record."""

    __slots__ = ("blocks", "changes", "commits", "operations", "rows")

    def __init__(self, commits: list[Staged]) -> None:
        self.commits = commits
        self.changes: list[Change] = []
        self.operations = b""
        self.rows: list[Rows] = []
        self.blocks: list[Block] = []

    def runs(self) -> list[Run]:
        return [(rows.log.id, rows.count, rows.base) for rows in self.rows]

"""Commits on their way into the journal: names become objects, messages become rows of one block. Values only."""

from typing import final

from librt.strings import BytesWriter

from headrace.storage.api import Append, Commit, Done
from headrace.storage.group_state import Transition
from headrace.storage.local.block import Block
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.record_writing import write_run

Cut = tuple[LocalLog, int]
"""A log, and below which offset its messages go."""


@final
class Change:
    """An operation on a log or a table, with the objects it is about; `kind` is that of the record."""

    __slots__ = ("key", "kind", "log", "replacement", "table", "value")

    def __init__(self, kind: int, log: LocalLog | None = None) -> None:
        self.kind = kind
        self.log = log
        self.replacement: LocalLog | None = None
        self.table = ""
        self.key = b""
        self.value: bytes | None = None


@final
class Staged:
    """A commit whose names have become objects: what to append where, and what else to change."""

    __slots__ = ("changes", "commit", "cuts", "done", "durable", "groups", "logs", "operations", "steps")

    def __init__(self, commit: Commit, logs: list[LocalLog], done: Done, durable: bool) -> None:
        self.commit = commit
        self.logs = logs
        """Where each of the commit's appends goes."""
        self.done = done
        self.durable = durable
        self.steps = commit.steps
        self.groups: list[LocalGroup] = []
        """Whose each of the steps is."""
        self.cuts: list[Cut] = []
        self.changes: list[Change] = []
        self.operations = BytesWriter()


@final
class Batch:
    """Commits that go into the journal as one record.

    There is one append for each log, and lists side by side instead of an object for each pair: with a message for each
    of a thousand logs, these were a fifth of what storing it took. It happens in this order: logs are made, groups step
    on, messages are appended, logs are cut, and then what else changes, each as in the commits.
    """

    __slots__ = (
        "appends",
        "blocks",
        "changes",
        "commits",
        "cuts",
        "groups",
        "logs",
        "operations",
        "steps",
    )

    def __init__(self, commits: list[Staged]) -> None:
        self.commits = commits
        self.steps: list[Transition] = []
        self.groups: list[LocalGroup] = []
        """Whose each of the steps is."""
        self.cuts: list[Cut] = []
        self.changes: list[Change] = []
        self.operations = b""
        self.appends: list[Append] = []
        self.logs: list[LocalLog] = []
        """Where each of the appends goes."""
        self.blocks: list[Block] = []
        """One for all appends, or one for each."""

    def add(self, log: LocalLog, append: Append) -> None:
        """Have this go to that log, which nothing else does."""
        self.logs.append(log)
        self.appends.append(append)

    def add_run(self, log: LocalLog, base: int, count: int) -> None:
        """The same for the next `count` messages of the blocks."""
        append = Append("", [], 0, at=log)
        append.base = base
        append.count = count
        self.add(log, append)

    def take_over(self, staged: Staged) -> None:
        """Have what a commit does besides appending happen with this batch."""
        self.steps += staged.steps
        self.groups += staged.groups
        self.cuts += staged.cuts
        self.changes += staged.changes

    def runs(self) -> bytes:
        """Whose messages its blocks hold, as a record has it."""
        out = BytesWriter()
        for number, append in enumerate(self.appends):
            write_run(out, self.logs[number].id, append.count, append.base)
        return out.getvalue()

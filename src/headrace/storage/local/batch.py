"""Commits that go into the journal as one record: names become objects, messages become rows of one block."""

import itertools
from typing import Final, final

from librt.strings import BytesWriter

from headrace.model import Message
from headrace.storage.api import Append, Commit, Done
from headrace.storage.group_state import Transition
from headrace.storage.local.block import Block
from headrace.storage.local.encoding import encode_block, write_run
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.staging import EncodedBlock, EncodedRows

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


_numbers: Final = itertools.count(1)


def batch_of(commits: list[Staged]) -> Batch:
    """Put staged commits together, the messages of each log next to each other, and encode them. Raises Refused."""
    if commits and commits[0].commit.is_encoded:
        return _batch_encoded(commits[0])
    batch = Batch(commits)
    for staged in commits:
        batch.take_over(staged)
    batch.operations = b"".join([staged.operations.getvalue() for staged in commits])
    messages = _gather(batch, commits)
    if messages:
        batch.blocks = [encode_block(batch.appends[0].base if len(batch.appends) == 1 else 0, messages)]
    return batch


def _batch_encoded(staged: Staged) -> Batch:
    """A batch of one commit, with a block for each of its appends unless they came in one. Raises Refused."""
    batch = Batch([staged])
    batch.take_over(staged)
    batch.operations = staged.operations.getvalue()
    shared = _shared_block(staged.commit.appends)
    if shared is not None:
        batch.blocks.append(shared)
    for log, append in zip(staged.logs, staged.commit.appends, strict=True):
        if append.count:
            batch.add(log, append)
            if shared is None:
                batch.blocks.append(_block_of(append))
    return batch


def _gather(batch: Batch, commits: list[Staged]) -> list[Message]:
    """Have the batch append what its commits do, once for each log; returns the messages in that order."""
    logs, appends = commits[0].logs, commits[0].commit.appends
    if len(commits) > 1:
        logs = [log for staged in commits for log in staged.logs]
        appends = [append for staged in commits for append in staged.commit.appends]
    number = next(_numbers)
    messages: list[Message] = []
    for at, append in enumerate(appends):
        log = logs[at]
        if log.batch == number or not append.count:
            return _group(batch, logs, appends)
        log.batch = number
        if append.count == 1:
            messages.append(append.messages[0])
        else:
            messages += append.messages
    batch.logs, batch.appends = logs, appends  # as they come: 0.5 us a message less than grouping them
    return messages


def _group(batch: Batch, logs: list[LocalLog], appends: list[Append]) -> list[Message]:
    """Put together what goes to the same log, whatever comes in between, and leave out what is empty."""
    by_log: dict[LocalLog, list[Append]] = {}
    for at, append in enumerate(appends):
        if append.count:
            by_log.setdefault(logs[at], []).append(append)
    messages: list[Message] = []
    for log, found in by_log.items():
        whole = Append("", [message for append in found for message in append.messages], 0, at=log)
        whole.base = found[0].base
        batch.add(log, whole)
        messages += whole.messages
    return messages


def _shared_block(appends: list[Append]) -> Block | None:
    """The block of which the appends are the rows, all of them and in turn."""
    first = appends[0].encoded if appends else None
    if not isinstance(first, EncodedRows):
        return None
    row = 0
    for append in appends:
        encoded = append.encoded
        if not isinstance(encoded, EncodedRows) or encoded.block is not first.block or encoded.start != row:
            return None
        row += encoded.count
    return first.block if row == first.block.count else None


def _block_of(append: Append) -> Block:
    """The messages of an append as one block. Raises Refused."""
    encoded = append.encoded
    if encoded is None:
        return encode_block(append.base, append.messages)
    if isinstance(encoded, EncodedBlock):
        return encoded.block
    if isinstance(encoded, EncodedRows):
        return encoded.alone().block
    return encode_block(append.base, encoded.messages(0, encoded.count))

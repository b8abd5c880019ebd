"""A commit on its way into the journal as one record: its objects, rows and bytes, and how far it is. No threads."""

import itertools
from typing import Final, final

from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Append, Commit, Done
from headrace.storage.local.block import Block
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.journal import Position
from headrace.storage.local.log import LocalGroup, LocalLog
from headrace.storage.local.staging import EncodedBlock, EncodedRows

Cut = tuple[LocalLog, int]
"""A log, and the offset below which its messages go."""

OPEN: Final = 0
"""The batch has its offsets and waits for the writer, or is with it."""
WRITTEN: Final = 1
"""The record is in the journal and readers see the batch. It is durable once the record is synced."""
REFUSED: Final = 2
"""Nothing of the batch happens; `refusal` says why."""

_numbers: Final = itertools.count(1)


def _nothing(error: HeadraceError | None) -> None:
    return


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
class Batch:
    """One commit, one record.

    Lists stand side by side instead of an object for each pair: with a message for each of a thousand logs, such
    objects were a fifth of the cost. The catalog applies it in this order: logs come into being, groups step on,
    messages are appended, logs are cut, then everything else changes.
    """

    __slots__ = (
        "appends",
        "blocks",
        "changes",
        "commit",
        "cuts",
        "done",
        "durable",
        "error",
        "groups",
        "is_early",
        "logs",
        "operations",
        "position",
        "refusal",
        "runs",
        "seq",
        "state",
        "steps",
        "targets",
    )

    def __init__(self, commit: Commit, done: Done = _nothing, durable: bool = False) -> None:
        self.commit = commit
        self.done = done
        self.durable = durable
        """True if `done` waits for the sync of the record."""
        self.state = OPEN
        self.refusal: HeadraceError | None = None
        self.steps = commit.steps
        self.groups: list[LocalGroup] = []
        """The group of each step."""
        self.targets: list[LocalLog] = []
        """The log of each append of the commit."""
        self.appends = commit.appends
        """One for each log: those of the commit, or theirs put together."""
        self.logs: list[LocalLog] = []
        """The log of each append."""
        self.blocks: list[Block] = []
        """One for all appends, or one for each."""
        self.cuts: list[Cut] = []
        self.changes: list[Change] = []
        self.operations = b""
        self.runs = b""
        self.seq = 0
        self.position: Position | None = None
        """The end of the record in the journal, once it is written."""
        self.is_early = False
        """True if the thread reports it before its sync."""
        self.error: OSError | None = None
        """The reason why the record was not written."""

    def add_run(self, log: LocalLog, base: int, count: int) -> None:
        """Append the next `count` messages of the blocks to a log."""
        append = Append("", [], 0, at=log)
        append.base = base
        append.count = count
        self.logs.append(log)
        self.appends.append(append)

    def refuse(self, refusal: HeadraceError) -> None:
        self.state = REFUSED
        self.refusal = refusal

    def encode(self) -> None:
        """Make blocks of the messages, those of each log next to each other. Raises Refused."""
        if self.commit.is_encoded:
            self._take_encoded()
            return
        number = next(_numbers)
        messages: list[Message] = []
        for at, append in enumerate(self.appends):  # as they come: 0.5 us a message less than grouping them
            log = self.logs[at]
            if log.batch == number or not append.count:
                messages = self._group()
                break
            log.batch = number
            if append.count == 1:
                messages.append(append.messages[0])
            else:
                messages += append.messages
        if messages:
            self.blocks = [encode_block(self.logs[0].staged_next if len(self.logs) == 1 else 0, messages)]

    def _group(self) -> list[Message]:
        """Put the appends of each log together, and leave out empty ones; returns the messages in the new order."""
        by_log: dict[LocalLog, list[Message]] = {}
        for at, append in enumerate(self.appends):
            if append.count:
                by_log.setdefault(self.logs[at], []).extend(append.messages)
        self.logs = list(by_log)
        self.appends = []
        messages: list[Message] = []
        for log, found in by_log.items():
            whole = Append("", found, 0, at=log)
            whole.base = log.staged_next
            self.appends.append(whole)
            messages += found
        return messages

    def _take_encoded(self) -> None:
        """Take a block for each append as it came, or the one block of which all appends are the rows."""
        shared = _shared_block(self.appends)
        blocks = [] if shared is None else [shared]
        logs: list[LocalLog] = []
        appends: list[Append] = []
        ends: dict[LocalLog, int] = {}
        for at, append in enumerate(self.appends):
            if append.count:
                log = self.logs[at]
                logs.append(log)
                appends.append(append)
                if shared is None:
                    base = ends.get(log, log.staged_next)
                    ends[log] = base + append.count
                    blocks.append(_block_of(append, base))
        self.logs, self.appends, self.blocks = logs, appends, blocks


def _shared_block(appends: list[Append]) -> Block | None:
    """The block of which the appends are the rows, all of them and in order."""
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


def _block_of(append: Append, base: int) -> Block:
    """The messages of an append as one block. Raises Refused."""
    encoded = append.encoded
    if encoded is None:
        return encode_block(base, append.messages)
    if isinstance(encoded, EncodedBlock):
        return encoded.block
    if isinstance(encoded, EncodedRows):
        return encoded.alone().block
    return encode_block(base, encoded.messages(0, encoded.count))

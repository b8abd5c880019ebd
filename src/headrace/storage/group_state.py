"""The stored state of a consumer group: its progress and its claims. No members, no credit, no clock.

Its size is bounded by the claims: settled offsets above `committed` are ranges, and only offsets that were claimed and
not settled have an entry. A message is ready when it is at or above `committed`, not settled and has no entry.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from headrace.storage.ranges import RangeSet

if TYPE_CHECKING:
    from headrace.storage.api import Log

# Group modes and transition kinds are stored on disk; never renumber.
WORK: Final = 1
STREAM: Final = 2
MODE_NAMES: Final = {WORK: "work", STREAM: "stream"}

CREATED: Final = 4
DELETED: Final = 5
CLAIMED: Final = 6
ACKED: Final = 7
DEAD: Final = 8
REQUEUED: Final = 9
CURSOR: Final = 10
COMMITTED: Final = 11


@final
@mypyc_attr(acyclic=True)
class Transition:
    """One step of one group: `kind` happened to the offsets from `start` up to but not including `stop`.

    For CURSOR and COMMITTED, `start` is where the cursor or the committed offset goes. CREATED sets the cursor and
    the committed offset to `start`. With ACKED, the log's messages below `cut` go as well, if that is not 0.
    """

    __slots__ = ("_log", "at", "consumer", "cut", "due_us", "filter", "group", "kind", "mode", "start", "stop")

    def __init__(
        self,
        kind: int,
        log: str,
        group: str,
        start: int = 0,
        stop: int = 0,
        due_us: int = 0,
        consumer: str = "",
        mode: int = WORK,
        filter: str = "",  # noqa: A002
        cut: int = 0,
        at: "Log | None" = None,
    ) -> None:
        self.kind = kind
        self._log = log
        self.at = at
        """The log itself, if the caller has it: then the engine does not look for it by name."""
        self.group = group
        self.start = start
        self.stop = stop
        self.cut = cut
        self.due_us = due_us
        self.consumer = consumer
        self.mode = mode
        self.filter = filter

    @property
    def log(self) -> str:
        """The name of the log."""
        return self._log if self.at is None else self.at.name

    @log.setter
    def log(self, log: str) -> None:
        self._log = log

    def is_in(self, log: str, at: "Log | None") -> bool:
        """True if it names this log in the same way."""
        return self.at is at and self._log == log


@final
@mypyc_attr(acyclic=True)
class Pending:
    """One claimed or requeued message: how often it was claimed, by whom (nobody when requeued), and until when."""

    __slots__ = ("attempts", "consumer", "due_us")

    def __init__(self, attempts: int, due_us: int, consumer: str) -> None:
        self.attempts = attempts
        self.due_us = due_us
        self.consumer = consumer

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pending) and (self.attempts, self.due_us, self.consumer) == (
            other.attempts,
            other.due_us,
            other.consumer,
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Pending({self.attempts}, {self.due_us}, {self.consumer!r})"


_NO_RANGES: Final = RangeSet()
_NO_PENDING: Final[dict[int, Pending]] = {}
"""Shared by all groups without any; nobody changes them."""


@final
@mypyc_attr(acyclic=True)
class GroupState:
    """The durable state of one group on one log; engines move it, core reads it when it opens the group."""

    __slots__ = ("_pending", "_settled", "committed", "cursor", "filter", "mode", "name")

    def __init__(self, name: str, mode: int, filter: str, start: int) -> None:  # noqa: A002
        self.cursor = start
        self.committed = start
        self._settled: RangeSet | None = None
        self._pending: dict[int, Pending] | None = None
        """None while there are none: most groups have neither, most of the time, and an absent object need not come
        from memory for each message."""
        self.name = name
        self.mode = mode
        self.filter = filter

    @property
    def settled(self) -> RangeSet:
        """The settled offsets above `committed`, to be read; `add_settled` adds to them."""
        return self._settled if self._settled is not None else _NO_RANGES

    @property
    def settled_count(self) -> int:
        """The number of settled offsets above `committed`."""
        return self._settled.size if self._settled is not None else 0

    @property
    def is_plain(self) -> bool:
        """True if no offset is settled above `committed`, claimed or requeued."""
        return self._settled is None and self._pending is None

    @property
    def pending(self) -> Mapping[int, Pending]:
        """The offsets that were claimed or requeued, and are not settled."""
        return self._pending if self._pending is not None else _NO_PENDING

    @pending.setter
    def pending(self, pending: dict[int, Pending]) -> None:
        self._pending = pending or None

    @property
    def has_pending(self) -> bool:
        """True if any offset was claimed or requeued, and is not settled."""
        return self._pending is not None

    def add_settled(self, start: int, stop: int) -> None:
        """Note offsets above `committed` as settled."""
        if self._settled is None:
            self._settled = RangeSet()
        self._settled.add(start, stop)

    def set_pending(self, offset: int, entry: Pending) -> None:
        if self._pending is None:
            self._pending = {}
        self._pending[offset] = entry

    def drop_pending(self, offset: int) -> None:
        """Forget the entry of an offset, if it has one."""
        if self._pending is not None:
            self._pending.pop(offset, None)
            if not self._pending:
                self._pending = None

    def copy(self) -> "GroupState":
        """An independent copy of the state."""
        copied = GroupState(self.name, self.mode, self.filter, self.committed)
        copied.cursor = self.cursor
        for start, stop in self.settled:
            copied.add_settled(start, stop)
        copied.pending = {
            offset: Pending(entry.attempts, entry.due_us, entry.consumer) for offset, entry in self.pending.items()
        }
        return copied

    def apply(self, step: Transition) -> None:
        """Make one transition: both the progress and the pending part of it."""
        if self._pending is None and step.kind in (ACKED, DEAD):
            self.settle(step.start, step.stop)
            return
        self.apply_progress(step)
        self.apply_pending(step)

    def apply_progress(self, step: Transition) -> None:
        """Move cursor, committed and settled. Independent of the pending part, so each can be stored by itself."""
        kind = step.kind
        if kind in (ACKED, DEAD):
            self.settle(step.start, step.stop)
        elif kind == CLAIMED:
            if step.stop > self.cursor:
                self.cursor = step.stop
        elif kind == CURSOR:
            self.cursor = step.start
            if step.start < self.committed:
                self.committed = step.start
                self._settled = None
        elif kind == COMMITTED:
            self._commit(step.start)

    def _commit(self, offset: int) -> None:
        """Move `committed` there, and on over all settled offsets without a gap."""
        self.committed = offset
        settled = self._settled
        if settled is not None:
            settled.discard_below(offset)
            self.committed = settled.take_from(offset)
            if not settled.size:
                self._settled = None
        if self.committed > self.cursor:
            self.cursor = self.committed

    def apply_pending(self, step: Transition) -> None:
        """Move the entries of claimed, requeued and settled offsets."""
        kind = step.kind
        if kind == CLAIMED:
            for offset in range(step.start, step.stop):
                entry = self.pending.get(offset)
                attempts = entry.attempts + 1 if entry is not None else 1
                self.set_pending(offset, Pending(attempts, step.due_us, step.consumer))
        elif kind == REQUEUED:
            for offset in range(step.start, step.stop):
                entry = self.pending.get(offset)
                attempts = entry.attempts if entry is not None else 0
                self.set_pending(offset, Pending(attempts, step.due_us, ""))
        elif kind in (ACKED, DEAD):
            self._drop_pending(step.start, step.stop)
        elif kind == COMMITTED:
            self._drop_pending(0, step.start)

    def _drop_pending(self, start: int, stop: int) -> None:
        pending = self._pending
        if pending is None:
            return
        if stop - start > len(pending):
            for offset in [offset for offset in pending if start <= offset < stop]:
                del pending[offset]
        else:
            for offset in range(start, stop):
                pending.pop(offset, None)
        if not pending:
            self._pending = None

    def settle(self, start: int, stop: int) -> None:
        """Settle these offsets: `committed` moves over all settled offsets without a gap."""
        if stop <= self.committed:
            return
        if start > self.committed:
            self.add_settled(start, stop)
        elif self._settled is not None:
            self._commit(stop)
        else:
            self.committed = stop
            if stop > self.cursor:
                self.cursor = stop

"""The stored state of a consumer group: its progress and its claims. No members, no credit, no clock.

Its size is bounded by the claims: settled offsets above `committed` are ranges, and only offsets that were claimed and
not settled have an entry. A message is ready when it is at or above `committed`, not settled and has no entry.
"""

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
        """Both come into being when needed and go when empty: most groups have neither, most of the time, and an
        absent object need not come from memory for each message."""
        self.name = name
        self.mode = mode
        self.filter = filter

    @property
    def settled(self) -> RangeSet:
        """The settled offsets above `committed`."""
        if self._settled is None:
            self._settled = RangeSet()
        return self._settled

    @property
    def settled_count(self) -> int:
        """The number of settled offsets above `committed`."""
        settled = self._settled
        if settled is None:
            return 0
        if not settled.size:
            self._settled = None
        return settled.size

    @property
    def is_plain(self) -> bool:
        """True if no offset is settled above `committed`, claimed or requeued."""
        return (self._settled is None and self._pending is None) or not (self.settled_count or self.has_pending)

    @property
    def pending(self) -> dict[int, Pending]:
        """The offsets that were claimed or requeued, and are not settled."""
        if self._pending is None:
            self._pending = {}
        return self._pending

    @pending.setter
    def pending(self, pending: dict[int, Pending]) -> None:
        self._pending = pending

    @property
    def has_pending(self) -> bool:
        """True if any offset was claimed or requeued, and is not settled."""
        pending = self._pending
        if pending is None:
            return False
        if not pending:
            self._pending = None
        return len(pending) > 0

    def copy(self) -> "GroupState":
        """An independent copy of the state."""
        copied = GroupState(self.name, self.mode, self.filter, self.committed)
        copied.cursor = self.cursor
        if self.settled_count:
            for start, stop in self.settled:
                copied.settled.add(start, stop)
        if self.has_pending:
            copied.pending = {
                offset: Pending(entry.attempts, entry.due_us, entry.consumer) for offset, entry in self.pending.items()
            }
        return copied

    def apply(self, step: Transition) -> None:
        """Make one transition: both the progress and the pending part of it."""
        self.apply_progress(step)
        self.apply_pending(step)

    def apply_progress(self, step: Transition) -> None:
        """Move cursor, committed and settled. Independent of the pending part, so each can be stored by itself."""
        kind = step.kind
        if kind == CLAIMED:
            if step.stop > self.cursor:
                self.cursor = step.stop
        elif kind in (ACKED, DEAD):
            self.settle(step.start, step.stop)
        elif kind == CURSOR:
            self.cursor = step.start
            if step.start < self.committed:
                self.committed = step.start
                self.settled.clear()
        elif kind == COMMITTED:
            self.committed = step.start
            self.settled.discard_below(step.start)
            self.committed = self.settled.take_from(step.start)
            self.cursor = max(self.cursor, self.committed)

    def apply_pending(self, step: Transition) -> None:
        """Move the entries of claimed, requeued and settled offsets."""
        kind = step.kind
        if kind in (ACKED, DEAD) and not self.has_pending:
            return
        pending = self.pending
        if kind == CLAIMED:
            for offset in range(step.start, step.stop):
                entry = pending.get(offset)
                attempts = entry.attempts + 1 if entry is not None else 1
                pending[offset] = Pending(attempts, step.due_us, step.consumer)
        elif kind in (ACKED, DEAD):
            if step.stop - step.start > len(pending):
                for offset in [offset for offset in pending if step.start <= offset < step.stop]:
                    del pending[offset]
            else:
                for offset in range(step.start, step.stop):
                    if offset in pending:
                        del pending[offset]
        elif kind == REQUEUED:
            for offset in range(step.start, step.stop):
                entry = pending.get(offset)
                pending[offset] = Pending(entry.attempts if entry is not None else 0, step.due_us, "")
        elif kind == COMMITTED:
            for offset in [offset for offset in pending if offset < step.start]:
                del pending[offset]

    def settle(self, start: int, stop: int) -> None:
        """Settle these offsets: `committed` moves over all settled offsets without a gap."""
        if stop <= self.committed:
            return
        if start <= self.committed:
            self.committed = stop
            if self._settled is not None and self.settled_count:
                self._settled.discard_below(stop)
                self.committed = self._settled.take_from(stop)
        else:
            self.settled.add(start, stop)
        if self.committed > self.cursor:
            self.cursor = self.committed

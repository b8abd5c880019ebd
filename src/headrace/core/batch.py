"""A turn of the broker: appends, steps and puts that are stored together, and the publishers that wait for them.

Durable logs and memory logs are in different engines, so a turn has a commit for each.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import KEPT, Append, Commit, Encoded, Origin

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

Confirm = Callable[[HeadraceError | None], None]
ConfirmAll = Callable[[int, HeadraceError | None], None]
"""Told how many of those that were published together are meant."""


@final
class _Row:
    """Publishes in a row that one call confirms."""

    __slots__ = ("count", "tell")

    def __init__(self, tell: ConfirmAll, count: int) -> None:
        self.tell = tell
        self.count = count


@final
class Confirms:
    """Those who wait for a turn. Whoever publishes to many queues in turn is told once of all, not once of each."""

    __slots__ = ("_behind", "_last", "_waiting", "is_awaited")

    def __init__(self) -> None:
        self._waiting: list[Confirm | _Row] = []
        self._last: _Row | None = None
        """The last of those who wait, where more may be added to it."""
        self.is_awaited = False
        """Whether one of them waits for the disk."""
        self._behind: list[tuple[Confirms, HeadraceError | None]] = []
        """Publishers of later turns whose outcome is known already, and that outcome."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, confirm: Confirm, is_awaited: bool = True) -> None:
        """Have this called; `is_awaited` says whether it waits for the disk."""
        self._waiting.append(confirm)
        self._last = None
        self.is_awaited = self.is_awaited or is_awaited

    def add_all(self, confirm: ConfirmAll, count: int, is_awaited: bool) -> None:
        """Have this called for so many publishes; the very same callable again right behind it is one call."""
        last = self._last
        if last is not None and last.tell is confirm:
            last.count += count
        else:
            last = self._last = _Row(confirm, count)
            self._waiting.append(last)
        self.is_awaited = self.is_awaited or is_awaited

    def tell(self, error: HeadraceError | None) -> None:
        """Call all of them; nobody waits any more."""
        waiting, self._waiting = self._waiting, []
        self._last = None
        self.is_awaited = False
        for each in waiting:
            if isinstance(each, _Row):
                each.tell(each.count, error)
            else:
                each(error)
        if self._behind:
            behind, self._behind = self._behind, []
            for later, outcome in behind:
                later.tell(outcome)

    def tell_behind(self, later: "Confirms", error: HeadraceError | None) -> None:
        """Tell the publishers of a later turn, right after all of these."""
        self._behind.append((later, error))


_numbers: Final = itertools.count(1)


@final
class Appends:
    """The queues in the order in which they got something, and what that is.

    A queue has the number of those that it is in, and its place there: with a message for each of a thousand queues,
    that takes a third of the instructions of a dictionary. One that was put into others meanwhile gets a second place.
    """

    __slots__ = ("_is_counted", "_number", "appends", "deliver_before_sync", "queues", "size_bytes")

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.queues: list[Queue] = []
        self.appends: list[Append] = []
        """What each of them gets."""
        self._is_counted = False
        """Whether a queue among them has a limit, and knows what is on its way to it."""
        self.size_bytes = 0
        """That of all payloads."""
        self.deliver_before_sync = True
        """Whether all of them, when they got something, allowed that it is delivered before it is synced."""

    def __bool__(self) -> bool:
        return len(self.queues) > 0

    def add(self, queue: "Queue", message: Message) -> None:
        if queue.is_limited:
            self._is_counted = True
        size_bytes = len(message.payload)
        self.size_bytes += size_bytes
        if queue.appends_number == self._number:
            self.appends[queue.append_at].add(message, size_bytes)
        else:
            self._begin(queue, Append("", [message], size_bytes, at=queue.log))

    def add_all(self, queue: "Queue", messages: list[Message], size_bytes: int) -> None:
        """The list belongs to this from now on."""
        self.size_bytes += size_bytes
        if queue.appends_number == self._number:
            self.appends[queue.append_at].extend(messages, size_bytes)
        else:
            self._begin(queue, Append("", messages, size_bytes, at=queue.log))

    def _begin(self, queue: "Queue", append: Append) -> None:
        if not queue.deliver_before_sync:
            self.deliver_before_sync = False
        queue.appends_number = self._number
        queue.append_at = len(self.queues)
        self.queues.append(queue)
        self.appends.append(append)

    def remove(self, queue: "Queue") -> int:
        """Drop the messages for this queue; returns the bytes of their payloads."""
        if queue not in self.queues:
            return 0
        before = self.size_bytes
        queues, self.queues = self.queues, []
        appends, self.appends = self.appends, []
        self._number = next(_numbers)
        self.size_bytes = 0
        for at, other in enumerate(queues):
            if other is not queue:
                self._begin(other, appends[at])
                self.size_bytes += appends[at].size_bytes
        return before - self.size_bytes

    def unstage(self) -> None:
        """Tell the queues that all of it is in their logs now, or never will be."""
        if self._is_counted:
            for at, queue in enumerate(self.queues):
                queue.unstaged(self.appends[at].messages)


@final
class Copied:
    """Messages of a stream for a queue that is filled from it: see assigner.py."""

    __slots__ = ("messages", "origin", "queue")

    def __init__(self, queue: "Queue", log: str) -> None:
        self.queue = queue
        self.messages: list[Message] = []
        self.origin = Origin(log, [])

    def add(self, offset: int, message: Message) -> None:
        self.messages.append(message)
        self.origin.offsets.append(offset)


@final
class Batch:
    """Changes that go into the logs together. What clients publish may fail; what is moved or settled is retried."""

    __slots__ = (
        "ack_due_us",
        "before_commit",
        "confirms",
        "copied",
        "dedup_keys",
        "done",
        "durable",
        "encoded",
        "entered",
        "failures",
        "is_barrier",
        "is_promised",
        "is_rehearsal",
        "long_steps",
        "memory",
        "moved",
        "number",
        "published",
        "sent_us",
        "size_bytes",
        "touched",
        "touched_in_memory",
        "transient",
        "used",
    )

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.durable = Commit()
        self.memory = Commit()
        self.published = Appends()
        """What clients published to durable queues."""
        self.transient = Appends()
        """The same for queues that only memory holds."""
        self.encoded: dict[Queue, list[Encoded]] = {}
        """What they published to durable queues in bulk."""
        self.moved: dict[Queue, list[Message]] = {}
        """Dead letters and the like: they must arrive if the settlement that goes with them does."""
        self.copied: list[Copied] = []
        """The same for what queues get from streams, with how far they are there."""
        self.long_steps = 0
        """How many steps of long work are in it: see pipeline.py."""
        self.used: list[Callable[[], None]] = []
        """Called when what the turn brings is in the logs, or never will be."""
        self.entered: list[Callable[[], None]] = []
        """Called when what clients published is in the logs, or never will be, whatever becomes of the rest."""
        self.dedup_keys: list[bytes] = []
        """Keys that say that something was published: stored with it, refused with it."""
        self.size_bytes = 0
        """Payload bytes of what clients published."""
        self.confirms = Confirms()
        self.ack_due_us = 0
        """When publishers are told that it is not stored, if it is not by then; 0 for never."""
        self.is_barrier = False
        """Whether it must go through storage even when it is empty, because somebody waits for all before it."""
        self.is_promised = False
        """Whether clients are told of what is in it besides messages: what is declared, bound, deleted, purged."""
        self.touched: list[Queue] = []
        """Durable queues in which something was settled: their logs may have become shorter."""
        self.touched_in_memory: list[Queue] = []
        """The others."""
        self.before_commit: Callable[[Commit], None] | None = None
        """Called when all before it is stored; may add to what is stored, or raise and have nothing of it happen."""
        self.done: Confirm | None = None
        """Set for a transaction: nothing of it is retried, and this is told how it ended."""
        self.is_rehearsal = False
        """Whether all that is staged here was stored already and only has to happen in memory."""
        self.sent_us = 0
        """When it was sent to storage; 0 when it did not have to be."""
        self.failures = 0

    def define(self, table: str, key: bytes, value: bytes | None) -> None:
        """Keep what a client declares, or with None forget it."""
        self.is_promised = True
        if value is None:
            self.durable.delete(table, key)
        else:
            self.durable.put(table, key, value)

    def commit_for(self, queue: "Queue") -> Commit:
        """Where the steps of this queue's groups go."""
        return self.durable if queue.durable else self.memory

    def publish(self, queue: "Queue", message: Message) -> None:
        self.size_bytes += len(message.payload)
        (self.published if queue.durable else self.transient).add(queue, message)

    def wait_until(self, due_us: int) -> None:
        """Have publishers wait until then, at most."""
        if not self.ack_due_us or due_us < self.ack_due_us:
            self.ack_due_us = due_us

    def publish_all(self, queue: "Queue", messages: list[Message], size_bytes: int) -> None:
        """The list is the turn's from now on."""
        self.size_bytes += size_bytes
        (self.published if queue.durable else self.transient).add_all(queue, messages, size_bytes)

    def publish_encoded(self, queue: "Queue", rows: Encoded) -> None:
        self.size_bytes += rows.payload_bytes
        self.encoded.setdefault(queue, []).append(rows)

    def move(self, queue: "Queue", message: Message) -> None:
        self.moved.setdefault(queue, []).append(message)

    def touch(self, queue: "Queue") -> None:
        """Something was settled in this queue."""
        if queue.touched != self.number:
            queue.touched = self.number
            (self.touched if queue.durable else self.touched_in_memory).append(queue)

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the disk. Nobody waits for settlements: they are safe within a second."""
        if self.done is not None or self.is_barrier or self.is_promised:
            return True
        return self.confirms.is_awaited or bool(self.durable.puts or self.durable.drops)

    def can_wait(self, most_steps: int) -> bool:
        """Whether there is nothing but a few settlements in it, which nobody waits for."""
        if self.published or self.transient or self.moved or self.copied or self.confirms:
            return False
        if self.memory.steps or self.is_awaited or self.entered:
            return False
        return len(self.durable.steps) <= most_steps

    @property
    def deliver_before_sync(self) -> bool:
        """Whether it may be used once it is written and before it is synced: nobody then sees what could vanish but
        consumers that do not know by which offset."""
        commit = self.durable
        if self.done is not None or self.is_barrier or self.is_promised:
            return False
        if self.encoded or commit.puts or commit.drops:
            return False
        if not self.published.deliver_before_sync:
            return False
        for queue in self.moved:
            if not queue.deliver_before_sync:
                return False
        for copied in self.copied:
            if not copied.queue.deliver_before_sync:
                return False
        return True

    @property
    def is_plain(self) -> bool:
        """Whether settlements need not be stored with it: there is nothing in it but what clients published, and what
        groups did."""
        if self.moved or self.copied or self.encoded or self.dedup_keys or self.is_barrier or self.is_promised:
            return False
        return not (self.durable.puts or self.durable.drops)

    @property
    def appended(self) -> "list[Queue]":
        """The durable queues that single messages are for, in the order in which they stand in the commit."""
        found = self.published.queues
        if self.moved or self.copied:
            moved = [queue for queue in self.moved if queue.durable]
            return [*found, *moved, *[copied.queue for copied in self.copied]]
        return found

    @property
    def is_empty(self) -> bool:
        if self.published or self.transient or self.encoded or self.moved or self.copied:
            return False
        if (
            self.confirms
            or self.is_barrier
            or self.dedup_keys
            or self.touched
            or self.touched_in_memory
            or self.entered
        ):
            return False
        if self.used:
            return False
        return self.durable.is_empty and self.memory.is_empty

    def give_up(self, error: HeadraceError) -> None:
        """Tell the publishers that they need not wait; what comes of it is for nobody to hear any more."""
        self.ack_due_us = 0
        self.confirms.tell(error)

    def tell(self, error: HeadraceError | None, before: "Batch | None") -> None:
        """Tell the publishers how the turn ended, after those of the turn `before`, which is not synced yet."""
        if before is None:
            self.confirms.tell(error)
        elif self.confirms:
            before.confirms.tell_behind(self.confirms, error)
            self.confirms = Confirms()
            if self.ack_due_us:
                before.wait_until(self.ack_due_us)

    def refuse(self, error: HeadraceError, before: "Batch | None") -> None:
        """Tell the publishers, in their order, that nothing came of it; what else is in the turn stays."""
        self.unstage()
        for key in self.dedup_keys:
            self.durable.delete(KEPT, key)
        self.dedup_keys = []
        self.size_bytes = 0
        self.is_barrier = False
        self.tell(error, before)
        self.tell_entered()

    def tell_entered(self) -> None:
        """Tell those who wait for what clients published that they need not wait any more."""
        if self.entered:
            entered, self.entered = self.entered, []
            for tell in entered:
                tell()

    def unstage(self) -> None:
        """Have nothing of what clients published go into the logs."""
        for appends_number in (self.published, self.transient):
            appends_number.unstage()
        for queue, parts in self.encoded.items():
            queue.unstaged_encoded(parts)
        self.published = Appends()
        self.transient = Appends()
        self.encoded = {}

    def forget_log(self, commit: Commit, name: str) -> None:
        """Leave out what one of the two commits says about this log."""
        commit.steps = [step for step in commit.steps if step.log != name]
        commit.truncations.pop(name, None)
        is_durable = commit is self.durable
        for queue in [queue for queue in self.moved if queue.durable is is_durable and queue.log.name == name]:
            del self.moved[queue]
        copied, self.copied = self.copied, []
        for each in copied:
            if is_durable and name in (each.queue.log.name, each.origin.log):
                each.queue.unstaged(each.messages)
            else:
                self.copied.append(each)

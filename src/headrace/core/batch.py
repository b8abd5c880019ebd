"""A batch of the broker: appends, steps and puts that are stored together, and the publishers that wait for them.

Durable logs and memory logs are in different engines, so a batch has a commit for each. Only core/queue/entry.py adds
messages to it.
"""

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Append, Commit, Encoded
from headrace.storage.ranges import RangeSet

if TYPE_CHECKING:
    from headrace.core.queue.publishers import Publisher
    from headrace.core.queue.queue import Queue

Confirm = Callable[[HeadraceError | None], None]
ConfirmAll = Callable[[int, HeadraceError | None], None]
"""Told the number of publishes that it confirms, and why they failed, if they did."""


@final
class _Row:
    """Publishes in a row that one call confirms."""

    __slots__ = ("count", "tell")

    def __init__(self, tell: ConfirmAll, count: int) -> None:
        self.tell = tell
        self.count = count


@final
class Confirms:
    """The publishers that wait for a batch. One that publishes to many queues in a row is told once, not per queue."""

    __slots__ = ("_behind", "_last", "is_awaited", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Confirm | _Row] = []
        self._last: _Row | None = None
        """The last entry, if more publishes may be added to it."""
        self.is_awaited = False
        """True if one of them waits for the disk."""
        self._behind: list[tuple[Confirms, HeadraceError | None]] = []
        """Publishers of later batches that have ended already, with the outcome."""

    def add(self, confirm: Confirm, is_awaited: bool = True) -> None:
        """Call `confirm` when the batch ends; `is_awaited` is True if it waits for the disk."""
        self.waiting.append(confirm)
        self._last = None
        self.is_awaited = self.is_awaited or is_awaited

    def add_all(self, confirm: ConfirmAll, count: int, is_awaited: bool) -> None:
        """Add `count` publishes. The same callable twice in a row is called once."""
        last = self._last
        if last is not None and last.tell is confirm:
            last.count += count
        else:
            last = self._last = _Row(confirm, count)
            self.waiting.append(last)
        self.is_awaited = self.is_awaited or is_awaited

    def tell(self, error: HeadraceError | None) -> None:
        """Call and forget all of them."""
        waiting, self.waiting = self.waiting, []
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
        """Tell the publishers of a later batch right after all of these."""
        self._behind.append((later, error))


_numbers: Final = itertools.count(1)


@final
class Appends:
    """The messages for each queue, in the order in which the queues got their first.

    A queue has the number of the appends that it is in, and its place there: with a message for each of a thousand
    queues, that takes a third of the instructions of a dictionary. A queue that was added to other appends meanwhile
    gets a second place.
    """

    __slots__ = ("_number", "appends", "deliver_before_sync", "is_counted", "queues", "size_bytes")

    def __init__(self) -> None:
        self._number = next(_numbers)
        self.queues: list[Queue] = []
        self.appends: list[Append] = []
        """One for each of the queues."""
        self.is_counted = False
        """True if one of the queues has a limit, and counts the messages on their way to it: `unstage` must follow."""
        self.size_bytes = 0
        """The size of all payloads."""
        self.deliver_before_sync = True
        """True if each queue allowed delivery before the sync when it got its first message."""

    def add(self, queue: "Queue", message: Message) -> None:
        if queue.is_limited:
            self.is_counted = True
        size_bytes = len(message.payload)
        self.size_bytes += size_bytes
        if queue.appends_number == self._number:
            self.appends[queue.append_at].add(message, size_bytes)
        else:
            self._begin(queue, Append("", [message], size_bytes, at=queue.log))

    def add_all(self, queue: "Queue", messages: list[Message], size_bytes: int) -> None:
        """Add messages. The list belongs to this object from now on."""
        if queue.is_limited:
            self.is_counted = True
        self.size_bytes += size_bytes
        if queue.appends_number == self._number:
            self.appends[queue.append_at].extend(messages, size_bytes)
        else:
            self._begin(queue, Append("", messages, size_bytes, at=queue.log))

    def add_whole(self, queue: "Queue", append: Append) -> None:
        """Add encoded rows, or copies with their origin: no other messages go into the same append."""
        if queue.is_limited:
            self.is_counted = True
        self.size_bytes += append.size_bytes
        if append.encoded is not None:
            self.deliver_before_sync = False
        self._begin(queue, append)
        queue.appends_number = 0

    def _begin(self, queue: "Queue", append: Append) -> None:
        if not queue.deliver_before_sync:
            self.deliver_before_sync = False
        queue.appends_number = self._number
        queue.append_at = len(self.queues)
        self.queues.append(queue)
        self.appends.append(append)

    def remove(self, is_meant: "Callable[[Queue, Append], bool]") -> int:
        """Drop some of the appends; returns the bytes of their payloads."""
        before = self.size_bytes
        kept = [
            (queue, append)
            for queue, append in zip(self.queues, self.appends, strict=True)
            if not is_meant(queue, append)
        ]
        if len(kept) == len(self.queues):
            return 0
        self._number = next(_numbers)  # the queues find their places anew
        self.queues = [queue for queue, _ in kept]
        self.appends = [append for _, append in kept]
        self.size_bytes = sum([append.size_bytes for append in self.appends])
        return before - self.size_bytes

    def unstage(self) -> None:
        """Tell the queues with limits that the messages are in their logs now, or never will be."""
        if self.is_counted:
            for at, queue in enumerate(self.queues):
                queue.unstaged(self.appends[at])


_NO_APPENDS: Final = Appends()
_NO_COMMIT: Final = Commit()
"""Shared empty values of a new batch: most batches only ever hold messages of clients."""


@final
class Batch:
    """Changes that are stored together. When it fails, messages of clients are refused; the rest is retried."""

    __slots__ = (
        "ack_due_us",
        "before_commit",
        "confirms",
        "done",
        "durable",
        "entered",
        "failures",
        "is_barrier",
        "is_for_memory",
        "is_promised",
        "is_rehearsal",
        "long_steps",
        "memory",
        "moved",
        "moved_in_memory",
        "number",
        "numbered",
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
        self.memory = _NO_COMMIT
        self.published = Appends()
        """Messages of clients for durable queues."""
        self.transient = _NO_APPENDS
        """Messages of clients for queues in memory."""
        self.moved = _NO_APPENDS
        """Dead letters, copies of a stream and the like: they must arrive if the steps of the same batch do."""
        self.moved_in_memory = _NO_APPENDS
        """The same for queues in memory."""
        self.long_steps = 0
        """The number of steps of long work in it: see pipeline.py."""
        self.used: list[Callable[[], None]] = []
        """Called when the messages are visible, or never will be."""
        self.entered: list[Callable[[], None]] = []
        """Called when the messages of clients are visible, or never will be."""
        self.numbered: dict[Publisher, RangeSet] = {}
        """The numbers of messages whose publishers number them: stored with the messages, or not at all."""
        self.size_bytes = 0
        """Payload bytes of the messages of clients."""
        self.confirms = Confirms()
        self.ack_due_us = 0
        """The time when publishers are told that the batch is not durable yet; 0 for never."""
        self.is_barrier = False
        """True if it goes through storage even when empty, because somebody waits for all before it."""
        self.is_promised = False
        """True if clients are told of a declaration, binding, deletion or purge in it."""
        self.is_for_memory = False
        """True if a part of it may be for queues that only memory holds."""
        self.touched: list[Queue] = []
        """Durable queues in which something was settled: their logs may have become shorter."""
        self.touched_in_memory: list[Queue] = []
        """The same for queues in memory."""
        self.before_commit: Callable[[Commit], None] | None = None
        """Called when all before it is durable. It may add to the commit, or raise and stop the whole batch."""
        self.done: Confirm | None = None
        """Set for a transaction: it is told how the batch ended, and nothing of the batch is retried."""
        self.is_rehearsal = False
        """True if all of it is stored already and only has to happen in memory."""
        self.sent_us = 0
        """The time when it was sent to storage; 0 if it did not have to be."""
        self.failures = 0

    def define(self, table: str, key: bytes, value: bytes | None) -> None:
        """Store a client's declaration, or forget it with None."""
        self.is_promised = True
        if value is None:
            self.durable.delete(table, key)
        else:
            self.durable.put(table, key, value)

    def commit_for(self, queue: "Queue") -> Commit:
        """The commit that takes the steps of this queue's groups."""
        if queue.durable:
            return self.durable
        self.is_for_memory = True
        if self.memory is _NO_COMMIT:
            self.memory = Commit()
        return self.memory

    # -- messages, added by core/queue/entry.py alone ----------------------------------------------------------------

    def append_published(self, queue: "Queue", message: Message) -> None:
        self.size_bytes += len(message.payload)
        if queue.durable:
            self.published.add(queue, message)
        else:
            self._for_memory().add(queue, message)

    def append_all(self, queue: "Queue", messages: list[Message], size_bytes: int) -> None:
        """Add messages of a client. The list belongs to the batch from now on."""
        self.size_bytes += size_bytes
        if queue.durable:
            self.published.add_all(queue, messages, size_bytes)
        else:
            self._for_memory().add_all(queue, messages, size_bytes)

    def _for_memory(self) -> Appends:
        """The messages of clients for queues in memory, of which there are some from now on."""
        self.is_for_memory = True
        if self.transient is _NO_APPENDS:
            self.transient = Appends()
        return self.transient

    def append_rows(self, queue: "Queue", rows: Encoded) -> None:
        """Add encoded rows of a client to a durable queue."""
        self.size_bytes += rows.payload_bytes
        self.durable.is_encoded = True
        self.published.add_whole(queue, Append("", [], rows.payload_bytes, rows, at=queue.log))

    def append_moved(self, queue: "Queue", message: Message) -> None:
        if queue.durable:
            self._moved().add(queue, message)
            return
        self.is_for_memory = True
        if self.moved_in_memory is _NO_APPENDS:
            self.moved_in_memory = Appends()
        self.moved_in_memory.add(queue, message)

    def append_copies(self, queue: "Queue", copies: Append) -> None:
        """Add copies of a stream's messages, with their origin, to a durable queue."""
        self._moved().add_whole(queue, copies)

    def _moved(self) -> Appends:
        if self.moved is _NO_APPENDS:
            self.moved = Appends()
        return self.moved

    def note_numbers(self, publisher: "Publisher", start: int, stop: int) -> None:
        """Note the numbers of messages that were appended, from `start` up to but not including `stop`."""
        numbers = self.numbered.get(publisher)
        publisher.take(start, stop, numbers is None)
        if numbers is None:
            numbers = self.numbered[publisher] = RangeSet()
        numbers.add(start, stop)

    def collect(self) -> Commit:
        """The durable commit with all appends, ready for storage."""
        commit = self.durable
        for publisher, numbers in self.numbered.items():
            publisher.put(commit, numbers)
        commit.appends = [*self.published.appends, *self.moved.appends]
        commit.size_bytes += self.published.size_bytes + self.moved.size_bytes
        return commit

    def collect_memory(self) -> tuple[Commit, list[Appends]]:
        """The commit for logs in memory with all their appends, which leave the batch."""
        self.is_for_memory = False
        commit = Commit() if self.memory is _NO_COMMIT else self.memory
        self.memory = _NO_COMMIT
        found = [appends for appends in (self.transient, self.moved_in_memory) if appends.queues]
        for appends in found:
            commit.add_all(appends.appends, appends.size_bytes)
        if self.transient.queues:
            self.size_bytes -= self.transient.size_bytes  # it waits for no disk
            self.transient.unstage()
            self.transient = _NO_APPENDS
        self.moved_in_memory = _NO_APPENDS
        return commit, found

    def wait_until(self, due_us: int) -> None:
        """Let publishers wait until this time at most."""
        if not self.ack_due_us or due_us < self.ack_due_us:
            self.ack_due_us = due_us

    def touch(self, queue: "Queue") -> None:
        """Note that something was settled in this queue."""
        if queue.touched != self.number:
            queue.touched = self.number
            if queue.durable:
                self.touched.append(queue)
            else:
                self.is_for_memory = True
                self.touched_in_memory.append(queue)

    # -- contents ----------------------------------------------------------------------------------------------------

    @property
    def is_promise(self) -> bool:
        """True if somebody waits for more than its messages. Nobody waits for settlements: they are durable soon."""
        if self.done is not None or self.is_barrier or self.is_promised:
            return True
        return bool(self.durable.puts or self.durable.drops)

    def can_wait(self, most_steps: int) -> bool:
        """True if it holds nothing but a few settlements, which nobody waits for."""
        if self.published.queues or self.moved.queues or self.confirms.waiting or self.is_for_memory or self.entered:
            return False
        return len(self.durable.steps) <= most_steps and not self.is_promise

    @property
    def is_consumed(self) -> bool:
        """False if its messages are for one queue, which has no consumers. With more queues it is not looked at."""
        queues = self.published.queues
        return len(queues) != 1 or bool(self.moved.queues) or queues[0].has_consumers

    @property
    def is_plain(self) -> bool:
        """True if settlements need not be stored with it: it holds only messages of clients and steps of groups."""
        return not (self.moved.queues or self.moved_in_memory.queues or self.is_promise)

    @property
    def is_empty(self) -> bool:
        if self.published.queues or self.moved.queues or self.confirms.waiting or self.is_barrier:
            return False
        if self.is_for_memory or self.touched or self.entered or self.used:
            return False
        return self.durable.is_empty

    # -- its end -----------------------------------------------------------------------------------------------------

    def give_up(self, error: HeadraceError) -> None:
        """Tell the publishers that the wait is over; nobody hears of the outcome any more."""
        self.ack_due_us = 0
        self.confirms.tell(error)

    def tell(self, error: HeadraceError | None, before: "Batch | None") -> None:
        """Tell the publishers how the batch ended, after those of the batch `before`, which is not durable yet."""
        if before is None:
            self.confirms.tell(error)
        elif self.confirms.waiting:
            before.confirms.tell_behind(self.confirms, error)
            self.confirms = Confirms()
            if self.ack_due_us:
                before.wait_until(self.ack_due_us)

    def refuse(self, error: HeadraceError, before: "Batch | None") -> None:
        """Refuse the messages of clients, and tell their publishers in order; everything else stays."""
        self.unstage()
        self.size_bytes = 0
        self.is_barrier = False
        self.tell(error, before)
        self.tell_entered()

    def tell_entered(self) -> None:
        """Tell the callers that wait until the messages of clients are visible."""
        entered, self.entered = self.entered, []
        for tell in entered:
            tell()

    def tell_used(self) -> None:
        """Tell the callers that wait until all messages are visible."""
        for tell in self.used:
            tell()

    def unstage(self) -> None:
        """Take the messages of clients out."""
        self.published.unstage()
        self.transient.unstage()
        self.published = Appends()
        self.transient = _NO_APPENDS
        for publisher, numbers in self.numbered.items():
            publisher.refuse(self.durable, numbers)
        self.numbered = {}
        self.reset()

    def reset(self) -> None:
        """Take all appends out of the commit; `collect` adds those again that are still in the batch."""
        commit = self.durable
        commit.appends = []
        commit.is_encoded = False
        commit.size_bytes = sum([len(key) + len(value or b"") for (_, key), value in commit.puts.items()])

    def forget_queue(self, queue: "Queue") -> None:
        """Take out all messages for a queue that is gone."""
        self.size_bytes -= self.published.remove(lambda other, _: other is queue)
        self.size_bytes -= self.transient.remove(lambda other, _: other is queue)
        self.moved.remove(lambda other, _: other is queue)
        self.moved_in_memory.remove(lambda other, _: other is queue)
        if self.numbered:
            self.numbered = {each: numbers for each, numbers in self.numbered.items() if each.queue != queue.name}

    def forget_log(self, commit: Commit, name: str) -> None:
        """Take out the steps and moved messages of this log from one of the two commits."""
        commit.steps = [step for step in commit.steps if step.log != name]
        commit.truncations.pop(name, None)
        moved = self.moved if commit is self.durable else self.moved_in_memory

        def is_about(queue: "Queue", append: Append) -> bool:
            origin = append.origin
            if queue.log.name != name and (origin is None or origin.log != name):
                return False
            if origin is not None:
                queue.unstaged(append)
            return True

        moved.remove(is_about)

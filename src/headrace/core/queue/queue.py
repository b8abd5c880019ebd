"""One queue: its log, its groups, its browsers, and its view of the broker around it. Limits are in entry.py."""

import heapq
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.feeds.feed import is_cursor
from headrace.core.flow import Statistics
from headrace.core.queue.definition import FIRST, LAST, NEXT, TIMESTAMP, QueueDefinition
from headrace.core.queue.dispatch import Consumer, Delivery, Found
from headrace.core.queue.entry import (
    Depth,
    Disposal,
    accept_moved,
    drop_surplus,
    end_overdue,
    entered,
    offer_room,
    plan,
    try_again,
)
from headrace.core.queue.group import DONE, Death, Group
from headrace.core.routing.address import QUEUE_PREFIX
from headrace.errors import Corrupt, HeadraceError, NotFound, Refused, Unavailable
from headrace.model import Message, Source
from headrace.selector import Selector, parse
from headrace.storage.api import NO_LIMIT, Append, Log
from headrace.storage.group_state import MODE_NAMES, GroupState
from headrace.wire.encodings import MessageRow

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.feeds.feed import Feed

DEFAULT_GROUP: Final = "default"
BROWSE_BYTES: Final = 16 << 20
_READ_AT_ONCE: Final = 256
_BROWSE_STEP_BYTES: Final = 1 << 20
_LOOKS: Final = 2048
"""Messages that a browser looks at in one round, so that a long backlog does not hold up the event loop."""
_LOOKED_AT: Final = 1000
"""Messages read after a start in search of due times."""
_HISTORY_SOURCE: Final = Source("$history")

Show = Callable[[list[Found]], None]


@final
class EmptyLog(Log):
    """The log of a queue whose former log of the same name is still being dropped."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = -1
        self.first_offset = 0
        self.next_offset = 0

    @property
    def size_bytes(self) -> int:
        return 0

    @property
    def groups(self) -> Mapping[str, GroupState]:
        return {}

    def read(self, offset: int, max_messages: int, max_bytes: int = NO_LIMIT) -> list[Message]:
        return []

    def find(self, timestamp_us: int) -> int:
        return 0

    def record_batches(self, start: int, stop: int) -> "Iterator[pa.RecordBatch]":
        return iter(())


class QueueHost(ABC):
    """The rest of the broker, as a queue sees it."""

    statistics: Statistics
    auto_commit_us: int
    """Interval at which progress of stream readers that commit automatically is stored."""

    @abstractmethod
    def now_us(self) -> int:
        """The time now, for filters that ask for it."""

    @abstractmethod
    def make_group(self, queue: "Queue", state: GroupState, auto_commit: bool) -> Group:
        """Return a new group of the mode that `state` says."""

    @abstractmethod
    def dead_letter(self, batch: Batch, queue: "Queue", message: Message, death: Death) -> None:
        """Send a message that was given up to the queue's dead letters, in the same batch."""

    @abstractmethod
    def history_of(self, batch: Batch, queue: "Queue") -> "Queue":
        """Return the stream that records how this queue's messages ended."""

    @abstractmethod
    def wake_at(self, queue: "Queue", time_us: int) -> None:
        """Run the queue's due work then."""

    @abstractmethod
    def pump_soon(self, queue: "Queue") -> None:
        """Pump the queue before the open batch is stored."""

    @abstractmethod
    def grew(self, queue: "Queue") -> None:
        """Fill other queues from a stream that has more messages."""

    @abstractmethod
    def has_room(self, queue: "Queue") -> None:
        """Go on filling a queue that is full no more from its source."""

    @abstractmethod
    def refused(self, queue: "Queue") -> None:
        """Log that a queue is damaged."""

    @abstractmethod
    def drop(self, queue: "Queue") -> None:
        """Delete the queue."""


class Onlooker(ABC):
    """A reader outside of all groups: it claims nothing."""

    queue: "Queue"

    @abstractmethod
    def pump(self, now_us: int) -> None:
        """Read on."""

    @abstractmethod
    def ended(self) -> None:
        """Hear that the queue is gone."""


@final
class Browser(Onlooker):
    """A reader that sees every unsettled message once, in log order, then new ones, as far as it is allowed.

    Messages that have expired or are not due yet are passed over.
    """

    def __init__(self, queue: "Queue", show: Show, selector: Selector | None, ended: Callable[[], None]) -> None:
        self.queue = queue
        self.show = show
        self.selector = selector
        self._ended = ended
        self.allowance = 0
        """Number of messages that it may still be shown."""
        self._at = 0

    def ended(self) -> None:
        self._ended()

    def pump(self, now_us: int) -> None:
        """Show messages up to the allowance."""
        queue = self.queue
        looks = _LOOKS
        while self.allowance > 0 and self._at < queue.log.next_offset:
            if looks <= 0:
                queue.pump_soon()
                return
            found = queue.browse(self._at, min(self.allowance, _READ_AT_ONCE), _BROWSE_STEP_BYTES)
            looks -= _READ_AT_ONCE
            queue.statistics.passed += len(found)
            self._at = found[-1][0] + 1 if found else queue.log.next_offset
            shown = [(offset, message) for offset, message in found if self._is_wanted(message, now_us)]
            if shown:
                self.allowance -= len(shown)
                self.show(shown)

    def _is_wanted(self, message: Message, now_us: int) -> bool:
        if message.not_before_us > now_us or self.queue.is_expired(message, now_us):
            return False
        return self.selector is None or self.queue.fits(self.selector, message)


@final
class DueTimes:
    """The due times of a queue's messages that were published for later. No offsets."""

    __slots__ = ("_counts", "_times", "count")

    def __init__(self) -> None:
        self.count = 0
        self._counts: dict[int, int] = {}
        """Number of messages by due time."""
        self._times: list[int] = []
        """A heap of the times, each once."""

    @property
    def next_us(self) -> int:
        """The next due time; 0 for never."""
        return self._times[0] if self._times else 0

    def add(self, due_us: int) -> None:
        before = self._counts.get(due_us)
        if before is None:
            heapq.heappush(self._times, due_us)
        self._counts[due_us] = (before or 0) + 1
        self.count += 1

    def remove(self, due_us: int) -> None:
        """Drop one message of that time, if one is known."""
        before = self._counts.get(due_us, 0)
        if before:
            self._counts[due_us] = before - 1
            self.count -= 1

    def end(self, now_us: int) -> None:
        """Drop the times that have come."""
        while self._times and self._times[0] <= now_us:
            self.count -= self._counts.pop(heapq.heappop(self._times))


@final
class History:
    """The claims of messages in flight, and the records of messages that end.

    Records are the done, failed and attempts records of OpenData-Queue, as JSON messages of a stream.
    """

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._attempts: dict[tuple[str, int], list[tuple[str, int]]] = {}
        """(consumer, time) of each claim, by group and offset."""

    def claimed(self, group: str, offset: int, consumer: str, now_us: int) -> None:
        self._attempts.setdefault((group, offset), []).append((consumer, now_us))

    def end(self, group: str, offset: int, message: Message, deliveries: int, outcome: str, now_us: int) -> Message:
        """Return the record of a message that ended so in this group."""
        claims = self._attempts.pop((group, offset), [])
        entry = {
            "queue": self._queue,
            "group": group,
            "offset": offset,
            "topic": message.source.topic,
            "exchange": message.source.exchange,
            "published_at_us": message.timestamp_us,
            "outcome": outcome,
            "deliveries": deliveries,
            "attempts": [{"consumer": consumer, "claimed_at_us": time_us} for consumer, time_us in claims],
            "ended_at_us": now_us,
        }
        return Message(_HISTORY_SOURCE, json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(), now_us)


@final
class Queue:
    """A log with its definition and its groups."""

    # Fields that every message reads come first: with thousands of queues they share cache lines.
    log: Log
    takes_bytes: int
    """Size up to which messages enter the log unchecked, however many they are; -1 for none."""
    appends_number: int
    """Number of the Appends it is in: see batch.py."""
    append_at: int
    """Its place there."""
    ack_timeout_us: int
    durable: bool
    is_stream: bool
    is_synced: bool
    """True if publishers are confirmed only when a message is durable."""
    is_limited: bool
    """Copy of `depth.is_limited`."""
    is_retained: bool
    """True if a work queue keeps settled messages as its retention says."""
    deliver_before_sync: bool
    """True if messages may be delivered before they are synced."""
    deleted: bool
    is_overdue: bool
    has_surplus: bool
    """True while messages beyond a limit that became lower go in steps."""
    _is_cut_at_once: bool
    """True if settled messages leave the log with the step that settles them: only one group decides."""
    unsynced: int
    """Number of batches with messages for it that are written and not synced."""
    _synced_to: int
    """First offset of these messages."""
    due: int
    """The round of deliveries it is queued for: see pipeline.py."""
    refusal: Corrupt | None
    browsers: tuple[Onlooker, ...]
    awaited_bytes: int
    """Size of the message of its source that waits for room; -1 for none."""
    history: History | None
    """Set if claims and ends of its messages are recorded."""
    lease_us: int
    statistics: Statistics
    wake_us: int
    """The time when its due work runs next; 0 for never. The timers set it."""
    touched: int
    """Number of the batch that knows that something was settled here."""
    cut_below: int
    """Messages below this offset are being removed from the log."""
    _group_list: tuple[Group, ...]
    """Its groups, to be iterated while they come and go. A tuple takes a third of the time of a list of the values."""

    def __init__(
        self,
        host: QueueHost,
        definition: QueueDefinition,
        log: Log,
        now_us: int,
        declared: QueueDefinition | None = None,
    ) -> None:
        self.host = host
        self.definition = definition
        """The definition that counts: as declared, with the settings of policies."""
        self.declared = declared or definition
        """The definition as it is stored, without policies."""
        self.name = definition.name
        self.log = log
        self.durable = definition.is_stored
        self.is_stream = definition.is_stream
        self.is_synced = definition.is_synced
        self.ack_timeout_us = definition.ack_timeout_ms * 1000
        self.lease_us = definition.lease_ms * 1000
        self.owner: object = None
        """The connection that has the queue for itself."""
        self.statistics = host.statistics
        self.groups: dict[str, Group] = {}
        self._group_list = ()
        self.browsers = ()
        self.selector: Selector | None = parse(definition.filter) if definition.filter else None
        self.refusal = None
        self.deliver_before_sync = not self.is_stream
        self.unsynced = self._synced_to = 0
        self.takes_bytes = self.awaited_bytes = -1
        self.feed: Feed | None = None
        """The feed of other queues that have this one as their source; None without such queues."""
        self.had_consumers = False
        self.deleted = False
        self.is_leaving = False
        """True if it is about to be deleted, and nobody finds it by its name any more."""
        self.appends_number = self.append_at = 0
        self.touched = self.due = 0
        self.depth = Depth(self)
        self.is_limited = self.depth.is_limited
        self._is_cut_at_once = False
        self.is_retained = False
        self.done_below = 0
        """Messages below this offset, in a queue that keeps them, no longer count in its depth: all groups are done."""
        self.cut_below = 0
        self.disposal = Disposal(self, self.depth)
        self.history = History(definition.name) if definition.history_ms else None
        self._prefix = f"{QUEUE_PREFIX}{definition.name}/"
        self.used_us = now_us
        self.wake_us = self.retention_at_us = 0
        self.is_overdue = self.has_surplus = False
        self._due_times: DueTimes | None = None
        """Due times of messages published for later; None where there never was one."""
        self._restored_end = log.next_offset
        self.knows_schedule = self.is_stream or self._restored_end <= log.first_offset
        """True if `_due_times` has the messages from before the start."""
        self.letters_end = 0
        """No dead letter of another queue is known from this offset on; -1 after one was moved here."""
        self.looked_at = -1
        """The oldest offset when its message was last checked for a dead letter: see dead_letters.py."""
        self.on_gone: dict[object, Callable[[], None]] | None = None
        """Calls by owner, made when the queue is deleted or turns out to be damaged; None where nobody asked."""
        self._restore(now_us)

    def _restore(self, now_us: int) -> None:
        """Go on from the stored state. A damaged queue is refused, and the others go on."""
        try:
            self._restore_groups()
            self._restore_history()
            if self.log.next_offset > self.log.first_offset:
                self.depth.count()
                self.wake_at(now_us)  # for messages that expired meanwhile
            plan(self, now_us)
        except Corrupt as error:
            self.refusal = error
        self._update_entry()

    def _restore_groups(self) -> None:
        """Make the stored groups, without the cursors of queues that are filled from this one."""
        for state in self.log.groups.values():
            if not is_cursor(state.name):
                self._add_group(state.copy(), True)

    def _restore_history(self) -> None:
        if self.history is None:
            return
        for name, state in self.log.groups.items():
            for offset, entry in state.pending.items():
                if entry.consumer and not is_cursor(name):
                    self.history.claimed(name, offset, entry.consumer, entry.due_us - self.lease_us)

    @property
    def auto_commit_us(self) -> int:
        return self.host.auto_commit_us

    def alter(
        self,
        batch: Batch,
        definition: QueueDefinition,
        is_start: bool,
        now_us: int,
        declared: QueueDefinition | None = None,
    ) -> None:
        """Take on another definition of the same type and durability; messages beyond its limits go.

        `declared` is the definition without policies, if there are any. At a start, before anybody uses the queue, its
        groups are made anew, as priorities may have changed.
        """
        has_history = definition.history_ms > 0
        self.definition = definition
        self.declared = declared or definition
        self.is_synced = definition.is_synced
        self.ack_timeout_us = definition.ack_timeout_ms * 1000
        self.lease_us = definition.lease_ms * 1000
        self.selector = parse(definition.filter) if definition.filter else None
        if has_history != (self.history is not None):
            self.history = History(definition.name) if has_history else None
        if is_start:
            self.groups.clear()
            self._update_groups()
            self._restore_groups()
        self.depth.limit(definition)
        self._update_entry()
        self.depth.count()
        if definition.is_stream or self.is_retained:
            self.disposal.retain(batch, now_us)
        else:
            batch.touch(self)  # settled messages that were kept go
        drop_surplus(self, batch, now_us)
        if self.awaited_bytes >= 0:
            offer_room(self)
        plan(self, now_us)

    # -- entry -------------------------------------------------------------------------------------------------------

    def _update_entry(self) -> None:
        """Derive again which messages enter unchecked."""
        definition, kept = self.definition, self.definition.retention
        self.is_retained = self.durable and not self.is_stream and kept.has_bounds
        self.is_limited = self.depth.is_limited
        is_open = self.refusal is None and self.selector is None and not self.is_limited
        self.takes_bytes = definition.max_message_bytes if is_open and definition.message_ttl_ms is None else -1
        self.update_exit()

    def unstaged(self, append: Append) -> None:
        """Count accepted messages no longer as staged: they are in the log, or never will be."""
        if self.is_limited:
            self.depth.unstage(append.count, append.size_bytes)

    def admits(self, message: Message) -> bool:
        """Return whether the queue's filter lets the message in; unreadable properties keep it out."""
        return self.selector is None or self.fits(self.selector, message)

    def fits(self, selector: Selector, message: Message) -> bool:
        """Return whether a selector is true for the message; False for unreadable properties."""
        try:
            return selector.matches(MessageRow(message, self.host.now_us() if selector.reads_time else 0))
        except Refused:
            return False

    def appended(self, batch: Batch, messages: list[Message], now_us: int) -> None:
        """Apply due times, expiry, limits and retention to messages that are in the log now."""
        first_expiry_us = 0
        for message in messages:
            if message.not_before_us > now_us:
                self.schedule(message.not_before_us)
            expires_us = message.expires_us
            if expires_us and (not first_expiry_us or expires_us < first_expiry_us):
                first_expiry_us = expires_us
        if first_expiry_us or self.is_stream or self.is_limited or self.is_retained:
            size_bytes = sum([len(message.payload) for message in messages]) if self.is_limited else 0
            entered(self, batch, first_expiry_us, size_bytes, now_us)

    def schedule(self, due_us: int) -> None:
        """Note a message that may not be delivered before this time. Readers of streams do not wait."""
        if not self.is_stream:
            if self._due_times is None:
                self._due_times = DueTimes()
            self._due_times.add(due_us)
            self.wake_at(due_us)

    def unschedule(self, message: Message) -> None:
        """Drop the due time of a message that is gone."""
        if self._due_times is not None and message.not_before_us:
            self._due_times.remove(message.not_before_us)

    def end_delays(self, now_us: int) -> None:
        """Drop due times that have come."""
        if self._due_times is not None:
            self._due_times.end(now_us)
            if self._due_times.next_us:
                self.wake_at(self._due_times.next_us)

    def forget_schedule(self) -> None:
        """Drop all due times."""
        self._due_times = None

    def look_for_schedule(self, now_us: int) -> None:
        """Find after a start which of the oldest messages were published for later. Raises Corrupt, Unavailable."""
        if self.knows_schedule or self.is_gone:
            return
        start, stop = self.head(), self._restored_end
        for message in self.log.read(start, min(stop - start, _LOOKED_AT)) if start < stop else []:
            if message.not_before_us > now_us:
                self.schedule(message.not_before_us)
        self.knows_schedule = True

    def grown(self) -> None:
        """Fill other queues from this one, if there are any."""
        if self.feed is not None:
            self.host.grew(self)

    # -- reading -----------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """Number of messages that wait for a consumer, in the group that is furthest behind."""
        waiting = [group.ready for group in self.groups.values()]
        return max(waiting) if waiting else self.log.next_offset - self.first_offset

    @property
    def scheduled(self) -> int:
        """Number of messages published for a time that has not come."""
        return 0 if self._due_times is None else self._due_times.count

    @property
    def delayed(self) -> int:
        """Number of waiting messages that are not due yet, in the group that is furthest behind."""
        most, delayed = -1, self.scheduled
        for group in self.groups.values():
            if group.ready > most:
                most, delayed = group.ready, group.delayed
        return delayed

    @property
    def total(self) -> int:
        """Number of messages that go if the queue is deleted: all of a stream, else the unfinished ones."""
        if self.is_stream or not self.groups:
            return self.log.next_offset - self.first_offset
        return max([group.lag for group in self.groups.values()])

    @property
    def first_offset(self) -> int:
        """The start of the log, without messages that are being removed."""
        return max(self.log.first_offset, self.cut_below)

    @property
    def safe_offset(self) -> int:
        """The end of the synced messages: below it, an offset means the same message for good."""
        return self._synced_to if self.unsynced else self.log.next_offset

    def unsynced_from(self, base: int) -> None:
        """Count a batch whose messages, from this offset on, are written and not synced."""
        if not self.unsynced:
            self._synced_to = base
        self.unsynced += 1

    def synced_to(self, stop: int) -> None:
        """Count a batch as synced, whose messages end at this offset."""
        self.unsynced -= 1
        self._synced_to = stop

    @property
    def unsettled(self) -> int:
        return sum(group.unsettled for group in self.groups.values())

    @property
    def consumers(self) -> int:
        return sum(len(group.consumers) for group in self.groups.values())

    @property
    def is_gone(self) -> bool:
        """True if nothing can be settled here any more: the queue is deleted or damaged."""
        return self.deleted or self.refusal is not None

    def message(self, offset: int) -> Message:
        """Return one message. Raises Corrupt when it cannot be read."""
        return self.log.read(offset, 1)[0]

    def browse(self, offset: int, limit: int, max_bytes: int = BROWSE_BYTES) -> list[Found]:
        """Return messages from `offset` on that some work group has not settled, without claiming. Raises Corrupt.

        At least one if there is one, then as many as both bounds allow.
        """
        states = [group.state for group in self.work_groups()]
        at = max(offset, self.first_offset)
        found: list[Found] = []
        while len(found) < limit and max_bytes > 0:
            if states:  # step over messages that all groups have settled
                at = min([state.settled.next_absent(max(at, state.committed)) for state in states])
            messages = self.log.read(at, min(limit - len(found), _READ_AT_ONCE), max_bytes)
            if not messages:
                break
            for message in messages:
                if not states or any([at >= s.committed and at not in s.settled for s in states]):
                    found.append((at, message))
                    max_bytes -= len(message.payload) + len(message.properties)
                at += 1
        return found

    def offset_at(self, position: tuple[str, int]) -> int:
        """Return the offset of a position in a stream, as `parse_position` gives it. The last message is `last`."""
        kind, value = position
        if kind == FIRST:
            return self.first_offset
        if kind == LAST:
            return max(self.first_offset, self.safe_offset - 1)
        if kind == NEXT:
            return self.log.next_offset
        return self.log.find(value) if kind == TIMESTAMP else value

    def is_expired(self, message: Message, now_us: int) -> bool:
        """Return whether a message is too old to be delivered from here.

        In a stream only the stream's own time to live counts, as in RabbitMQ: later readers may still want it.
        """
        if not message.expires_us or message.expires_us > now_us:
            return False
        return not self.is_stream or self.definition.message_ttl_ms is not None

    def key_of(self, message: Message) -> str:
        """Return the routing key that group filters are matched with."""
        topic = message.source.topic
        if topic.startswith(self._prefix):
            return topic[len(self._prefix) :]
        return "" if topic == self._prefix[:-1] else topic

    def head(self) -> int:
        """Return the offset of the oldest waiting message, or the end of the log."""
        groups = self.work_groups()
        return min([group.head() for group in groups]) if groups else self.first_offset

    @property
    def has_letters(self) -> bool:
        """True if dead letters of other queues are known to wait here: dead_letters.py looks for them."""
        return self.letters_end < 0 or (self.letters_end > 0 and self.head() < self.letters_end)

    def floor(self) -> int:
        """Return the lowest offset that a work group still needs."""
        lowest = self.log.next_offset
        for group in self._group_list:
            if group.is_work:
                lowest = min(lowest, group.state.committed)
        return lowest

    def truncated(self, batch: Batch, first: int) -> None:
        """Move groups that are behind to `first`, where the log begins now."""
        for group in self._group_list:
            group.on_truncated(batch, first)

    # -- groups ------------------------------------------------------------------------------------------------------

    def open_group(self, batch: Batch, name: str, mode: int, key_filter: str = "", auto_commit: bool = True) -> Group:
        """Return the group of that name, new if need be. Raises Refused when its mode or filter differs."""
        group = self.groups.get(name)
        if group is None:
            if is_cursor(name):
                raise Refused(f"group {name!r} of queue {self.name!r} is the broker's own; use another name")
            start = self.first_offset
            batch.commit_for(self).create_group(self.log.name, name, mode, key_filter, start)
            group = self._add_group(GroupState(name, mode, key_filter, start), auto_commit)
            self.depth.count()
        elif group.state.mode != mode:
            raise Refused(
                f"ErrGroupModeMismatch: group {name!r} of queue {self.name!r} is in {MODE_NAMES[group.state.mode]} "
                f"mode; use another group, or delete this one first"
            )
        elif group.state.filter != key_filter:
            raise Refused(f"group {name!r} of queue {self.name!r} has the filter {group.state.filter!r}")
        return group

    def remove_group(self, batch: Batch, name: str) -> None:
        """Forget a group. Raises Refused while it has consumers or when there is none."""
        group = self.groups.get(name)
        if group is None:
            raise Refused(f"queue {self.name!r} has no group {name!r}")
        if len(group.consumers):
            raise Refused(f"group {name!r} of queue {self.name!r} has consumers; they must leave first")
        del self.groups[name]
        self._update_groups()
        group.close()
        batch.commit_for(self).delete_group(self.log.name, name)
        batch.touch(self)
        self.depth.count()

    def _add_group(self, state: GroupState, auto_commit: bool) -> Group:
        group = self.host.make_group(self, state, auto_commit)
        self.groups[state.name] = group
        self._update_groups()
        return group

    def _update_groups(self) -> None:
        """Derive again the fields that depend on the groups."""
        self._group_list = tuple(self.groups.values())
        self.update_readers()
        self.update_exit()

    def update_readers(self) -> None:
        """Derive again whether messages may be delivered before they are synced: groups or members changed."""
        self.deliver_before_sync = not self.is_stream and all([group.deliver_before_sync for group in self._group_list])

    @property
    def has_consumers(self) -> bool:
        """True if a group has members."""
        for group in self._group_list:
            if group.consumers.members:
                return True
        return False

    def work_groups(self) -> list[Group]:
        return [group for group in self._group_list if group.is_work]

    def pump(self, batch: Batch, now_us: int) -> None:
        """Deliver to all readers that have room."""
        if self.refusal is not None or self.deleted:
            return
        try:
            if self.is_overdue:
                end_overdue(self, batch, now_us)
            if self.browsers:
                self._show(now_us)
            groups = self._group_list
            for group in groups:  # a consumer may join another group while it is delivered to
                if group.consumers.members and (
                    self.deliver_before_sync or not self.unsynced or group.deliver_before_sync
                ):
                    group.pump(batch, now_us)
                    if len(groups) > 1 and self.statistics.is_round_over:
                        self._go_on_behind(group)
                        break
            if self.awaited_bytes >= 0:
                offer_room(self)
        except Corrupt as error:
            self.refuse(error)
        except Unavailable:
            try_again(self, now_us)

    def _show(self, now_us: int) -> None:
        """Show messages to browsers; in the next round the others come first."""
        for browser in self.browsers:
            browser.pump(now_us)
            if self.statistics.is_round_over:
                if browser in self.browsers:
                    self.browsers = (*[other for other in self.browsers if other is not browser], browser)
                self.pump_soon()
                return

    def _go_on_behind(self, group: Group) -> None:
        """Let the other groups come first in the next round."""
        if group in self._group_list:
            self._group_list = (*[other for other in self._group_list if other is not group], group)
        self.pump_soon()

    def pump_soon(self) -> None:
        """Call `pump` before the open batch is stored."""
        self.host.pump_soon(self)

    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        """Remove a consumer from its group; the messages it holds are ready again."""
        group = consumer.group
        if group is not None:
            group.leave(batch, consumer, now_us)
            self.touch(now_us)
            self.wake_at(now_us)  # messages that come back may have expired meanwhile

    def refuse(self, error: Corrupt) -> None:
        """Close a queue whose stored state is damaged: nothing more goes in or out. Other queues go on."""
        if self.refusal is None:
            self.refusal = error
            self.host.refused(self)
            self._update_entry()
            self.send_away()

    def send_away(self) -> None:
        """End all groups and browsers, as the queue is gone; consumers hold nothing any more and are told."""
        for group in self.groups.values():
            consumers = list(group.consumers)
            group.close()
            for consumer in consumers:
                if consumer.cancelled is not None:
                    consumer.cancelled()
                consumer.detach()
        browsers, self.browsers = self.browsers, ()
        for browser in browsers:
            browser.ended()
        calls, self.on_gone = self.on_gone, None
        for call in (calls or {}).values():
            call()

    @property
    def end(self) -> HeadraceError:
        """The reason why it is gone, for readers that are sent away."""
        return self.refusal or NotFound(f"the queue '{self.name}' was deleted")

    def when_gone(self, owner: object, call: Callable[[], None] | None) -> None:
        """Call this when the queue is deleted or damaged; None calls nothing more."""
        if call is not None:
            self.on_gone = self.on_gone or {}
            self.on_gone[owner] = call
        elif self.on_gone is not None:
            self.on_gone.pop(owner, None)

    def let_go(self) -> None:
        """Release all references after deletion. Connections cache queues by routing key, so it lives for a while."""
        self.groups.clear()
        self._update_groups()
        self.owner = None

    # -- exit --------------------------------------------------------------------------------------------------------

    def settled(self, message: Message) -> None:
        """Count a message no longer that a group has settled."""
        if self.is_limited:
            self.depth.settled(message)

    def acknowledged(self, batch: Batch, group: Group, delivery: Delivery, now_us: int) -> None:
        """Count a message no longer that a group has acknowledged, and record its end."""
        if self.is_limited:
            self.depth.settled(delivery.message)
        if self.history is not None:
            self.note_end(batch, group, delivery.offset, delivery.attempts, DONE, now_us)

    def dead_letter(
        self, batch: Batch, message: Message, group: str, offset: int, attempts: int, reason: str, now_us: int
    ) -> None:
        """Send a message that was given up to this queue's dead letters, in the same batch."""
        if batch.is_rehearsal:
            return
        self.statistics.died(reason)
        if self.definition.has_dead_letters:
            death = Death(self.name, reason, group, attempts, offset, now_us)
            self.host.dead_letter(batch, self, message, death)

    def cut(self, batch: Batch, group: Group) -> int:
        """Return the offset below which messages leave the log with the group's last step; 0 for none.

        Where more than one group decides, that is found out when the batch closes. Cutting with the step takes 1,300
        instructions less than a truncation by itself, of 20,000 for a message in a queue of its own.
        """
        if not self._is_cut_at_once or batch.is_rehearsal:
            batch.touch(self)
            return 0
        floor = group.state.committed
        if floor <= self.cut_below:
            return 0
        self.cut_below = floor
        return floor

    def update_exit(self) -> None:
        """Derive again whether settled messages leave with the step that settles them."""
        is_plain = self.durable and not (self.is_stream or self.is_limited or self.disposal.has_given_up)
        self._is_cut_at_once = is_plain and len(self._group_list) == 1 and not self.is_retained

    def trim(self, batch: Batch) -> None:
        """Remove messages that every work group has settled from the log, unless it is a stream."""
        if not (self.is_stream or self.is_gone or not self._group_list):
            if self.is_retained:
                self._discount(self.floor())
            else:
                self.disposal.trim(batch, self.floor())
        if self.awaited_bytes >= 0:
            offer_room(self)

    def _discount(self, floor: int) -> None:
        """Count messages below the floor no longer: all groups are done, and retention keeps them."""
        if floor > self.done_below:
            if self.is_limited:
                self.depth.truncating(max(self.done_below, self.first_offset), floor)
            self.done_below = floor

    # -- time --------------------------------------------------------------------------------------------------------

    def touch(self, now_us: int) -> None:
        """Restart the lifetime of the queue: somebody uses it."""
        self.used_us = now_us
        plan(self, now_us)

    def wake_at(self, time_us: int) -> None:
        """Run due work then, or earlier."""
        if not self.wake_us or time_us < self.wake_us:
            self.host.wake_at(self, time_us)

    # -- history -----------------------------------------------------------------------------------------------------

    def note_claims(self, deliveries: list[Delivery], now_us: int) -> None:
        """Record claims, if the queue has a history."""
        if self.history is not None:
            for delivery in deliveries:
                self.history.claimed(delivery.group.name, delivery.offset, delivery.consumer.name, now_us)

    def note_end(self, batch: Batch, group: Group, offset: int, attempts: int, outcome: str, now_us: int) -> None:
        """Record how a message ended in a group, if the queue has a history."""
        if self.history is not None and not batch.is_rehearsal:
            entry = self.history.end(group.name, offset, self.message(offset), attempts, outcome, now_us)
            accept_moved(self.host.history_of(batch, self), batch, entry, now_us)

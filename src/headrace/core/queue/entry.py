"""The way into a queue and the way out unread: limits, time to live, expiry, retention, purge. No deliveries.

All messages enter through the `accept` functions. As in RabbitMQ, limits count only messages that wait for a consumer;
accepted messages that are not stored yet count too.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.config.kinds import MAX_NUMBER
from headrace.core.batch import Batch
from headrace.core.queue.definition import DROP_HEAD, REJECT_PUBLISH_DLX, QueueDefinition, Retention
from headrace.core.queue.group import EXPIRED, MAXLEN
from headrace.errors import Corrupt, HeadraceError, Refused, TooLarge, Unavailable
from headrace.model import Message
from headrace.storage.api import Append, Commit, Encoded, Log, Origin
from headrace.storage.ranges import RangeSet

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

RETENTION_US: Final = 300_000_000
_AGAIN_US: Final = 1_000_000
_ENDED_AT_ONCE: Final = 1000
"""Messages given up in one batch: a backlog that expired at once, or a new limit, must not be one huge commit."""


def run_due(queue: "Queue", batch: Batch, now_us: int) -> None:
    """Do everything that is due: leases, delays, expiry, retention, the end of an unused queue. It delivers then."""
    lifetime_us = queue.definition.lifetime_ms * 1000
    if lifetime_us and not queue.consumers and now_us >= queue.used_us + lifetime_us:
        queue.host.drop(queue)
        return
    if queue.is_gone:
        return
    try:
        queue.end_delays(now_us)
        end_overdue(queue, batch, now_us)
        if queue.retention_at_us and queue.retention_at_us <= now_us:
            queue.retention_at_us = 0
            queue.disposal.retain(batch, now_us)
    except Corrupt as error:
        queue.refuse(error)
    except Unavailable:
        try_again(queue, now_us)
    plan(queue, now_us)


def try_again(queue: "Queue", now_us: int) -> None:
    """Run due work, and deliver, in a second: messages cannot be read now."""
    queue.wake_at(now_us + _AGAIN_US)


def end_overdue(queue: "Queue", batch: Batch, now_us: int) -> None:
    """End overdue claims and give up expired and surplus messages, as many as a batch has room for."""
    has_more = False
    for group in list(queue.groups.values()):
        has_more = group.on_time(batch, now_us) or has_more
    expire(queue, batch, now_us)
    if queue.has_surplus:
        drop_surplus(queue, batch, now_us)
    if has_more:
        queue.is_overdue = True
        queue.pump_soon()


def expire(queue: "Queue", batch: Batch, now_us: int) -> None:
    """Give up expired messages among the oldest, as many as a batch has room for."""
    queue.is_overdue = False
    if queue.definition.is_stream:
        return
    again_us = queue.disposal.expire_head(batch, now_us, _ENDED_AT_ONCE)
    if again_us > now_us:
        queue.wake_at(again_us)
    elif again_us:
        queue.is_overdue = True
        queue.pump_soon()


def expire_readable(queue: "Queue", batch: Batch, now_us: int) -> None:
    """Give up expired messages behind one that was taken or stored; `pump` answers for a head that cannot be read."""
    try:
        expire(queue, batch, now_us)
    except (Corrupt, Unavailable):
        queue.is_overdue = True
        queue.pump_soon()


def drop_surplus(queue: "Queue", batch: Batch, now_us: int) -> None:
    """Give up the oldest messages beyond limits that became lower, as many as a batch has room for."""
    queue.has_surplus = False
    definition = queue.definition
    if not queue.depth.is_limited or definition.overflow != DROP_HEAD or definition.is_stream:
        return
    if queue.disposal.drop_surplus(batch, now_us, _ENDED_AT_ONCE):
        queue.has_surplus = queue.is_overdue = True
        queue.pump_soon()


def plan(queue: "Queue", now_us: int) -> None:
    """Ask to be woken for the next thing that is due."""
    for group in queue.groups.values():
        due_us = group.next_due_us()
        if due_us:
            queue.wake_at(due_us)
    lifetime_ms = queue.definition.lifetime_ms
    if lifetime_ms and not queue.consumers:
        queue.wake_at(queue.used_us + lifetime_ms * 1000)
    if (queue.is_stream or queue.is_retained) and queue.definition.retention.max_age_ms:
        queue.retention_at_us = queue.retention_at_us or now_us + RETENTION_US
        queue.wake_at(queue.retention_at_us)


def is_over(log: Log, retention: Retention) -> bool:
    """True if the log is longer or larger than retention allows; age is checked by a timer."""
    count = log.next_offset - log.first_offset
    return bool(
        (retention.max_messages and count > retention.max_messages)
        or (retention.max_bytes and log.size_bytes > retention.max_bytes)
    )


def truncation_point(log: Log, retention: Retention, floor: int, now_us: int) -> int:
    """The offset below which messages may go by age, size or number; never beyond `floor`, the first one needed."""
    point = log.first_offset
    count = log.next_offset - log.first_offset
    if retention.max_messages and count > retention.max_messages:
        point = max(point, log.next_offset - retention.max_messages)
    if retention.max_bytes and count and log.size_bytes > retention.max_bytes:
        # This takes messages to be of one size; where they are not, the next check corrects it.
        kept = count * retention.max_bytes // log.size_bytes
        point = max(point, log.next_offset - kept)
    if retention.max_age_ms:
        point = max(point, log.find(now_us - retention.max_age_ms * 1000))
    return min(point, floor)


_READ: Final = 4096


@final
class Depth:
    """The length of one queue in messages and, where that has a limit, in bytes."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue
        self._max_length: int | None = None
        self._max_bytes: int | None = None
        self.is_limited = False
        self._staged = 0
        self._staged_bytes = 0
        self._bytes = 0
        """Payload bytes that some group has not settled; counted only if they have a limit."""
        self.limit(queue.definition)

    def limit(self, definition: QueueDefinition) -> None:
        """Set the limits of this definition; `count` must follow once there are messages."""
        self._max_length = definition.max_length
        self._max_bytes = definition.max_length_bytes
        self.is_limited = self._max_length is not None or self._max_bytes is not None
        self._staged = self._staged_bytes = 0

    def stage(self, count: int, size_bytes: int) -> None:
        """Count messages that are on their way to the log."""
        self._staged += count
        self._staged_bytes += size_bytes

    def is_full_for(self, count: int, size_bytes: int) -> bool:
        """True if so many messages more would exceed a limit."""
        limit, max_bytes = self._max_length, self._max_bytes
        if limit is not None:
            length = self._queue.messages + self._staged + count
            if length > limit and length - self._room() > limit:
                return True
        if max_bytes is None or self._bytes + self._staged_bytes + size_bytes <= max_bytes:
            return False
        return self._bytes - self._held_bytes() + self._staged_bytes + size_bytes > max_bytes

    def unstage(self, count: int, size_bytes: int) -> None:
        # Messages that were on their way when the limits changed were never counted.
        self._staged = max(0, self._staged - count)
        self._staged_bytes = max(0, self._staged_bytes - size_bytes)

    def is_full(self, message: Message) -> bool:
        """True if this message would exceed a limit."""
        limit, max_bytes = self._max_length, self._max_bytes
        if limit is not None and self._queue.messages + self._staged >= limit:
            # A message that a consumer takes as soon as it is stored never waits.
            return self._queue.messages + self._staged - self._room() >= limit
        if max_bytes is None or self._bytes + self._staged_bytes + len(message.payload) <= max_bytes:
            return False
        return self._bytes - self._held_bytes() + self._staged_bytes + len(message.payload) > max_bytes

    def surplus(self) -> Iterator[int]:
        """Yield the oldest waiting message while there are too many; the caller drops each before the next."""
        held_bytes = -1
        while True:
            too_many = self._max_length is not None and self._queue.messages > self._max_length
            if not too_many:
                if self._max_bytes is None or self._bytes <= self._max_bytes:
                    return
                held_bytes = self._held_bytes() if held_bytes < 0 else held_bytes
                if self._bytes - held_bytes <= self._max_bytes:
                    return
            offset = self._queue.head()
            if offset >= self._queue.log.next_offset:
                return
            yield offset

    def loss(self, definition: QueueDefinition) -> int:
        """The number of oldest messages that would go under these limits."""
        count, max_bytes = 0, definition.max_length_bytes
        if definition.max_length is not None:
            count = max(0, self._queue.messages - definition.max_length)
        if max_bytes is None:
            return count
        size, offset, dropped = self._count(), self._queue.head(), 0
        while size > max_bytes and offset < self._queue.log.next_offset:
            for message in self._queue.log.read(offset, _READ):
                offset += 1
                if size > max_bytes:
                    size -= len(message.payload)
                    dropped += 1
        return max(count, dropped)

    # -- bytes -------------------------------------------------------------------------------------------------------

    def add(self, size_bytes: int) -> None:
        """Count payloads that are in the log now."""
        if self._max_bytes is not None:
            self._bytes += size_bytes

    def settled(self, message: Message) -> None:
        """Count a message no more that the only group settled, if there is only one."""
        if self._max_bytes is not None and len(self._queue.work_groups()) == 1:
            self._bytes -= len(message.payload)

    def truncating(self, first: int, before: int) -> None:
        """Count messages no more that are about to leave the log, if there is not exactly one group.

        Messages that all groups had settled at the last count were not counted then.
        """
        if self._max_bytes is not None and len(self._queue.work_groups()) != 1:
            self._bytes -= self._sum(max(first, self._queue.done_below), before)

    def count(self) -> None:
        """Count anew, after a start or a change of groups."""
        if self._max_bytes is None:
            return
        self._bytes = self._count()
        self._queue.done_below = self._first()

    def _count(self) -> int:
        queue = self._queue
        groups = queue.work_groups()
        size = self._sum(self._first(), queue.log.next_offset)
        if len(groups) == 1:
            state = groups[0].state
            size -= sum([self._sum(start, stop) for start, stop in state.settled])
        return size

    def _first(self) -> int:
        """The first offset that some group has not settled; the first of the log if there is no group."""
        queue = self._queue
        return max(queue.first_offset, queue.floor()) if queue.work_groups() else queue.first_offset

    def _sum(self, start: int, stop: int) -> int:
        total = 0
        while start < stop and (messages := self._queue.log.read(start, min(stop - start, _READ))):
            total += sum([len(message.payload) for message in messages])
            start += len(messages)
        return total

    def _held_bytes(self) -> int:
        """Payload bytes that consumers hold, in the group that holds least."""
        sizes: list[int] = []
        for group in self._queue.work_groups():
            held = [offset for consumer in group.consumers for offset in consumer.held()]
            sizes.append(sum([len(self._queue.message(offset).payload) for offset in held]))
        return min(sizes, default=0)

    def _room(self) -> int:
        """The number of messages that consumers could take now, in the group with the least room."""
        rooms = [sum([max(0, consumer.room) for consumer in group.consumers]) for group in self._queue.groups.values()]
        return min(rooms, default=0)


ARCHIVE: Final = "archive"
"""The group by which an archive reports its progress."""


@final
class Disposal:
    """The way out of one queue's log."""

    def __init__(self, queue: "Queue", depth: Depth) -> None:
        self._queue = queue
        self._depth = depth
        self._given_up = RangeSet()
        self.has_given_up = False
        """True if it holds offsets above messages that are still there."""

    def give_up(self, batch: Batch, offset: int, message: Message, reason: str, now_us: int) -> None:
        """Take this message from all groups, and make it one dead letter however many groups there are.

        A consumer that holds it keeps it.
        """
        queue = self._queue
        groups = queue.work_groups()
        for group in groups:
            ready = group.ready
            entry = group.state.pending.get(offset)
            attempts = entry.attempts if entry is not None else 0
            group.drop(batch, offset)
            if group.ready < ready:
                queue.note_end(batch, group, offset, attempts, reason, now_us)
                self._depth.settled(message)
        if offset not in self._given_up:
            self._given_up.add(offset, offset + 1)
            self.has_given_up = True
            queue.update_exit()
            queue.unschedule(message)
            queue.dead_letter(batch, message, "", offset, 0, reason, now_us)
        if not groups:
            self.truncate(batch, offset + 1)

    def expire_head(self, batch: Batch, now_us: int, most: int) -> int:
        """Give up expired messages among the oldest; returns the time of the next check, 0 for never."""
        queue = self._queue
        for _ in range(most):
            offset = queue.head()
            if offset >= queue.log.next_offset:
                return 0
            message = queue.message(offset)
            if message.expires_us == 0 or message.expires_us > now_us:
                return message.expires_us
            self.give_up(batch, offset, message, EXPIRED, now_us)
        return now_us

    def drop_surplus(self, batch: Batch, now_us: int, most: int = MAX_NUMBER) -> bool:
        """Give up the oldest waiting messages until the limits hold; True if there are more than `most`."""
        for offset in self._depth.surplus():
            if most <= 0:
                return True
            most -= 1
            self.give_up(batch, offset, self._queue.message(offset), MAXLEN, now_us)
        return False

    def purge(self, batch: Batch) -> int:
        """Drop every waiting message and return their number; consumers keep the messages they hold."""
        queue = self._queue
        count = queue.messages
        groups = queue.work_groups()
        for group in groups:
            group.purge(batch)
        if not groups:
            self.truncate(batch, queue.log.next_offset)
        queue.forget_schedule()
        self._depth.count()
        batch.touch(queue)
        return count

    def loss(self, definition: QueueDefinition, now_us: int) -> int:
        """The number of messages that would go at once under this definition."""
        queue = self._queue
        if definition.is_stream:
            before, after = [
                truncation_point(queue.log, kept, self.retention_floor(kept), now_us)
                for kept in (queue.definition.retention, definition.retention)
            ]
            return max(0, after - max(before, queue.first_offset))
        return self._depth.loss(definition) if definition.overflow == DROP_HEAD else 0

    def trim(self, batch: Batch, floor: int) -> None:
        """Truncate the log below the floor."""
        if floor > self._queue.first_offset:
            self.truncate(batch, floor)

    def retain(self, batch: Batch, now_us: int) -> None:
        """Drop messages by retention, but none that a work group needs, or an archive that retention waits for."""
        queue = self._queue
        retention = queue.definition.retention
        point = truncation_point(queue.log, retention, self.retention_floor(retention), now_us)
        if point > queue.first_offset:
            self.truncate(batch, point)

    def retention_floor(self, retention: Retention) -> int:
        """The first offset that retention must keep: a work group needs it, or it is not archived yet."""
        queue = self._queue
        if not retention.keep_until_archived:
            return queue.floor()
        archive = queue.groups.get(ARCHIVE)
        return min(queue.floor(), archive.state.committed if archive is not None else queue.first_offset)

    def truncate(self, batch: Batch, before: int) -> None:
        """Let the log begin at `before`."""
        queue = self._queue
        if queue.is_limited and not (queue.is_retained and queue.work_groups()):
            self._depth.truncating(queue.first_offset, before)
        queue.cut_below = before
        batch.commit_for(queue).truncate(queue.log.name, before)
        if self.has_given_up:
            self._given_up.discard_below(before)
            self.has_given_up = self._given_up.size > 0
            queue.update_exit()
        queue.truncated(batch, before)


# -- the door: every message enters a queue through one of these functions ---------------------------------------------


def accept(queue: "Queue", batch: Batch, message: Message, now_us: int) -> bool:
    """Let a client's message in; False if the queue's selector keeps it out.

    Raises Refused when the limits of the queue forbid it, Corrupt when the queue is damaged.
    """
    if len(message.payload) <= queue.takes_bytes:
        batch.append_published(queue, message)
        return True
    if queue.selector is not None and not queue.admits(message):
        return False
    definition, depth = queue.definition, queue.depth
    if queue.refusal is not None or len(message.payload) > definition.max_message_bytes:
        raise _refusal(queue, len(message.payload))
    if depth.is_limited:
        if definition.overflow != DROP_HEAD and depth.is_full(message):
            if definition.overflow == REJECT_PUBLISH_DLX:
                queue.dead_letter(batch, message, "", queue.log.next_offset, 0, MAXLEN, now_us)
            raise Refused(f"queue {queue.name!r} is full: it holds {queue.messages} messages and takes no more")
        depth.stage(1, len(message.payload))
    batch.append_published(queue, message if definition.message_ttl_ms is None else _stamped(queue, message, now_us))
    return True


def check_entry(queue: "Queue", messages: list[Message]) -> None:
    """Check the sizes of messages that enter together or not at all. Raises like `accept`."""
    for message in messages:
        if len(message.payload) > queue.definition.max_message_bytes:
            raise _refusal(queue, len(message.payload))


def accept_all(queue: "Queue", batch: Batch, messages: list[Message], size_bytes: int) -> None:
    """Let messages in without a look at each: no payload exceeds `Queue.takes_bytes`. The batch owns the list then."""
    batch.append_all(queue, messages, size_bytes)


def takes_all(queue: "Queue", count: int, largest_bytes: int, size_bytes: int) -> bool:
    """True if a queue with limits or a time to live takes so many messages, whatever they are."""
    definition = queue.definition
    if queue.takes_bytes >= 0 or queue.refusal is not None or queue.selector is not None:
        return False
    if largest_bytes > definition.max_message_bytes:
        return False
    try:
        return definition.overflow == DROP_HEAD or not queue.depth.is_full_for(count, size_bytes)
    except (Corrupt, Unavailable):
        return False


def accept_counted(queue: "Queue", batch: Batch, messages: list[Message], size_bytes: int, now_us: int) -> None:
    """Let messages into a queue that `takes_all` of them. The batch owns the list then."""
    if queue.is_limited:
        queue.depth.stage(len(messages), size_bytes)
    if queue.definition.message_ttl_ms is not None:
        messages = [_stamped(queue, message, now_us) for message in messages]
    batch.append_all(queue, messages, size_bytes)


def accept_rows(queue: "Queue", batch: Batch, rows: Encoded, now_us: int) -> None:
    """Let those encoded rows in that the selector admits, all of them or none. Raises like `accept`."""
    if not queue.durable:
        for message in rows.messages(0, rows.count):
            accept(queue, batch, message, now_us)
        return
    if queue.selector is not None:
        admitted = [row for row, message in enumerate(rows.messages(0, rows.count)) if queue.admits(message)]
        if not admitted:
            return
        rows = rows if len(admitted) == rows.count else rows.take(admitted)
    definition, depth = queue.definition, queue.depth
    if queue.refusal is not None or rows.largest_bytes > definition.max_message_bytes:
        raise _refusal(queue, rows.largest_bytes)
    if depth.is_limited:
        if definition.overflow != DROP_HEAD and depth.is_full_for(rows.count, rows.payload_bytes):
            raise Refused(
                f"queue {queue.name!r} has no room for {rows.count} messages: it holds {queue.messages} of them"
            )
        depth.stage(rows.count, rows.payload_bytes)
    ttl_ms = definition.message_ttl_ms
    batch.append_rows(queue, rows if ttl_ms is None else rows.expiring(ttl_ms * 1000, now_us, not queue.is_stream))


def accept_moved(queue: "Queue", batch: Batch, message: Message, now_us: int) -> None:
    """Let in a dead letter, or another message that the same batch takes from elsewhere: it cannot be refused."""
    batch.append_moved(queue, _stamped(queue, message, now_us))


def no_copies(queue: "Queue", source: str) -> Append:
    """Copies for this queue of messages of the log `source`, still without any."""
    return Append("", [], 0, origin=Origin(source, []), at=queue.log)


def accept_copy(queue: "Queue", copies: Append, offset: int, message: Message, now_us: int) -> bool:
    """Add the message of a stream to the copies for this queue; False if it has to wait for room.

    The queue asks for it again when there is room.
    """
    if queue.refusal is not None:
        return False
    depth = queue.depth
    if depth.is_limited:
        if queue.definition.overflow != DROP_HEAD and depth.is_full(message):
            queue.awaited_bytes = len(message.payload)
            return False
        depth.stage(1, len(message.payload))
    copies.add(_stamped(queue, message, now_us), len(message.payload))
    if copies.origin is not None:
        copies.origin.offsets.append(offset)
    return True


def add_copies(queue: "Queue", batch: Batch, copies: Append) -> None:
    """Let all copies in that `accept_copy` took for this queue."""
    batch.append_copies(queue, copies)


def accept_again(queue: "Queue", commit: Commit, messages: list[Message]) -> None:
    """Append messages of a stream once more, behind the messages that replace all others: they were let in before."""
    commit.append(queue.log.name, messages)


def offer_room(queue: "Queue") -> None:
    """Tell the feed if there is room now for the message that waits in its stream."""
    try:
        is_full = queue.depth.is_full_for(1, queue.awaited_bytes)
    except Corrupt as error:
        queue.refuse(error)
        return
    except Unavailable:
        return  # the next delivery checks again
    if not is_full:
        queue.awaited_bytes = -1
        queue.host.has_room(queue)


def _stamped(queue: "Queue", message: Message, now_us: int) -> Message:
    """The message with the queue's time to live, if that ends before its own; a stream's replaces its own.

    For a delayed message, the time to live begins when it is due.
    """
    ttl_ms = queue.definition.message_ttl_ms
    if ttl_ms is None:
        return message
    expires_us = max(now_us, message.not_before_us) + ttl_ms * 1000
    if message.expires_us and message.expires_us <= expires_us and not queue.is_stream:
        return message
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        message.properties,
        message.priority,
        expires_us,
        message.not_before_us,
    )


def entered(queue: "Queue", batch: Batch, first_expiry_us: int, size_bytes: int, now_us: int) -> None:
    """Apply expiry, limits and retention after messages entered the log; some may leave again at once."""
    try:
        if first_expiry_us and not (queue.is_stream and queue.definition.message_ttl_ms is None):
            _expect(queue, batch, first_expiry_us, now_us)
        if queue.depth.is_limited:
            queue.depth.add(size_bytes)
            queue.pump(batch, now_us)  # messages that go out at once do not count
            if not queue.has_surplus:  # else it goes in steps
                queue.disposal.drop_surplus(batch, now_us)
        queue.grown()
        if (queue.is_stream or queue.is_retained) and is_over(queue.log, queue.definition.retention):
            queue.disposal.retain(batch, now_us)
    except Corrupt as error:
        queue.refuse(error)
    except Unavailable:
        try_again(queue, now_us)


def entered_rows(queue: "Queue", batch: Batch, rows: Encoded, now_us: int) -> None:
    """Apply the same after encoded rows entered the log."""
    for due_us in rows.due_times():
        if due_us > now_us:
            queue.schedule(due_us)
    entered(queue, batch, rows.first_expiry_us, rows.payload_bytes, now_us)


def _refusal(queue: "Queue", size_bytes: int) -> HeadraceError:
    """The error for a message of this size: the queue is damaged, or the message too large."""
    if queue.refusal is not None:
        return queue.refusal
    return TooLarge(
        f"a message of {size_bytes} bytes is too large for queue {queue.name!r}: "
        f"{queue.definition.max_message_bytes} at most"
    )


def _expect(queue: "Queue", batch: Batch, expires_us: int, now_us: int) -> None:
    if expires_us > now_us:
        queue.wake_at(expires_us)
        return
    # RabbitMQ's rule for a time to live of 0: a waiting consumer gets the message now, or nobody does. It expired
    # while it was being stored, so the queue delivers as of the last moment before.
    queue.pump(batch, expires_us - 1)
    expire_readable(queue, batch, now_us)

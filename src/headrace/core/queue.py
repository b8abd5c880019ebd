"""One queue: what enters it, what it drops, the groups that read it. Routing is in broker.py, claims in group.py."""

import json
from typing import TYPE_CHECKING, Final, final

from headrace.core.address import QUEUE_PREFIX
from headrace.core.dead_letter import EXPIRED, MAXLEN
from headrace.core.definition import DROP_HEAD, EPHEMERAL, EPHEMERAL_EXPIRES_MS, REJECT_PUBLISH_DLX, QueueDefinition
from headrace.core.delivery import Consumer, Delivery
from headrace.core.group import Group, copied
from headrace.core.properties import Codecs, MessageRow
from headrace.core.retention import truncation_point
from headrace.core.stream import StreamGroup
from headrace.core.turn import Turn
from headrace.core.work import WorkGroup
from headrace.errors import Corrupt, PreconditionFailed, Refused
from headrace.model import Message, Source
from headrace.selector import Selector, parse
from headrace.storage.api import Log
from headrace.storage.group_state import MODE_NAMES, WORK, GroupState
from headrace.storage.ranges import RangeSet

if TYPE_CHECKING:
    from headrace.core.broker import Broker

RETENTION_US: Final = 300_000_000
DEFAULT_GROUP: Final = "default"
_HISTORY_SOURCE: Final = Source("$history")


@final
class Queue:
    """A log with its definition and its groups."""

    def __init__(self, broker: "Broker", definition: QueueDefinition, log: Log, codecs: Codecs, now_us: int) -> None:
        self._broker = broker
        self._codecs = codecs
        self.definition = definition
        self.name = definition.name
        self.log = log
        self.durable = definition.durable and not definition.exclusive
        self.owner: object = None
        """The connection that has the queue for itself."""
        self.groups: dict[str, Group] = {}
        self.selector: Selector | None = parse(definition.filter) if definition.filter else None
        self.refusal: Corrupt | None = None
        self.staged = 0
        """Messages accepted and not yet in the log."""
        self.had_consumers = False
        self.deleted = False
        self._prefix = f"{QUEUE_PREFIX}{definition.name}/"
        self._bytes = 0
        self._truncated = 0
        self._expired = RangeSet()
        self._used_us = now_us
        self._wake_us = 0
        self._retention_at_us = 0
        self._attempts: dict[tuple[str, int], list[tuple[str, int]]] = {}
        for state in log.groups.values():
            self._add_group(copied(state), True)
        if definition.max_length_bytes is not None:
            self._bytes = self._count_bytes()
        self._plan(now_us)

    # -- what enters -------------------------------------------------------------------------------------------------

    def accept(self, turn: Turn, message: Message, now_us: int) -> None:
        """Stage a message for the log. Raises Refused when the queue's limits forbid it, Corrupt when it is damaged."""
        if self.refusal is not None:
            raise self.refusal
        definition = self.definition
        if len(message.payload) > definition.max_message_bytes:
            raise PreconditionFailed(
                f"a message of {len(message.payload)} bytes is too large for queue {self.name!r}: "
                f"{definition.max_message_bytes} at most"
            )
        if self._is_full(message) and definition.overflow != DROP_HEAD:
            if definition.overflow == REJECT_PUBLISH_DLX:
                self.dead_letter(turn, message, "", self.log.next_offset, 0, MAXLEN, now_us)
            raise Refused(f"queue {self.name!r} is full: it holds {self.messages} messages and takes no more")
        turn.publish(self, self.stamped(message, now_us))
        self.staged += 1

    def admits(self, message: Message) -> bool:
        """Whether the queue's filter expression lets the message in."""
        return self.selector is None or self.selector.matches(MessageRow(message, self._codecs))

    def stamped(self, message: Message, now_us: int) -> Message:
        """The message with this queue's time to live, where that ends before its own."""
        ttl_ms = self.definition.message_ttl_ms
        if ttl_ms is None:
            return message
        expires_us = now_us + ttl_ms * 1000
        if message.expires_us and message.expires_us <= expires_us:
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

    def _is_full(self, message: Message) -> bool:
        definition = self.definition
        if definition.max_length is not None and self.messages + self.staged >= definition.max_length:
            return True
        limit = definition.max_length_bytes
        return limit is not None and self._bytes + len(message.payload) > limit

    def appended(self, turn: Turn, messages: list[Message], now_us: int) -> None:
        """These messages are in the log now."""
        definition = self.definition
        if definition.max_length_bytes is not None:
            self._bytes += sum(len(message.payload) for message in messages)
        due = [time for message in messages if (time := message.expires_us)]
        if due:
            self.wake_at(min(due))
        if definition.max_length is not None or definition.max_length_bytes is not None:
            self._drop_head(turn, now_us)
        retention = definition.retention
        if definition.is_stream and (
            (retention.max_messages and self.log.next_offset - self.log.first_offset > retention.max_messages)
            or (retention.max_bytes and self.log.size_bytes > retention.max_bytes)
        ):
            self.retain(turn, now_us)

    def _drop_head(self, turn: Turn, now_us: int) -> None:
        """Let the oldest waiting messages go until the limits are kept."""
        definition = self.definition
        while (definition.max_length is not None and self.messages > definition.max_length) or (
            definition.max_length_bytes is not None and self._bytes > definition.max_length_bytes
        ):
            offset = self._head()
            if offset >= self.log.next_offset:
                return
            self._give_up(turn, offset, self.message(offset), MAXLEN, now_us)

    # -- what is read ------------------------------------------------------------------------------------------------

    @property
    def messages(self) -> int:
        """How many messages wait for a consumer: in the group that is furthest behind, if there are several."""
        waiting = [group.ready for group in self.groups.values()]
        return max(waiting) if waiting else self.log.next_offset - self.first_offset

    @property
    def first_offset(self) -> int:
        """Where the log begins, what is on its way out not counted."""
        return max(self.log.first_offset, self._truncated)

    @property
    def unsettled(self) -> int:
        return sum(group.unsettled for group in self.groups.values())

    @property
    def consumers(self) -> int:
        return sum(len(group.consumers) for group in self.groups.values())

    def message(self, offset: int) -> Message:
        """One message. Raises Corrupt when it cannot be read."""
        return self.log.read(offset, 1)[0]

    def key_of(self, message: Message) -> str:
        """The routing key that group filters are held against."""
        topic = message.source.topic
        if topic.startswith(self._prefix):
            return topic[len(self._prefix) :]
        return "" if topic == self._prefix[:-1] else topic

    def group(self, turn: Turn, name: str, mode: int, key_filter: str = "", auto_commit: bool = True) -> Group:
        """The group of that name, new if need be. Raises Refused when it is of the other mode."""
        group = self.groups.get(name)
        if group is None:
            start = self.first_offset
            turn.commit_for(self).create_group(self.log.name, name, mode, key_filter, start)
            group = self._add_group(GroupState(name, mode, key_filter, start), auto_commit)
        elif group.state.mode != mode:
            raise Refused(
                f"ErrGroupModeMismatch: group {name!r} of queue {self.name!r} is in {MODE_NAMES[group.state.mode]} "
                f"mode; use another group, or delete this one first"
            )
        elif group.state.filter != key_filter:
            raise Refused(f"group {name!r} of queue {self.name!r} has the filter {group.state.filter!r}")
        return group

    def _add_group(self, state: GroupState, auto_commit: bool) -> Group:
        group: Group = WorkGroup(self, state) if state.mode == WORK else StreamGroup(self, state, auto_commit)
        self.groups[state.name] = group
        return group

    def remove_group(self, turn: Turn, name: str) -> None:
        """Forget a group. Raises Refused while it has consumers or when there is none."""
        group = self.groups.get(name)
        if group is None:
            raise Refused(f"queue {self.name!r} has no group {name!r}")
        if len(group.consumers):
            raise Refused(f"group {name!r} of queue {self.name!r} has consumers; they must leave first")
        del self.groups[name]
        group.close()
        turn.commit_for(self).delete_group(self.log.name, name)
        turn.touched.add(self)

    def pump(self, turn: Turn, now_us: int) -> None:
        """Deliver to everybody who has room."""
        try:
            for group in list(self.groups.values()):  # a consumer may join another group while it is delivered to
                if len(group.consumers):
                    group.pump(turn, now_us)
        except Corrupt as error:
            self.refuse(error)

    def pump_soon(self) -> None:
        """Have `pump` called in the next turn."""
        self._broker.pump_soon(self)

    def refuse(self, error: Corrupt) -> None:
        """What is stored of this queue is damaged: nothing more goes in or out, everything else goes on."""
        self.refusal = error
        self._broker.report_damage(self, error)

    def leave(self, turn: Turn, consumer: Consumer, now_us: int) -> None:
        group = consumer.group
        if group is not None:
            group.leave(turn, consumer, now_us)
            self.touch(now_us)

    def touch(self, now_us: int) -> None:
        """Somebody uses the queue: its time to live begins anew."""
        self._used_us = now_us
        self._plan(now_us)

    # -- what leaves -------------------------------------------------------------------------------------------------

    def expire(self, turn: Turn, offset: int, message: Message, now_us: int) -> None:
        """The message's time is over, for all groups at once, and it is one dead letter."""
        self._give_up(turn, offset, message, EXPIRED, now_us)

    def _give_up(self, turn: Turn, offset: int, message: Message, reason: str, now_us: int) -> None:
        first_time = offset not in self._expired
        for group in self.groups.values():
            if isinstance(group, WorkGroup):
                group.drop(turn, offset)
        if first_time:
            self._expired.add(offset, offset + 1)
            self._uncount(message)
            self.dead_letter(turn, message, "", offset, 0, reason, now_us)
        if not self._work_groups():
            self._truncate(turn, offset + 1)

    def settled(self, message: Message, group: Group) -> None:
        """A group is done with a message; the first group's word counts for the size of the queue."""
        if self.definition.max_length_bytes is not None and next(iter(self.groups.values())) is group:
            self._uncount(message)

    def _uncount(self, message: Message) -> None:
        if self.definition.max_length_bytes is not None:
            self._bytes = max(0, self._bytes - len(message.payload))

    def dead_letter(
        self, turn: Turn, message: Message, group: str, offset: int, attempts: int, reason: str, now_us: int
    ) -> None:
        """Send a message that was given up to where this queue's dead letters go, in the same commit."""
        self._broker.dead_letter(turn, self, message, group, offset, attempts, reason, now_us)

    def purge(self, turn: Turn) -> int:
        """Drop every message that waits; what consumers hold stays with them. Returns how many went."""
        count = self.messages
        groups = self._work_groups()
        for group in groups:
            group.purge(turn)
        if not groups:
            self._truncate(turn, self.log.next_offset)
        self._bytes = 0
        turn.touched.add(self)
        return count

    def trim(self, turn: Turn) -> None:
        """What every work group is done with leaves the log, unless it is a stream."""
        if self.definition.is_stream or not self.groups:
            return
        floor = self._floor()
        if floor > self.first_offset:
            self._truncate(turn, floor)

    def retain(self, turn: Turn, now_us: int) -> None:
        """Drop what retention allows, never what a work group still needs."""
        point = truncation_point(self.log, self.definition.retention, self._floor(), now_us)
        if point > self.first_offset:
            self._truncate(turn, point)

    def _truncate(self, turn: Turn, before: int) -> None:
        self._truncated = before
        turn.commit_for(self).truncate(self.log.name, before)
        self._expired.discard_below(before)
        for group in self.groups.values():
            group.on_truncated(turn, before)

    def _floor(self) -> int:
        floors = [group.state.committed for group in self._work_groups()]
        return min(floors) if floors else self.log.next_offset

    def _work_groups(self) -> list[WorkGroup]:
        return [group for group in self.groups.values() if isinstance(group, WorkGroup)]

    def _head(self) -> int:
        groups = self._work_groups()
        return min(group.head() for group in groups) if groups else self.first_offset

    def _count_bytes(self) -> int:
        total = 0
        at = self._floor() if self._work_groups() else self.first_offset
        while messages := self.log.read(at, 4096):
            total += sum(len(message.payload) for message in messages)
            at += len(messages)
        return total

    # -- time --------------------------------------------------------------------------------------------------------

    def wake_at(self, time_us: int) -> None:
        """Have `on_time` called then, or earlier."""
        if not self._wake_us or time_us < self._wake_us:
            self._wake_us = time_us
            self._broker.wake_queue_at(self, time_us)

    def on_time(self, turn: Turn, now_us: int) -> None:
        """Do what has come due: leases, delays, expiry, retention, the end of an unused queue."""
        self._wake_us = 0
        for group in list(self.groups.values()):
            group.on_time(turn, now_us)
        if not self.definition.is_stream:
            self._expire_head(turn, now_us)
        elif self._retention_at_us <= now_us:
            self._retention_at_us = 0
            self.retain(turn, now_us)
        lifetime_us = self._lifetime_us()
        if lifetime_us and not self.consumers and now_us >= self._used_us + lifetime_us:
            self._broker.drop_queue(turn, self)
            return
        self._plan(now_us)

    def _expire_head(self, turn: Turn, now_us: int) -> None:
        offset = self._head()
        while offset < self.log.next_offset:
            message = self.message(offset)
            if not message.expires_us:
                return
            if message.expires_us > now_us:
                self.wake_at(message.expires_us)
                return
            self.expire(turn, offset, message, now_us)
            offset = max(offset + 1, self._head())

    def _lifetime_us(self) -> int:
        expires_ms = self.definition.expires_ms
        if not expires_ms and self.definition.kind == EPHEMERAL:
            expires_ms = EPHEMERAL_EXPIRES_MS
        return expires_ms * 1000

    def _plan(self, now_us: int) -> None:
        """Ask to be woken for whatever comes next."""
        for group in self.groups.values():
            due_us = group.next_due_us()
            if due_us:
                self.wake_at(due_us)
        if self._lifetime_us() and not self.consumers:
            self.wake_at(self._used_us + self._lifetime_us())
        if self.definition.is_stream and self.definition.retention.max_age_ms:
            self._retention_at_us = self._retention_at_us or now_us + RETENTION_US
            self.wake_at(self._retention_at_us)

    # -- history -----------------------------------------------------------------------------------------------------

    def note_claims(self, deliveries: list[Delivery], now_us: int) -> None:
        """Remember who got what when, where that is to be kept."""
        if self.definition.history_ms:
            for delivery in deliveries:
                key = (delivery.group.name, delivery.offset)
                self._attempts.setdefault(key, []).append((delivery.consumer.name, now_us))

    def note_end(self, turn: Turn, group: Group, offset: int, attempts: int, outcome: str, now_us: int) -> None:
        """Write down how a message ended in a group, where that is to be kept."""
        if not self.definition.history_ms:
            return
        claims = self._attempts.pop((group.name, offset), [])
        entry = {
            "queue": self.name,
            "group": group.name,
            "offset": offset,
            "outcome": outcome,
            "deliveries": attempts,
            "attempts": [{"consumer": consumer, "claimed_at_us": time_us} for consumer, time_us in claims],
            "ended_at_us": now_us,
        }
        message = Message(_HISTORY_SOURCE, json.dumps(entry, ensure_ascii=False).encode(), now_us)
        turn.move(self._broker.history_of(turn, self), message)

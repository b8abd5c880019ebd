"""A consumer group: members, mode, progress, pauses, and how messages end. Claims: work.py; cursors: stream.py.

Only a group moves a message between ready, pending and gone. Its memory is bounded by the messages in flight, as the
backlog is read from the log when it is to be delivered.
"""

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.dispatch import Consumer, Delivery, Found, RoundRobin
from headrace.core.routing.address import effective_group
from headrace.core.routing.topics import TopicFilter
from headrace.errors import Refused
from headrace.storage.api import NO_LIMIT, PAUSES, Items, Log
from headrace.storage.group_state import MODE_NAMES, STREAM, WORK, GroupState

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

STREAM_MODE: Final = STREAM
_MODES: Final = {**{name: mode for mode, name in MODE_NAMES.items()}, "queue": WORK, "classic": WORK}
"""Modes by name; FluxMQ has two more names for work."""

# How a consumer settles a delivery.
ACK: Final = 1
NACK: Final = 2
"""Failed: deliver again after the queue's backoff."""
REJECT: Final = 3
"""Never again: a dead letter."""
RELEASE: Final = 4
"""Not tried: ready again at once, and not counted as an attempt."""

# How a message ends: acknowledged, or dead for one of these reasons.
DONE: Final = "done"
REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"

MAX_PENDING: Final = 100_000
READ_AT_ONCE_BYTES: Final = 1 << 20
"""Most bytes that one round hands to consumers, or one message: a consumer that does not read is noticed in between."""
FILTERED_AT_ONCE: Final = 256
"""Messages read at a time when only some of them may match."""
DEALT_AT_ONCE: Final = 256
_ROUNDS: Final = 8
"""Rounds of deliveries in one pump, so that a long backlog does not hold up the event loop."""


def mode_to_join(queue: "Queue", group: str, asked: str = "") -> int:
    """Return the mode asked for by name; else STREAM for streams, but for the primary group, and WORK for the others.

    Raises Refused for a mode that makes no sense. The queue checks whether the group is in that mode.
    """
    if asked:
        return _asked(queue, asked)
    definition = queue.definition
    is_primary = group != "" and group == definition.primary_group
    return STREAM if definition.is_stream and not is_primary else WORK


def mode_joined(queue: "Queue | None", group: str, key_filter: str) -> str:
    """Return the name of a group's mode, "" when there is no such group: for members that come back."""
    found = queue.groups.get(effective_group(group, key_filter)) if queue is not None else None
    return MODE_NAMES[found.state.mode] if found is not None else ""


def _asked(queue: "Queue", asked: str) -> int:
    mode = _MODES.get(asked)
    if mode is None:
        raise Refused(f"group mode {asked[:32]!r} is none of: {', '.join(_MODES)}")
    if mode == STREAM and not queue.definition.is_stream:
        raise Refused(f"queue {queue.name!r} is no stream: its groups are for work")
    return mode


@final
class Death:
    """Death of a message: queue, reason, group, deliveries and time."""

    __slots__ = ("attempts", "group", "offset", "queue", "reason", "time_us")

    def __init__(self, queue: str, reason: str, group: str, attempts: int, offset: int, time_us: int) -> None:
        self.queue = queue
        self.reason = reason
        self.group = group
        self.attempts = attempts
        self.offset = offset
        self.time_us = time_us


@final
class PendingEntry:
    """A delivered, unsettled message and its consumer, "" while it waits for its next try."""

    __slots__ = ("attempts", "consumer", "due_us", "offset")

    def __init__(self, offset: int, consumer: str, attempts: int, due_us: int) -> None:
        self.offset = offset
        self.consumer = consumer
        self.attempts = attempts
        self.due_us = due_us
        """The end of the consumer's lease, or the time of the next try; 0 when neither is set."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PendingEntry) and self._values() == other._values()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"PendingEntry{self._values()!r}"

    def _values(self) -> tuple[int, str, int, int]:
        return self.offset, self.consumer, self.attempts, self.due_us


class Group(ABC):
    """One group's progress on one queue, and its members."""

    def __init__(self, queue: "Queue", state: GroupState, single_active: bool = False) -> None:
        # Fields that every message reads come first: with thousands of groups they share cache lines.
        self.queue = queue
        self.state = state
        self.is_paused = False
        """True if deliveries are paused."""
        self.filter = TopicFilter(state.filter, for_keys=True) if state.filter else None
        self.max_pending = MAX_PENDING
        self.delivered = 0
        self.redelivered = 0
        self.name = state.name
        self.is_work = state.mode == WORK
        self.consumers = RoundRobin(single_active, queue.update_readers)
        self._done_before = self._done
        self._given_up = 0
        """Number of messages that ended without an acknowledgement."""

    @property
    def acknowledged(self) -> int:
        """Number of messages acknowledged since the broker was opened; messages a stream goes back over are not."""
        return max(0, self._done - self._done_before - self._given_up)

    @property
    def _done(self) -> int:
        return self.state.committed + self.state.settled_count

    @property
    def deliver_before_sync(self) -> bool:
        """True if members may have unsynced messages: no member learns an offset that a power loss could reuse."""
        return not self.consumers.tellers

    @property
    def is_drained(self) -> bool:
        """True if the group has nothing to deliver when a member gets room."""
        return False

    @property
    @abstractmethod
    def ready(self) -> int:
        """Number of messages that wait for a consumer."""

    @property
    @abstractmethod
    def lag(self) -> int:
        """Number of messages it has not finished: waiting, or with consumers."""

    @property
    def delayed(self) -> int:
        """Number of waiting messages that are not due yet: retried later, or published for later."""
        return 0

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """Number of messages that consumers hold."""

    @abstractmethod
    def pending(self) -> list[PendingEntry]:
        """Return the delivered, unsettled messages in order of offset."""

    @abstractmethod
    def holder(self, offset: int) -> Consumer | None:
        """Return the consumer that holds this message."""

    @abstractmethod
    def settle(self, batch: Batch, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        """End one delivery. Raises Refused when this consumer does not hold that offset."""

    @abstractmethod
    def acknowledge(self, batch: Batch, deliveries: list[Delivery], first: int, stop: int, now_us: int) -> None:
        """Acknowledge a part of a list, which one consumer got; deliveries that it holds no more are passed over."""

    @abstractmethod
    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        """Remove a member; the messages it holds are ready again."""

    @abstractmethod
    def on_time(self, batch: Batch, now_us: int) -> bool:
        """Run due work; returns whether there may be more of it, for the next batch."""

    @abstractmethod
    def next_due_us(self) -> int:
        """Return when something comes due next; 0 for never."""

    @abstractmethod
    def on_truncated(self, batch: Batch, first: int) -> None:
        """Go on at `first` if the group is behind: the log starts there from now on."""

    # -- work groups only: readers of a stream take nothing out of it ------------------------------------------------

    def head(self) -> int:
        """Return the oldest offset that waits for a consumer, delayed ones too, or the end of the log."""
        return self.queue.log.next_offset

    def drop(self, batch: Batch, offset: int) -> None:
        """Settle a message as dead that the queue gave up, unless a consumer has it."""
        return

    def purge(self, batch: Batch) -> None:
        """Settle all waiting messages; consumers keep theirs. Takes one step per gap, not per message."""
        return

    # -- dealing out -------------------------------------------------------------------------------------------------

    def pump(self, batch: Batch, now_us: int) -> None:
        """Deliver ready messages to members that have room."""
        if self.is_paused:
            return
        for _ in range(_ROUNDS):
            room = self.consumers.room(min(self.max_pending - self.unsettled, DEALT_AT_ONCE))
            if room <= 0:
                return
            found = self._find(batch, room, now_us)
            if found:
                self._deal(batch, found, now_us)
            if not self.has_more():
                return
            if self.queue.statistics.is_round_over:
                break
        self.queue.pump_soon()

    def _deal(self, batch: Batch, found: list[Found], now_us: int) -> None:
        """Hand out messages by turns, one to each where several have room, and call each consumer once."""
        consumer, room = self.consumers.next()
        if consumer is not None and room >= len(found):
            self._hand_all(batch, consumer, found, now_us)
            return
        shares: dict[Consumer, list[Found]] = {}
        at = 0
        while at < len(found):
            if at:
                consumer, room = self.consumers.next()
            if consumer is None:
                self.put_back(found[at:])
                break
            share = found[at : at + room]
            consumer.take([offset for offset, _ in share])
            at += len(share)
            earlier = shares.get(consumer)
            if earlier is None:
                shares[consumer] = share
            else:
                earlier += share
        self._hand_out(batch, shares, now_us)

    def _hand_out(self, batch: Batch, shares: dict[Consumer, list[Found]], now_us: int) -> None:
        """Deliver to each consumer its share, whose offsets it has taken."""
        hands = {consumer: self.claim(batch, consumer, share, now_us) for consumer, share in shares.items()}
        for consumer, hand in hands.items():
            if consumer.turns is not self.consumers:  # another one's delivery made it leave
                self._take_back(batch, consumer, hand, now_us)
                continue
            if consumer.auto_ack:
                self.finish(batch, hand, now_us)
            consumer.recipient.deliver(hand)

    def _hand_all(self, batch: Batch, consumer: Consumer, found: list[Found], now_us: int) -> None:
        """Deliver everything to one consumer."""
        consumer.take([offset for offset, _ in found])
        hand = self.claim(batch, consumer, found, now_us)
        if consumer.auto_ack:
            self.finish(batch, hand, now_us)
        consumer.recipient.deliver(hand)

    def _count(self, delivered: int, redelivered: int) -> None:
        """Count deliveries that are on their way to a consumer."""
        statistics = self.queue.statistics
        self.delivered += delivered
        statistics.delivered += delivered
        if redelivered:
            self.redelivered += redelivered
            statistics.redelivered += redelivered

    @abstractmethod
    def has_more(self) -> bool:
        """Return whether looking on may find more messages to deliver now."""

    @abstractmethod
    def _find(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        """Return up to `room` messages that may be delivered now: none only after passing over some that may not."""

    @abstractmethod
    def claim(self, batch: Batch, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
        """Claim messages for a consumer that has taken their offsets."""

    @abstractmethod
    def finish(self, batch: Batch, deliveries: list[Delivery], now_us: int) -> None:
        """Settle deliveries to a consumer that acknowledges by itself."""

    @abstractmethod
    def put_back(self, found: list[Found]) -> None:
        """Make messages ready again that were found and that nobody took."""

    @abstractmethod
    def _take_back(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """Undo claims that never reached the consumer."""

    def close(self) -> None:
        """End the group: it has no members, nobody holds anything, nothing can be settled."""
        for consumer in self.consumers:
            self.consumers.leave(consumer)
            consumer.group = None


def most_bytes(log: Log) -> int:
    """Return how much of a log to read for one round. Sizes are looked at only in logs larger than that."""
    return READ_AT_ONCE_BYTES if log.size_bytes > READ_AT_ONCE_BYTES else NO_LIMIT


@final
class Pauses:
    """The paused groups of one virtual host."""

    def __init__(self, items: Items) -> None:
        self._keys = {key for key, _ in items(PAUSES)}

    def restore(self, queue: "Queue") -> None:
        """Pause the groups that were paused when the broker stopped."""
        if self._keys:
            for group in queue.groups.values():
                group.is_paused = _key(group) in self._keys

    def set(self, batch: Batch, group: Group, is_paused: bool) -> None:
        group.is_paused = is_paused
        if not group.queue.durable:
            return
        if is_paused:
            self._keys.add(_key(group))
            batch.durable.put(PAUSES, _key(group), b"")
        else:
            self._keys.discard(_key(group))
            batch.durable.delete(PAUSES, _key(group))

    def forget(self, batch: Batch, group: Group) -> None:
        """Drop the pause of a group that is gone."""
        if group.is_paused:
            self.set(batch, group, False)


def _key(group: Group) -> bytes:
    return json.dumps([group.queue.log.name, group.name], ensure_ascii=False).encode()

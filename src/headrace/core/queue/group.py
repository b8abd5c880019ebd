"""A consumer group: members, mode, progress, pauses. Claims are in work.py, cursors in stream.py.

Only a group moves a message between ready, pending and gone. Its state in memory is bounded by what is in flight:
the backlog is read from the log when it is that backlog's turn.
"""

import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from headrace.core.batch import Batch
from headrace.core.queue.dispatch import Consumer, Delivery, RoundRobin
from headrace.core.routing.address import effective_group
from headrace.core.routing.topics import TopicFilter
from headrace.errors import Refused
from headrace.model import Message
from headrace.storage.api import NO_LIMIT, PAUSES, Engine, Log
from headrace.storage.group_state import MODE_NAMES, STREAM, WORK, GroupState

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

STREAM_MODE: Final = STREAM
_MODES: Final = {**{name: mode for mode, name in MODE_NAMES.items()}, "queue": WORK, "classic": WORK}
"""By name; FluxMQ has two others for work."""


def mode_to_join(queue: "Queue", group: str, asked: str = "") -> int:
    """The mode that is asked for by name, or else that of the queue's type: a stream's, but for its primary group.

    Raises Refused for a mode that makes no sense. Whether the group is in that mode is for the queue to say.
    """
    if asked:
        return _asked(queue, asked)
    definition = queue.definition
    is_primary = group != "" and group == definition.primary_group
    return STREAM if definition.is_stream and not is_primary else WORK


def mode_joined(queue: "Queue | None", group: str, key_filter: str) -> str:
    """The name of the mode that a group is in, "" when there is no such group: for members that come back."""
    found = queue.groups.get(effective_group(group, key_filter)) if queue is not None else None
    return MODE_NAMES[found.state.mode] if found is not None else ""


def _asked(queue: "Queue", asked: str) -> int:
    mode = _MODES.get(asked)
    if mode is None:
        raise Refused(f"group mode {asked[:32]!r} is none of: {', '.join(_MODES)}")
    if mode == STREAM and not queue.definition.is_stream:
        raise Refused(f"queue {queue.name!r} is no stream: its groups are for work")
    return mode


# How a delivery ends.
ACK: Final = 1
NACK: Final = 2
"""It failed: again after the queue's backoff."""
REJECT: Final = 3
"""Never again: a dead letter."""
RELEASE: Final = 4
"""Not tried: back in line at once, and not counted as an attempt."""

MAX_PENDING: Final = 100_000
READ_AT_ONCE_BYTES: Final = 1 << 20
"""Consumers are handed no more than this at a time, or one message: who does not read is noticed in between."""
FILTERED_AT_ONCE: Final = 256
"""How many messages are read at a time when only some of them may match."""
DEALT_AT_ONCE: Final = 256
_ROUNDS: Final = 8
"""How often a group deals out in one turn; whoever has the loop next should not wait for a whole backlog."""

Found = tuple[int, Message]


@final
class PendingEntry:
    """A message that was delivered and is not settled: who has it (nobody while it waits for its next try)."""

    __slots__ = ("attempts", "consumer", "due_us", "offset")

    def __init__(self, offset: int, consumer: str, attempts: int, due_us: int) -> None:
        self.offset = offset
        self.consumer = consumer
        self.attempts = attempts
        self.due_us = due_us
        """When the consumer's time is over, or when the next try may be; 0 when neither is set."""

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
        # What every message looks at comes first: with thousands of groups it is read from memory, line by line.
        self.queue = queue
        self.state = state
        self.is_paused = False
        """Whether nothing is delivered for now, whoever has room."""
        self.filter = TopicFilter(state.filter, for_keys=True) if state.filter else None
        self.max_pending = MAX_PENDING
        self.delivered = 0
        self.redelivered = 0
        self.name = state.name
        self.consumers = RoundRobin(single_active, self._members_changed)
        self._done_before = self._done
        self._given_up = 0
        """Messages that the group was done with without an acknowledgement."""

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged since the broker was opened; what a stream goes back over is not."""
        return max(0, self._done - self._done_before - self._given_up)

    @property
    def _done(self) -> int:
        return self.state.committed + self.state.settled_count

    def _members_changed(self) -> None:
        self.queue.look_at_readers()

    @property
    def deliver_before_sync(self) -> bool:
        """Whether its members may have messages that are not synced yet: not if they get to know an offset by which
        another message goes after a power loss."""
        return not self.consumers.tellers

    @property
    def is_drained(self) -> bool:
        """Whether it need not be looked at when a member gets room: there is nothing to deliver."""
        return False

    @property
    @abstractmethod
    def ready(self) -> int:
        """How many messages wait for a consumer."""

    @property
    @abstractmethod
    def lag(self) -> int:
        """How many messages it has not finished: those that wait, and those that are with consumers."""

    @property
    def delayed(self) -> int:
        """How many of those that wait are not due yet: retried later, or published for later."""
        return 0

    @property
    @abstractmethod
    def unsettled(self) -> int:
        """How many messages are with consumers."""

    @abstractmethod
    def pending(self) -> list[PendingEntry]:
        """What was delivered and is not settled, in order of offset."""

    @abstractmethod
    def holder(self, offset: int) -> Consumer | None:
        """The consumer that holds this message."""

    @abstractmethod
    def settle(self, batch: Batch, consumer: Consumer, offset: int, outcome: int, now_us: int) -> None:
        """End one delivery. Raises Refused when this consumer does not hold that offset."""

    @abstractmethod
    def acknowledge(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """End many deliveries of a consumer well; those that it does not hold any more are passed over."""

    @abstractmethod
    def leave(self, batch: Batch, consumer: Consumer, now_us: int) -> None:
        """A member goes; what it holds goes back in line."""

    @abstractmethod
    def on_time(self, batch: Batch, now_us: int) -> bool:
        """Do what has come due; returns whether there may be more of it, for the next turn."""

    @abstractmethod
    def next_due_us(self) -> int:
        """When something comes due next; 0 for never."""

    @abstractmethod
    def on_truncated(self, batch: Batch, first: int) -> None:
        """The log starts at `first` from now on: what was below is gone."""

    # -- dealing out -------------------------------------------------------------------------------------------------

    def pump(self, batch: Batch, now_us: int) -> None:
        """Deliver what is ready to whoever has room."""
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
        """Have one consumer get everything, as where there is only one."""
        consumer.take([offset for offset, _ in found])
        hand = self.claim(batch, consumer, found, now_us)
        if consumer.auto_ack:
            self.finish(batch, hand, now_us)
        consumer.recipient.deliver(hand)

    def _count(self, delivered: int, redelivered: int) -> None:
        """So many are on their way to a consumer."""
        statistics = self.queue.statistics
        self.delivered += delivered
        statistics.delivered += delivered
        if redelivered:
            self.redelivered += redelivered
            statistics.redelivered += redelivered

    @abstractmethod
    def has_more(self) -> bool:
        """Whether looking on may find more messages to deliver now."""

    @abstractmethod
    def _find(self, batch: Batch, room: int, now_us: int) -> list[Found]:
        """Up to `room` messages that may be delivered now: none only after passing over what may not."""

    @abstractmethod
    def claim(self, batch: Batch, consumer: Consumer, share: list[Found], now_us: int) -> list[Delivery]:
        """These messages are this consumer's now; it has taken their offsets."""

    @abstractmethod
    def finish(self, batch: Batch, deliveries: list[Delivery], now_us: int) -> None:
        """These go to a consumer that need not settle them."""

    @abstractmethod
    def put_back(self, found: list[Found]) -> None:
        """These were found and nobody took them."""

    @abstractmethod
    def _take_back(self, batch: Batch, consumer: Consumer, deliveries: list[Delivery], now_us: int) -> None:
        """These were claimed and never reached the consumer."""

    def close(self) -> None:
        """The group is no more: nobody is a member, nobody holds anything, nothing can be settled."""
        for consumer in self.consumers:
            self.consumers.leave(consumer)
            consumer.group = None


def most_bytes(log: Log) -> int:
    """How much to read of a log in order to deliver it; sizes are looked at only where there is more than that."""
    return READ_AT_ONCE_BYTES if log.size_bytes > READ_AT_ONCE_BYTES else NO_LIMIT


@final
class Pauses:
    """The paused groups of one virtual host."""

    def __init__(self, engine: Engine) -> None:
        self._keys = {key for key, _ in engine.items(PAUSES)}

    def restore(self, queue: "Queue") -> None:
        """Have the groups paused that were when the broker stopped."""
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
        """The group is gone."""
        if group.is_paused:
            self.set(batch, group, False)


def _key(group: Group) -> bytes:
    return json.dumps([group.queue.log.name, group.name], ensure_ascii=False).encode()

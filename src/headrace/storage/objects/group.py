"""One group as a queue of OpenData-Queue: buckets of active, done and failed messages, and attempts. No database.

A message enters the buckets when it is claimed: before, it waits in the metadata log and costs nothing here. So the
claims bound the memory.
"""

from typing import Final, final

from headrace.storage.group_state import ACKED, CLAIMED, COMMITTED, DEAD, REQUEUED, GroupState, Pending, Transition
from headrace.storage.objects.keys import (
    ACTIVE,
    ATTEMPTS,
    DONE,
    FAILED,
    PROGRESS,
    bucket_id,
    claim_id,
    decode_queue_key,
    describe,
    encode_array,
    number_of,
    queue_key,
    queue_prefix,
    spec_key,
)
from headrace.storage.objects.log import ObjectLog
from headrace.storage.objects.records import (
    Attempt,
    Available,
    InFlight,
    Settled,
    Spec,
    decode_active,
    decode_attempts,
    decode_settled,
    encode_active,
    encode_attempts,
    encode_available,
    encode_in_flight,
    encode_progress,
    encode_settled,
    encode_spec,
    settled_at,
    visible_at,
    with_visible_at,
)

EXPONENT: Final = 2
"""Buckets of 100 messages: large enough to write few, small enough to rewrite little."""
NO_MESSAGE: Final = 1 << 63
"""Added to an offset, the id of a message that is not in the log."""
MAX_ATTEMPTS: Final = 100
"""The limit of stored attempts per message; beyond it the oldest go."""
_HISTORY: Final = 1000
"""The limit of messages in a done or failed bucket; more than its size only after a seek back."""

Changes = dict[bytes, bytes | None]


@final
class Entry:
    """A message in the buckets."""

    __slots__ = ("attempts", "is_recorded", "message_id", "metadata")

    def __init__(self, message_id: int, metadata: bytes) -> None:
        self.message_id = message_id
        self.metadata = metadata
        self.attempts: list[Attempt] = []
        self.is_recorded = False
        """Whether the store has its attempts."""


@final
class ObjectGroup:
    """One group: its stored state, and its staged state, which the next commit continues."""

    def __init__(self, group_id: int, log: ObjectLog, state: GroupState, exponent: int = EXPONENT) -> None:
        self.queue = b"%d" % group_id
        self.log = log
        self.state = state
        """The stored state."""
        self.staged = state.copy()
        self.exponent = exponent
        self.capacity = int(10**exponent)
        self.records: dict[bytes, bytes] = {}
        """Its stored records, except done and failed buckets that no longer grow."""
        self.has_history = True
        """Whether the store may have done or failed messages in buckets that no longer grow."""
        self.settled_us = 0
        """The time of the last done or failed message that this process knows."""
        self.is_deleted = False
        self._entries: dict[int, Entry] = {}
        self._buckets: set[int] = set()
        """The numbers of stored buckets."""
        self._dirty: set[int] = set()
        self._attempted: set[int] = set()
        self._gone: list[int] = []
        self._settled: dict[bytes, dict[int, list[bytes]]] = {DONE: {}, FAILED: {}}
        """The messages of done and failed buckets that still grow, oldest first."""
        self._dirty_settled: set[tuple[bytes, int]] = set()

    # -- changing ----------------------------------------------------------------------------------------------------

    def stage(self, step: Transition, about: list[tuple[int, bytes]], now_us: int) -> None:
        """Make one step; `about` has ids and metadata of the claimed or requeued messages."""
        kind = step.kind
        if kind in (CLAIMED, REQUEUED):
            self._take(step, about, now_us)
        elif kind in (ACKED, DEAD):
            record = DONE if kind == ACKED else FAILED
            for offset in self._within(step.start, step.stop):
                self._settle(offset, record, now_us)
        elif kind == COMMITTED:
            for offset in [offset for offset in self._entries if offset < step.start]:
                self._forget(offset)
        self.staged.apply(step)

    def _take(self, step: Transition, about: list[tuple[int, bytes]], now_us: int) -> None:
        for offset, (message_id, metadata) in zip(range(step.start, step.stop), about, strict=True):
            entry = self._entries.get(offset)
            if entry is None:
                entry = self._entries[offset] = Entry(message_id, metadata)
            if step.kind == CLAIMED:
                entry.attempts.append(Attempt(now_us, step.consumer))
                if len(entry.attempts) > MAX_ATTEMPTS:
                    del entry.attempts[0]
                self._attempted.add(offset)
            self._dirty.add(offset // self.capacity * self.capacity)

    def _within(self, start: int, stop: int) -> list[int]:
        if stop - start > len(self._entries):
            return sorted([offset for offset in self._entries if start <= offset < stop])
        return [offset for offset in range(start, stop) if offset in self._entries]

    def _settle(self, offset: int, record: bytes, now_us: int) -> None:
        entry = self._entries[offset]
        pending = self.staged.pending[offset]
        if entry.attempts:  # a message without a claim is neither done nor failed
            number = offset // self.capacity * self.capacity
            claim = claim_id(self.exponent, offset)
            settled = self._settled[record].setdefault(number, [])
            settled.append(encode_settled(Settled(entry.message_id, claim, now_us, pending.attempts, entry.metadata)))
            del settled[:-_HISTORY]
            self._dirty_settled.add((record, number))
            self.settled_us = now_us
        self._forget(offset)

    def _forget(self, offset: int) -> None:
        entry = self._entries.pop(offset)
        if entry.is_recorded:
            self._gone.append(entry.message_id)
        self._dirty.add(offset // self.capacity * self.capacity)

    def forget_settled(self, before_us: int) -> bool:
        """Forget old done and failed messages of buckets that still grow; returns whether there were any.

        The collector removes buckets that no longer grow, once all their messages are old.
        """
        found = False
        for record, buckets in self._settled.items():
            for number, settled in buckets.items():
                old = 0
                while old < len(settled) and settled_at(settled[old]) < before_us:
                    old += 1
                if old:
                    del settled[:old]
                    self._dirty_settled.add((record, number))
                    found = True
        return found

    # -- storing -----------------------------------------------------------------------------------------------------

    def create(self, spec: Spec, changes: Changes) -> None:
        """Add the first records of a queue."""
        self.specify(spec, changes)
        number = bucket_id(self.exponent, min(self.staged.committed, (1 << 60) - 1))
        self._buckets.add(number_of(number))
        changes[queue_key(ACTIVE, self.queue, number)] = encode_active([], [])
        changes[queue_key(DONE, self.queue, number)] = encode_array([])
        changes[queue_key(FAILED, self.queue, number)] = encode_array([])

    def specify(self, spec: Spec, changes: Changes) -> None:
        """Set the specification of the queue."""
        changes[spec_key(self.queue)] = encode_spec(spec)

    def delete(self, changes: Changes) -> None:
        """Delete the records that announce the queue."""
        self.is_deleted = True
        changes[spec_key(self.queue)] = None
        changes[queue_prefix(PROGRESS, self.queue)] = None

    def flush(self, changes: Changes) -> None:
        """Add the records of everything that changed."""
        if self.is_deleted:
            return
        for number in self._dirty:
            self._flush_bucket(number, changes)
        self._dirty.clear()
        for message_id in self._gone:
            changes[queue_key(ATTEMPTS, self.queue, message_id)] = None
        self._gone.clear()
        for offset in self._attempted:
            entry = self._entries.get(offset)
            if entry is not None:
                entry.is_recorded = True
                changes[queue_key(ATTEMPTS, self.queue, entry.message_id)] = encode_attempts(entry.attempts)
        self._attempted.clear()
        for record, number in self._dirty_settled:
            settled = self._settled[record][number]
            changes[queue_key(record, self.queue, bucket_id(self.exponent, number))] = encode_array(settled)
            if settled:
                self.has_history = True
        self._dirty_settled.clear()
        changes[queue_prefix(PROGRESS, self.queue)] = encode_progress(self.log.id, self.staged)

    def _flush_bucket(self, number: int, changes: Changes) -> None:
        available: list[bytes] = []
        in_flight: list[bytes] = []
        for offset in range(number, number + self.capacity):
            entry = self._entries.get(offset)
            if entry is not None:
                self._encode(offset, entry, self.staged.pending[offset], available, in_flight)
        key = queue_key(ACTIVE, self.queue, bucket_id(self.exponent, number))
        if available or in_flight:
            self._buckets.add(number)
            changes[key] = encode_active(available, in_flight)
        elif number in self._buckets:
            self._buckets.discard(number)
            changes[key] = None

    def _encode(
        self, offset: int, entry: Entry, pending: Pending, available: list[bytes], in_flight: list[bytes]
    ) -> None:
        claim = claim_id(self.exponent, offset)
        if pending.consumer:
            claimed_us = entry.attempts[-1].claimed_at_us
            message = InFlight(entry.message_id, claim, claimed_us, pending.due_us, pending.attempts, entry.metadata)
            in_flight.append(encode_in_flight(message))
        else:
            metadata = with_visible_at(entry.metadata, pending.due_us)
            available.append(encode_available(Available(entry.message_id, claim, pending.attempts, metadata)))

    def stored(self, changes: Changes) -> None:
        """Note durable changes."""
        for key, value in changes.items():
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        for record, buckets in self._settled.items():
            ended = [number for number in buckets if number + self.capacity <= self.state.committed]
            for number in ended:  # these no longer grow
                if (record, number) not in self._dirty_settled:
                    del buckets[number]
                    self.records.pop(queue_key(record, self.queue, bucket_id(self.exponent, number)), None)

    # -- opening -----------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Restore the state from the stored records. Raises Corrupt."""
        for part in (self._entries, self._buckets, self._dirty, self._attempted, self._gone, self._dirty_settled):
            part.clear()
        self._settled = {DONE: {}, FAILED: {}}
        self.state.pending.clear()
        self.is_deleted = False
        self.has_history = True
        attempts: dict[int, list[Attempt]] = {}
        buckets: list[tuple[bytes, bytes]] = []
        for key, value in self.records.items():
            kind = key[:2]
            if kind == ATTEMPTS:
                attempts[decode_queue_key(key).number] = decode_attempts(value, describe(key))
            elif kind == ACTIVE:
                buckets.append((key, value))
            elif kind in (DONE, FAILED):
                number = number_of(decode_queue_key(key).number)
                settled = decode_settled(value, describe(key))
                self._settled[kind][number] = [encode_settled(message) for message in settled]
        for key, value in buckets:
            self._buckets.add(number_of(decode_queue_key(key).number))
            self._load_bucket(value, attempts, describe(key))
        self.staged = self.state.copy()

    def _load_bucket(self, value: bytes, attempts: dict[int, list[Attempt]], where: str) -> None:
        available, in_flight = decode_active(value, where)
        for returned in available:
            metadata, due_us = visible_at(returned.metadata, where)
            if due_us is not None:  # a message that was never claimed is in the log, and needs no entry
                self._restore(returned.message_id, returned.claim_id, metadata, attempts)
                self.state.pending[number_of(returned.claim_id)] = Pending(returned.attempts, due_us, "")
        for held in in_flight:
            entry = self._restore(held.message_id, held.claim_id, held.metadata, attempts)
            consumer = entry.attempts[-1].consumer if entry.attempts else ""
            pending = Pending(held.attempts, held.lease_deadline_us, consumer)
            self.state.pending[number_of(held.claim_id)] = pending

    def _restore(self, message_id: int, claim: int, metadata: bytes, attempts: dict[int, list[Attempt]]) -> Entry:
        entry = self._entries[number_of(claim)] = Entry(message_id, metadata)
        found = attempts.get(message_id)
        if found is not None:
            entry.attempts = found
            entry.is_recorded = True
        return entry

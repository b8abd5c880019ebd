"""One group as a queue of OpenData-Queue: buckets of active, done and failed messages, and attempts. No database.

A message enters the buckets when it is claimed: before, it waits in the metadata log and costs nothing here. So the
claims bound the memory. A bucket refers to messages by their ids and offsets: the log has the rest.
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
    decode_consumer,
    decode_progress,
    decode_settled,
    decode_visible_at,
    encode_active,
    encode_attempts,
    encode_available,
    encode_consumer,
    encode_in_flight,
    encode_progress,
    encode_settled,
    encode_spec,
    encode_visible_at,
    settled_at,
)

EXPONENT: Final = 2
"""Buckets of 100 messages: large enough to write few, small enough to rewrite little."""
MAX_ATTEMPTS: Final = 100
"""The limit of stored attempts per message; beyond it the oldest go."""
_HISTORY: Final = 1000
"""The limit of messages in a done or failed bucket; more than its size only after a seek back."""

Changes = dict[bytes, bytes | None]


@final
class Entry:
    """A message in the buckets, with its attempts; the group's state has its consumer and its time."""

    __slots__ = ("attempts", "is_recorded", "message_id")

    def __init__(self, message_id: int, attempts: tuple[Attempt, ...]) -> None:
        self.message_id = message_id
        self.attempts = attempts
        self.is_recorded = False
        """True if the store has a record of its attempts. The bucket itself has the attempt of a first claim."""


@final
class ObjectGroup:
    """One group: its state with all staged commits, and its stored records, from which the state can be made again."""

    def __init__(self, group_id: int, log: ObjectLog, state: GroupState, exponent: int = EXPONENT) -> None:
        self.queue = b"%d" % group_id
        self.log = log
        self.state = state
        self.exponent = exponent
        self.capacity = int(10**exponent)
        self.records: dict[bytes, bytes] = {}
        """Its stored records, except done and failed buckets that no longer grow."""
        self.has_history = True
        """True if the store may have done or failed messages in buckets that no longer grow."""
        self.settled_us = 0
        """The time of the last done or failed message that this process knows."""
        self.is_deleted = False
        self._active: dict[int, dict[int, Entry]] = {}
        """The messages of each bucket by their offsets; no bucket is empty."""
        self._buckets: set[int] = set()
        """The numbers of stored or staged buckets."""
        self._dirty: set[int] = set()
        self._attempted: dict[int, Entry] = {}
        self._gone: list[int] = []
        self._settled: dict[bytes, dict[int, list[bytes]]] = {DONE: {}, FAILED: {}}
        """The messages of done and failed buckets that still grow, oldest first."""
        self._dirty_settled: set[tuple[bytes, int]] = set()

    # -- changing ----------------------------------------------------------------------------------------------------

    def stage(self, step: Transition, ids: list[int], now_us: int) -> None:
        """Make one step; `ids` are those of the claimed or requeued messages."""
        kind = step.kind
        if kind in (CLAIMED, REQUEUED):
            self._take(step, ids, now_us)
        elif kind in (ACKED, DEAD):
            self._settle(step.start, step.stop, DONE if kind == ACKED else FAILED, now_us)
        elif kind == COMMITTED:
            self._remove(0, step.start)
        self.state.apply(step)

    def _take(self, step: Transition, ids: list[int], now_us: int) -> None:
        start, stop, is_claim = step.start, step.stop, step.kind == CLAIMED
        attempts = (Attempt(now_us, step.consumer),) if is_claim else ()
        for number in range(start // self.capacity * self.capacity, stop, self.capacity):
            bucket = self._active.setdefault(number, {})
            self._dirty.add(number)
            for offset in range(max(start, number), min(stop, number + self.capacity)):
                entry = bucket.get(offset)
                if entry is None:
                    entry = bucket[offset] = Entry(ids[offset - start], attempts)
                    if step.consumer or not is_claim:
                        continue  # the bucket has its attempt
                elif is_claim:
                    entry.attempts = (entry.attempts + attempts)[-MAX_ATTEMPTS:]
                elif entry.is_recorded:
                    continue
                self._attempted[offset] = entry

    def _within(self, start: int, stop: int) -> list[int]:
        """The numbers of buckets that may have messages of this range, in order."""
        first = start // self.capacity * self.capacity
        if (stop - first) // self.capacity < len(self._active):
            return [number for number in range(first, stop, self.capacity) if number in self._active]
        return sorted([number for number in self._active if first <= number < stop])

    def _remove(self, start: int, stop: int) -> list[tuple[int, Entry]]:
        """Remove and return the messages of a range, in order."""
        removed: list[tuple[int, Entry]] = []
        for number in self._within(start, stop):
            bucket = self._active[number]
            low, high = max(start, number), min(stop, number + self.capacity)
            if high - low <= len(bucket):
                offsets = [offset for offset in range(low, high) if offset in bucket]
            else:
                offsets = sorted([offset for offset in bucket if low <= offset < high])
            for offset in offsets:
                entry = bucket.pop(offset)
                removed.append((offset, entry))
                self._attempted.pop(offset, None)
                if entry.is_recorded:
                    self._gone.append(entry.message_id)
            if offsets:
                self._dirty.add(number)
            if not bucket:
                del self._active[number]
        return removed

    def _settle(self, start: int, stop: int, record: bytes, now_us: int) -> None:
        pending, exponent, capacity = self.state.pending, self.exponent, self.capacity
        buckets = self._settled[record]
        for offset, entry in self._remove(start, stop):
            if not entry.attempts:  # a message without a claim is neither done nor failed
                continue
            number = offset // capacity * capacity
            settled = buckets.get(number)
            if settled is None:
                settled = buckets[number] = []
            message = Settled(entry.message_id, claim_id(exponent, offset), now_us, pending[offset].attempts, b"")
            settled.append(encode_settled(message))
            if len(settled) > _HISTORY:
                del settled[:-_HISTORY]
            self._dirty_settled.add((record, number))
            self.settled_us = now_us

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
        number = bucket_id(self.exponent, min(self.state.committed, (1 << 60) - 1))
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
        for entry in self._attempted.values():
            if entry.attempts:
                entry.is_recorded = True
                changes[queue_key(ATTEMPTS, self.queue, entry.message_id)] = encode_attempts(entry.attempts)
        self._attempted.clear()
        for record, number in self._dirty_settled:
            settled = self._settled[record][number]
            changes[queue_key(record, self.queue, bucket_id(self.exponent, number))] = encode_array(settled)
            if settled:
                self.has_history = True
        self._dirty_settled.clear()
        changes[queue_prefix(PROGRESS, self.queue)] = encode_progress(self.log.id, self.state)

    def _flush_bucket(self, number: int, changes: Changes) -> None:
        key = queue_key(ACTIVE, self.queue, bucket_id(self.exponent, number))
        bucket = self._active.get(number)
        if bucket is None:
            if number in self._buckets:
                self._buckets.discard(number)
                changes[key] = None
            return
        available: list[bytes] = []
        in_flight: list[bytes] = []
        states, exponent = self.state.pending, self.exponent
        consumer, metadata = "", b""
        for offset in sorted(bucket):
            entry, pending = bucket[offset], states[offset]
            claim = claim_id(exponent, offset)
            if not pending.consumer:
                visible = encode_visible_at(pending.due_us)
                available.append(encode_available(Available(entry.message_id, claim, pending.attempts, visible)))
                continue
            if pending.consumer != consumer:
                consumer = pending.consumer
                metadata = encode_consumer(consumer)
            claimed_us = entry.attempts[-1].claimed_at_us
            message = InFlight(entry.message_id, claim, claimed_us, pending.due_us, pending.attempts, metadata)
            in_flight.append(encode_in_flight(message))
        self._buckets.add(number)
        changes[key] = encode_active(available, in_flight)

    def stored(self, changes: Changes, is_current: bool) -> None:
        """Note durable changes; `is_current` is True if no later ones are staged."""
        for key, value in changes.items():
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value
        if not is_current:
            return
        for record, buckets in self._settled.items():
            ended = [number for number in buckets if number + self.capacity <= self.state.committed]
            for number in ended:  # these no longer grow
                del buckets[number]
                self.records.pop(queue_key(record, self.queue, bucket_id(self.exponent, number)), None)

    # -- opening -----------------------------------------------------------------------------------------------------

    def reload(self) -> None:
        """Make the state again from the stored records. Raises Corrupt."""
        for part in (self._active, self._buckets, self._dirty, self._attempted, self._gone, self._dirty_settled):
            part.clear()
        self._settled = {DONE: {}, FAILED: {}}
        self.is_deleted = False
        self.has_history = True
        progress = queue_prefix(PROGRESS, self.queue)
        topic_filter = self.state.filter
        self.state = decode_progress(self.records[progress], describe(progress)).state
        self.state.filter = topic_filter
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

    def _load_bucket(self, value: bytes, attempts: dict[int, list[Attempt]], where: str) -> None:
        available, in_flight = decode_active(value, where)
        for returned in available:
            due_us = decode_visible_at(returned.metadata, where)
            if due_us is not None:  # a message that was never claimed is in the log, and needs no entry
                self._restore(returned.message_id, returned.claim_id, attempts.get(returned.message_id))
                self.state.set_pending(number_of(returned.claim_id), Pending(returned.attempts, due_us, ""))
        for held in in_flight:
            known = attempts.get(held.message_id)
            consumer = decode_consumer(held.metadata, where)
            if consumer is None:
                consumer = known[-1].consumer if known else ""
            entry = self._restore(held.message_id, held.claim_id, known)
            if known is None:
                entry.attempts = (Attempt(held.claimed_at_us, consumer),)
            pending = Pending(held.attempts, held.lease_deadline_us, consumer)
            self.state.set_pending(number_of(held.claim_id), pending)

    def _restore(self, message_id: int, claim: int, attempts: list[Attempt] | None) -> Entry:
        offset = number_of(claim)
        entry = Entry(message_id, tuple(attempts or ()))
        entry.is_recorded = attempts is not None
        self._active.setdefault(offset // self.capacity * self.capacity, {})[offset] = entry
        return entry

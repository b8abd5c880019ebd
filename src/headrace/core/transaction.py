"""Publishes and settlements as one commit: all of it happens, or nothing. Protocols begin and end transactions.

While the commit is on its way, the transaction holds the deliveries that it settles: they cannot time out, be requeued
or be settled by another. Once the commit is durable, the settlements happen in memory too.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from headrace.core.batch import Batch, Confirm
from headrace.core.pipeline import CommitPipeline
from headrace.core.queue.backlog import DEAD, next_attempt_us, patience_us
from headrace.core.queue.dispatch import Consumer, Delivery
from headrace.core.queue.entry import accept
from headrace.core.queue.group import ACK, DELIVERY_LIMIT, DONE, NACK, REJECT, REJECTED, RELEASE
from headrace.core.queue.leases import store_claim
from headrace.core.queue.queue import Queue
from headrace.core.queue.queues import Queues
from headrace.core.queue.work import WorkGroup
from headrace.errors import HeadraceError, Refused
from headrace.model import Message

_FOR_EVER_US: Final = 1 << 60


@final
class Publish:
    """A message to publish, with the keys and headers that route it."""

    __slots__ = ("extra_keys", "headers", "is_topic", "message")

    def __init__(
        self, message: Message, headers: Mapping[str, object] | None = None, extra_keys: Sequence[str] = ()
    ) -> None:
        self.message = message
        self.headers = headers
        self.extra_keys = extra_keys
        self.is_topic = False
        """True if it is routed like `Broker.publish_topic`."""


@final
class Transaction:
    """One attempt to publish and settle as one."""

    def __init__(self, queues: Queues, pipeline: CommitPipeline, now_us: int, confirm: Confirm | None) -> None:
        self._queues = queues
        self._pipeline = pipeline
        self._now_us = now_us
        self._confirm = confirm
        self._batch = Batch()
        self._batch.done = self._done
        self._held: list[tuple[WorkGroup, Delivery, int, Delivery]] = []
        """Deliveries that it settles: group, own lease, outcome, and the consumer's delivery."""
        self._claimed: list[Delivery] = []
        """Own leases whose claims are stored with the transaction."""
        self._read: list[tuple[Delivery, int]] = []

    def publish(self, queues: list[Queue], message: Message) -> int:
        """Raises Refused when one of the queues does not take it."""
        taken = 0
        for queue in queues:
            taken += accept(queue, self._batch, message, self._now_us)
        return taken

    def settle(self, delivery: Delivery, outcome: int) -> None:
        """Raises Refused when it is not pending any more."""
        group, queue, offset = delivery.group, delivery.group.queue, delivery.offset
        if queue.is_gone or not delivery.consumer.holds(offset):
            raise Refused(f"offset {offset} of {queue.name!r} is not pending any more")
        if not isinstance(group, WorkGroup):
            self._read.append((delivery, outcome))
            return
        owner = Consumer(delivery.consumer.name, _deliver_nothing)
        lease = group.pass_on(delivery.consumer, offset, owner, _FOR_EVER_US)
        self._held.append((group, lease, outcome, delivery))
        commit, log = self._batch.commit_for(queue), queue.log.name
        end = self._end(queue, lease, outcome)
        if end == DONE:
            commit.ack(log, group.name, offset, offset + 1)
        elif end:
            commit.bury(log, group.name, offset, offset + 1)
            if queue.definition.dead_letter_exchange is None and queue.definition.has_dead_letters:
                self._queues.dead_letters.graves(
                    self._pipeline.open(), queue.definition
                )  # there before the transaction
            queue.dead_letter(self._batch, lease.message, group.name, offset, lease.attempts, end, self._now_us)
        else:
            due_us = next_attempt_us(queue.definition, lease.attempts, outcome == NACK, self._now_us)
            if not lease.is_claimed:
                self._claimed.append(lease)
                store_claim(commit, lease)
            commit.requeue(log, group.name, offset, offset + 1, max(due_us, self._now_us))

    def _end(self, queue: Queue, lease: Delivery, outcome: int) -> str:
        """The end of a message that is settled so; "" if it is delivered again."""
        if outcome == ACK:
            return DONE
        if outcome == REJECT:
            return REJECTED
        is_dead = outcome == NACK and next_attempt_us(queue.definition, lease.attempts, True, self._now_us) == DEAD
        return DELIVERY_LIMIT if is_dead else ""

    def send(self) -> None:
        """Store it, after everything that was called before."""
        self._pipeline.append(self._batch)

    def undo(self) -> None:
        """Undo everything: consumers hold their messages again, or these are requeued."""
        batch = self._pipeline.open()
        self._batch.unstage()
        for lease in self._claimed:
            lease.is_claimed = False
        for group, lease, _, delivery in self._held:
            holder = lease.consumer
            if not holder.holds(delivery.offset):
                continue  # gone with its queue
            if delivery.consumer.group is not group:
                group.settle(batch, holder, delivery.offset, RELEASE, self._now_us)
                group.queue.pump_soon()
                continue
            time_us = delivery.consumer.lease_us or group.queue.definition.lease_ms * 1000
            again = group.pass_on(holder, delivery.offset, delivery.consumer, self._now_us + time_us)
            group.record_claims(batch, [again])

    def _done(self, error: HeadraceError | None) -> None:
        if error is None:
            self._apply()
        else:
            self.undo()
        if self._confirm is not None:
            self._confirm(error)

    def _apply(self) -> None:
        """Settle in memory, without writing again: the transaction is durable."""
        batch = self._pipeline.open()
        rehearsal = Batch()
        rehearsal.is_rehearsal = True
        for group, lease, outcome, delivery in self._held:
            queue, offset = group.queue, delivery.offset
            if queue.is_gone or not lease.consumer.holds(offset):
                continue
            if end := self._end(queue, lease, outcome):
                queue.note_end(batch, group, offset, lease.attempts, end, self._now_us)
            if outcome in (NACK, RELEASE):
                wait_us = patience_us(lease.attempts, queue.lease_us, False) if outcome == NACK else 0
                group.note_failure(delivery.consumer, offset, wait_us)
            group.settle(rehearsal, lease.consumer, offset, outcome, self._now_us)
            batch.touch(queue)
            queue.pump_soon()
        for delivery, outcome in self._read:
            if delivery.consumer.holds(delivery.offset):
                delivery.group.settle(batch, delivery.consumer, delivery.offset, outcome, self._now_us)
                delivery.group.queue.pump_soon()


def _deliver_nothing(deliveries: list[Delivery]) -> None:
    return

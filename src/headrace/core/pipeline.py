"""Batches on their way into storage, one at a time, in order, and the logs in memory. No rules of queues.

A batch is sent when the one before it is visible; changes made meanwhile become the next. So a failed batch is tried
again before any later one, and storage sees all steps in the order in which they were made.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.batch import Appends, Batch, Confirm
from headrace.core.flow import Flow, Statistics
from headrace.core.queue.entry import entered_rows
from headrace.core.queue.leases import UnstoredClaims
from headrace.errors import Corrupt, Fatal, HeadraceError, NotFound, Refused, Unavailable
from headrace.storage.api import QUEUES, Commit, Engine
from headrace.storage.memory import MemoryEngine

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue


@final
class MemoryLogs:
    """The engine of all queues that are not durable, and their size."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.size_bytes = 0
        self._sizes: dict[Queue, int] = {}

    def store(self, batch: Batch) -> list[Appends]:
        """Store the part of a batch that is for memory; returns what was appended."""
        touched, batch.touched_in_memory = batch.touched_in_memory, []
        for queue in touched:
            queue.touched = 0
            if not queue.deleted:
                queue.trim(batch)
        commit, stored = batch.collect_memory()
        _leave_out_groups(commit)
        self._commit(commit)
        for queue in {*touched, *[queue for appends in stored for queue in appends.queues]}:
            if not queue.deleted:
                size = queue.log.size_bytes
                self.size_bytes += size - self._sizes.get(queue, 0)
                self._sizes[queue] = size
        return stored

    def drop(self, name: str) -> None:
        commit = Commit()
        commit.drop(name)
        self._commit(commit)

    def forget(self, queue: "Queue") -> None:
        """Count a deleted queue no more."""
        self.size_bytes -= self._sizes.pop(queue, 0)

    def _commit(self, commit: Commit) -> None:
        self.engine.commit(commit, _no_error)
        self.engine.sync()


def _leave_out_groups(commit: Commit) -> None:
    """Keep of the steps of groups the messages that they drop: nobody reads the groups of a log in memory."""
    steps, commit.steps = commit.steps, []
    for step in steps:
        if step.cut:
            commit.truncate(step.log, step.cut)


def _no_error(error: HeadraceError | None) -> None:
    if error is not None:
        raise error


_log: Final = logging.getLogger("headrace.core")
_RETRY_US: Final = 1_000_000
HOLD_US: Final = 20_000
"""Settlements wait this long for another batch to join: at 1000 messages a second, each published and acknowledged by
itself, a message cost the server 410 to 423 us of CPU with commits of their own for them, and 260 to 290 us without."""
HOLD_STEPS: Final = 1000
_NEVER: Final = 0
_SOON: Final = 1
_NOW: Final = 2
LONG_STEPS: Final = 4
"""Steps of long work in one batch: storage takes 5 ms for some thousand messages."""

Schedule = Callable[[Callable[[], None]], None]
"""Calls a function soon, in the thread that owns the broker, never at once."""


@final
class CommitPipeline:
    """The open batch, closed batches that wait, the batch in flight, and visible batches that are not durable yet."""

    def __init__(self, engine: Engine, clock: Clock, schedule: Schedule, flow: Flow) -> None:
        self._engine = engine
        self.memory = MemoryLogs()
        self._clock = clock
        self._schedule = schedule
        self.flow = flow
        self.statistics = Statistics()
        self.unstored = UnstoredClaims()
        self.on_dropped: Callable[[str], None] = _nothing
        """Called with the name of a durable log that is gone now."""
        self.on_damage: Callable[[str, Corrupt], None] = _nothing
        """Called with the name of a durable log that turned out to be damaged."""
        self.batch = Batch()
        self.waiting_bytes = 0
        """Payload bytes in closed batches that are not durable yet."""
        self._sealed: deque[Batch] = deque()
        """Closed batches that wait for the one in flight."""
        self._in_flight: Batch | None = None
        """The batch that storage has and readers do not see yet."""
        self._visible: deque[Batch] = deque()
        """Batches that are written and visible; their publishers are told when they are durable."""
        self._pumps: list[Queue] = []
        """Queues that deliver in this round; each knows the number of its round."""
        self._round = 1
        self._pumped = 0
        """Queues that delivered so far, each time counted."""
        self._after_pumps: list[tuple[Queue | None, Callable[[], None], int]] = []
        """Calls that wait for the queue, or until so many queues delivered."""
        self._at_flush: list[Callable[[], None]] = []
        self._scheduled = False
        self._ended: Callable[[], None] | None = None
        """Set when no later batch is stored: the virtual host is deleted."""
        self.release_at_us = 0
        """The time when held publishers may try again; 0 if none are held."""
        self.retry_at_us = 0
        """The time of the next attempt to store a failed batch; 0 if none failed."""
        self.held_until_us = 0
        """The time when waiting settlements are stored by themselves; 0 if none wait."""

    def open(self) -> Batch:
        """The batch that the present call belongs to; it is stored soon."""
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._flush_scheduled)
        return self.batch

    def at_flush(self, call: Callable[[], None]) -> None:
        """Call something when the batch is flushed, before anything else happens to it."""
        self._at_flush.append(call)
        self.open()

    @property
    def is_full(self) -> bool:
        """True if long work should wait for the batch in flight, because much of it is in the open one."""
        return self._in_flight is not None and self.batch.long_steps >= LONG_STEPS

    def pump_soon(self, queue: "Queue") -> None:
        """Let the queue deliver at the next flush."""
        self._add_due(queue)
        self.open()

    def _add_due(self, queue: "Queue") -> None:
        if queue.due != self._round:
            queue.due = self._round
            self._pumps.append(queue)

    def settled(self) -> None:
        """Note a settlement that makes no room for deliveries: a batch that is held back stays so."""
        if not self.held_until_us or len(self.batch.durable.steps) > HOLD_STEPS:
            self.open()

    def after_pumps(self, queue: "Queue | None", call: Callable[[], None]) -> None:
        """Call something after all due queues delivered, and after this queue has no more to deliver."""
        self._after_pumps.append((queue, call, 0))
        self.open()

    def seal(self) -> None:
        """Close the open batch: later changes are stored after it, not together with it."""
        if not self.batch.is_empty:
            self._sealed.append(self._close(self._clock.now_us()))
        self.open()

    def drop_first(self, log: str, key: bytes) -> None:
        """Drop a log of the open batch in a batch before it: a commit drops last, and the name is used again."""
        batch = self.batch
        if log in batch.memory.drops:
            batch.memory.drops.remove(log)
            batch.forget_log(batch.memory, log)
            self.memory.drop(log)
        if log in batch.durable.drops:
            batch.durable.drops.remove(log)
            batch.forget_log(batch.durable, log)
            before = Batch()
            before.durable.drop(log)
            before.define(QUEUES, key, None)
            self._sealed.append(before)

    def when_kept(self, confirm: Confirm) -> bool:
        """Tell `confirm` how the last batch with a promise ends; False if none is on its way."""
        for batch in reversed(self._invisible()):
            if batch.is_promised:
                batch.confirms.add(confirm)
                return True
        return False

    def when_entered(self, call: Callable[[], None]) -> bool:
        """Call something once all published messages are visible or refused, and their consumers were served.

        Returns False, and calls nothing, if no messages are on their way.
        """
        for batch in reversed(self._invisible()):
            if batch.published.queues or batch.transient.queues:
                batch.entered.append(lambda: self.after_pumps(None, call))
                return True
        return False

    def append(self, batch: Batch) -> None:
        """Store this batch by itself, after the open one."""
        self.seal()
        self.waiting_bytes += batch.size_bytes
        self._sealed.append(batch)

    def staged_keys(self) -> "list[tuple[str, bytes]]":
        """Tables and keys that are about to change, and that storage may not show yet."""
        return [place for batch in self._invisible() for place in batch.durable.puts]

    def _invisible(self) -> list[Batch]:
        """All batches that are not visible yet, the oldest first."""
        return [*([] if self._in_flight is None else [self._in_flight]), *self._sealed, self.batch]

    def end(self, ended: Callable[[], None]) -> None:
        """Store the open batch and refuse all later ones; `ended` is called when it is durable."""
        self.seal()
        self._ended = ended

    def forget(self, queue: "Queue") -> None:
        """Take the messages for a deleted queue out of the open batch."""
        self.batch.forget_queue(queue)
        self.memory.forget(queue)

    def retry(self, now_us: int) -> None:
        """Try a failed batch again, store waiting settlements and release held publishers, if it is time."""
        if (self.retry_at_us and now_us >= self.retry_at_us) or (self.held_until_us and now_us >= self.held_until_us):
            self.flush()
        if self.release_at_us and now_us >= self.release_at_us:
            self.release_at_us = 0
            self.flow.hold(self, False)
            self.update_flow()

    def give_up(self, now_us: int) -> int:
        """Tell publishers whose queue's ack_timeout is over; returns the time of the next timeout, 0 for none.

        Confirms go out in order, so publishers before them are told as well.
        """
        waiting = [*self._visible, *self._invisible()]
        overdue = [at for at, batch in enumerate(waiting) if 0 < batch.ack_due_us <= now_us]
        if overdue:
            error = Unavailable("it is not known to be stored within the queue's ack_timeout; it may be later")
            for batch in waiting[: overdue[-1] + 1]:
                batch.give_up(error)
        return min([batch.ack_due_us for batch in waiting if batch.ack_due_us], default=0)

    @property
    def sent_us(self) -> int:
        """The monotonic time when the oldest batch that is not durable was sent; 0 for none."""
        oldest = self._visible[0] if self._visible else self._in_flight
        return 0 if oldest is None else oldest.sent_us

    def update_flow(self) -> None:
        """Decide whether publishers must wait."""
        if self._ended is None:
            self.flow.update(self, self.waiting_bytes + self.batch.size_bytes, self.memory.size_bytes)

    def drain(self) -> None:
        """Store all batches and wait for them, except for a failed batch and those behind it."""
        self.flush()
        while self._in_flight is not None or self._visible or (self._sealed and not self.retry_at_us):
            self._engine.sync()
            self.flush()
        if not (self._is_idle or self.retry_at_us):
            self.drain()

    # -- storing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Deliver ready messages, and send the open batch unless another one is in flight."""
        now_us = self._clock.now_us()
        if self._flush(now_us) and not self._is_idle:
            self.unstored.store_all(self.batch.durable)
            self._commit(self._close(now_us))

    def _flush_scheduled(self) -> None:
        """Flush, but let settlements that nobody waits for stay in the batch until the next publish."""
        now_us = self._clock.now_us()
        if not self._flush(now_us):
            return
        urgency = self._urgency
        if urgency == _NOW:
            self._commit(self._close(now_us))
        elif urgency == _SOON:
            self.held_until_us = self.held_until_us or now_us + HOLD_US

    @property
    def _urgency(self) -> int:
        """The time to store the open batch: _NOW if somebody waits for it, _SOON for settlements, else _NEVER."""
        if not self.batch.can_wait(HOLD_STEPS):
            return _NOW
        if self._is_idle:
            return _NEVER
        return _NOW if self.unstored.has_overdue or self.batch.long_steps else _SOON

    @property
    def _is_idle(self) -> bool:
        """True if there is nothing to store, now or later."""
        return self.unstored.is_empty and self.batch.is_empty

    @property
    def _may_send(self) -> bool:
        """True if the open batch may be sent: none is in flight, and none waits before it."""
        return self._in_flight is None and not self._sealed and not self.retry_at_us

    @property
    def _unsynced(self) -> Batch | None:
        """The last visible batch that is not durable: later publishers are told after its own."""
        return self._visible[-1] if self._visible else None

    def _flush(self, now_us: int) -> bool:
        """Deliver ready messages, and send the oldest closed batch; returns whether the open one may follow."""
        self._scheduled = False
        if self._at_flush:
            calls, self._at_flush = self._at_flush, []
            for call in calls:
                call()
        if self._pumps or self._after_pumps or self.batch.is_for_memory:
            self._deliver(now_us)
        if self._in_flight is not None or now_us < self.retry_at_us:
            return False
        self.retry_at_us = 0
        if self._sealed:
            self._commit(self._sealed.popleft())
        elif self._ended is not None:
            self._close(now_us).refuse(NotFound("the virtual host is deleted"), self._unsynced)
        return self._may_send

    def _deliver(self, now_us: int) -> None:
        pumps, self._pumps = self._pumps, []
        self._round += 1
        statistics = self.statistics
        statistics.begin_round()
        served = 0
        for queue in pumps:
            served += 1
            if not queue.deleted:
                queue.pump(self.batch, now_us)
                if statistics.is_round_over:
                    break
        self._pumped += served
        late = self._put_off(pumps[served:]) if served < len(pumps) else 0
        if self._after_pumps:
            self._call_after_pumps(late)
        if self.batch.is_for_memory:
            self._store_memory(self.batch)

    def _put_off(self, queues: "list[Queue]") -> int:
        """Let these queues deliver first in the next turn; returns how many there are."""
        late = [queue for queue in queues if queue.due != self._round]
        for queue in late:
            queue.due = self._round
        self._pumps = late + self._pumps
        self.open()
        return len(late)

    def _call_after_pumps(self, late: int) -> None:
        """Make the calls that wait for nothing more; `late` queues that were due did not deliver."""
        due, self._after_pumps = self._after_pumps, []
        for awaited, call, until in due:
            until = until or self._pumped + late
            if awaited.due == self._round if awaited is not None else self._pumped < until:
                self._after_pumps.append((awaited, call, until))
            else:
                call()

    def _close(self, now_us: int) -> Batch:
        if self.batch.is_for_memory:  # a transaction that became visible after the last delivery adds to it
            self._store_memory(self.batch)
        batch, self.batch = self.batch, Batch()
        self.held_until_us = 0
        for queue in batch.touched:
            if not queue.deleted:
                queue.trim(batch)
        batch.touched = []
        if self.unstored.store(batch.durable, now_us) and not batch.is_plain:
            self.unstored.store_settled(batch.durable)
        self.waiting_bytes += batch.size_bytes
        return batch

    def _commit(self, batch: Batch) -> None:
        commit = batch.collect()
        self._in_flight = batch
        if batch.before_commit is not None:
            try:
                batch.before_commit(commit)
            except HeadraceError as error:
                self._committed(batch, error)
                return
        if not (commit.appends or batch.is_barrier) and commit.is_empty:
            self._committed(batch, None)
            return
        batch.sent_us = self._clock.monotonic_us()
        is_promise = batch.is_promise
        # No consumer of these queues learns offsets, so it may see messages that are not durable.
        may_deliver = batch.published.deliver_before_sync and batch.moved.deliver_before_sync
        commit.written = self._written if may_deliver and not is_promise and self._ended is None else None
        commit.is_consumed = batch.is_consumed
        try:
            self._engine.commit(commit, lambda error: self._done(batch, error), is_promise or batch.confirms.is_awaited)
        except HeadraceError as error:
            self._committed(batch, error)

    def _written(self) -> None:
        """Let consumers have the batch in flight, which is visible and survives a kill, before it is durable."""
        batch, self._in_flight = self._in_flight, None
        assert batch is not None
        self._visible.append(batch)
        for appends in (batch.published, batch.moved):
            for at, queue in enumerate(appends.queues):
                queue.unsynced_from(appends.appends[at].base)
        if batch.published.is_counted:
            batch.published.unstage()
        now_us = self._clock.now_us()
        self._use(batch, now_us)
        self._deliver(now_us)
        urgency = self._urgency
        if self._sealed or urgency == _NOW:
            self.open()
        elif urgency == _SOON:
            self.held_until_us = self.held_until_us or now_us + HOLD_US

    def _done(self, batch: Batch, error: HeadraceError | None) -> None:
        """Confirm a visible batch that is durable now, or end the batch in flight."""
        if batch is self._in_flight:
            self._committed(batch, error)
            return
        self._visible.popleft()  # an error is the end of the engine
        self.waiting_bytes -= batch.size_bytes
        for appends in (batch.published, batch.moved):
            for at, queue in enumerate(appends.queues):
                append = appends.appends[at]
                queue.synced_to(append.base + append.count)
                if not queue.deliver_before_sync:  # a consumer came that had to wait for this
                    self.pump_soon(queue)
        self.statistics.commits.add(self._clock.monotonic_us() - batch.sent_us)
        batch.confirms.tell(error)
        self.update_flow()

    def _committed(self, batch: Batch, error: HeadraceError | None) -> None:
        """End the batch in flight: it is visible and as durable as somebody wants, or it failed."""
        self._in_flight = None
        self.waiting_bytes -= batch.size_bytes
        if error is None:
            if batch.sent_us:
                self.statistics.commits.add(self._clock.monotonic_us() - batch.sent_us)
            self._stored(batch)
        elif batch.done is not None:
            self._abandon(batch, error)
        else:
            self._failed(batch, error)
        if self._sealed or not self._is_idle:
            self.open()
        if self._ended is not None and not self._sealed:
            self._ended()
            self.flow.forget(self)
            return
        self.update_flow()

    def _stored(self, batch: Batch) -> None:
        for name in batch.durable.drops:
            self.on_dropped(name)
        if batch.done is not None and batch.is_for_memory:
            self._store_memory(batch)
        batch.published.unstage()
        batch.tell(None, self._unsynced)
        if batch.done is not None:
            batch.done(None)
        now_us = self._clock.now_us()
        self._use(batch, now_us)
        if self._pumps and batch.durable.is_consumed:
            self.open()
        elif self._pumps:  # nobody waits for it: a turn less
            self._deliver(now_us)

    def _use(self, batch: Batch, now_us: int) -> None:
        """Tell queues and callers that the messages of a batch are in the logs."""
        self._appended(batch.published, now_us)
        moved = batch.moved
        if moved.queues:
            for at, queue in enumerate(moved.queues):
                if moved.appends[at].origin is not None:
                    queue.unstaged(moved.appends[at])
            self._appended(moved, now_us)
        if batch.used:
            batch.tell_used()
        if batch.entered:
            batch.tell_entered()

    def _appended(self, appends: Appends, now_us: int) -> None:
        """Tell the queues that their messages are in the logs."""
        for at, queue in enumerate(appends.queues):
            if queue.deleted:
                continue
            append = appends.appends[at]
            if append.encoded is None:
                self.statistics.stored += append.count
                queue.appended(self.batch, append.messages, now_us)
            else:
                entered_rows(queue, self.batch, append.encoded, now_us)
            self._add_due(queue)

    def _store_memory(self, batch: Batch) -> None:
        """Store the part of a batch for queues in memory, and the dead letters that follow: no disk is waited for."""
        while batch.is_for_memory:
            stored = self.memory.store(batch)
            now_us = self._clock.now_us()
            for appends in stored:
                self._appended(appends, now_us)
            if stored:
                self.open()
        self.update_flow()

    # -- failing -----------------------------------------------------------------------------------------------------

    def _failed(self, batch: Batch, error: HeadraceError) -> None:
        """Refuse the messages of clients; try settlements and moved messages again."""
        batch.failures += 1
        self._hold(error)
        held_up = batch.failures > 1
        if isinstance(error, Corrupt):
            self._cut_damage(batch)
        batch.refuse(error, self._unsynced)
        if batch.durable.is_empty and not batch.moved.queues:
            batch.tell_used()
            return
        if isinstance(error, Fatal):
            return  # nothing can be stored any more; the owner of the engine stops
        if held_up and isinstance(error, Refused):
            _log.error("settlements and dead letters are lost, storage does not take them: %s", error)
            batch.tell_used()
            return
        self._sealed.appendleft(batch)
        if held_up:
            self.retry_at_us = self._clock.now_us() + _RETRY_US
            self._refuse_waiting(error)

    def _hold(self, error: HeadraceError) -> None:
        """Hold publishers while storage takes nothing, so that those without confirms lose little."""
        if isinstance(error, Unavailable):
            self.flow.hold(self, True)
            self.release_at_us = self._clock.now_us() + _RETRY_US

    def _refuse_waiting(self, error: HeadraceError) -> None:
        """Refuse the messages of all batches behind one that cannot be stored."""
        waiting, self._sealed = self._sealed, deque()
        for batch in waiting:
            self.waiting_bytes -= batch.size_bytes
            if batch.done is not None:
                self._abandon(batch, error)
            else:
                batch.refuse(error, self._unsynced)
                self._sealed.append(batch)
        self.batch.refuse(error, self._unsynced)

    def _abandon(self, batch: Batch, error: HeadraceError) -> None:
        """End a transaction that cannot be stored: nothing of it happens."""
        self._hold(error)
        if isinstance(error, Corrupt):
            self._cut_damage(batch)
        done = batch.done
        batch.refuse(error, self._unsynced)
        if done is not None:
            done(error)

    def _cut_damage(self, batch: Batch) -> None:
        """Find damaged logs, refuse their queues and leave them out of the batch."""
        names = {step.log for step in batch.durable.steps} | set(batch.durable.truncations)
        names |= {append.log for append in batch.durable.appends}
        names |= {append.origin.log for append in batch.durable.appends if append.origin is not None}
        for name in sorted(names):
            log = self._engine.log(name)
            try:
                log.read(log.first_offset, 1)
            except Corrupt as error:
                self.on_damage(name, error)
                batch.forget_log(batch.durable, name)


def _nothing(*_: object) -> None:
    return


AT_ONCE: Final = 100
"""Queues or sessions handled in one step of long work: one takes up to 0.1 ms."""


def together(steps: Iterator[None]) -> Iterator[None]:
    """Do the work in larger steps, each of a hundred."""
    for number, _ in enumerate(steps, 1):
        if number % AT_ONCE == 0:
            yield


def take_steps(pipeline: CommitPipeline, steps: Iterator[None], ended: Callable[[], None] | None = None) -> None:
    """Take the first step now, and one more in each batch with room; `ended` is called after the last."""
    for _ in steps:
        pipeline.batch.long_steps += 1
        pipeline.at_flush(lambda: _go_on(pipeline, steps, ended))
        return
    if ended is not None:
        ended()


def _go_on(pipeline: CommitPipeline, steps: Iterator[None], ended: Callable[[], None] | None) -> None:
    if pipeline.is_full:
        pipeline.batch.used.append(lambda: _go_on(pipeline, steps, ended))
    else:
        take_steps(pipeline, steps, ended)

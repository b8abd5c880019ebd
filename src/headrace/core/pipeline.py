"""Turns on their way into storage, one at a time, in order, and the logs that only memory holds. No queue's rules.

A turn is committed when the one before it is safe; what is staged meanwhile becomes the next. So a turn that failed is
tried again before anything that came later, and storage sees every step in the order in which it was made.
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
    """What is in them, and how much that is."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.size_bytes = 0
        self._sizes: dict[Queue, int] = {}

    def store(self, batch: Batch) -> list[Appends] | None:
        """Store the part of a batch that is for memory; returns what was appended, None if nothing was stored."""
        touched, batch.touched_in_memory = batch.touched_in_memory, []
        for queue in touched:
            queue.touched = 0
            if not queue.deleted:
                queue.trim(batch)
        if batch.memory.is_empty and not (batch.transient or batch.moved_in_memory):
            return None
        commit, stored = batch.collect_memory()
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
        """The queue is gone, and with it what it held."""
        self.size_bytes -= self._sizes.pop(queue, 0)

    def _commit(self, commit: Commit) -> None:
        self.engine.commit(commit, _no_error)
        self.engine.sync()


def _no_error(error: HeadraceError | None) -> None:
    if error is not None:
        raise error


_log: Final = logging.getLogger("headrace.core")
_RETRY_US: Final = 1_000_000
HOLD_US: Final = 20_000
"""How long settlements wait for a commit to ride in: at 1000 messages a second, each published and acknowledged by
itself, a message cost the server 410 to 423 us of CPU with commits of their own for them, and 260 to 290 us without."""
HOLD_STEPS: Final = 1000
LONG_STEPS: Final = 4
"""How many steps of long work are stored together: what storage does for some thousand messages takes 5 ms."""

Schedule = Callable[[Callable[[], None]], None]
"""Have something called soon, in the thread that owns the broker, never at once."""


@final
class CommitPipeline:
    """The turn that is open, the one that is being stored, and those in between."""

    def __init__(self, engine: Engine, clock: Clock, schedule: Schedule, flow: Flow) -> None:
        self._engine = engine
        self.memory = MemoryLogs()
        self._clock = clock
        self._schedule = schedule
        self.flow = flow
        self.statistics = Statistics()
        self.given = UnstoredClaims()
        self.on_dropped: Callable[[str], None] = _nothing
        """Called with the name of a durable log that is gone now."""
        self.on_damage: Callable[[str, Corrupt], None] = _nothing
        """Called with the name of a durable log that turned out to be damaged."""
        self.batch = Batch()
        self.waiting_bytes = 0
        """Payload bytes in turns that are closed and not stored yet."""
        self._sealed: deque[Batch] = deque()
        self._in_flight: Batch | None = None
        self._ahead: deque[Batch] = deque()
        """Those that are written and in use, whose publishers hear of it when they are synced."""
        self._pumps: list[Queue] = []
        """Those that are due; each knows of which round it is."""
        self._round = 1
        self._after_pumps: list[tuple[Queue | None, Callable[[], None]]] = []
        self._at_flush: list[Callable[[], None]] = []
        self._scheduled = False
        self._ended: Callable[[], None] | None = None
        """Set when nothing that comes from now on is stored."""
        self.release_at_us = 0
        """When publishers may try again after storage took nothing; 0 when they need not wait for that."""
        self.retry_at_us = 0
        """When to try again what could not be stored; 0 when nothing waits for that."""
        self.held_until_us = 0
        """When settlements are stored even if nothing else is; 0 when none wait."""

    def open(self) -> Batch:
        """The turn that the present call belongs to; it is stored soon."""
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self._flush_scheduled)
        return self.batch

    def at_flush(self, call: Callable[[], None]) -> None:
        """Have something called when this turn is flushed, before anything else is done for it."""
        self._at_flush.append(call)
        self.open()

    @property
    def is_full(self) -> bool:
        """Whether there is so much in this turn, while another is being stored, that long work should wait for that."""
        return self._in_flight is not None and self.batch.long_steps >= LONG_STEPS

    def pump_soon(self, queue: "Queue") -> None:
        """Have the queue deliver in this turn."""
        self._add_due(queue)
        self.open()

    def _add_due(self, queue: "Queue") -> None:
        if queue.due != self._round:
            queue.due = self._round
            self._pumps.append(queue)

    def settled(self) -> None:
        """Something was settled and there is nothing to deliver for it: a turn that is held back stays so."""
        if not self.held_until_us or len(self.batch.durable.steps) > HOLD_STEPS:
            self.open()

    def after_pumps(self, queue: "Queue | None", call: Callable[[], None]) -> None:
        """Have this called after all queues that are due delivered; in a later turn if this queue has to look on."""
        self._after_pumps.append((queue, call))
        self.open()

    def seal(self) -> None:
        """Whatever follows is stored after what is staged now, not together with it."""
        if not self.batch.is_empty:
            self._store_memory(self.batch)
            self._sealed.append(self._close())
        self.open()

    def drop_first(self, log: str, key: bytes) -> None:
        """Have a log that this turn drops be gone before the turn: a commit drops last, and the name is used again."""
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
        """Have `confirm` told how the last turn with a promise in it ends; False when none is on its way."""
        waiting = [self.batch, *reversed(self._sealed), *([] if self._in_flight is None else [self._in_flight])]
        for batch in waiting:
            if batch.is_promised:
                batch.confirms.add(confirm)
                return True
        return False

    def when_entered(self, call: Callable[[], None]) -> bool:
        """Have this called once all that was published so far is in its queues, or did not come to, and was offered to
        their consumers; False, and no call, when none is on its way."""
        waiting = [self.batch, *reversed(self._sealed), *([] if self._in_flight is None else [self._in_flight])]
        for batch in waiting:
            if batch.published or batch.transient:
                batch.entered.append(lambda: self.after_pumps(None, call))
                return True
        return False

    def append(self, batch: Batch) -> None:
        """Store this turn by itself, after what is staged now."""
        self.seal()
        self.waiting_bytes += batch.size_bytes
        self._sealed.append(batch)

    def staged_keys(self) -> "list[tuple[str, bytes]]":
        """Where keyed state is about to change, and storage may not show it yet."""
        turns = [self.batch, *self._sealed, *([] if self._in_flight is None else [self._in_flight])]
        return [place for batch in turns for place in batch.durable.puts]

    def end(self, ended: Callable[[], None]) -> None:
        """Store what is staged now and then nothing more, whoever asks for it; `ended` is called when it is stored."""
        self.seal()
        self._ended = ended

    def forget(self, queue: "Queue") -> None:
        """The queue is gone: nothing of what is staged for it matters any more."""
        self.batch.forget_queue(queue)
        self.memory.forget(queue)

    def retry(self, now_us: int) -> None:
        """Try again what could not be stored, and store what was held back, if it is time."""
        if (self.retry_at_us and now_us >= self.retry_at_us) or (self.held_until_us and now_us >= self.held_until_us):
            self.flush()
        if self.release_at_us and now_us >= self.release_at_us:
            self.release_at_us = 0
            self.flow.hold(self, False)
            self.look()

    def give_up(self, now_us: int) -> int:
        """Tell publishers that waited as long as their queues say; returns when the next have, 0 for when none wait.

        Publishers hear in the order in which they published, so those before them hear it as well.
        """
        waiting = [*self._ahead, *([] if self._in_flight is None else [self._in_flight]), *self._sealed, self.batch]
        overdue = [at for at, batch in enumerate(waiting) if 0 < batch.ack_due_us <= now_us]
        if overdue:
            error = Unavailable("it is not known to be stored within the queue's ack_timeout; it may be later")
            for batch in waiting[: overdue[-1] + 1]:
                batch.give_up(error)
        return min([batch.ack_due_us for batch in waiting if batch.ack_due_us], default=0)

    @property
    def sent_us(self) -> int:
        """When the oldest commit was sent that is not known to be stored, by the monotonic clock; 0 for none."""
        oldest = self._ahead[0] if self._ahead else self._in_flight
        return 0 if oldest is None else oldest.sent_us

    def look(self) -> None:
        """See whether publishers must wait."""
        if self._ended is None:
            self.flow.look(self, self.waiting_bytes + self.batch.size_bytes, self.memory.size_bytes)

    def drain(self) -> None:
        """Store everything that is staged and wait for it, except what cannot be stored now."""
        self.flush()
        while self._in_flight is not None or self._ahead or (self._sealed and not self.retry_at_us):
            self._engine.sync()
            self.flush()
        if not (self._is_idle or self.retry_at_us):
            self.drain()

    # -- storing -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Deliver what is ready and store what is staged, as far as what came before is stored."""
        self._flush(self._clock.now_us())
        if self._may_commit() and not self._is_idle:
            self.given.store_all(self.batch.durable)
            self._commit(self._close())

    def _flush_scheduled(self) -> None:
        """The same, but settlements that nobody waits for stay for a while: the next publish takes them along."""
        now_us = self._clock.now_us()
        self._flush(now_us)
        if self._may_commit() and not (self._is_idle or self._hold_back(now_us)):
            self._commit(self._close())

    def _hold_back(self, now_us: int) -> bool:
        """Whether the turn stays open because nobody waits for what is in it."""
        if self.given.has_overdue or self.batch.long_steps or not self.batch.can_wait(HOLD_STEPS):
            return False
        self.held_until_us = self.held_until_us or now_us + HOLD_US
        return True

    @property
    def _is_idle(self) -> bool:
        """Whether there is nothing to store, nor will be because time passes."""
        return self.batch.is_empty and self.given.is_empty

    @property
    def _unsynced(self) -> Batch | None:
        """The last turn that runs ahead of its sync: later publishers are told after its own."""
        return self._ahead[-1] if self._ahead else None

    def _may_commit(self) -> bool:
        return self._in_flight is None and not self._sealed and not self.retry_at_us

    def _flush(self, now_us: int) -> None:
        """Deliver what is ready, and store the oldest turn that is closed."""
        self._scheduled = False
        if self._at_flush:
            calls, self._at_flush = self._at_flush, []
            for call in calls:
                call()
        self._deliver(now_us)
        if self._in_flight is not None or now_us < self.retry_at_us:
            return
        self.retry_at_us = 0
        if self._sealed:
            self._commit(self._sealed.popleft())
        elif self._ended is not None:
            self._close().refuse(NotFound("the virtual host is deleted"), self._unsynced)

    def _deliver(self, now_us: int) -> None:
        pumps, self._pumps = self._pumps, []
        self._round += 1
        for queue in pumps:
            if not queue.deleted:
                queue.pump(self.batch, now_us)
        if self._after_pumps:
            due, self._after_pumps = self._after_pumps, []
            for awaited, call in due:
                if awaited is not None and awaited.due == self._round:
                    self._after_pumps.append((awaited, call))
                else:
                    call()
        self._store_memory(self.batch)

    def _close(self) -> Batch:
        batch, self.batch = self.batch, Batch()
        self.held_until_us = 0
        for queue in batch.touched:
            if not queue.deleted:
                queue.trim(batch)
        batch.touched = []
        if not self.given.is_empty:
            self.given.store(batch.durable, self._clock.now_us())
            if not batch.is_plain:
                self.given.store_settled(batch.durable)
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
        if commit.is_empty and not batch.is_barrier:
            self._committed(batch, None)
            return
        batch.sent_us = self._clock.monotonic_us()
        commit.applied = (lambda: self._written(batch)) if self._ended is None and batch.deliver_before_sync else None
        try:
            self._engine.commit(commit, lambda error: self._committed(batch, error), batch.is_awaited)
        except HeadraceError as error:
            self._committed(batch, error)

    def _written(self, batch: Batch) -> None:
        """A turn can be used, and would survive a kill; it is confirmed when it would survive a power loss too."""
        self._in_flight = None
        self._ahead.append(batch)
        for appends in (batch.published, batch.moved):
            for at, queue in enumerate(appends.queues):
                queue.unsynced_from(appends.appends[at].base)
        batch.published.unstage()
        now_us = self._clock.now_us()
        self._use(batch, now_us)
        self._deliver(now_us)
        if self._sealed or not (self._is_idle or self._hold_back(now_us)):
            self.open()

    def _synced(self, batch: Batch, error: HeadraceError | None) -> None:
        """A turn that is in use already would survive a power loss now. An error is the end of the engine."""
        self._ahead.popleft()
        self.waiting_bytes -= batch.size_bytes
        for appends in (batch.published, batch.moved):
            for at, queue in enumerate(appends.queues):
                append = appends.appends[at]
                queue.synced_to(append.base + append.count)
                if not queue.deliver_before_sync:  # a consumer came that had to wait for this
                    self.pump_soon(queue)
        self.statistics.commits.add(self._clock.monotonic_us() - batch.sent_us)
        batch.confirms.tell(error)
        self.look()

    def _committed(self, batch: Batch, error: HeadraceError | None) -> None:
        batch.durable.applied = None  # it holds the turn, and so all messages until the garbage collector comes
        if self._ahead and self._ahead[0] is batch:
            self._synced(batch, error)
            return
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
        self.look()

    def _stored(self, batch: Batch) -> None:
        for name in batch.durable.drops:
            self.on_dropped(name)
        if batch.done is not None:
            self._store_memory(batch)
        batch.published.unstage()
        batch.tell(None, self._unsynced)
        if batch.done is not None:
            batch.done(None)
        self._use(batch, self._clock.now_us())
        if self._pumps:
            self.open()

    def _use(self, batch: Batch, now_us: int) -> None:
        """What the turn brought is in the logs, to be delivered."""
        self._appended(batch.published, now_us)
        moved = batch.moved
        for at, queue in enumerate(moved.queues):
            if moved.appends[at].origin is not None:
                queue.unstaged(moved.appends[at])
        self._appended(moved, now_us)
        batch.tell_used()
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
        """What only memory holds waits for no disk, nor does what that pushes out into other queues there."""
        stored = self.memory.store(batch)
        if stored is None:
            return
        while stored is not None:
            now_us = self._clock.now_us()
            for appends in stored:
                self._appended(appends, now_us)
            if stored:
                self.open()
            stored = self.memory.store(batch)
        self.look()

    # -- failing -----------------------------------------------------------------------------------------------------

    def _failed(self, batch: Batch, error: HeadraceError) -> None:
        """What clients published is refused; what was settled or moved must not be forgotten, and is tried again."""
        batch.failures += 1
        self._hold(error)
        held_up = batch.failures > 1
        if isinstance(error, Corrupt):
            self._cut_damage(batch)
        batch.refuse(error, self._unsynced)
        if batch.durable.is_empty and not batch.moved:
            batch.tell_used()
            return
        if isinstance(error, Fatal):
            return  # nothing can be stored any more; whoever owns the engine stops
        if held_up and isinstance(error, Refused):
            _log.error("settlements and dead letters are lost, storage does not take them: %s", error)
            batch.tell_used()
            return
        self._sealed.appendleft(batch)
        if held_up:
            self.retry_at_us = self._clock.now_us() + _RETRY_US
            self._refuse_waiting(error)

    def _hold(self, error: HeadraceError) -> None:
        """Storage takes nothing now: who does not wait for confirms should hear of it before much is lost."""
        if isinstance(error, Unavailable):
            self.flow.hold(self, True)
            self.release_at_us = self._clock.now_us() + _RETRY_US

    def _refuse_waiting(self, error: HeadraceError) -> None:
        """Publishers behind a turn that cannot be stored need not wait to hear the same."""
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
        """A transaction that cannot be stored did not happen."""
        self._hold(error)
        if isinstance(error, Corrupt):
            self._cut_damage(batch)
        done = batch.done
        batch.refuse(error, self._unsynced)
        if done is not None:
            done(error)

    def _cut_damage(self, batch: Batch) -> None:
        """Find the logs that are damaged, have their queues refused, and leave them out."""
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
"""How many queues or sessions are seen to, or go, in one turn: with all that hangs on it, one takes up to 0.1 ms."""


def together(steps: Iterator[None]) -> Iterator[None]:
    """The same work in larger steps, each of a hundred."""
    for number, _ in enumerate(steps, 1):
        if number % AT_ONCE == 0:
            yield


def take_steps(pipeline: CommitPipeline, steps: Iterator[None], ended: Callable[[], None] | None = None) -> None:
    """Do the first step now, and one more in each turn that has room for it; `ended` is called after the last."""
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

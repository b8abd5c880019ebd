"""The queues of one virtual host: declared, restored, found, deleted, owned, woken in time. No routing."""

import heapq
import json
import logging
import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Final, final

from headrace.clock import Clock
from headrace.config.settings import QueueManagerSettings
from headrace.core.batch import Batch
from headrace.core.feeds.assigner import Assigner, check_source
from headrace.core.parameters import MAX_QUEUES, Parameters
from headrace.core.pipeline import AT_ONCE, CommitPipeline, take_steps
from headrace.core.queue.dead_letters import DeadLetters
from headrace.core.queue.definition import (
    EPHEMERAL,
    HISTORY_PREFIX,
    INNER_PREFIXES,
    MAX_NAME_BYTES,
    STREAM,
    QueueDefinition,
    Retention,
)
from headrace.core.queue.entry import run_due, try_again
from headrace.core.queue.group import Death, Group, Pauses
from headrace.core.queue.publishers import Publishers
from headrace.core.queue.queue import EmptyLog, Queue, QueueHost
from headrace.core.queue.stream import StreamGroup
from headrace.core.queue.work import WorkGroup
from headrace.core.routing.address import dead_letter_origin
from headrace.core.routing.topology import Topology, scoped, unscoped
from headrace.errors import AccessRefused, Corrupt, NotFound, PreconditionFailed, Refused, ResourceLocked, Unavailable
from headrace.model import Message
from headrace.names import check_filter
from headrace.storage.api import QUEUES, Engine, Items
from headrace.storage.group_state import WORK, GroupState

_SLACK: Final = 64


@final
class Timers:
    """Queues by the time at which their due work runs.

    A queue knows the one time that counts, `wake_us`, and asks anew when that has come. Entries with another time, or
    of deleted queues, are stale: they are swept out before they outnumber the others.
    """

    __slots__ = ("_count", "_due", "_stale")

    def __init__(self) -> None:
        self._due: list[tuple[int, int, Queue]] = []
        self._count = 0
        self._stale = 0
        """Number of stale entries."""

    def add(self, queue: Queue, time_us: int) -> None:
        """Wake the queue then, instead of at the time it asked for before."""
        if queue.deleted:
            return
        self.forget(queue)
        queue.wake_us = time_us
        self._count += 1
        heapq.heappush(self._due, (time_us, self._count, queue))

    def forget(self, queue: Queue) -> None:
        """Wake the queue no more."""
        if queue.wake_us:
            queue.wake_us = 0
            self._stale += 1
            if self._stale > len(self._due) // 2 + _SLACK:
                self._due = [entry for entry in self._due if entry[0] == entry[2].wake_us]
                heapq.heapify(self._due)
                self._stale = 0

    def take(self, now_us: int, most: int) -> list[Queue]:
        """Remove up to `most` queues whose time has come; returns them, the earliest first."""
        found: list[Queue] = []
        while self._due and self._due[0][0] <= now_us and len(found) < most:
            time_us, _, queue = heapq.heappop(self._due)
            if time_us == queue.wake_us:
                queue.wake_us = 0
                found.append(queue)
            elif self._stale:
                self._stale -= 1
        return found

    @property
    def next_us(self) -> int:
        """The next time; 0 for never."""
        return self._due[0][0] if self._due else 0


_log: Final = logging.getLogger("headrace.core")

_LOGS_AT_ONCE: Final = 1000
LANDING_QUEUE: Final = "mqtt"
GENERATED_PREFIX: Final = "amq.gen-"
RESERVED_PREFIX: Final = "amq."


@final
class Queues(QueueHost):
    """Every queue of one virtual host, from its declaration to its end."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        pipeline: CommitPipeline,
        topology: Topology,
        replication_group: str,
        parameters: Parameters,
        items: Items,
    ) -> None:
        self._engine = engine
        self._parameters = parameters
        self._clock = clock
        self._pipeline = pipeline
        self.statistics = pipeline.statistics
        self.auto_commit_us = QueueManagerSettings().auto_commit_interval * 1000
        self.topology = topology
        self._host = topology.host
        self._replication_group = replication_group
        self._unstored = None if engine.keeps_claims else pipeline.unstored
        self.timers = Timers()
        self.pauses = Pauses(items)
        self.publishers = Publishers(items, partial(scoped, topology.host), partial(unscoped, topology.host))
        self.dead_letters = DeadLetters(self, pipeline, clock)
        self.assigner = Assigner(topology, pipeline, clock)
        self._owned: dict[object, dict[Queue, None]] = {}
        self._dropping: dict[str, int] = {}
        """Durable logs that are being dropped, and how many drops are on their way."""
        self._any_declared = False
        self._is_running_due = False
        """True while due work of many queues is done in steps."""
        self._inner: dict[str, Queue] = {}
        """The broker's own queues, which no client can name."""
        pipeline.on_dropped = self._dropped
        pipeline.on_damage = self._damaged
        self._load(items)

    def now_us(self) -> int:
        return self._clock.now_us()

    # -- declaring ---------------------------------------------------------------------------------------------------

    def declare(self, definition: QueueDefinition, owner: object = None, passive: bool = False) -> Queue:
        """Return a queue as defined; an empty name gets one from the server. Passive only asks whether it exists.

        Raises NotFound (passive), PreconditionFailed when it exists and differs, ResourceLocked when another
        connection has it for itself, AccessRefused for names the server keeps, Refused for another replication group,
        NotFound and PreconditionFailed for a bad source.
        """
        name, group = definition.name, definition.replication_group
        if group and group != self._replication_group:
            raise Refused(
                f"queue '{name}' is to be in the replication group '{group}', and this broker serves "
                f"'{self._replication_group}'; declare it at a broker of that group"
            )
        existing = self.topology.queues.get(name)
        if existing is not None and existing.is_leaving:
            self.drop(existing)
            existing = None
        if existing is not None:
            self.check_owner(existing, owner)
            if not passive:
                if definition.exclusive != existing.definition.exclusive:
                    raise _locked(existing, self._host)
                existing.declared.check_equivalent(definition, self._host)
                existing.touch(self._clock.now_us())
            return existing
        if passive:
            raise NotFound(f"no queue '{name}' in vhost '{self._host}'")
        if not name:
            definition = replace(definition, name=generated_name())
        else:
            check_new_name(name)
        self._check_room(definition.name)
        queue = self.create(self._pipeline.open(), definition)
        if definition.exclusive:
            queue.owner = owner
            self._owned.setdefault(owner, {})[queue] = None
        return queue

    def _check_room(self, name: str) -> None:
        """Raises PreconditionFailed if the virtual host may have no more queues."""
        limit = self._parameters.limits.get(MAX_QUEUES)
        if limit is not None and len(self.topology.queues) >= limit:
            raise PreconditionFailed(
                f"cannot declare queue '{name}': queue limit in vhost '{self._host}' ({limit}) is reached"
            )

    def alter(self, queue: Queue, definition: QueueDefinition, is_start: bool) -> None:
        """Change the definition of a queue: see Queue.alter. Policies go on counting."""
        batch, governed = self._pipeline.open(), self.governed(definition)
        before = queue.definition.source
        if definition.source != before:
            check_source(definition, self._definition)
        self.topology.alter(queue, lambda: queue.alter(batch, governed, is_start, self._clock.now_us(), definition))
        if definition.source != before:
            self.assigner.unfollow(batch, queue)
            if definition.source:
                self.assigner.follow(batch, queue)
        if definition.is_stored:
            self._store(batch, definition)
        if is_start:
            self.pauses.restore(queue)

    def governed(self, declared: QueueDefinition) -> QueueDefinition:
        """Return the definition that counts for a queue declared like this: with the settings of policies."""
        return self._parameters.policies.govern(declared)

    def govern_all(self) -> Iterator[None]:
        """Apply changed policies to all queues, in steps; queues that are made meanwhile have them already."""
        for queue in list(self.topology.queues.values()):
            self._govern(queue)
            yield

    def _govern(self, queue: Queue) -> None:
        governed, before = self.governed(queue.declared), queue.definition
        if queue.is_gone or governed == before:
            return
        now_us = self._clock.now_us()
        try:
            queue.alter(self._pipeline.open(), governed, False, now_us, queue.declared)
        except Corrupt as error:
            queue.refuse(error)
        except Unavailable:
            try_again(queue, now_us)
        if governed.lifetime_ms != before.lifetime_ms:
            queue.touch(now_us)
        self._pipeline.pump_soon(queue)

    def _store(self, batch: Batch, definition: QueueDefinition) -> None:
        value = json.dumps(definition.to_json(), ensure_ascii=False, separators=(",", ":")).encode()
        batch.define(QUEUES, scoped(self._host, definition.name).encode(), value)

    def create(self, batch: Batch, definition: QueueDefinition) -> Queue:
        """Make a new queue. Raises Refused when its patterns or its filter make no sense."""
        for pattern in definition.topics:
            check_filter(pattern)
        check_source(definition, self._definition)
        log = scoped(self._host, definition.name)
        self._pipeline.drop_first(log, log.encode())
        queue = self._build(definition)
        if definition.is_stored:
            self._store(batch, definition)
        if definition.source:
            self.assigner.follow(batch, queue)
        if definition.is_stream:
            self.assigner.appeared(batch, queue)
        return queue

    def _definition(self, name: str) -> QueueDefinition | None:
        queue = self.topology.queues.get(name)
        return queue.declared if queue is not None else None

    def open_inner(self, definition: QueueDefinition) -> Queue:
        """Return a queue of the broker's own, new if need be. Its log is stored, its definition is not."""
        queue = self._inner.get(definition.name)
        if queue is None:
            log = scoped(self._host, definition.name)
            self._pipeline.drop_first(log, log.encode())
            queue = self._inner[definition.name] = self._open(definition)
        return queue

    def _build(self, definition: QueueDefinition) -> Queue:
        queue = self._open(definition)
        self.topology.add(queue)
        if not (definition.reserved or definition.exclusive or definition.kind == EPHEMERAL):
            self._any_declared = True
        return queue

    def _open(self, definition: QueueDefinition) -> Queue:
        name = scoped(self._host, definition.name)
        if not definition.is_stored:
            log = self._pipeline.memory.engine.log(name)
        else:
            log = EmptyLog(name) if name in self._dropping else self._engine.log(name)
        queue = Queue(self, self.governed(definition), log, self._clock.now_us(), definition)
        if queue.refusal is not None:
            self.refused(queue)
        self.pauses.restore(queue)
        return queue

    def landing(self, topic: str) -> Queue:
        """Return the queue for an address that no queue matches.

        That is the landing queue as long as no queue was ever declared, then a new ephemeral one. Raises Refused when
        the address names no queue.
        """
        name = self.topology.name_for(topic)
        if dead_letter_origin(name):
            return self.addressed(name)
        landing = self.topology.queues.get(LANDING_QUEUE)
        if self._any_declared or (landing is not None and not landing.definition.reserved):
            return self.create(self._pipeline.open(), QueueDefinition(name, EPHEMERAL, durable=False))
        if landing is None:
            landing = self.create(self._pipeline.open(), QueueDefinition(LANDING_QUEUE, reserved=True))
        return landing

    def addressed(self, name: str) -> Queue:
        """Return the queue that an address names; an ephemeral one is made where there is none.

        A queue of dead letters is made as the first of them would make it. Raises NotFound for letters of no queue.
        """
        existing = self.topology.queues.get(name)
        if existing is not None:
            return existing
        origin = dead_letter_origin(name)
        if not origin:
            return self.declare(QueueDefinition(name, EPHEMERAL, durable=False))
        definition = self.topology.queue(origin).definition
        if definition.dead_letter_queue != name:
            raise NotFound(f"queue '{origin}' does not keep its dead letters in '{name}'")
        return self.declare(QueueDefinition(name, durable=definition.is_stored))

    def _load(self, items: Items) -> None:
        for key, value in items(QUEUES):
            if unscoped(self._host, key.decode()) is not None:
                self._build(QueueDefinition.from_json(json.loads(value)))
        self.assigner.load()

    # -- finding -----------------------------------------------------------------------------------------------------

    def find(self, name: str, owner: object = None) -> Queue:
        """Return a queue by name. Raises NotFound, ResourceLocked."""
        queue = self.topology.queue(name)
        if queue.is_leaving:
            self.drop(queue)
            queue = self.topology.queue(name)
        self.check_owner(queue, owner)
        return queue

    def usable(self, name: str, owner: object = None) -> Queue:
        """Return a queue by name that is not damaged. Raises NotFound, ResourceLocked, Corrupt."""
        queue = self.find(name, owner)
        if queue.refusal is not None:
            raise queue.refusal
        return queue

    def check_owner(self, queue: Queue, owner: object) -> None:
        """Raises ResourceLocked when another connection has the queue for itself."""
        if queue.definition.exclusive and queue.owner is not owner:
            raise _locked(queue, self._host)

    # -- ending ------------------------------------------------------------------------------------------------------

    def delete(self, name: str, if_unused: bool, if_empty: bool, owner: object) -> int:
        """Remove a queue; returns how many messages waited. Raises NotFound, PreconditionFailed, ResourceLocked."""
        queue = self.find(name, owner)
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{name}' in vhost '{self._host}' in use")
        if if_empty and queue.total:
            raise PreconditionFailed(f"queue '{name}' in vhost '{self._host}' not empty")
        count = queue.messages
        self.drop(queue)
        return count

    def hoarder(self) -> tuple[object, int]:
        """The owner whose exclusive queues without consumers hold most in memory, and how much that is."""
        found: tuple[object, int] = (None, 0)
        for owner, queues in self._owned.items():
            held = [queue.log.size_bytes for queue in queues if not (queue.durable or queue.has_consumers)]
            if sum(held) > found[1]:
                found = owner, sum(held)
        return found

    def drop(self, queue: Queue) -> None:
        """Remove a queue with its messages, groups, bindings and history; its consumers are told."""
        if queue.deleted:
            return
        queue.deleted = True
        owned = self._owned.get(queue.owner)
        if owned is not None and owned.pop(queue, queue) is None and not owned:
            del self._owned[queue.owner]
        batch = self._pipeline.open()
        self._pipeline.forget(queue)
        if self._inner.get(queue.name) is queue:
            del self._inner[queue.name]
        else:
            self.topology.remove(batch, queue)
        self.assigner.dropped(batch, queue)
        batch.commit_for(queue).drop(queue.log.name)
        for group in queue.groups.values():
            self.pauses.forget(batch, group)
        if queue.durable:
            self._dropping[queue.log.name] = self._dropping.get(queue.log.name, 0) + 1
            batch.define(QUEUES, queue.log.name.encode(), None)
            self.publishers.forget(batch.durable, queue.name)
        history = self.topology.queues.get(HISTORY_PREFIX + queue.name)
        if history is not None:
            self.drop(history)
        queue.send_away()
        queue.let_go()
        self.timers.forget(queue)

    def drop_all(self) -> Iterator[None]:
        """Drop all queues of a virtual host that goes, and logs without a queue, in steps."""
        while self.topology.queues or self._inner:
            yield from self._drop_each([*self.topology.queues.values(), *self._inner.values()])
        for number, log in enumerate(self._engine.logs(), 1):
            if log not in self._dropping and unscoped(self._host, log) is not None:
                self._dropping[log] = 1
                self._pipeline.open().durable.drops.append(log)
            if number % _LOGS_AT_ONCE == 0:
                yield

    def _drop_each(self, queues: list[Queue]) -> Iterator[None]:
        for queue in queues:
            queue.is_leaving = True
        for number, queue in enumerate(queues, 1):
            self.drop(queue)
            if number % AT_ONCE == 0 and number < len(queues):
                yield

    def release_owner(self, owner: object) -> None:
        """Drop the exclusive queues of a connection that is gone."""
        take_steps(self._pipeline, self._drop_each(list(self._owned.pop(owner, {}))))

    def _dropped(self, log: str) -> None:
        """Give a queue that was declared again meanwhile a log of its own: the former one is gone."""
        self._dropping[log] -= 1
        if self._dropping[log]:
            return
        del self._dropping[log]
        queue = self._with_log(log)
        if queue is not None and queue.durable:
            queue.log = self._engine.log(log)

    def _damaged(self, log: str, error: Corrupt) -> None:
        queue = self._with_log(log)
        if queue is not None and queue.refusal is None:
            queue.refuse(error)

    def refused(self, queue: Queue) -> None:
        _log.error("the queue is refused: %s", queue.refusal, extra={"queue": queue.name, "vhost": self._host})

    def _with_log(self, log: str) -> Queue | None:
        name = unscoped(self._host, log)
        return None if name is None else self.topology.queues.get(name) or self._inner.get(name)

    def on_time(self, now_us: int) -> None:
        """Run due work of queues, and go on filling queues from streams."""
        if not self._is_running_due:
            self._is_running_due = True
            take_steps(self._pipeline, self._run_due(now_us))
        self.assigner.on_time(now_us)

    def _run_due(self, now_us: int) -> Iterator[None]:
        try:
            while True:
                due = self.timers.take(now_us, AT_ONCE)
                for queue in due:
                    run_due(queue, self._pipeline.open(), now_us)
                    self._pipeline.pump_soon(queue)
                if len(due) < AT_ONCE:
                    return
                yield
        finally:  # due work runs later too, whatever becomes of this
            self._is_running_due = False

    # -- services for a queue -----------------------------------------------------------------------------------------

    def make_group(self, queue: Queue, state: GroupState, auto_commit: bool) -> Group:
        if state.mode == WORK:
            return WorkGroup(queue, state, self._unstored if queue.durable else None)
        return StreamGroup(queue, state, auto_commit)

    def dead_letter(self, batch: Batch, queue: Queue, message: Message, death: Death) -> None:
        self.dead_letters.move(batch, queue, message, death)

    def history_of(self, batch: Batch, queue: Queue) -> Queue:
        name = HISTORY_PREFIX + queue.name
        existing = self.topology.queues.get(name)
        if existing is not None:
            return existing
        retention = Retention(max_age_ms=queue.definition.history_ms)
        return self.create(batch, QueueDefinition(name, STREAM, queue.durable, retention=retention))

    def wake_at(self, queue: Queue, time_us: int) -> None:
        self.timers.add(queue, time_us)

    def pump_soon(self, queue: Queue) -> None:
        self._pipeline.pump_soon(queue)

    def grew(self, queue: Queue) -> None:
        self.assigner.grew(queue)

    def has_room(self, queue: Queue) -> None:
        self.assigner.has_room(queue)


def generated_name() -> str:
    """Return a name for a queue whose client left the name to the server."""
    return GENERATED_PREFIX + secrets.token_urlsafe(16)


def _locked(queue: Queue, host: str) -> ResourceLocked:
    return ResourceLocked(
        f"cannot obtain exclusive access to locked queue '{queue.name}' in vhost '{host}'. It could be originally "
        "declared on another connection or the exclusive property value does not match that of the original "
        "declaration."
    )


def check_new_name(name: str) -> None:
    """Raise AccessRefused or Refused for a name that no new queue may have."""
    if name.startswith(RESERVED_PREFIX):
        raise AccessRefused(f"queue name '{name}' contains reserved prefix '{RESERVED_PREFIX}*'")
    if name.startswith(INNER_PREFIXES):
        raise AccessRefused(f"queue name '{name}' is kept for sessions: it must not begin with {INNER_PREFIXES}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = MAX_NAME_BYTES + 1
    if size > MAX_NAME_BYTES or "\0" in name:
        raise PreconditionFailed(
            f"queue name {name[:64]!r} must have at most {MAX_NAME_BYTES} bytes of UTF-8 and no U+0000"
        )

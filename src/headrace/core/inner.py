"""Queues of the broker's own: what waits for sessions. No client can name one; storage knows them by their logs."""

import hashlib
from dataclasses import replace
from typing import Final, final

from headrace.clock import Clock
from headrace.core.definition import QueueDefinition
from headrace.core.delivery import Consumer
from headrace.core.line import Line
from headrace.core.queue import DEFAULT_GROUP, Queue
from headrace.core.queues import INNER_PREFIXES, Queues
from headrace.core.readers import group_named
from headrace.core.topology import scoped, unscoped
from headrace.storage.api import Engine
from headrace.storage.group_state import WORK

_LEASE_MS: Final = 100 * 365 * 24 * 3_600_000
"""As long as it is connected, a session may take its time."""
_LONGEST: Final = 200


@final
class InnerQueues:
    """Makes, finds and drops them, and lets consumers in."""

    def __init__(self, engine: Engine, host: str, line: Line, clock: Clock, queues: Queues) -> None:
        self._host = host
        self._line = line
        self._clock = clock
        self._queues = queues
        self._left = {name for name in engine.logs() if is_inner(name) and unscoped(host, name) is not None}
        """Logs from before the start that nobody asked for yet."""

    def exists(self, name: str) -> bool:
        """Whether something waits there since before the start."""
        return scoped(self._host, _short(name)) in self._left

    def open(self, name: str, limits: QueueDefinition) -> Queue:
        """The queue of that name, new if need be."""
        definition = replace(limits, name=_short(name), lease_ms=_LEASE_MS)
        queue = self._queues.open_inner(definition)
        self._left.discard(queue.log.name)
        if queue.refusal is None:
            group_named(queue, self._line.open(), DEFAULT_GROUP, WORK)
        return queue

    def drop(self, queue: Queue) -> None:
        """Forget what waits there."""
        self._queues.drop(queue)

    def drop_left(self, limits: QueueDefinition) -> None:
        """Drop what is left from before the start and nobody asked for: its session is gone."""
        for log in list(self._left):
            name = log.removeprefix(scoped(self._host, ""))
            self._queues.drop(self._queues.open_inner(replace(limits, name=name)))
        self._left.clear()

    def join(self, queue: Queue, consumer: Consumer) -> None:
        """Let a consumer have what waits. One that is damaged gives nothing."""
        if queue.refusal is not None:
            return
        group = group_named(queue, self._line.open(), DEFAULT_GROUP, WORK)
        group.consumers.join(consumer)
        consumer.group = group
        self._line.pump_soon(queue)

    def leave(self, consumer: Consumer) -> None:
        """What the consumer holds goes back in line."""
        group = consumer.group
        if group is not None and not group.queue.is_gone:
            group.queue.leave(self._line.open(), consumer, self._clock.now_us())
            self._line.pump_soon(group.queue)


def is_inner(log: str) -> bool:
    """Whether a log of that name is of a queue of the broker's own, in whichever virtual host."""
    return log.rpartition("\0")[2].startswith(INNER_PREFIXES)


def _short(name: str) -> str:
    """A name that storage takes: very long ones by their digest."""
    if len(name.encode()) <= _LONGEST:
        return name
    prefix = name[: name.index("/") + 1]
    return f"{prefix}#{hashlib.sha256(name.encode()).hexdigest()}"

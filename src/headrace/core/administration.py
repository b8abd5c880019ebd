"""What those who run a virtual host ask of it: queues altered, limits set, its end. What clients ask is broker.py's."""

from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.core.confirms import Confirm
from headrace.core.definition import QueueDefinition
from headrace.core.follower import Follower
from headrace.core.line import Line
from headrace.core.queue import Queue
from headrace.core.queues import Queues
from headrace.core.topology import unscoped
from headrace.storage.api import BINDINGS, EXCHANGES, KEPT, RETAINED, SESSIONS, TRANSACTIONS, Commit, Engine

_TABLES: Final = (EXCHANGES, BINDINGS, RETAINED, SESSIONS, TRANSACTIONS, KEPT)
"""Where the host has something under keys that begin with its name, besides its queues."""


@final
class Administration:
    """One virtual host, as its configuration and whoever may delete it see it."""

    def __init__(self, engine: Engine, queues: Queues, line: Line, clock: Clock) -> None:
        self._engine = engine
        self._queues = queues
        self._line = line
        self._clock = clock
        self.on_dissolved: dict[object, Callable[[], None]] = {}
        """See Broker.on_dissolved."""

    def alter(self, definition: QueueDefinition, is_start: bool = False) -> None:
        """Have a queue that exists be as defined, of the same type and durability: see reconciling.py. Raises NotFound.

        What it leaves no room for goes. Priorities and single consumers change at a start only.
        """
        self._queues.alter(self._queues.find(definition.name), definition, is_start)

    def loss(self, definition: QueueDefinition) -> int:
        """How many messages would go at once if a queue became this. Raises NotFound, Corrupt."""
        return self._queues.usable(definition.name, None).disposal.loss(definition, self._clock.now_us())

    def follower(self, queue: Queue) -> Follower | None:
        """How far a queue is in the stream that it is filled from; None for one that is not."""
        return self._queues.assigner.of(queue)

    def limit(self, unwritten_bytes: int, memory_bytes: int, auto_commit_ms: int) -> None:
        """What may be on its way to the disk, and in queues in memory, before publishers have to wait; and how often
        streams' readers that commit by themselves have their progress stored."""
        self._line.flow.limit(unwritten_bytes, memory_bytes)
        self._queues.auto_commit_us = auto_commit_ms * 1000

    def dissolve(self) -> Commit:
        """The virtual host goes: its connections are ended, and the commit returned removes all that is stored of it.

        Whoever calls may add to that commit, and then calls `end`.
        """
        for tell in list(self.on_dissolved.values()):
            tell()
        commit = self._line.open().durable
        self._queues.drop_all()
        for table, key in self._line.staged_keys():
            commit.delete(table, key)
        for table in _TABLES:
            for key, _ in self._engine.items(table):
                if unscoped(self._queues.topology.host, key.decode(errors="replace")) is not None:
                    commit.delete(table, key)
        return commit

    def end(self, confirm: Confirm, ended: Callable[[], None]) -> None:
        """Store what is staged, and nothing that comes after. `ended` is called when that is done, however long it
        takes; `confirm` hears of the first attempt."""
        turn = self._line.open()
        turn.is_barrier = True
        turn.confirms.add(confirm)
        self._line.end(ended)

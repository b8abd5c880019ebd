"""The logs that only memory holds, of all queues of a virtual host: stored at once, and counted. No deliveries."""

from typing import TYPE_CHECKING, final

from headrace.core.batches import Batches
from headrace.core.turn import Turn
from headrace.errors import HeadraceError
from headrace.storage.api import Append, Commit
from headrace.storage.memory import MemoryEngine

if TYPE_CHECKING:
    from headrace.core.queue import Queue

    Batch = tuple[Queue, Append]


@final
class MemoryLogs:
    """What is in them, and how much that is."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.size_bytes = 0
        self._sizes: dict[Queue, int] = {}

    def store(self, turn: Turn) -> "list[Batch] | None":
        """Store what the turn has for them; returns what was appended to which, and None when there was nothing."""
        touched, turn.touched_in_memory = turn.touched_in_memory, []
        for queue in touched:
            queue.touched = 0
            if not queue.deleted:
                queue.trim(turn)
        batches: list[Batch] = []
        if turn.passing:
            passing, turn.passing = turn.passing, Batches()
            passing.unstage()
            batches = [(queue, turn.memory.add(passing.appends[at])) for at, queue in enumerate(passing.queues)]
        for queue in [queue for queue in turn.moved if not queue.durable]:
            batches.append((queue, turn.memory.append(queue.log.name, turn.moved.pop(queue))))
        if turn.memory.is_empty:
            return None
        commit, turn.memory = turn.memory, Commit()
        self._commit(commit)
        for queue in {*touched, *[queue for queue, _ in batches]}:
            if not queue.deleted:
                size = queue.log.size_bytes
                self.size_bytes += size - self._sizes.get(queue, 0)
                self._sizes[queue] = size
        return batches

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

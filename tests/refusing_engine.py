"""An engine that takes commits when it is told to: it refuses them, fails them later, or lets them wait."""

from collections import deque
from collections.abc import Iterable

from headrace.errors import HeadraceError
from headrace.storage.api import Commit, Done, Engine, Log
from headrace.storage.memory import MemoryEngine


class RefusingEngine(Engine):
    """The memory engine behind a door."""

    def __init__(self) -> None:
        self._inner = MemoryEngine()
        self.keeps_claims = False
        self.refusal: HeadraceError | None = None
        """Raised by `commit`, as long as it is set."""
        self.failure: HeadraceError | None = None
        """Error of commits with messages while it is set; nothing is stored then."""
        self.fails_all = False
        """True if commits without messages fail too."""
        self.is_closed_door = False
        """True if commits wait until they are let through."""
        self.scanned: list[str] = []
        """The tables that were looked through."""
        self.attempts = 0
        self.waits: list[bool] = []
        """For each attempt, whether somebody waits for the sync."""
        self.committed: list[Commit] = []
        self._waiting: deque[tuple[Commit, Done, bool]] = deque()
        self._failed: deque[tuple[Done, HeadraceError]] = deque()

    @property
    def staged_bytes(self) -> int:  # type: ignore[override]
        return self._inner.staged_bytes

    def commit(self, commit: Commit, done: Done, durable: bool = True) -> None:
        self.attempts += 1
        self.waits.append(durable)
        if self.refusal is not None:
            raise self.refusal
        if self.failure is not None and (commit.appends or self.fails_all):
            self._failed.append((done, self.failure))
        elif self.is_closed_door:
            self._waiting.append((commit, done, durable))
        else:
            self.committed.append(commit)
            self._inner.commit(commit, done, durable)

    def open_door(self) -> None:
        self.is_closed_door = False
        while self._waiting:
            commit, done, durable = self._waiting.popleft()
            self.commit(commit, done, durable)

    def let_one_in(self) -> None:
        """Take the oldest commit that waits; the door stays as it is."""
        commit, done, durable = self._waiting.popleft()
        self.committed.append(commit)
        self._inner.commit(commit, done, durable)

    def log(self, name: str) -> Log:
        return self._inner.log(name)

    def logs(self) -> list[str]:
        return self._inner.logs()

    def items(self, table: str) -> Iterable[tuple[bytes, bytes]]:
        self.scanned.append(table)
        return self._inner.items(table)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self._inner.get(table, key)

    def poll(self) -> None:
        for _ in range(len(self._failed)):
            done, error = self._failed.popleft()
            done(error)
        self._inner.poll()

    def sync(self) -> None:
        self.poll()
        self._inner.sync()

    def close(self) -> None:
        self._inner.close()

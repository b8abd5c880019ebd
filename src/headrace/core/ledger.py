"""Keyed state besides queues: committed transactions, and values that protocols find again after a restart.

The ledger keeps the highest number of a transaction with numbers (a streaming query: one id, many numbers) for good,
and a transaction without numbers for a week. A transaction that is too large for one batch is stored part by part; the
ledger keeps how far it is, with the same batch that stores a part.
"""

import json
from typing import Final, final

from headrace.core.batch import Batch
from headrace.core.pipeline import CommitPipeline
from headrace.core.routing.topology import scoped
from headrace.errors import PreconditionFailed
from headrace.storage.api import KEPT, TRANSACTIONS, Engine

_SEPARATOR: Final = b"\0"


@final
class ProtocolStore:
    """The keys and values of one virtual host; changes are stored with the open batch."""

    def __init__(self, engine: Engine, host: str, pipeline: CommitPipeline) -> None:
        self._engine = engine
        self._prefix = host.encode() + _SEPARATOR
        self._pipeline = pipeline

    def items(self) -> list[tuple[bytes, bytes]]:
        """All stored keys and values, in order of the keys."""
        start = len(self._prefix)
        return sorted([(key[start:], value) for key, value in self._engine.items(KEPT) if key.startswith(self._prefix)])

    def put(self, key: bytes, value: bytes) -> None:
        self._pipeline.open().define(KEPT, self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        self._pipeline.open().define(KEPT, self._prefix + key, None)


ONCE: Final = -1
"""The number of a transaction that has none."""
_NOTHING: Final = -2
"""The number of a transaction of which nothing is committed yet."""
_KEPT_US: Final = 7 * 86_400 * 1_000_000
_SWEEP_US: Final = 3_600 * 1_000_000


@final
class Advance:
    """Progress of a transaction that several batches store."""

    __slots__ = ("parts", "rows", "sequence")

    def __init__(self, sequence: int, parts: int, rows: int) -> None:
        self.sequence = sequence
        self.parts = parts
        """Number of its parts that are stored."""
        self.rows = rows


@final
class Ledger:
    """The committed transactions of one virtual host."""

    def __init__(self, engine: Engine, host: str) -> None:
        self._engine = engine
        self._host = host
        self._under_way: set[str] = set()
        self._swept_us = 0

    def rows_of(self, transaction: str, sequence: int) -> int:
        """The number of messages that the transaction stored; -1 if it was not committed. A later number proves it."""
        entry = self._entry(transaction)
        if entry is None or int(str(entry["sequence"])) < sequence:
            return -1
        return int(str(entry["rows"])) if int(str(entry["sequence"])) == sequence else 0

    def advance(self, transaction: str) -> Advance | None:
        """The progress of the transaction's unfinished commit; None if there is none."""
        entry = self._entry(transaction) or {}
        begun = entry.get("begun")
        return Advance(begun["sequence"], begun["parts"], begun["rows"]) if isinstance(begun, dict) else None

    def note(
        self, batch: Batch, transaction: str, sequence: int, rows: int, now_us: int, advance: Advance | None = None
    ) -> None:
        """Store with this batch that the transaction is committed, or how far it is.

        Raises PreconditionFailed when it is under way already.
        """
        if transaction in self._under_way:
            raise PreconditionFailed(f"transaction {transaction!r} is being committed already; ask again later")
        self._under_way.add(transaction)
        entry: dict[str, object] = {"sequence": sequence, "rows": rows, "at": now_us}
        if advance is not None:
            before = self._entry(transaction) or {"sequence": _NOTHING, "rows": 0}
            begun = {"sequence": sequence, "parts": advance.parts, "rows": advance.rows}
            entry = {"sequence": before["sequence"], "rows": before["rows"], "at": now_us, "begun": begun}
        batch.durable.put(TRANSACTIONS, self._key(transaction), json.dumps(entry, separators=(",", ":")).encode())
        if now_us - self._swept_us > _SWEEP_US:
            self._swept_us = now_us
            self._sweep(batch, now_us)

    def settle(self, transaction: str) -> None:
        """Note that its commit has ended."""
        self._under_way.discard(transaction)

    def _entry(self, transaction: str) -> dict[str, object] | None:
        value = self._engine.get(TRANSACTIONS, self._key(transaction))
        return None if value is None else dict(json.loads(value))

    def _sweep(self, batch: Batch, now_us: int) -> None:
        """Forget transactions without numbers after a week."""
        prefix = self._key("")
        for key, value in list(self._engine.items(TRANSACTIONS)):
            entry = json.loads(value)
            if key.startswith(prefix) and entry["sequence"] == ONCE and entry["at"] < now_us - _KEPT_US:
                batch.durable.delete(TRANSACTIONS, key)

    def _key(self, transaction: str) -> bytes:
        return scoped(self._host, "transaction " + transaction).encode()

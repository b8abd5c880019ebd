"""The verification of a store, whether or not a broker serves it: every message, group and table. Changes nothing.

A broker may remove messages while the doctor reads. So the doctor looks up a missing message again, and reports it only
if the log still has it.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Final, final

from headrace.clock import Clock, SystemClock
from headrace.config.replication import MAIN
from headrace.errors import Corrupt
from headrace.storage.group_row import GroupRow, group_row
from headrace.storage.objects import keys
from headrace.storage.objects.catalog import Catalog, Loading
from headrace.storage.objects.columns import ColumnReader
from headrace.storage.objects.location import Location
from headrace.storage.objects.log import LogContext, ObjectLog, Stack, StoreReader
from headrace.storage.objects.records import Sequence, decode_log
from headrace.storage.objects.view import View

_TIMEOUT_MS: Final = 60_000
_LOOKS: Final = 3
"""The number of attempts to read records that fit together, while a broker changes them."""

Progress = Callable[[int, int], None]
"""Called with the number of messages read, and of all messages."""


@final
@dataclass
class LogRow:
    """One log, and its problem; "" without one."""

    name: str
    first_offset: int
    next_offset: int
    size_bytes: int
    groups: list[GroupRow] = field(default_factory=list)
    problem: str = ""


@final
@dataclass
class StoreReport:
    """Everything an examination found; `problem` is the one that kept it from reading logs."""

    store: str
    logs: list[LogRow] = field(default_factory=list)
    problem: str = ""

    @property
    def problems(self) -> list[str]:
        found = [f"{log.name}: {log.problem}" for log in self.logs if log.problem]
        return [self.problem, *found] if self.problem else found

    def as_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        return {**asdict(self), "clean": not self.problems}


def examine_store(
    url: str, clock: Clock | None = None, progress: Progress = lambda _, __: None, group: str = MAIN
) -> StoreReport:
    """Read and verify one group of a store.

    Raises Refused when the URL is wrong, and Unavailable when there is no store of ours, or no such group.
    """
    clock = clock or SystemClock()
    view = View(Location(url, create=False), group, _TIMEOUT_MS, clock)
    try:
        report = StoreReport(url)
        try:
            logs = _load(view, group, clock)
        except Corrupt as error:
            report.problem = str(error)
            return report
        total = sum(log.next_offset - log.first_offset for log in logs)
        done = 0
        for log in logs:
            row = _row(log)
            row.problem = _verify(view, group, log, partial(_tell, progress, done, total))
            done += log.next_offset - log.first_offset
            report.logs.append(row)
        return report
    finally:
        view.close()


def _tell(progress: Progress, before: int, total: int, read: int) -> None:
    progress(before + read, total)


def _load(view: View, group: str, clock: Clock) -> list[ObjectLog]:
    """Load the catalog as a broker does. Raises Corrupt."""
    for look in range(_LOOKS):
        context = LogContext(group, StoreReader(view, _TIMEOUT_MS), Stack(0), Stack(0))
        try:
            sequence = Sequence(view.get(keys.SEQUENCE), keys.describe(keys.SEQUENCE))
            catalog = Catalog(context, sequence, clock, 0)
            Loading(view, catalog, clock.now_us()).load()
        except Corrupt:
            if look == _LOOKS - 1:
                raise
        else:
            break
    return [catalog.logs[name] for name in sorted(catalog.logs)]


def _row(log: ObjectLog) -> LogRow:
    groups = [group_row(name, state) for name, state in sorted(log.groups.items())]
    return LogRow(log.name, log.first_offset, log.next_offset, log.size_bytes, groups)


def _verify(view: View, group: str, log: ObjectLog, progress: Callable[[int], None]) -> str:
    """Read all messages of a log; returns its problem."""
    at, reader = log.first_offset, ColumnReader(view, group, log.id)
    while at < log.next_offset:
        try:
            for batch in reader.batches(at, log.next_offset):
                at += batch.num_rows
                progress(at - log.first_offset)
        except Corrupt as error:
            first = _first_now(view, log.id, log.next_offset)
            if first <= at:
                return f"offset {at}: {error}"
            at = first
    return ""


def _first_now(view: View, log_id: int, stop: int) -> int:
    """The current first offset of a log; `stop` when it was deleted."""
    key = keys.LOG + keys.u64(log_id)
    stored = view.get(key)
    return stop if stored is None else decode_log(stored, keys.describe(key)).first_offset

"""A job: several pipelines that run together, by schedule, and again when they fail. Its file is read in file.py.

Each run of a pipeline has a thread. The job's thread only looks at them, so it may be interrupted at any time.

<states>/NAME.json    the job's own state: which scheduled runs are over; the other states are the pipelines'
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, final

from pyspark.sql import SparkSession

from headrace.errors import HeadraceError, Refused, Unavailable
from headrace.spark.pipelines.archive import ArchiveSettings, start_archive
from headrace.spark.pipelines.assign import AssignSettings, start_assign
from headrace.spark.pipelines.compact import CompactSettings, run_compact
from headrace.spark.pipelines.replay import ReplaySettings, run_replay
from headrace.spark.pipelines.run import (
    DEFAULT_STATES,
    Progress,
    Tell,
    Watch,
    interrupts_held,
    read_json,
    say_nothing,
    wait,
    write_json,
)
from headrace.spark.pipelines.schedule import Schedule, dated
from headrace.spark.pipelines.session import activate
from headrace.spark.pipelines.sql import SqlSettings, start_sql
from headrace.spark.pipelines.status import FAILED, OVER, RESTARTING, RUNNING, WAITING, Reporter, Status

if TYPE_CHECKING:
    from headrace.spark.pipelines.report import ReportSettings

StreamSettings = SqlSettings | ArchiveSettings | AssignSettings
PipelineSettings: TypeAlias = "StreamSettings | ReplaySettings | ReportSettings | CompactSettings"
LOOK_SECONDS: Final = 0.1
PAUSE_SECONDS: Final = 1.0
"""The pause before the first restart; each later one is twice as long."""
LONGEST_PAUSE_SECONDS: Final = 60.0
_END_SECONDS: Final = 30.0
"""The longest wait for runs that were told to end; Spark ends what is left."""


@dataclass(frozen=True)
class Planned:
    """One pipeline of a job."""

    name: str
    kind: str
    settings: PipelineSettings
    schedule: Schedule | None = None
    """The times when it runs; None for once, from the start of the job."""
    restarts: int = 0
    """The number of restarts in a row when it fails."""


@dataclass(frozen=True)
class Job:
    """Pipelines that are declared together."""

    name: str
    pipelines: tuple[Planned, ...]
    states: Path = DEFAULT_STATES


def run_job(spark: SparkSession, job: Job, tell: Tell = say_nothing, ignores_schedules: bool = False) -> list[Progress]:
    """Run until all pipelines are over; with schedules, until it is interrupted.

    A pipeline without a schedule that fails, and is not to be started again, stops the others: raises Refused with
    its name. One with a schedule waits for its next time. `ignores_schedules` runs each once, now.
    """
    planned = [replace(each, schedule=None) for each in job.pipelines] if ignores_schedules else job.pipelines
    memory = _Memory(job.states / f"{job.name}.json")
    reporter = Reporter(job.name, {each.name: each.settings.endpoint for each in planned})
    members = [_Member(spark, each, memory, reporter) for each in planned]
    try:
        with interrupts_held() as let_through:
            while not all([member.step() for member in members]):
                for member in members:
                    tell(member.progress)
                reporter.tell([member.status for member in members])
                let_through()
                time.sleep(LOOK_SECONDS)
        return [member.progress for member in members]
    finally:
        _end(members)
        reporter.close([member.status for member in members])
        for member in members:
            tell(member.progress)


def _end(members: Sequence["_Member"]) -> None:
    """End all runs, together."""
    for member in members:
        member.stop()
    deadline = time.monotonic() + _END_SECONDS
    for member in members:
        member.join(max(0.0, deadline - time.monotonic()))


# -- one run -----------------------------------------------------------------------------------------------------------


class _Stopped(Exception):
    """The job ends, and this run with it."""


@final
class _Run:
    """One run of a pipeline, in a thread of its own."""

    def __init__(self, spark: SparkSession, settings: PipelineSettings, name: str) -> None:
        self.progress = Progress(name, 0, 0, 0.0)
        self.error: HeadraceError | None = None
        self.is_over = False
        self.has_started = False
        """True once the pipeline did something: an error before that is one of its settings."""
        self._spark = spark
        self._settings = settings
        self._is_stopped = False
        self._thread = threading.Thread(target=self._work, name=f"pipeline {name}", daemon=True)
        self._thread.start()

    @property
    def is_at_end(self) -> bool:
        """Return whether it ended by itself, with all that there was."""
        return self.is_over and not self._is_stopped

    def stop(self) -> None:
        self._is_stopped = True

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _work(self) -> None:
        try:
            self._run()
        except _Stopped:
            pass
        except HeadraceError as error:
            self.error = error
        except Exception as error:  # of a library that a pipeline uses: it is this pipeline's failure alone
            self.error = Refused(f"pipeline {self.progress.name!r} failed: {type(error).__name__}: {error}")
        self.is_over = True

    def _run(self) -> None:
        activate(self._spark)
        match self._settings:
            case SqlSettings() | ArchiveSettings() | AssignSettings():
                watch = _start(self._spark, self._settings)
                self.has_started = True
                wait([watch], self._tell)
            case ReplaySettings():
                run_replay(self._spark, self._settings, self._tell)
            case CompactSettings():
                run_compact(self._spark, self._settings, self._tell)
            case _:
                from headrace.spark.pipelines.report import run_report  # plots take long to load

                run_report(self._spark, self._settings, self._tell)

    def _tell(self, progress: Progress) -> None:
        self.progress = progress
        self.has_started = self.has_started or progress.batches > 0
        if self._is_stopped:
            raise _Stopped


def _start(spark: SparkSession, settings: StreamSettings) -> Watch:
    match settings:
        case ArchiveSettings():
            return start_archive(spark, settings)
        case AssignSettings():
            return start_assign(spark, settings)
        case _:
            return start_sql(spark, settings)


# -- one pipeline ------------------------------------------------------------------------------------------------------


@final
class _Member:
    """One pipeline of a job that runs: at most one run at a time."""

    def __init__(self, spark: SparkSession, planned: Planned, memory: "_Memory", reporter: Reporter) -> None:
        self._spark = spark
        self._planned = planned
        self._memory = memory
        self._reporter = reporter
        self._run: _Run | None = None
        self._state = WAITING
        self._reason = ""
        self._due = datetime.now(UTC)
        """The time of its next run."""
        self._at_s = 0.0
        """The monotonic time of its next run; for restarts."""
        self._earlier = Progress(planned.name, 0, 0, 0.0)
        """The work of runs that are over."""
        self._failures = 0
        """Failures in a row."""
        self._restarts = 0
        if planned.schedule is not None:
            self._due = memory.due(planned.name, planned.schedule)

    @property
    def progress(self) -> Progress:
        """The work of all runs."""
        earlier, run = self._earlier, self._run
        if run is None:
            return replace(earlier, note=self._note())
        now = run.progress
        known = self._reporter.behind(now.name)
        return replace(
            now,
            messages=earlier.messages + now.messages,
            batches=earlier.batches + now.batches,
            seconds=earlier.seconds + now.seconds,
            behind=now.behind if known is None or run.is_at_end else known,
            note=self._note(),
        )

    @property
    def status(self) -> Status:
        progress = self.progress
        planned = self._planned
        is_to_come = self._state in (WAITING, FAILED) and planned.schedule is not None
        return Status(
            planned.name,
            planned.kind,
            self._state,
            progress.messages,
            progress.batches,
            progress.reached,
            progress.behind,
            self._restarts,
            planned.schedule.text if planned.schedule is not None else "",
            self._due.strftime("%Y-%m-%dT%H:%M:%SZ") if is_to_come else "",
            self._reason,
        )

    def step(self) -> bool:
        """Start what is due, and see to what is over; return whether all runs are over. Raises Refused."""
        if self._run is not None and self._run.is_over:
            self._on_over(self._run)
        elif self._run is None and self._state != OVER and self._is_due():
            self._begin()
        return self._state == OVER

    def stop(self) -> None:
        if self._run is not None:
            self._run.stop()

    def join(self, seconds: float) -> None:
        if self._run is not None:
            self._run.join(seconds)
        if self._state != FAILED:
            self._state = OVER

    def _is_due(self) -> bool:
        if self._state == RESTARTING:
            return time.monotonic() >= self._at_s
        return self._planned.schedule is None or datetime.now(UTC) >= self._due

    def _begin(self) -> None:
        planned = self._planned
        settings = dated(planned.settings, self._due)
        if planned.schedule is not None:
            self._memory.begins(planned.name, self._due)
            if isinstance(settings, StreamSettings):
                settings = replace(settings, once=True)
        self._state = RUNNING
        self._run = _Run(self._spark, settings, planned.name)

    def _on_over(self, run: _Run) -> None:
        self._earlier = replace(self.progress, note="")
        self._run = None
        if run.progress.batches:
            self._failures = 0
        if run.error is None:
            self._failures = 0
            self._reason = ""
            self._rest(OVER)
            return
        self._reason = str(run.error)
        self._failures += 1
        can_be_mended = run.has_started or isinstance(run.error, Unavailable) or self._restarts > 0
        if can_be_mended and self._failures <= self._planned.restarts:
            self._state = RESTARTING
            self._restarts += 1
            self._at_s = time.monotonic() + min(LONGEST_PAUSE_SECONDS, PAUSE_SECONDS * 2 ** (self._failures - 1))
            return
        self._rest(FAILED)
        if self._planned.schedule is None:
            raise run.error

    def _rest(self, state: str) -> None:
        """Wait for the next time, or for nothing without a schedule."""
        self._state = state
        schedule = self._planned.schedule
        if schedule is None:
            return
        self._memory.ends(self._planned.name, self._due)
        self._failures = 0
        self._due = schedule.next_after(max(self._due, datetime.now(UTC)))
        self._state = FAILED if state == FAILED else WAITING

    def _note(self) -> str:
        if self._state == RESTARTING:
            return f"starts again in {max(0.0, self._at_s - time.monotonic()):.0f} s: {self._reason}"
        if self._state == FAILED:
            return f"failed: {self._reason}"
        if self._state == WAITING and self._planned.schedule is not None:
            return f"waits until {self._due:%Y-%m-%d %H:%M} UTC"
        return ""


@final
class _Memory:
    """The scheduled runs of a job, in a file: an interrupted one runs again, and the last missed one is made up."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, dict[str, object]] = read_json(file)

    def due(self, name: str, schedule: Schedule) -> datetime:
        """Return when a pipeline runs first in this job."""
        now = datetime.now(UTC)
        known = self._known.get(name)
        if known is None:
            self._keep(name, now, True)
            return schedule.next_after(now)
        last = datetime.fromisoformat(str(known["due"]))
        if not known["is_over"]:
            return last
        return schedule.last_until(now, last) or schedule.next_after(now)

    def begins(self, name: str, due: datetime) -> None:
        self._keep(name, due, False)

    def ends(self, name: str, due: datetime) -> None:
        self._keep(name, due, True)

    def _keep(self, name: str, due: datetime, is_over: bool) -> None:
        self._known[name] = {"due": due.isoformat(), "is_over": is_over}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self._file, self._known)

"""The status of pipelines, as their jobs tell it, in memory only: a job tells it anew every two seconds.

Pipelines run elsewhere, on Spark; the broker shows what it was told, and when a job went silent.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from headrace.config.kinds import Choice, Name, Number, Text
from headrace.config.table import option, required
from headrace.errors import AccessRefused, Refused

WAITING: Final = "waiting"
RUNNING: Final = "running"
RESTARTING: Final = "restarting"
FAILED: Final = "failed"
OVER: Final = "over"
LOST: Final = "lost"
STATES: Final = (WAITING, RUNNING, RESTARTING, FAILED, OVER)
LOST_SECONDS: Final = 30
"""The silence after which a job that was not over counts as lost."""
KEPT_SECONDS: Final = 7 * 86_400
"""Time for which a silent job is shown."""
MOST: Final = 1000
"""The most pipelines, of all jobs and virtual hosts."""
NAME_BYTES: Final = 255
_REASON: Final = 1000
_SHORT: Final = 100


@dataclass(frozen=True)
class Report:
    """Report of a job about one of its pipelines."""

    name: str = required(Name(NAME_BYTES))
    type: str = required(Name(_SHORT))
    state: str = required(Choice(*STATES))
    messages: int = option(0, Number(), "Messages read since the job began.")
    batches: int = option(0, Number())
    behind: int | None = option(None, Number(), "Messages that wait to be read, where that is known.")
    restarts: int = option(0, Number(), "How often it failed and was started again.")
    schedule: str = option("", Text())
    due: str = option("", Text(), "When it runs next, if it has a schedule.")
    reason: str = option("", Text(), "Its last failure; empty when the last run went well.")


@final
@dataclass(frozen=True)
class Pipeline:
    """One pipeline with its job, as it was last told."""

    host: str
    job: str
    user: str
    """The user who reports the job."""
    report: Report
    rate: float
    """Messages a second between the last two reports."""
    reported_us: int

    def state(self, now_us: int) -> str:
        """Return the state; one that nobody tells any more is lost."""
        is_silent = now_us - self.reported_us > LOST_SECONDS * 1_000_000
        return LOST if is_silent and self.report.state not in (OVER, FAILED) else self.report.state


@final
class Pipelines:
    """The pipelines of all jobs."""

    def __init__(self) -> None:
        self._jobs: dict[tuple[str, str], dict[str, Pipeline]] = {}

    def __iter__(self) -> Iterator[Pipeline]:
        for key in sorted(self._jobs):
            yield from self._jobs[key].values()

    def note(self, host: str, job: str, user: str, reports: list[Report], now_us: int, is_master: bool) -> None:
        """Take the report of a job in place of its last one. Raises AccessRefused for another user's job, Refused."""
        known = self._jobs.get((host, job), {})
        self._check_user(known, job, user, is_master)
        self._forget_silent(now_us)
        others = sum(len(found) for key, found in self._jobs.items() if key != (host, job))
        if others + len(reports) > MOST:
            raise Refused(f"{MOST} pipelines are shown at most; forget jobs that run no more")
        found: dict[str, Pipeline] = {}
        for report in reports:
            cut = replace(
                report, reason=report.reason[:_REASON], schedule=report.schedule[:_SHORT], due=report.due[:_SHORT]
            )
            found[report.name] = Pipeline(host, job, user, cut, _rate(known.get(report.name), cut, now_us), now_us)
        self._jobs[host, job] = found

    def forget(self, host: str, job: str, user: str, is_master: bool) -> int:
        """Drop a job; return the number of its pipelines. Raises AccessRefused for another user's job."""
        self._check_user(self._jobs.get((host, job), {}), job, user, is_master)
        return len(self._jobs.pop((host, job), {}))

    def _check_user(self, known: dict[str, Pipeline], job: str, user: str, is_master: bool) -> None:
        owners = {pipeline.user for pipeline in known.values()}
        if owners - {user} and not is_master:
            raise AccessRefused(f"job '{job}' is reported by another user than '{user}'; give this one another name")

    def _forget_silent(self, now_us: int) -> None:
        oldest_us = now_us - KEPT_SECONDS * 1_000_000
        for key in [key for key, found in self._jobs.items() if all(p.reported_us < oldest_us for p in found.values())]:
            del self._jobs[key]


def _rate(before: Pipeline | None, report: Report, now_us: int) -> float:
    if before is None or now_us <= before.reported_us or report.messages < before.report.messages:
        return 0.0
    return (report.messages - before.report.messages) * 1_000_000 / (now_us - before.reported_us)

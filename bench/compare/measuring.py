"""Runs one step of a scenario on one broker and says what it cost. Which steps, on which broker: course.py."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from bench.compare.crew import Crew
from bench.compare.histogram import Histogram
from bench.compare.load import Job, Wrong
from bench.compare.processes import Usage, machine_busy_seconds, resident_bytes, usage_of_tree
from bench.compare.publisher import now_us

_LOOK_SECONDS: Final = 0.02


@dataclass(slots=True)
class Measured:
    """Cost of one step, and the reports of its processes."""

    seconds: float = 0.0
    """Until the last confirm, or the last delivery."""
    wall_seconds: float = 0.0
    server_cpu_seconds: float | None = None
    machine_cpu_seconds: float = 0.0
    memory_before: int | None = None
    memory_peak: int | None = None
    words: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        return int(self.words["publish"]["sent"]) if "publish" in self.words else 0

    @property
    def sent_per_lane(self) -> list[int]:
        return list(self.words["publish"]["sent_per_lane"]) if "publish" in self.words else []

    @property
    def received(self) -> int:
        return sum(self.words["consume"]["counts"]) if "consume" in self.words else 0

    def cores(self, role: str) -> float | None:
        """Number of processors that a process of the generator kept busy."""
        return self.words[role]["cpu_seconds"] / self.wall_seconds if role in self.words else None

    @property
    def other_cores(self) -> float | None:
        """Number of processors that other work kept busy; None where the broker's part is not known."""
        if self.server_cpu_seconds is None:
            return None
        own: float = self.server_cpu_seconds + sum(words["cpu_seconds"] for words in self.words.values())
        return max(0.0, self.machine_cpu_seconds - own) / self.wall_seconds

    def latency(self, role: str) -> dict[str, float]:
        bins = self.words.get(role, {}).get("latency", {})
        return Histogram({int(number): count for number, count in bins.items()}).percentiles()


@final
class Measurement:
    """One step while it runs."""

    def __init__(self, job: Job, wanted: int, pid: int | None, folder: Path) -> None:
        self._job = job
        self._wanted = wanted
        self._pid = pid
        self._crew = Crew(job, folder)
        self._found = Measured()
        self._before: Usage | None = None

    def run(self) -> Measured:
        """Raises Unsupported when the broker cannot do it, Wrong when it does something else or stops doing it."""
        with self._crew as crew:
            self._before, busy = self._usage(), machine_busy_seconds()
            started = now_us()
            crew.counters.go()
            try:
                self._wait()
            finally:
                crew.counters.stop(is_failure=False)
            for role in crew.roles:
                if role not in self._found.words:
                    self._found.words[role] = crew.last_words(role)
            ended = now_us()
            after = self._usage()
            self._found.machine_cpu_seconds = machine_busy_seconds() - busy
        found = self._found
        found.seconds = (max(words["ended_us"] for words in self._last_of()) - started) / 1e6
        found.wall_seconds = (ended - started) / 1e6
        if self._before is not None and after is not None:
            found.server_cpu_seconds = after.cpu_seconds - self._before.cpu_seconds
            found.memory_before = self._before.resident_bytes
        return found

    def _last_of(self) -> list[dict[str, Any]]:
        """Deliveries count where there are any."""
        words = self._found.words
        return [words["consume"]] if "consume" in words else list(words.values())

    def _usage(self) -> Usage | None:
        return None if self._pid is None else usage_of_tree(self._pid)

    def _wait(self) -> None:
        """Return when everything is confirmed and delivered. Raises Wrong when nothing moves any more."""
        crew, job = self._crew, self._job
        started = moved = time.monotonic()
        seen = -1
        while not self._is_complete():
            self._sample_memory()
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            progress = crew.counters.published + crew.counters.received
            if progress != seen:
                seen, moved = progress, now
            if now - moved > job.stall_seconds:
                raise Wrong(f"nothing moves for {job.stall_seconds:.0f} s: {self._so_far()}")
            if now - started > job.limit_seconds + job.seconds:
                raise Wrong(f"not finished after {job.limit_seconds:.0f} s: {self._so_far()}")

    def _is_complete(self) -> bool:
        crew, words = self._crew, self._found.words
        for role in crew.roles:
            if role not in words and crew.is_over(role):
                words[role] = crew.last_words(role)
        if "publish" in crew.roles and "publish" not in words:
            return False
        if self._job.step.mode == "publish":
            return True
        wanted = self._found.sent + (0 if self._job.step.is_paced else self._wanted)
        counters = crew.counters
        received = counters.received_by_least if self._job.load.fans_out else counters.received
        return received >= wanted

    def _sample_memory(self) -> None:
        if self._before is not None:
            found = resident_bytes(self._before.pids)
            self._found.memory_peak = max(found, self._found.memory_peak or 0)

    def _so_far(self) -> str:
        counters = self._crew.counters
        parts = [f"{counters.published:,} messages published"] if "publish" in self._crew.roles else []
        if "consume" in self._crew.roles:
            wanted = f" of {self._wanted:,}" if self._wanted else ""
            parts.append(f"{counters.received:,}{wanted} received")
        return ", ".join(parts)

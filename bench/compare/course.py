"""One scenario on one broker: prepares it, measures step by step, and compares what came back with what was sent."""

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from bench.compare.families import driver_of
from bench.compare.load import Endpoint, Family, Job, Load, Scenario, Step, Unsupported, Wrong
from bench.compare.measuring import Measured, Measurement
from bench.compare.payload import key_sum
from bench.compare.processes import usage_of_tree
from bench.compare.result import Result, Verdict

BUSY_CORES: Final = 0.9
"""A process of the generator that uses so much of a processor is what limits the rate."""
_DEPTH_SECONDS: Final = 10.0
_REST_SECONDS: Final = 15.0
_LOOK_SECONDS: Final = 0.2
_RESTING_CORES: Final = 0.1
_SLOW_RATE: Final = 10_000
"""A step that has much to move may take as long as it takes at so many messages a second, besides its limit."""


@dataclass(frozen=True, slots=True)
class Target:
    """A broker that runs: where it listens, and which process it is, where that is known."""

    name: str
    endpoints: dict[Family, Endpoint]
    pid: int | None = None
    version: str = "?"


@dataclass(frozen=True, slots=True)
class Pace:
    """Limits on the time that things may take."""

    seconds: float = 2.0
    stall_seconds: float = 30.0
    limit_seconds: float = 300.0


@dataclass(slots=True)
class _Books:
    """Messages that were sent to the broker and not taken from it yet."""

    sent: list[int] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    """Both for each publisher, in each of its lanes."""
    waiting: int = 0

    def add(self, found: Measured) -> None:
        if not found.sent_per_lane:
            return
        before = self.sent or [0] * len(found.sent_per_lane)
        self.taken = self.taken or [0] * len(before)
        self.sent = [old + new for old, new in zip(before, found.sent_per_lane, strict=True)]
        self.waiting += found.sent

    def key_sum(self, lanes: int) -> int:
        """Of all messages that wait."""
        return sum(
            key_sum(publisher * lanes + lane, taken, sent - taken)
            for publisher, (taken, sent) in enumerate(zip(self.taken, self.sent, strict=True))
            for lane in range(lanes)
        )

    def take_all(self) -> None:
        self.taken = list(self.sent)
        self.waiting = 0


@final
class Course:
    """A run of one scenario."""

    def __init__(self, scenario: Scenario, load: Load, target: Target, pace: Pace) -> None:
        self._scenario = scenario
        self._load = load
        self._target = target
        self._pace = pace
        self._endpoint = target.endpoints[load.family]
        self._driver = driver_of(load.family)
        self._books = _Books()

    def run(self, round_number: int) -> list[Result]:
        """A result for each row; when one step goes wrong, none of the rows counts."""
        try:
            self._driver.prepare(self._endpoint, self._load)
            try:
                found = [(step, self._step(step, round_number)) for step in self._scenario.steps]
            finally:
                self._driver.clear(self._endpoint, self._load)
        except Unsupported as error:
            return self._none("unsupported", str(error), round_number)
        except (Wrong, OSError) as error:
            return self._none("failed", str(error), round_number)
        return [result for step, result in found if step.is_row]

    def _none(self, verdict: Verdict, why: str, round_number: int) -> list[Result]:
        found = [self._result(step, round_number) for step in self._scenario.rows()]
        for result in found:
            result.verdict, result.why = verdict, why
        return found

    def _result(self, step: Step, round_number: int) -> Result:
        scenario = self._scenario
        name, family = self._target.name, self._load.family
        result = Result(scenario.name, step.name, step.title, name, family, round_number, "ok")
        result.axis, result.point = scenario.axis, scenario.point
        return result

    def _let_rest(self) -> None:
        """Wait until the broker has done what was asked of it before, which is not to count as the step's."""
        pid, deadline = self._target.pid, time.monotonic() + _REST_SECONDS
        while pid is not None and time.monotonic() < deadline:
            before = usage_of_tree(pid).cpu_seconds
            time.sleep(_LOOK_SECONDS)
            if usage_of_tree(pid).cpu_seconds - before <= _LOOK_SECONDS * _RESTING_CORES:
                return

    def _step(self, step: Step, round_number: int) -> Result:
        self._let_rest()
        result = self._result(step, round_number)
        pace, wanted = self._pace, self._books.waiting
        job = Job(
            self._load,
            step,
            self._endpoint,
            pace.seconds,
            tuple(self._books.sent),
            tuple(self._books.taken),
            stall_seconds=pace.stall_seconds,
            limit_seconds=pace.limit_seconds + max(step.messages, wanted) / _SLOW_RATE,
        )
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            found = Measurement(job, wanted, self._target.pid, Path(folder)).run()
        self._books.add(found)
        result.verified = self._verify(step, found)
        self._enter(result, step, found)
        return result

    # -- right or wrong ----------------------------------------------------------------------------------------------

    def _verify(self, step: Step, found: Measured) -> str:
        """Return in words what was checked. Raises Wrong for what is not as it should be."""
        if "publish" in found.words:
            said = found.words["publish"]
            if said["refused"]:
                raise Wrong(f"{said['refused']:,} messages were refused")
            if said["confirmed"] != said["sent"]:
                raise Wrong(f"{said['sent']:,} messages were sent and {said['confirmed']:,} confirmed")
        if step.mode == "publish":
            return f"{found.sent:,} confirmed"
        self._verify_received(step, found)
        self._verify_depth()
        return f"{found.received:,} received: count, order and content are right"

    def _verify_received(self, step: Step, found: Measured) -> None:
        said = found.words["consume"]
        if said["complaints"]:
            raise Wrong("; ".join(said["complaints"]))
        counts, totals = said["counts"], [int(total) for total in said["totals"]]
        if not self._load.fans_out:
            counts, totals = [sum(counts)], [sum(totals)]
        if step.is_paced:  # a part of what waits, from its beginning and without gaps: the ledger has seen to that
            self._books.waiting -= counts[0]
            return
        for count, total in zip(counts, totals, strict=True):
            if count != self._books.waiting:
                raise Wrong(f"{self._books.waiting:,} messages were sent and {count:,} received")
            if total != self._books.key_sum(self._load.lanes):
                raise Wrong("as many messages were received as were sent, but other ones")
        self._books.take_all()

    def _verify_depth(self) -> None:
        """The messages left must be those that were not taken; some brokers count with a delay."""
        deadline = time.monotonic() + _DEPTH_SECONDS
        depth = self._driver.depth(self._endpoint, self._load)
        while depth is not None and depth != self._books.waiting:
            if time.monotonic() > deadline:
                raise Wrong(f"{depth:,} messages are left in the queue where {self._books.waiting:,} should be")
            time.sleep(0.1)
            depth = self._driver.depth(self._endpoint, self._load)

    # -- figures -----------------------------------------------------------------------------------------------------

    def _enter(self, result: Result, step: Step, found: Measured) -> None:
        messages = found.sent if step.mode == "publish" else found.received
        result.messages, result.seconds = messages, round(found.seconds, 3)
        if not messages:
            raise Wrong("not one message came through in the time that was given")
        result.rate = round(messages / found.seconds, 1)
        roles = ("publish", "consume")
        cpu = sum(found.words[role]["cpu_seconds"] for role in roles if role in found.words)
        result.generator_us = round(cpu / messages * 1e6, 3)
        result.publisher_cores, result.consumer_cores = (_rounded(found.cores(role)) for role in roles)
        result.is_generator_bound = max(result.publisher_cores or 0, result.consumer_cores or 0) >= BUSY_CORES
        result.stripped = found.words.get("consume", {}).get("stripped", 0)
        result.confirm_us = found.latency("publish")
        result.latency_us = found.latency("consume")
        if found.server_cpu_seconds is not None and self._target.pid is not None:
            result.server_us = round(found.server_cpu_seconds / messages * 1e6, 3)
            result.server_cores = _rounded(found.server_cpu_seconds / found.wall_seconds)
            result.other_cores = _rounded(found.other_cores)
            result.memory_before, result.memory_peak = found.memory_before, found.memory_peak
            result.memory_after = usage_of_tree(self._target.pid).resident_bytes


def _rounded(cores: float | None) -> float | None:
    return None if cores is None else round(cores, 3)

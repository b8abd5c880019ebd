"""Runs scenarios on brokers: round by round, and in each round every scenario on every broker in turn."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

from bench.compare.brokers import Contestant
from bench.compare.course import Course, Pace, Target
from bench.compare.load import Scenario
from bench.compare.perftest import PerfTestCourse
from bench.compare.result import NOT_SPOKEN, Result, Verdict
from bench.compare.spark import SparkCourse
from headrace.errors import Unavailable


class Audience(ABC):
    """A listener that hears of progress."""

    @abstractmethod
    def doing(self, what: str, done: int, total: int) -> None:
        """This is begun now; so many of all runs are over."""

    @abstractmethod
    def has(self, result: Result) -> None:
        """A row of one broker is there."""


@final
class Runner:
    """One benchmark from the first broker's start to the last one's end."""

    def __init__(self, brokers: Sequence[Contestant], scenarios: Sequence[Scenario], rounds: int, pace: Pace) -> None:
        self._brokers = brokers
        self._scenarios = scenarios
        self._rounds = rounds
        self._pace = pace
        self._targets: dict[str, Target] = {}
        self._used: set[str] = set()
        self.results: list[Result] = []
        self.versions: dict[str, str] = {}

    def run(self, audience: Audience) -> list[Result]:
        """All results; whatever happens, no broker is left."""
        total = self._rounds * len(self._scenarios) * len(self._brokers)
        done = 0
        try:
            for number in range(1, self._rounds + 1):
                for scenario in self._scenarios:
                    for broker in self._brokers:
                        audience.doing(f"round {number}: {scenario.name} on {broker.name}", done, total)
                        for result in self._one(scenario, broker, number):
                            self.results.append(result)
                            audience.has(result)
                        done += 1
            audience.doing("stopping the brokers", total, total)
        finally:
            for broker in self._brokers:
                broker.stop()
        return self.results

    def _one(self, scenario: Scenario, broker: Contestant, number: int) -> list[Result]:
        load = scenario.load_for(broker.families)
        if load is None:
            return _none(scenario, broker, number, "unsupported", NOT_SPOKEN)
        try:
            target = self._ready(scenario, broker)
        except Unavailable as error:
            return _none(scenario, broker, number, "failed", str(error))
        if load.family == "spark":
            return SparkCourse(scenario, load, target, self._pace).run(number)
        if load.client == "perftest":
            return PerfTestCourse(scenario, load, target, self._pace).run(number)
        found = Course(scenario, load, target, self._pace).run(number)
        if any(result.verdict == "failed" for result in found):
            broker.stop()  # what comes next starts with a broker in a known state
        return found

    def _ready(self, scenario: Scenario, broker: Contestant) -> Target:
        """The broker, running; started anew where the scenario needs that."""
        if not broker.is_running or (scenario.is_fresh and broker.name in self._used):
            self._targets[broker.name] = broker.start()
            self.versions[broker.name] = self._targets[broker.name].version
        self._used.add(broker.name)
        return self._targets[broker.name]


def _none(scenario: Scenario, broker: Contestant, number: int, verdict: Verdict, why: str) -> list[Result]:
    return [
        Result(
            scenario.name,
            step.name,
            step.title,
            broker.name,
            "",
            number,
            verdict,
            why,
            axis=scenario.axis,
            point=scenario.point,
        )
        for step in scenario.rows()
    ]

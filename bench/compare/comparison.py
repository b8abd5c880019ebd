"""Medians over rounds, and ratios of ours to each peer's in the same round. How they look: table.py and plot.py."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.compare.result import NOT_SPOKEN, Result

FIGURES: Final = {"rate": "rate", "cpu": "server CPU per message", "p50": "p50", "p99": "p99", "memory": "memory"}
"""Figures to compare; of the first more is better, of all others less."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One broker in one row, over all rounds."""

    row: str
    title: str
    broker: str
    results: tuple[Result, ...]

    def good(self) -> list[Result]:
        return [result for result in self.results if result.verdict == "ok"]

    def bad(self) -> list[Result]:
        return [result for result in self.results if result.verdict != "ok"]

    @property
    def is_silent(self) -> bool:
        """True if it speaks none of the protocols of the question."""
        return all(result.why == NOT_SPOKEN for result in self.results)

    def median(self, figure: str) -> float | None:
        found = [value for result in self.good() if (value := result.figure(figure)) is not None]
        return statistics.median(found) if found else None

    @property
    def is_generator_bound(self) -> bool:
        return any(result.is_generator_bound for result in self.good())


def entries(results: Iterable[Result]) -> list[Entry]:
    """In the order of the rows, and of the brokers in each."""
    groups: dict[tuple[str, str], list[Result]] = {}
    rows: dict[str, list[str]] = {}
    for result in results:
        groups.setdefault((result.row, result.broker), []).append(result)
        brokers = rows.setdefault(result.row, [])
        if result.broker not in brokers:
            brokers.append(result.broker)
    return [
        Entry(row, groups[row, broker][0].title, broker, tuple(groups[row, broker]))
        for row, brokers in rows.items()
        for broker in brokers
    ]


def ratio(ours: Entry | None, peer: Entry, figure: str) -> float | None:
    """The median, over rounds, of our figure divided by the peer's; None where there is none of either."""
    if ours is None or ours.broker == peer.broker:
        return None
    theirs = {result.round: result.figure(figure) for result in peer.results}
    found = [
        mine / other
        for result in ours.results
        if (mine := result.figure(figure)) is not None and (other := theirs.get(result.round))
    ]
    return statistics.median(found) if found else None


def shown_ratio(times: float) -> str:
    """With two digits behind the point, or two that count."""
    return f"{times:.2f}" if times >= 0.1 else f"{times:.2g}"


def ours_of(all_entries: Sequence[Entry], row: str) -> Entry | None:
    """The broker that the others of a row are compared to: the first, which is ours or the one that was given."""
    return next((entry for entry in all_entries if entry.row == row), None)

"""How mutants of one module ended, kept between runs, and the reasons of those that stay: docs/design/mutants.json."""

import json
from collections import Counter
from typing import Any, Final, final

from tests.mutation.coverage import ROOT, RUNS
from tests.mutation.mutants import Mutant, Source

REASONS: Final = ROOT / "docs" / "design" / "mutants.json"

Reasons = dict[str, dict[str, list[dict[str, Any]]]]
"""By file and function: lines, operators that no test has to notice there, and why."""


def load_reasons() -> Reasons:
    reasons: Reasons = json.loads(REASONS.read_text())
    return reasons


@final
class Results:
    """The outcomes of one module's mutants. One of a function that changed is not known any more."""

    def __init__(self, source: Source) -> None:
        self._name = str(source.path.relative_to(ROOT))
        reasons = load_reasons().get(self._name, {})
        self._explained = {
            (function, entry["line"], operator)
            for function, entries in reasons.items()
            for entry in entries
            for operator in entry["operators"]
        }
        RUNS.mkdir(parents=True, exist_ok=True)
        self._file = RUNS / (self._name.replace("/", ".") + "l")
        self._known: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines():
                outcome = json.loads(line)
                self._known[outcome["key"]] = outcome

    def find(self, mutant: Mutant) -> dict[str, Any] | None:
        return self._known.get(mutant.key)

    def add(self, mutant: Mutant, outcome: dict[str, Any]) -> None:
        place = {"key": mutant.key, "function": mutant.function, "operator": mutant.operator, "line": mutant.text}
        self._known[mutant.key] = outcome = place | outcome
        with self._file.open("a") as file:
            file.write(json.dumps(outcome) + "\n")

    def is_explained(self, mutant: Mutant) -> bool:
        return (mutant.function, mutant.text, mutant.operator) in self._explained

    def summary(self, mutants: list[Mutant]) -> str:
        counts: Counter[str] = Counter()
        for mutant in mutants:
            outcome = (self.find(mutant) or {"outcome": "not run"})["outcome"]
            counts["explained" if outcome == "left" and self.is_explained(mutant) else outcome] += 1
        return f"{self._name}: {len(mutants)} mutants, " + ", ".join(
            f"{counts[each]} {each}" for each in sorted(counts)
        )

"""Compares what two brokers showed, and reads which differences the docs explain."""

import fnmatch
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

DOCS: Final = Path(__file__).parents[2] / "docs"
Transcript = list[list[str]]
Step = TypeVar("Step")


@dataclass(frozen=True)
class Explained:
    """A row of a table of differences: patterns of the step, of the peer's line and of ours."""

    step: str
    theirs: str
    ours: str

    def covers(self, difference: "Difference") -> bool:
        """True if this row explains the difference."""
        return (
            fnmatch.fnmatchcase(difference.step, self.step)
            and _fits(difference.theirs, self.theirs)
            and _fits(difference.ours, self.ours)
        )


def _fits(lines: Sequence[str], pattern: str) -> bool:
    return any([fnmatch.fnmatchcase(line, pattern) for line in lines]) if pattern else not lines


@dataclass(frozen=True)
class Difference:
    """The first step after which the two brokers showed different lines; `theirs` and `ours` have those alone."""

    at: int
    step: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"after: {self.step}", *[f"  - {line}" for line in self.theirs], *self._own()])

    def _own(self) -> list[str]:
        return [f"  + {line}" for line in self.ours]


def compare(program: Sequence[object], theirs: Transcript, ours: Transcript) -> Difference | None:
    """Return the first difference; the steps after it are not looked at, as the brokers' states are not the same."""
    names = [*map(str, program), "the end"]
    for at, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        if their != our:
            only_theirs = tuple([line for line in their if line not in our])
            only_ours = tuple([line for line in our if line not in their])
            if not (only_theirs or only_ours):
                only_theirs, only_ours = tuple(their), tuple(our)
            return Difference(at, names[at], only_theirs, only_ours)
    return None


def explained(page: str, section: str) -> list[Explained]:
    """Read the table below the heading `section` of a page: step, theirs and ours in its first three columns."""
    _, _, rest = (DOCS / page).read_text().partition(f"\n## {section}\n")
    rows = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip("|"))] for row in rows]
    return [Explained(_pattern(step), _pattern(theirs), _pattern(ours)) for step, theirs, ours, *_ in cells]


def _pattern(cell: str) -> str:
    code = re.fullmatch(r"`(.*)`", cell)
    return code[1].replace("[", "[[]") if code else ""


def shorten(program: list[Step], differs: Callable[[list[Step]], bool]) -> list[Step]:
    """Leave out steps as long as the difference stays."""
    at = len(program) - 1
    while at >= 0:
        shorter = program[:at] + program[at + 1 :]
        if differs(shorter):
            program = shorter
        at -= 1
    return program

"""The normative statements of both specifications, and the mark that says which of them a test is about.

The numbers are those of Appendix B of MQTT Version 3.1.1 (OASIS Standard, 29 October 2014) and of MQTT Version 5.0
(OASIS Standard, 7 March 2019); what each demands is in our words, with whom it binds. Two numbers of the former stand
there as 3.1.2.7 and 3-8.3-4; here they are written like all others.

A statement that binds clients is tested by what the server does with a client that breaks it or keeps to it; one about
a server that cannot do something, by its being done here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])

V311, V5 = 4, 5
SIDES = ("server", "client", "both")
COVERED: dict[int, set[str]] = {V311: set(), V5: set()}


class Statement(NamedTuple):
    """One line of a list: whom it binds, and what it demands."""

    side: str
    demand: str


def _read(name: str) -> dict[str, Statement]:
    lines = (Path(__file__).parent / name).read_text().splitlines()
    split = [line.split(" ", 2) for line in lines]
    statements = {number: Statement(side, demand) for number, side, demand in split}
    assert len(statements) == len(lines), f"{name} has a number twice"
    return statements


STATEMENTS: dict[int, dict[str, Statement]] = {
    V311: _read("statements_3_1_1.txt"),
    V5: _read("statements_5_0.txt"),
}
"""All statements, by protocol level and number."""


def clauses(v311: str = "", v5: str = "") -> Callable[[Test], Test]:
    """Run a test once per version of the protocol whose statements it is about; the statements are in its name."""
    versions = []
    for level, shown, numbers in ((V311, "3.1.1", v311.split()), (V5, "5.0", v5.split())):
        assert all(number in STATEMENTS[level] for number in numbers), numbers
        COVERED[level].update(numbers)
        if numbers:
            versions.append(pytest.param(level, id=" ".join([shown, *(f"MQTT-{number}" for number in numbers)])))
    return pytest.mark.parametrize("version", versions)

"""The changes that make mutants, and the table of mutants that stay: each of its entries is one of the code."""

import logging
from pathlib import Path
from types import FunctionType

import pytest

from tests.mutation.coverage import ROOT
from tests.mutation.mutants import Source
from tests.mutation.results import load_reasons

_MODULE = '''
def chosen(rows, most):
    """Text."""
    found = []
    for row in rows:
        if row is None:
            continue
        if row < most and not row < 0:
            found.append(row * 2)
    _log.info("text %d", 7)
    return min(found) if found else True
'''


def _source(tmp_path: Path) -> Source:
    path = tmp_path / "module.py"
    path.write_text(_MODULE)
    return Source(path)


def test_a_line_has_a_mutant_for_each_thing_that_could_be_otherwise(tmp_path: Path) -> None:
    mutants = [(mutant.line, mutant.operator) for mutant in _source(tmp_path).mutants]

    assert mutants == [
        (4, "leave out"),
        (6, "is to is not"),
        (7, "continue to break"),
        (8, "and without operand 1"),
        (8, "and without operand 2"),
        (8, "negate"),
        (8, "< to <="),
        (8, "< to >="),
        (8, "without not"),
        (8, "< to <="),
        (8, "< to >="),
        (8, "0 plus one"),
        (9, "leave out"),
        (9, "append to insert at 0"),
        (9, "* to //"),
        (9, "2 plus one"),
        (11, "leave out"),
        (11, "return None"),
        (11, "negate"),
        (11, "min to max"),
        (11, "True to False"),
    ]


@pytest.mark.parametrize(
    ("line", "operator", "result"),
    [
        (7, "continue to break", 6),
        (8, "and without operand 2", -2),
        (8, "negate", -2),
        (8, "without not", -2),
        (9, "leave out", True),
        (9, "2 plus one", 3),
        (11, "return None", None),
        (11, "min to max", 6),
    ],
)
def test_a_mutant_does_what_its_operator_says(tmp_path: Path, line: int, operator: str, result: object) -> None:
    source = _source(tmp_path)
    next(mutant for mutant in source.mutants if (mutant.line, mutant.operator) == (line, operator)).apply()

    chosen = FunctionType(source.codes()["chosen", 2], {"_log": logging.getLogger(), "min": min, "max": max})

    assert chosen([3, None, 1, -1, 5], 4) == result


def test_each_mutant_that_stays_is_one_of_the_code() -> None:
    gone = []
    for file, functions in load_reasons().items():
        known = {(mutant.function, mutant.text, mutant.operator) for mutant in Source(ROOT / file).mutants}
        for function, entries in functions.items():
            for entry in entries:
                assert entry["reason"].endswith(".")
                gone += [
                    (file, function, entry["line"], operator)
                    for operator in entry["operators"]
                    if (function, entry["line"], operator) not in known
                ]

    assert gone == []

"""Every normative statement has a test."""

from importlib import import_module
from pathlib import Path

import pytest

from tests.conformance.mqtt.clauses import COVERED, SIDES, STATEMENTS, V5, V311

# How many statements Appendix B of each specification has.
COUNTS = {V311: 141, V5: 251}


@pytest.mark.parametrize("version", [V311, V5])
def test_every_statement_has_a_test(version: int) -> None:
    for module in Path(__file__).parent.glob("test_*.py"):
        import_module(f"{__package__}.{module.stem}")

    assert [number for number in STATEMENTS[version] if number not in COVERED[version]] == []


@pytest.mark.parametrize("version", [V311, V5])
def test_the_list_is_whole_and_says_whom_each_statement_binds_and_to_what(version: int) -> None:
    statements = STATEMENTS[version]

    assert len(statements) == COUNTS[version]
    assert {statement.side for statement in statements.values()} <= set(SIDES)
    assert all(statement.demand for statement in statements.values())
    for number in statements:
        section, _, last = number.rpartition("-")
        assert last == "1" or f"{section}-{int(last) - 1}" in statements or number == "2.2.1-2"

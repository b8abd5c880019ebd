"""Every normative statement has a test, or a reason why it has none."""

import pytest

from tests.conformance.mqtt import (
    test_connect,
    test_control,
    test_data,
    test_delivery,
    test_publish,
    test_subscribe,
    test_topics,
    test_transport,
)
from tests.conformance.mqtt.clauses import COVERED, STATEMENTS, V5, V311, WITHOUT_TEST

MODULES = (
    test_connect,
    test_control,
    test_data,
    test_delivery,
    test_publish,
    test_subscribe,
    test_topics,
    test_transport,
)


@pytest.mark.parametrize("version", [V311, V5])
def test_every_statement_has_a_test_or_a_reason(version: int) -> None:
    assert len(MODULES) == 8
    missing = [name for name in STATEMENTS[version] if name not in COVERED[version] | WITHOUT_TEST[version].keys()]
    assert missing == []


@pytest.mark.parametrize("version", [V311, V5])
def test_no_statement_has_both(version: int) -> None:
    assert sorted(COVERED[version] & WITHOUT_TEST[version].keys()) == []
    assert set(WITHOUT_TEST[version]) <= set(STATEMENTS[version])

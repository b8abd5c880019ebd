"""For all tests: how Hypothesis runs, and what runs beside what on several workers. No fixtures."""

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does; pytest's own timeout ends what hangs.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")

LONGEST_FIRST = ("tests/integration/spark/test_cluster", "tests/integration/spark/", "tests/crash/", "tests/property/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, those of one Spark session too, and begin with what takes longest."""
    for item in items:
        shares_spark = "spark" in getattr(item, "fixturenames", ())
        group = "spark" if shares_spark else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start)), len(LONGEST_FIRST))

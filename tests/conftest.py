"""For all tests: how Hypothesis and Java run, and what runs beside what on several workers. No fixtures."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

# How long an example takes depends on what else the machine does; pytest's own timeout ends what hangs.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# For a pass beside another that tries all examples: "brief" in place of the usual hundred.
settings.register_profile("brief", settings.get_profile("headrace"), max_examples=30)
settings.load_profile("headrace")

# In jobs of seconds Java's second compiler and its parallel collector take half of all processor time and give nothing.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Loading and checking Spark's classes takes most of the rest: tests/spark_classes.py makes a file of them to share. A
# Java that they are not for goes without them; logging is off since it would say so among what it prints.
if Path(classes := os.environ.get("HEADRACE_SPARK_CLASSES", "")).is_file():
    JAVA += f" -XX:SharedArchiveFile={classes} -Xlog:disable"
os.environ.setdefault("JDK_JAVA_OPTIONS", JAVA)

# Whoever starts tests in the background has Ctrl-C ignored by all they start; some of that is to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)

SPARK = "tests/integration/spark/"
OWN_SPARK = ("test_cluster", "test_pipeline_command", "test_declarative", "test_java", "test_submit", "test_connect")
SECOND_SPARK = ("test_pipeline", "test_jobs", "test_report", "test_work", "test_write")
LONGEST_FIRST = (
    SPARK,
    "tests/crash/",
    "tests/property/",
    "tests/integration/test_instructions.py",
    "tests/integration/cluster/",
)


class Together(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the tests of a file to one worker, and those that share a Spark session to two: one would end last."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        name = file.removeprefix(SPARK)
        if name == file or name.startswith(OWN_SPARK):
            return file
        return f"{SPARK} 2" if name.startswith(SECOND_SPARK) else SPARK


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    return next((rank for rank, start in enumerate(LONGEST_FIRST) if item.nodeid.startswith(start)), len(LONGEST_FIRST))

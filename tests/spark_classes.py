"""Makes the file of classes that every Java of a test run shares: `python -m tests.spark_classes FILE`. No tests here.

Starting Spark is mostly loading and checking its classes, and a test run starts it more than a dozen times. What a
first session loads is kept in the file. More could be: what else it would load takes as long to keep as it saves.
"""

import os
import sys
from pathlib import Path

import tests.conftest  # noqa: F401  how Java runs in tests
from tests.spark_session import session


def make(file: Path) -> None:
    """Start Spark once and have its Java write the file when it ends. Where Java cannot, there is none."""
    draft = file.with_suffix(".draft")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable"
    spark = session()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    java = gateway.proc
    spark.stop()
    java.stdin.close()
    if java.wait() == 0:
        draft.rename(file)


if __name__ == "__main__":
    make(Path(sys.argv[1]).resolve())

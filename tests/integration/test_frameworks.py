"""The examples with FastAPI, Celery and Django, and pytest's plugin: their tests run as a user runs them."""

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_EXAMPLES = ("celery", "django", "fastapi")
_PLUGIN = "headrace.pytest_plugin"
_FIXTURES = """
import headrace as package
from pathlib import Path


def test_one_in_memory(headrace: package.SyncBroker) -> None:
    headrace.declare("orders")
    assert headrace.publish("orders", b"espresso") == 1


def test_another_in_memory_is_empty(headrace: package.SyncBroker) -> None:
    headrace.declare("orders")
    assert headrace.messages("orders") == 0


def test_one_on_disk_is_there_again(headrace_on_disk: package.SyncBroker, tmp_path: Path) -> None:
    headrace_on_disk.declare("orders")
    headrace_on_disk.publish("orders", b"espresso")
    headrace_on_disk.close()
    with package.open_sync(tmp_path / "headrace") as again:
        assert again.messages("orders") == 1
"""


def _pytest(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, *words],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # others take longer to load than these tests
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", _EXAMPLES)
def test_the_tests_of_an_example_pass(name: str) -> None:
    ended = _pytest(_ROOT / "examples" / name, "--rootdir", ".", "-c", os.devnull)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert " passed" in ended.stdout


def test_the_fixtures_give_a_broker_in_memory_and_one_on_disk(tmp_path: Path) -> None:
    (tmp_path / "test_fixtures.py").write_text(_FIXTURES)

    ended = _pytest(tmp_path, "-W", "error")

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 passed" in ended.stdout


def test_pytest_finds_the_plugin_by_itself() -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]

    assert project["entry-points"]["pytest11"] == {"headrace": _PLUGIN}
    assert importlib.util.find_spec(_PLUGIN) is not None


def test_the_documents_show_the_examples_as_they_are() -> None:
    page = (_ROOT / "docs" / "embedded.md").read_text()

    for name in _EXAMPLES:
        assert f"(../examples/{name}/" in page

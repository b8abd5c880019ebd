"""Directories with something in them, and engines at work in one: each test has its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_directories import crashed_directory, filled_directory
from tests.workbench import Bench


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return filled_directory(tmp_path / "data")


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    return crashed_directory(tmp_path / "crashed")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def bench(root: Path) -> Iterator[Bench]:
    with Bench(root) as bench:
        yield bench

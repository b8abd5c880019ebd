"""`make run` in a checkout: which copy of the package serves, and what a person is told meanwhile."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

_ROOT = Path(__file__).parents[2]
_SERVES = "http on "


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the checkout that shares the virtual environment of the tests."""
    for name in ("Makefile", "hatch_build.py", "pyproject.toml"):
        shutil.copy2(_ROOT / name, tmp_path / name)
    for name in ("scripts", "src"):
        shutil.copytree(_ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "venv").symlink_to(Path(sys.prefix))
    (Path(sys.prefix) / ".runtime").touch()
    return tmp_path


def _run(checkout: Path) -> Iterator[str]:
    """The lines of `make run` until it serves; then everything that it started ends."""
    words = "VENV=venv", "ARGS=--memory --amqp 0 --mqtt 0 --ws off --http 0"
    outer = ("PYTHONPATH", "MAKEFLAGS", "MAKELEVEL")  # the tests may run below make themselves
    environment = {key: value for key, value in os.environ.items() if key not in outer}
    process = subprocess.Popen(
        ["make", "run", *words],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            yield line
            if _SERVES in line:
                return
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def _publish_and_consume(port: int) -> bytes | None:
    """The first message of a newcomer, with pika."""
    address = pika.ConnectionParameters("127.0.0.1", port)
    with pika.BlockingConnection(address) as connection:
        channel = connection.channel()
        channel.queue_declare("hello", durable=True)
        channel.basic_publish("", "hello", b"world")
        for _, _, body in channel.consume("hello", auto_ack=True, inactivity_timeout=20):
            return bytes(body)
    return None


def test_a_first_start_serves_at_once_and_says_that_it_compiles(checkout: Path) -> None:
    lines: list[str] = []
    for line in _run(checkout):
        lines.append(line)
        if _SERVES in line:
            (port,) = [int(each.rpartition(":")[2]) for each in lines if "  amqp on " in each]
            assert _publish_and_consume(port) == b"world"

    assert "compiling goes on beside the broker" in lines[0]
    assert lines[1].startswith("headrace 0.1.0 serves memory")
    assert _SERVES in lines[-1]


def test_a_start_uses_the_compiled_copy_while_it_is_current(checkout: Path) -> None:
    copy = checkout / "build" / "compiled"
    shutil.copytree(checkout / "src", copy)
    version = copy / "headrace" / "version.py"
    version.write_text(version.read_text().replace('"0.1.0"', '"0.1.0-copy"'))
    (copy / ".current").touch()

    assert next(_run(checkout)).startswith("headrace 0.1.0-copy serves")

    os.utime(checkout / "src" / "headrace" / "model.py")  # somebody edits it

    assert "compiling" in next(_run(checkout))

"""Every block of the README for the shell works as it stands, in a clean directory. Those in Python: test_documents.py
and spark/test_examples.py.
"""

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.servers import Server

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ELSEWHERE = {"python", "py"}
_DEADLINE_SECONDS = 120.0
_PACKED = ("Makefile", "README.md", "hatch_build.py", "pyproject.toml", "scripts", "src")


def _block(beginning: str) -> str:
    """The one block for the shell that begins so."""
    found = [text for kind, text in _blocks() if kind == "sh" and text.startswith(beginning)]
    assert len(found) == 1, found
    return found[0]


def _blocks() -> list[tuple[str, str]]:
    return re.findall(r"^```(\w+)[^\n]*\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def _environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHONPATH"))}
    return {**kept, "PATH": path, "NO_COLOR": "1", "COLUMNS": "160", **more}


def test_no_block_is_left_out() -> None:
    tested = {"make run", "headrace queues", "headrace backup"}

    for kind, text in _blocks():
        assert kind in ELSEWHERE or " ".join(text.split()[:2]) in tested, text


def test_the_first_messages_come_through(tmp_path: Path) -> None:
    server = Server(tmp_path, in_memory=True)
    server.start()

    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _block("headrace queues")],
        env={**_environment(HEADRACE_URL=server.http_url), **_sources()},
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1].endswith("one espresso")
    assert server.stop() == 0


def test_the_data_is_copied_examined_and_repaired(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    channel = server.connect().channel()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", b"one espresso")
    server.close_connections()
    assert server.stop() == 0
    block = shlex.quote(f"set -e\n{_block('headrace backup')}")

    result = subprocess.run(  # on a terminal, as a repair asks
        ["script", "--quiet", "--return", "--command", f"bash -c {block}", "/dev/null"],
        cwd=tmp_path,
        env={**_environment(), **_sources()},
        input="y\n",
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "copy" / "config").is_dir()
    assert result.stdout.count("orders") >= 2


def _sources() -> dict[str, str]:
    """The package that is tested, whatever is installed."""
    return {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}


def test_make_run_serves_in_a_fresh_copy_of_the_project(tmp_path: Path) -> None:
    project = _project(tmp_path)
    ports = {f"HEADRACE_LISTENERS_{name}": "0" for name in ("AMQP", "MQTT", "WS", "HTTP")}
    said = tmp_path / "said"

    with said.open("w") as output:
        process = subprocess.Popen(
            ["make", "run"],
            cwd=project,
            env=_environment(**ports, HEADRACE_COMPILE="off"),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C goes to make and to what it started
        )
        with _ended(process):
            _wait_for(said, "http on ", process)
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_DEADLINE_SECONDS)

    text = said.read_text()
    assert f"serves data directory {project / 'data'}" in text
    assert "Traceback" not in text
    assert (project / "data" / "config").is_dir()


def test_make_test_runs_checks_and_tests(tmp_path: Path) -> None:
    """The script only says that it was called: what it does is what runs this."""
    project = _project(tmp_path)
    (project / "scripts" / "test").write_text("#!/bin/sh\necho here > ran\n")

    lines = [line for line in _block("make run").splitlines() if line.startswith("make test")]
    result = subprocess.run(
        ["bash", "-c", lines[0]],
        cwd=project,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert (project / "ran").exists()
    assert "scripts/check" in (ROOT / "scripts" / "test").read_text()


def _project(directory: Path) -> Path:
    """A copy of what `make` uses, with what is installed here: nothing is fetched."""
    project = directory / "headrace"
    project.mkdir()
    for name in _PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, project / name)
    installed = project / ".venv"
    installed.mkdir()
    for entry in Path(sys.prefix).iterdir():
        if entry.name != ".ready":
            (installed / entry.name).symlink_to(entry)
    (installed / ".ready").touch()
    return project


@contextlib.contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    """Nothing of it is left afterwards, whatever happens."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_DEADLINE_SECONDS)


def _wait_for(said: Path, text: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while text not in said.read_text():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)

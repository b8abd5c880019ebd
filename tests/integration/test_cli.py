"""The `headrace` command as people run it: a process of its own, a real directory, signals and exit codes."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.version import IS_COMPILED, __version__
from tests.commands import headrace

_DEADLINE_SECONDS = 30.0
_PORTS = ("--amqp", "0", "--mqtt", "0", "--ws", "0", "--http", "0")
_SMALL = LocalSettings(journal_file_bytes=1 << 16, tail_bytes=1 << 12, segment_bytes=1 << 12)
_FAILING_DISK = """
import sys
from headrace import app, cli
from headrace.cli import serve
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.local.disk import Disk, SyncFailed
from headrace.storage.local.engine import LocalEngine

class Broken(Disk):
    def write_synced(self, fd, buffers, position):
        raise SyncFailed(5, "Input/output error")

def opener(settings, wake):
    engine = LocalEngine(settings.storage.data, wake, disk=Broken())
    commit = Commit()
    commit.append("orders", [Message(Source("t"), b"x", 1)])
    engine.commit(commit, lambda error: None)
    return engine

serve.become = lambda launch: sys.exit(app.run(launch, opener))
cli.main()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `headrace` in the background; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def _start(*arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "headrace", *map(str, arguments)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=_environment()
        )
        running.append(process)
        return process

    yield _start
    for process in running:
        process.kill()
        process.communicate()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a queue of several segments and a group, closed properly."""
    root = tmp_path / "orders-data"
    for _ in range(3):
        _append(root, 30)
    return root


def _append(root: Path, count: int) -> None:
    engine = LocalEngine(root, settings=_SMALL)
    results: list[HeadraceError | None] = []
    commit = Commit()
    commit.append("orders [eu]", [Message(Source("t"), bytes(200), 1 + index) for index in range(count)])
    if not engine.log("orders [eu]").groups:
        commit.create_group("orders [eu]", "workers", WORK)
    engine.commit(commit, results.append)
    engine.close()
    assert results == [None]


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "160", "NO_COLOR": "1"}


def _wait_until_ready(process: "subprocess.Popen[str]", ready: Path) -> dict[str, Any]:
    """What the ready file says, once this process has written it."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.01)
            raise AssertionError(f"it ended with {process.returncode}: {process.communicate()}")
        if ready.exists():
            said: dict[str, Any] = json.loads(ready.read_text())
            if said["pid"] == process.pid:
                return said
    raise AssertionError(f"{ready} was not written within {_DEADLINE_SECONDS} s")


def _finish(process: "subprocess.Popen[str]", number: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(number)
    output, errors = process.communicate(timeout=_DEADLINE_SECONDS)
    return process.returncode, output, errors


def _first_segment(root: Path) -> Path:
    return min(root.glob("queues/*/segments/*.seg"))


# -- help


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["serve"],
        ["config"],
        ["config", "check"],
        ["config", "show"],
        ["config", "schema"],
        ["backup"],
        ["demo"],
        ["doctor"],
    ],
)
def test_help_shows_what_there_is_with_examples(command: list[str]) -> None:
    result = headrace(*command, "--help")

    assert result.returncode == 0
    assert "Usage: headrace" in result.stdout
    assert "Examples" in result.stdout


def test_version_says_which_release_it_is_and_whether_it_was_compiled() -> None:
    result = headrace("--version")

    how = "compiled" if IS_COMPILED else "interpreted"
    assert (result.returncode, result.stdout) == (0, f"headrace {__version__} ({how})\n")


# -- serve


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_says_what_it_serves_and_ends_cleanly_when_told(
    tmp_path: Path, data: Path, start: Start, number: signal.Signals
) -> None:
    ready = tmp_path / "ready.json"
    process = start(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data, "--ready-file", ready
    )

    said = _wait_until_ready(process, ready)
    code, output, errors = _finish(process, number)

    assert said == {"pid": process.pid, "data": str(data.resolve()), "ports": {}}
    assert code == 0, errors
    assert str(data.resolve()) in output
    assert "queues 1, messages 90" in output
    assert not ready.exists()


def test_serve_says_where_it_listens(tmp_path: Path, start: Start) -> None:
    process = start(
        "serve", "--memory", "--amqp", "0", "--http", "0", "--mqtt", "0", "--ws", "0", "--ready-file", "ready.json"
    )

    said = _wait_until_ready(process, tmp_path / "ready.json")
    _, output, _ = _finish(process, signal.SIGTERM)

    assert sorted(said["ports"]) == ["amqp", "http", "mqtt", "ws"]
    for name, port in said["ports"].items():
        assert 0 < port < 65536
        assert f"{name} on 127.0.0.1:{port}" in output


def test_serve_refuses_a_port_that_is_none(tmp_path: Path) -> None:
    result = headrace("serve", "--memory", "--amqp", "many")

    assert result.returncode == 2
    assert "a port from 0 to 65535, or off" in result.stderr


def test_serve_refuses_a_port_that_is_taken(tmp_path: Path, start: Start) -> None:
    first = start(
        "serve", "--memory", "--amqp", "0", "--http", "0", "--mqtt", "0", "--ws", "0", "--ready-file", "ready.json"
    )
    taken = _wait_until_ready(first, tmp_path / "ready.json")["ports"]

    result = headrace(
        "serve", "--memory", "--amqp", taken["amqp"], "--http", taken["http"], "--mqtt", "0", "--ws", "off"
    )

    assert result.returncode == 1
    for name in ("amqp", "http"):
        assert (
            f"{name} cannot listen on 127.0.0.1:{taken[name]}: Address already in use; "
            f"--{name} PORT takes another port (0 a free one), and --{name} off does without {name}"
        ) in result.stderr
    assert "mqtt" not in result.stderr


def test_serve_names_the_flag_of_an_address_that_this_machine_does_not_have() -> None:
    result = headrace("serve", "--memory", "--host", "192.0.2.1", "--amqp", "0", "--http", "off", "--mqtt", "off")

    assert result.returncode == 1
    assert "amqp cannot listen on 192.0.2.1:0" in result.stderr
    assert "--host takes another address" in result.stderr


def test_serve_does_without_an_optional_listener_whose_port_is_taken(tmp_path: Path, start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
        datagrams.bind(("127.0.0.1", 0))
        web, coap = stream.getsockname()[1], datagrams.getsockname()[1]
        ports = ("--amqp", "0", "--http", "0", "--mqtt", "0", "--ws", str(web), "--coap", str(coap))

        process = start("serve", "--memory", *ports, "--ready-file", "ready.json")
        said = _wait_until_ready(process, tmp_path / "ready.json")

    assert sorted(said["ports"]) == ["amqp", "http", "mqtt"]
    _, _, errors = _finish(process, signal.SIGTERM)
    assert f"the broker serves without ws: ws cannot listen on 127.0.0.1:{web}: Address already in use" in errors
    assert f"the broker serves without coap: coap cannot listen on 127.0.0.1:{coap} (UDP)" in errors
    assert "--ws PORT takes another port (0 a free one), and --ws off does without ws" in errors


def test_serve_keeps_its_data_in_the_current_directory_by_default(tmp_path: Path, start: Start) -> None:
    process = start(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--ready-file", "ready.json"
    )

    said = _wait_until_ready(process, tmp_path / "ready.json")

    assert said["data"] == str((tmp_path / "data").resolve())
    assert (tmp_path / "data" / "LOCK").exists()


def test_serve_in_memory_leaves_no_directory(tmp_path: Path, start: Start) -> None:
    process = start(
        "serve",
        "--amqp",
        "off",
        "--http",
        "off",
        "--mqtt",
        "off",
        "--ws",
        "off",
        "--memory",
        "--ready-file",
        "ready.json",
    )

    said = _wait_until_ready(process, tmp_path / "ready.json")
    code, _, errors = _finish(process, signal.SIGTERM)

    assert said["data"] is None
    assert code == 0, errors
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_on_the_same_directory_is_told_who_has_it(tmp_path: Path, data: Path, start: Start) -> None:
    ready = tmp_path / "ready.json"
    first = start(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data, "--ready-file", ready
    )
    _wait_until_ready(first, ready)

    second = headrace(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data, "--ready-file", ready
    )
    examined = headrace("doctor", data)

    for result, code in ((second, 1), (examined, 2)):
        assert result.returncode == code
        assert f"in use by process {first.pid} " in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert json.loads(ready.read_text())["pid"] == first.pid


def test_after_kill_9_it_serves_again(tmp_path: Path, data: Path, start: Start) -> None:
    ready = tmp_path / "ready.json"
    first = start(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data, "--ready-file", ready
    )
    _wait_until_ready(first, ready)
    _finish(first, signal.SIGKILL)

    second = start(
        "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data, "--ready-file", ready
    )

    _wait_until_ready(second, ready)
    code, output, errors = _finish(second, signal.SIGTERM)
    assert code == 0, errors
    assert "messages 90" in output
    assert re.search(r"storage \d+ commits were recovered from the journal", errors)


def test_a_stop_does_not_wait_for_clients_that_do_not_answer(tmp_path: Path, start: Start) -> None:
    process = start("serve", *_PORTS, "--ready-file", "ready.json")
    ports = _wait_until_ready(process, tmp_path / "ready.json")["ports"]
    silent = [socket.create_connection(("127.0.0.1", ports[name])) for name in ("amqp", "mqtt", "ws", "http")]
    connected = socket.create_connection(("127.0.0.1", ports["amqp"]))
    connected.sendall(b"AMQP\x00\x00\x09\x01")
    assert connected.recv(1)

    code, _, errors = _finish(process, signal.SIGTERM)

    assert code == 0, errors
    for client in (*silent, connected):
        client.close()


def test_a_damaged_journal_is_refused_with_one_line_that_names_the_doctor(data: Path) -> None:
    (data / "journal" / "checkpoint.json").write_bytes(b"{}")

    result = headrace("serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off", "--data", data)

    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "checkpoint.json is damaged at byte 0" in result.stderr
    assert f"headrace doctor {data}" in result.stderr


def test_a_directory_that_cannot_be_made_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")

    result = headrace("serve", "--data", tmp_path / "file" / "data")

    assert result.returncode == 1
    assert "choose another with --data" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_data_and_memory_exclude_each_other(tmp_path: Path) -> None:
    result = headrace("serve", "--memory", "--data", tmp_path / "data")

    assert result.returncode == 2
    assert "either --data or --memory" in result.stderr


def test_a_failed_sync_ends_the_process_with_code_74(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _FAILING_DISK, "serve", "--amqp", "off", "--http", "off", "--mqtt", "off", "--ws", "off",
         "--data", str(tmp_path / "data"), "--ready-file", "ready.json"],
        capture_output=True, text=True, timeout=_DEADLINE_SECONDS, cwd=tmp_path, env=_environment(), check=False,
    )  # fmt: skip

    assert result.returncode == 74, result.stderr
    assert "Input/output error" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "ready.json").exists()


# -- doctor


def test_the_doctor_shows_every_queue_of_a_sound_directory(data: Path) -> None:
    result = headrace("doctor", data)

    assert result.returncode == 0, result.stderr
    assert "orders [eu]" in result.stdout
    assert re.search(r"workers +. work +. +0 . +0 . +0", result.stdout)
    assert "no problems in 1 queue with 90 messages" in result.stdout
    assert result.stderr == ""


def test_the_doctor_names_file_position_problem_and_remedy(data: Path) -> None:
    segment = _first_segment(data)
    with segment.open("r+b") as file:
        file.seek(120)
        file.write(b"damage")

    result = headrace("doctor", data)

    assert result.returncode == 1
    assert f"{segment} at byte 32" in result.stdout
    assert "checksum" in result.stdout
    assert "to do: restore the file from a copy" in result.stdout


def test_the_doctor_repairs_what_it_says_and_is_then_content(data: Path) -> None:
    index = _first_segment(data).with_suffix(".idx")
    index.unlink()

    result = headrace("doctor", data, "--repair", "--yes")

    assert result.returncode == 0, result.stderr
    assert f"rebuild {index}" in result.stdout
    assert "no problems in 1 queue" in result.stdout
    assert index.exists()


def test_the_doctor_repairs_nothing_when_it_cannot_ask(data: Path) -> None:
    index = _first_segment(data).with_suffix(".idx")
    index.unlink()

    result = headrace("doctor", data, "--repair")

    assert result.returncode == 2
    assert "add --yes" in result.stderr
    assert not index.exists()


def test_what_cannot_be_repaired_is_left_and_said(data: Path) -> None:
    segment = _first_segment(data)
    os.truncate(segment, 100)

    result = headrace("doctor", data, "--repair", "--yes")

    assert result.returncode == 1
    assert "can be repaired without losing messages" in result.stdout
    assert segment.stat().st_size == 100


def test_the_doctor_speaks_json(data: Path) -> None:
    _first_segment(data).with_suffix(".tix").unlink()

    result = headrace("doctor", data, "--json")

    report = json.loads(result.stdout)
    assert result.returncode == 1
    assert report["clean"] is False
    (queue,) = report["queues"]
    assert (queue["name"], queue["first_offset"], queue["next_offset"], queue["messages"]) == ("orders [eu]", 0, 90, 90)
    (problem,) = queue["problems"]
    assert (problem["position"], problem["repairable"]) == (0, True)
    assert len(report["repairs"]) == 1
    mended = json.loads(headrace("doctor", data, "--json", "--repair", "--yes").stdout)
    assert (mended["clean"], mended["repaired"]) == (True, report["repairs"])


@pytest.mark.parametrize("arguments", [["nowhere"], [], [".", "--yes"], ["."]])
def test_what_cannot_be_examined_is_a_usage_error(tmp_path: Path, arguments: list[str]) -> None:
    result = headrace("doctor", *arguments, cwd=tmp_path)

    assert result.returncode == 2
    assert "Traceback" not in result.stderr

"""What every `--help` shows works: each example is run in a shell, as it stands, in a directory that fits.

Ports and paths that belong to the machine are moved elsewhere, and what would go on for ever is interrupted. Pipelines,
migrations, shovels and measurements have tests of their own, in spark/, test_migration.py and test_bench.py.
"""

import contextlib
import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headrace.storage.objects.engine import ObjectEngine
from tests.examples import examples
from tests.servers import Server, serving
from tests.stores import S3, moto

_DEADLINE_SECONDS = 60.0
_FOREIGN = ("/etc/headrace", "/var/lib/headrace", "/backup", "/tmp")
_ENDLESS = ("serve", "demo")
_PORTS = ("amqp", "mqtt", "ws", "http", "coap", "amqps", "mqtts", "https")

ALL = examples()
CLIENTS = ("publish", "consume", "queues", "groups", "dlq", "users", "permissions", "policies", "vhosts", "cluster")


def _chosen(*commands: str) -> list[str]:
    return list(dict.fromkeys(line for _, line in ALL if _command(line) in commands))


def _command(line: str) -> str:
    """Which command an example is of; its line may begin with one that feeds it."""
    found = re.search(r"headrace ([a-z]+)", line)
    assert found, line
    return found[1]


def test_every_command_has_examples() -> None:
    elsewhere = {"pipeline", "migrate", "shovel"}
    known = {*CLIENTS, *_ENDLESS, "config", "doctor", "backup", *elsewhere}

    assert {_command(line) for _, line in ALL} == known
    leaves = {name for name, _ in ALL}
    for group in ("queues", "groups", "dlq", "users", "permissions", "policies", "vhosts", "config", "pipeline"):
        assert len([name for name in leaves if name.startswith(f"{group} ")]) > 1


def _environment(**more: str) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "COLUMNS": "160", "NO_COLOR": "1", **more}


def _moved(line: str, directory: Path) -> str:
    """The same with what belongs to the machine in a directory of the test's."""
    return re.sub(f" ({'|'.join(_FOREIGN)})", rf" {directory}\1", line)


def _run(
    line: str, directory: Path, environment: dict[str, str], given: str = ""
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", line],
        cwd=directory,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECONDS,
        check=False,
    )


# -- clients of a broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), in_memory=True)) as running:
        yield running


@pytest.mark.parametrize("line", [line for line in _chosen(*CLIENTS) if not re.search("--(follow|store)", line)])
def test_an_example_of_a_client_works(server: Server, tmp_path: Path, line: str) -> None:
    _prepare(server, line)
    (tmp_path / "password.txt").write_text("hunter2\n")
    result = _run(line, tmp_path, _environment(HEADRACE_URL=server.http_url), given="hunter2\n")

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("line", [line for line in _chosen("consume") if "--follow" in line])
def test_an_example_that_follows_a_queue_shows_what_comes(server: Server, tmp_path: Path, line: str) -> None:
    _prepare(server, line)
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=tmp_path,
        env=_environment(HEADRACE_URL=server.http_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    said = {"topic": "$queue/events", "payload": "came later"}
    output = ""
    with _stopped(process) as stop:
        assert process.stdout is not None
        for _ in range(round(_DEADLINE_SECONDS / 0.2)):
            httpx.post(
                f"{server.http_url}/api/v1/publish/%2F", auth=("guest", "guest"), json=said, timeout=30, verify=False
            )
            if select.select([process.stdout], [], [], 0.2)[0]:
                output += os.read(process.stdout.fileno(), 1 << 16).decode()
            if "came later" in output:
                break
        stop(signal.SIGINT)

    assert "came later" in output
    assert process.returncode == 130


def _prepare(server: Server, line: str) -> None:
    """What the examples take for granted: nothing declared otherwise, something in each place."""
    with httpx.Client(base_url=f"{server.http_url}/api/v1", auth=("guest", "guest"), timeout=30, verify=False) as http:
        for name in ("orders", "events", "jobs", "parking", "$dlq%2Forders"):
            http.delete(f"/queues/%2F/{name}")
        http.put("/queues/%2F/orders", json={})
        http.put("/queues/%2F/parking", json={})
        http.put("/queues/%2F/events", json={"type": "stream", "retention": {"max_age": "7d"}})
        http.put("/queues/%2F/captured", json={"topics": ["plant/#"], "capture": True})
        for payload in ("dead", "alive"):
            http.post("/publish/%2F", json={"routing_key": "orders", "payload": payload})
            if payload == "dead":
                http.post("/queues/%2F/orders/consume", json={"then": "reject"})
        http.post("/publish/%2F", json={"topic": "$queue/events", "payload": "one"})
        http.post("/queues/%2F/events/consume", json={"group": "readers"})
        http.post("/publish/%2F", json={"topic": "$queue/events", "payload": "two"})
        if "--if-empty" in line:
            http.post("/queues/%2F/orders/purge")
        http.put("/policies/%2F/short", json={"pattern": "^tmp", "definition": {"expires": 1000}})
        http.put("/operator-policies/%2F/roof", json={"pattern": "^tmp", "definition": {"max-length": 1000}})
        http.put("/vhosts/eu")
        for user in ("ann", "worker", "device", "guest2"):
            http.put(f"/users/{user}", json={"password": "secret", "tags": []})
            for host in ("%2F", "eu"):
                http.put(f"/permissions/{host}/{user}", json={"configure": ".*", "write": ".*", "read": ".*"})
            for exchange in ("amq.topic", "$queue"):
                http.put(f"/topic-permissions/%2F/{user}/{exchange}", json={"write": ".*", "read": ".*"})


# -- what looks after files


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with something in it, of a broker that ran."""
    directory = tmp_path_factory.mktemp("kept")
    running = Server(directory)
    running.start()
    running.connect().channel().queue_declare("orders", durable=True)
    running.close_connections()
    assert running.stop() == 0
    return directory / "data"


@pytest.mark.parametrize("line", [line for line in _chosen("doctor", "backup", "config") if "--store" not in line])
def test_an_example_about_files_works(data: Path, tmp_path: Path, line: str) -> None:
    file = "queues:\n  - name: orders\n"
    (tmp_path / "headrace.yaml").write_text(file)
    (tmp_path / "etc/headrace").mkdir(parents=True)
    (tmp_path / "etc/headrace/headrace.yaml").write_text(file)
    (tmp_path / "backup").mkdir()
    source = {"doctor": "data", "config": "unused"}.get(_command(line), line.split()[2].lstrip("/"))
    (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "var/lib").mkdir(parents=True, exist_ok=True)
    assert _run(f"cp -r {data} {tmp_path / source}", tmp_path, _environment()).returncode == 0

    said = _moved(line, tmp_path)
    if "--repair" in line:  # it asks, and only who sits at a terminal
        said = f"script --quiet --return --command {shlex.quote(said)} /dev/null"
    result = _run(said, tmp_path, _environment(), given="y\n")

    assert result.returncode == 0, result.stdout + result.stderr
    assert "Traceback" not in result.stderr
    if _command(line) == "backup":
        assert (tmp_path / line.split()[3].lstrip("/") / "config").is_dir()
    elif ">" in line:
        assert json.loads((tmp_path / line.split("> ")[1]).read_text())
    else:
        assert result.stdout


# -- what goes on until it is stopped


@pytest.fixture(scope="module")
def bucket() -> Iterator[S3]:
    """The store that the examples name."""
    with moto() as port:
        yield S3(port, bucket="bucket")


@pytest.mark.parametrize("line", _chosen("serve"))
def test_an_example_of_serve_serves(tmp_path: Path, bucket: S3, line: str) -> None:
    for name in ("etc/headrace", "var/lib", "tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/headrace/headrace.yaml").write_text("queues: [{name: orders}]\n")
    if "--tls-cert" in line:
        from tests.certificates import Authority

        Authority(tmp_path).sign("localhost", "server")
    ready = tmp_path / "ready.json"
    said = _moved(line, tmp_path)
    free = [f"--{name} 0" for name in _PORTS[:4] if f"--{name} off" not in line]
    free += [f"--{name} 0" for name in _PORTS[5:] if "--tls-cert" in line]

    process = subprocess.Popen(
        ["bash", "-c", f"exec {said} --ready-file {ready} {' '.join(free)}"],
        cwd=tmp_path,
        env=_environment(**bucket.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with _stopped(process) as stop:
        _wait_for(ready, process)
        ports = json.loads(ready.read_text())["ports"]
        output = stop(signal.SIGTERM)

    assert process.returncode == 0, output
    off = re.findall(r"--(\w+) off", line)
    assert set(ports) == {*_PORTS[:4], *(_PORTS[5:] if "--tls-cert" in line else ())} - set(off)
    assert ("memory" in output.splitlines()[0]) is ("--memory" in line)


@pytest.mark.parametrize("line", [line for line in _chosen("doctor", "backup", "cluster") if "--store" in line])
def test_an_example_about_stores_works(tmp_path: Path, bucket: S3, line: str) -> None:
    with bucket.here():
        for group in ("main", "hot"):
            ObjectEngine("s3://bucket/prefix", group=group).close()

    result = _run(line, tmp_path, _environment(**bucket.environment))

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout


@pytest.mark.parametrize("line", _chosen("demo"))
def test_an_example_of_demo_begins_and_ends(tmp_path: Path, line: str) -> None:
    process = subprocess.Popen(
        ["bash", "-c", f"exec {line}"],
        cwd=tmp_path,
        env=_environment(TMPDIR=str(tmp_path), PYTHONUNBUFFERED="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with _stopped(process) as stop:
        assert process.stdout is not None
        shown = next((text for text in process.stdout if "dashboard" in text), "")
        output = stop(signal.SIGINT)

    assert "http://" in shown
    assert process.returncode == 0, output
    assert "readings over MQTT" in output
    assert list(tmp_path.iterdir()) == []


class _Stop:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def __call__(self, number: int) -> str:
        """Send a signal, and return what it says to the end."""
        self._process.send_signal(number)
        output, _ = self._process.communicate(timeout=_DEADLINE_SECONDS)
        return output


@contextlib.contextmanager
def _stopped(process: "subprocess.Popen[str]") -> Iterator[_Stop]:
    """The process is over afterwards, whatever happens."""
    try:
        yield _Stop(process)
    finally:
        process.kill()
        process.communicate()


def _wait_for(file: Path, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not file.exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)

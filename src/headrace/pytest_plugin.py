"""Fixtures for the tests of programs that use Headrace; pytest finds them where the package is installed.

`headrace` is a broker in memory, `headrace_on_disk` one over a temporary directory, and `headrace_server` a server on
free ports for clients of any protocol.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, final

import pytest

if TYPE_CHECKING:
    from headrace.synchronous import SyncBroker

_READY_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 15.0


@final
@dataclass(frozen=True)
class HeadraceServer:
    """Address of a server: its ports by name (`amqp`, `mqtt`, `ws`, `http`)."""

    ports: dict[str, int]

    @property
    def amqp_url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.ports['amqp']}/"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['http']}"


@pytest.fixture
def headrace() -> "Iterator[SyncBroker]":
    """A broker in memory, gone after the test."""
    from headrace.synchronous import SyncBroker  # tests without it load nothing

    with SyncBroker(None) as broker:
        yield broker


@pytest.fixture
def headrace_on_disk(tmp_path: Path) -> "Iterator[SyncBroker]":
    """A broker over `tmp_path / "headrace"`, durable as in production."""
    from headrace.synchronous import SyncBroker

    with SyncBroker(tmp_path / "headrace") as broker:
        yield broker


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeadraceServer]:
    """A server in memory with every protocol on a free port of 127.0.0.1, for the whole run."""
    from headrace.process import python

    folder = tmp_path_factory.mktemp("headrace-server")
    ready, log = folder / "ready.json", folder / "server.log"
    ports = [word for name in ("amqp", "mqtt", "ws", "http") for word in (f"--{name}", "0")]
    command = python("-m", "headrace", "serve", "--memory", *ports, "--ready-file", str(ready))
    with log.open("w") as output, subprocess.Popen(command, cwd=folder, stdout=output, stderr=output) as process:
        try:
            yield HeadraceServer(_wait_for_ports(process, ready, log))
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_ports(process: "subprocess.Popen[bytes]", ready: Path, log: Path) -> dict[str, int]:
    deadline = time.monotonic() + _READY_SECONDS
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the headrace server did not start: {log.read_text().strip()}")
        time.sleep(0.02)
    found: dict[str, int] = json.loads(ready.read_text())["ports"]
    return found

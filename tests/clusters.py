"""Clusters for tests: broker processes that share a store, killed, stopped and woken as the test likes."""

import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import pika
from pika.adapters.blocking_connection import BlockingConnection

from headrace.clock import SystemClock
from headrace.cluster.lease import Records
from headrace.cluster.status import OWNER, Status, read_status
from headrace.config.replication import MAIN
from tests import process_pool
from tests.process_pool import Child

_DEADLINE_SECONDS = 120.0
_PAUSE_SECONDS = 0.1


class ClusterNode:
    """One process."""

    def __init__(self, directory: Path, name: str, store: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self._directory = directory
        self._store = store
        self._environment = environment
        self._process: Child | None = None
        self.ports: dict[str, int] = {}
        self.is_stopped = False

    def begin(self) -> None:
        """Start it; `wait_until_there` before anything else."""
        self._ready.unlink(missing_ok=True)
        ports = [word for name in ("amqp", "mqtt", "ws", "http") for word in (f"--{name}", "0")]
        words = ["serve", "--store", self._store, *ports, "--ready-file", str(self._ready)]
        settings = {"HEADRACE_CLUSTER_NODE": self.name, "HEADRACE_CLUSTER_LISTEN": "127.0.0.1:0"}
        environment = {**os.environ, **settings, **self._environment}
        with (self._directory / f"{self.name}.log").open("ab") as log:
            self._process = process_pool.start(words, environment, log, log)

    def wait_until_there(self) -> None:
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not self._ready.exists():
            assert self.is_alive, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(_PAUSE_SECONDS)
        self.ports = json.loads(self._ready.read_text())["ports"]

    @property
    def _ready(self) -> Path:
        return self._directory / f"{self.name}.ready"

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self.is_stopped = True

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self.is_stopped = False

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(_DEADLINE_SECONDS)

    def log(self) -> str:
        return (self._directory / f"{self.name}.log").read_text()

    def role(self) -> str:
        """The role that it reports; "" if it does not answer."""
        if self.is_stopped or not self.is_alive:
            return ""
        return str(self._ready_page()[1].get("role", ""))

    def ready(self) -> tuple[int, str]:
        """The status of `/ready`, and the reason why it is not."""
        status, page = self._ready_page()
        return status, str(page.get("reason", ""))

    def _ready_page(self) -> tuple[int, dict[str, object]]:
        """What `/ready` answers; 0 and nothing if it does not."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=5)
        try:
            connection.request("GET", "/ready")
            answer = connection.getresponse()
            return answer.status, dict(json.loads(answer.read()))
        except (OSError, http.client.HTTPException, ValueError):
            return 0, {}
        finally:
            connection.close()

    def connect(self) -> BlockingConnection:
        return BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.ports["amqp"], heartbeat=0))


class Cluster:
    """Nodes of one group over one store."""

    def __init__(
        self,
        directory: Path,
        store: str,
        lease: str,
        environment: Mapping[str, str] | None = None,
        names: tuple[str, ...] = ("a", "b", "c"),
        group: str = MAIN,
    ) -> None:
        self.store = store
        self.group = group
        given = {**(environment or {}), "HEADRACE_CLUSTER_LEASE": lease, "HEADRACE_CLUSTER_GROUP": group}
        self.nodes = {name: ClusterNode(directory, name, store, given) for name in names}

    def __enter__(self) -> "Cluster":
        for node in self.nodes.values():
            node.begin()
        for node in self.nodes.values():
            node.wait_until_there()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        if kind is not None:
            print("\n".join(f"--- {name}\n{node.log()[-4000:]}" for name, node in self.nodes.items()))

    def stop(self) -> None:
        """End all that still run, as an operator would."""
        for node in self.nodes.values():
            if node.is_alive:
                node.resume()
                node.signal(signal.SIGTERM)
        for node in self.nodes.values():
            if node.is_alive:
                try:
                    node.wait()
                except subprocess.TimeoutExpired:
                    node.kill()

    def owner(self) -> ClusterNode:
        """The node that serves, once there is one."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while time.monotonic() < deadline:
            for node in self.nodes.values():
                if node.role() == OWNER:
                    return node
            time.sleep(_PAUSE_SECONDS)
        raise AssertionError("nobody serves")

    def status(self) -> Status:
        return read_status(Records(self.store, self.group, 30_000), SystemClock())

"""Starts brokers for a measurement, each in a directory of its own on free ports of the loopback, and ends them."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final, final

from bench.compare.amqp_session import AmqpSession
from bench.compare.course import Target
from bench.compare.load import Endpoint, Family
from bench.compare.nats import NatsSession
from bench.compare.peers import Command, Peer, is_open
from headrace.errors import Unavailable

_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 60.0
_ATTEMPTS: Final = 3
_NEW_ADDRESSES: Final = "4"
"""From this release of RabbitMQ on, AMQP 1.0 clients name queues as ours do."""


class Contestant(ABC):
    """A broker that takes part."""

    name: str
    families: frozenset[Family]
    is_running = False

    @abstractmethod
    def start(self) -> Target:
        """Have it run, with nothing in it where that is ours to say. Raises Unavailable."""

    @abstractmethod
    def stop(self) -> None:
        """Leave nothing behind."""


@final
class RunningBroker(Contestant):
    """A broker that runs already, and goes on afterwards."""

    def __init__(self, name: str, endpoints: dict[Family, Endpoint], pid: int | None) -> None:
        self.name = name
        self.families = frozenset(endpoints)
        self._endpoints = endpoints
        self._pid = pid

    def start(self) -> Target:
        for endpoint in self._endpoints.values():
            if not is_open(endpoint):
                raise Unavailable(f"nothing listens on {endpoint.host}:{endpoint.port}")
        self.is_running = True
        return Target(self.name, self._endpoints, self._pid, _version(self._endpoints, None))

    def stop(self) -> None:
        self.is_running = False


@final
class Broker(Contestant):
    """A broker that this process starts."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._folder = Path()
        self._ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None
        self.name = peer.name
        self.families = frozenset(peer.families)

    def start(self) -> Target:
        """Start it anew, with nothing in it. Raises Unavailable with the last it said when it does not come up."""
        self.stop()
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._start()
            except BaseException as error:
                self.stop()
                if attempt == _ATTEMPTS or not isinstance(error, Unavailable):  # another took one of its ports, perhaps
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _start(self) -> Target:
        self._folder = Path(tempfile.mkdtemp(prefix=f"headrace-bench-{self.name}-"))
        self._ports = _free_ports(self._peer.ports)
        program = self._peer.find()
        if program is None:
            raise Unavailable(f"{self.name} is not installed")
        command = self._peer.command(program, self._folder, self._ports)
        self._process = self._spawn(command)
        endpoints = self._wait()
        version = _version(endpoints, command)
        if self.name == "rabbitmq" and version >= _NEW_ADDRESSES:
            endpoints["amqp10"] = Endpoint(endpoints["amqp10"].host, endpoints["amqp10"].port)
        self.is_running = True
        return Target(self.name, endpoints, self._process.pid, version)

    def _spawn(self, command: Command) -> "subprocess.Popen[bytes]":
        with (self._folder / "said.log").open("wb") as log:
            return subprocess.Popen(
                command.words,
                env={**os.environ, **command.environment},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _wait(self) -> dict[Family, Endpoint]:
        """Addresses that it listens on, once it does."""
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            endpoints = self._peer.endpoints(self._ports, self._folder)
            if self._peer.is_ready(endpoints):
                return endpoints
            if self._process is None or self._process.poll() is not None:
                break
            time.sleep(0.02)
        said = (self._folder / "said.log").read_text(errors="replace").strip()[-500:]
        raise Unavailable(f"{self.name} does not start: {said or 'it says nothing'}")

    def stop(self) -> None:
        """End it and remove what it wrote."""
        self.is_running = False
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None
            after = self._peer.stopped(self._ports)
            if after:
                subprocess.run(after, capture_output=True, check=False, timeout=_STOP_SECONDS)
        if self._folder != Path():
            shutil.rmtree(self._folder, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _version(endpoints: dict[Family, Endpoint], command: Command | None) -> str:
    """As it says itself, in its protocol or on the command line."""
    if "amqp" in endpoints:
        session = AmqpSession(endpoints["amqp"])
        session.close()
        return session.version
    if "nats" in endpoints:
        nats = NatsSession(endpoints["nats"], "version")
        nats.wire.close()
        return nats.version
    if command is None:
        return "?"
    said = subprocess.run([command.words[0], "-h"], capture_output=True, text=True, check=False, timeout=30).stdout
    found = re.search(r"version (\S+)", said)
    return found[1] if found else "?"

"""A real `headrace serve` process for tests with foreign clients: start, stop, kill, start again on the same data."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests import process_pool
from tests.process_pool import Child

_ROOT = Path(__file__).parents[1]
_DEADLINE_SECONDS = 120.0


class Server:
    """One server over one data directory, in memory, or over a store; `environment` is what it has besides ours.

    `program` is a module that does what `headrace` does, and something besides. It has all modules of `headrace` from
    the beginning, unless it is fresh. `most_files` is how many files it may have open, 0 for as many as we may.
    """

    def __init__(
        self,
        directory: Path,
        in_memory: bool = False,
        options: Sequence[str] = (),
        store: str = "",
        environment: Mapping[str, str] | None = None,
        program: str = "headrace",
        is_fresh: bool = False,
        most_files: int = 0,
    ) -> None:
        self._directory = directory
        self._options = options
        self._in_memory = in_memory
        self._store = store
        self.environment = dict(environment or {})
        self.program = program
        self.is_fresh = is_fresh
        self._most_files = most_files
        self._process: subprocess.Popen[bytes] | Child | None = None
        self._connections: list[pika.BlockingConnection] = []
        self.port = 0
        self.http_port = 0
        self.ports: dict[str, int] = {}

    def start(self, mqtt_port: int = 0, http_port: int = 0, amqp_port: int = 0) -> None:
        """Start it; on any free ports, unless clients are to find it where it was."""
        process = self.launch(mqtt_port, http_port, amqp_port)
        ready = self._directory / "ready.json"
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while not ready.exists():
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, "the server did not become ready"
            time.sleep(0.02)
        self.adopt(ready)

    def launch(self, mqtt_port: int = 0, http_port: int = 0, amqp_port: int = 0) -> "subprocess.Popen[bytes] | Child":
        """Start it without waiting until it serves."""
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        where = ["--memory"] if self._in_memory else ["--data", str(self._directory / "data")]
        if self._store:
            where = ["--store", self._store]
        ports = _ports(amqp=amqp_port, http=http_port, mqtt=mqtt_port, ws=0)
        words = ["serve", "--ready-file", str(ready), *where, *ports, *self._options]
        environment = {**os.environ, **self.environment}
        with (self._directory / "server.log").open("ab") as log:
            if self.is_fresh or self.program != "headrace" or self._most_files:
                # The tests' own programs are found whatever an earlier test made of the environment.
                paths = [environment.get("PYTHONPATH", ""), *([] if self.program == "headrace" else [str(_ROOT)])]
                environment["PYTHONPATH"] = os.pathsep.join([path for path in paths if path])
                command = [sys.executable, "-m", self.program, *words]
                if self._most_files:
                    command = ["sh", "-c", f'ulimit -n {self._most_files}; exec "$@"', "sh", *command]
                self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
            else:
                self._process = process_pool.start(words, environment, log, log)
        return self._process

    def adopt(self, ready: Path) -> None:
        """Have clients connect to the server that wrote this ready file."""
        self.ports = json.loads(ready.read_text())["ports"]
        self.port, self.http_port = self.ports["amqp"], self.ports["http"]

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(_DEADLINE_SECONDS)
            self._process = None

    def wait(self) -> int:
        """Wait until it ends by itself; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(_DEADLINE_SECONDS)
        self._process = None
        return code

    def stop(self) -> int:
        """End it as an operator would; returns its exit code."""
        if self._process is None:
            return 0
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(_DEADLINE_SECONDS)
        self._process = None
        return code

    def hang_up(self) -> None:
        """Have it read its certificate again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def log(self) -> str:
        return (self._directory / "server.log").read_text()

    @property
    def mqtt_port(self) -> int:
        return self.ports["mqtt"]

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def connect(self, **parameters: object) -> pika.BlockingConnection:
        """A connection of pika's, closed by `close_connections` at the latest."""
        opened = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, **parameters))
        self._connections.append(opened)
        return opened

    def close_connections(self) -> None:
        for opened in self._connections:
            with contextlib.suppress(AMQPError):  # its server may have been killed
                if opened.is_open:
                    opened.close()
        self._connections.clear()


@contextlib.contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Have a server run; it ends well when it is told to, and nothing went wrong in it that is a fault of ours."""
    server.start()
    yield server
    server.close_connections()
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log(), server.log()


def _ports(**ports: int) -> list[str]:
    return [word for name, port in ports.items() for word in (f"--{name}", str(port))]


def drain(channel: BlockingChannel, queue: str, count: int, quiet: float = 0.0) -> list[bytes]:
    """The bodies of so many messages, acknowledged; fewer when they do not come in time.

    With `quiet` also of those that nobody counts on: what comes until nothing did for so many seconds.
    """
    bodies: list[bytes] = []
    while len(bodies) < count or quiet:
        waited = _DEADLINE_SECONDS if len(bodies) < count else quiet
        method, _, body = next(channel.consume(queue, inactivity_timeout=waited))
        if method is None:
            break
        assert body is not None
        bodies.append(body)
        channel.basic_ack(method.delivery_tag)
    channel.cancel()
    return bodies

"""What the Spark tests share: the session, and data directories with messages in them."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pyspark.sql import SparkSession

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit, Engine
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.servers import Server, serving
from tests.spark_session import session

WAIT_SECONDS = 120
SECOND = 1_000_000
START_US = 1_767_225_600 * SECOND  # 2026-01-01T00:00:00Z


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    return session()


class Filled:
    """What an engine writes to, and the messages that it wrote."""

    def __init__(self, url: str, engine: Engine) -> None:
        self.url = url
        self.engine = engine
        self._next: dict[str, int] = {}

    def append(self, queue: str, count: int, topic: str = "orders/created", size: int = 0) -> None:
        """Messages `<queue> <number>`, a second apart."""
        source = Source(topic)
        at = self._next.get(queue, 0)
        self._next[queue] = at + count
        payloads = [f"{queue} {number}".encode().ljust(size, b".") for number in range(at, at + count)]
        messages = [Message(source, payload, START_US + number * SECOND) for number, payload in enumerate(payloads, at)]
        self.commit(lambda commit: commit.append(queue, messages))

    def commit(self, *changes: Callable[[Commit], object]) -> None:
        commit = Commit()
        for change in changes:
            change(commit)
        told: list[HeadraceError | None] = []
        self.engine.commit(commit, told.append)
        self.engine.sync()
        assert told == [None]


class Directory(Filled):
    """A data directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(path.as_uri(), self._open())

    def _open(self) -> LocalEngine:
        settings = LocalSettings(
            journal_file_bytes=1 << 20, checkpoint_bytes=2 << 20, tail_bytes=256 << 10, segment_bytes=256 << 10
        )
        return LocalEngine(self.path, settings=settings)

    def reopen(self) -> None:
        """Close the engine, which puts everything into segments, and open it again."""
        self.engine.close()
        self.engine = self._open()


class Broker:
    """A running broker, as Spark and AMQP clients see it."""

    def __init__(self, server: Server) -> None:
        self.server = server

    @property
    def url(self) -> str:
        return f"http://guest:guest@127.0.0.1:{self.server.http_port}"

    def declare(self, *queues: str, **arguments: object) -> BlockingChannel:
        """A channel on which everything published is stored when the call returns."""
        channel = self.server.connect().channel()
        channel.confirm_delivery()
        for queue in queues:
            channel.queue_declare(queue, durable=True, arguments=arguments or None)
        return channel

    def publish(self, queue: str, count: int, start: int = 0) -> None:
        """Messages `<queue> <number>`, confirmed."""
        channel = self.declare(queue)
        for number in range(start, start + count):
            channel.basic_publish("", queue, f"{queue} {number}".encode())

    def wait_for_start(self, queue: str, offset: int) -> None:
        """Return when what was consumed has left the log: settlements are stored a moment after they are sent."""
        deadline = time.monotonic() + WAIT_SECONDS
        first = -1
        while first != offset:
            assert time.monotonic() < deadline, f"{queue} begins at {first}, not at {offset}"
            time.sleep(0.01)
            answer = httpx.get(f"{self.url}/bulk/queues", params={"name": queue}, timeout=30, verify=False)
            first = answer.json()["queues"][queue]["first"]

    def payloads(self, queue: str) -> list[str]:
        """All messages of a queue, in order, without taking them."""
        query = {"queue": queue, "columns": "payload"}
        answer = httpx.get(f"{self.url}/bulk/messages", params=query, timeout=30, verify=False)
        assert answer.status_code == 200, answer.text
        return [value.decode() for value in pa.ipc.open_stream(answer.content).read_all().column("payload").to_pylist()]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with serving(Server(tmp_path)) as server:
        yield Broker(server)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    made = Directory(tmp_path / "data")
    yield made
    made.engine.close()

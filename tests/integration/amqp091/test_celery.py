"""Celery and Kombu, unmodified: a real worker process, retries, ETA, groups, chains, chords; Kombu's simple queues."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu.connection import Connection

from tests.servers import Server

_TASKS = """
import os
from celery import Celery

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend=os.environ["RESULTS"])
app.conf.update(broker_connection_retry_on_startup=True, result_persistent=False, task_acks_late=True)
app.conf.task_default_queue = os.environ["QUEUE"]


@app.task
def add(x, y):
    return x + y


@app.task
def total(numbers):
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def flaky(self, wanted):
    if self.request.retries < wanted:
        raise self.retry(countdown=0.1)
    return self.request.retries
"""

pytestmark = pytest.mark.filterwarnings("ignore")


class _Worker:
    """A worker process and where its log and its tasks are."""

    def __init__(self, directory: Path, url: str, results: str, queue: str) -> None:
        self.directory = directory
        self._name = f"{queue}@%h"
        self._environment = {**os.environ, "BROKER_URL": url, "RESULTS": results, "QUEUE": queue}
        self._environment["PYTHONPATH"] = os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])
        (directory / "tasks.py").write_text(_TASKS)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        with (self.directory / "worker.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "1", "-P", "solo", "-n", self._name],
                cwd=self.directory,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
            yield
            process.terminate()
            process.wait(30)

    def ask(self, code: str) -> str:
        """Run a client of the worker in a process of its own."""
        return _run(code, self._environment, self.directory / "worker.log")


@pytest.fixture(scope="module")
def worker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Worker]:
    """Sends results back as messages."""
    made = _Worker(tmp_path_factory.mktemp("celery"), server.url, "rpc://", "celery")
    with made.running():
        yield made


@pytest.fixture
def filing_worker(server: Server, tmp_path: Path) -> Iterator[_Worker]:
    """Keeps results in files: Celery itself does not do chords with results that are messages."""
    (tmp_path / "results").mkdir()
    made = _Worker(tmp_path, server.url, f"file://{tmp_path}/results", "filing")
    with made.running():
        yield made


def _run(code: str, environment: dict[str, str], log: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-c", f"from tasks import *; from celery import group, chain, chord\n{code}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr + log.read_text()[-3000:]
    return result.stdout.strip()


def test_a_worker_runs_tasks_and_answers(worker: _Worker) -> None:
    assert worker.ask("print(add.delay(2, 3).get(timeout=30))") == "5"


def test_a_worker_retries_and_waits_for_an_eta(worker: _Worker) -> None:
    assert worker.ask("print(flaky.delay(2).get(timeout=30))") == "2"
    assert worker.ask("print(add.apply_async((1, 1), countdown=0.5).get(timeout=30))") == "2"


def test_groups_and_chains_over_the_rpc_backend(worker: _Worker) -> None:
    assert worker.ask("print(group(add.s(i, i) for i in range(5))().get(timeout=30))") == "[0, 2, 4, 6, 8]"
    assert worker.ask("print(chain(add.s(1, 2), add.s(3))().get(timeout=30))") == "6"


def test_a_chord_runs_its_body_when_all_of_its_header_is_done(filing_worker: _Worker) -> None:
    assert filing_worker.ask("print(chord(add.s(i, i) for i in range(10))(total.s()).get(timeout=40))") == "90"


def test_kombus_simple_queue_puts_and_gets(server: Server, name: str) -> None:
    with Connection(server.url) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleQueue(name)
        queue.put({"hello": ["world", 1]})
        message = queue.get(timeout=60)
        assert message.payload == {"hello": ["world", 1]}
        message.ack()
        queue.close()

"""Celery and Kombu, unmodified: a real worker process, retries, chords over the rpc backend; Kombu's simple queues."""

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

app = Celery("tasks", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(broker_connection_retry_on_startup=True, result_persistent=False, task_acks_late=True)


@app.task
def add(x, y):
    return x + y


@app.task(bind=True, max_retries=3)
def flaky(self, wanted):
    if self.request.retries < wanted:
        raise self.retry(countdown=0.1)
    return self.request.retries
"""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def worker(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("celery")
    (directory / "tasks.py").write_text(_TASKS)
    environment = {**os.environ, "BROKER_URL": server.url, "PYTHONPATH": str(directory)}
    with (directory / "worker.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "tasks", "worker", "-c", "1", "-P", "solo", "-l", "INFO"],
            cwd=directory,
            env=environment,
            stdout=log,
            stderr=log,
        )
        yield directory
        process.terminate()
        process.wait(30)


def _ask(worker: Path, server: Server, code: str) -> str:
    """Run a client of the worker in a process of its own."""
    environment = {**os.environ, "BROKER_URL": server.url, "PYTHONPATH": str(worker)}
    result = subprocess.run(
        [sys.executable, "-c", f"from tasks import *; from celery import group, chain\n{code}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr + (worker / "worker.log").read_text()[-3000:]
    return result.stdout.strip()


def test_a_worker_runs_tasks_and_answers(server: Server, worker: Path) -> None:
    assert _ask(worker, server, "print(add.delay(2, 3).get(timeout=30))") == "5"


def test_a_worker_retries_and_waits_for_an_eta(server: Server, worker: Path) -> None:
    assert _ask(worker, server, "print(flaky.delay(2).get(timeout=30))") == "2"
    assert _ask(worker, server, "print(add.apply_async((1, 1), countdown=0.5).get(timeout=30))") == "2"


def test_groups_and_chains_over_the_rpc_backend(server: Server, worker: Path) -> None:
    assert _ask(worker, server, "print(group(add.s(i, i) for i in range(5))().get(timeout=30))") == "[0, 2, 4, 6, 8]"
    assert _ask(worker, server, "print(chain(add.s(1, 2), add.s(3))().get(timeout=30))") == "6"


def test_kombus_simple_queue_puts_and_gets(server: Server, name: str) -> None:
    with Connection(server.url) as connection:  # type: ignore[no-untyped-call]
        queue = connection.SimpleQueue(name)
        queue.put({"hello": ["world", 1]})
        message = queue.get(timeout=10)
        assert message.payload == {"hello": ["world", 1]}
        message.ack()
        queue.close()

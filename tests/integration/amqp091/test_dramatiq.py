"""Dramatiq with a real worker: tasks, retries with delays (its delay queues), and dead letters after the last one."""

import threading

import dramatiq
import pytest
from dramatiq.brokers import rabbitmq

from tests.servers import Server

pytestmark = pytest.mark.filterwarnings("ignore")


def test_a_worker_runs_tasks_and_retries_those_that_fail(server: Server) -> None:
    broker = rabbitmq.RabbitmqBroker(url=server.url, confirm_delivery=True)
    done: dict[int, int] = {}
    all_done = threading.Event()
    tries: dict[int, int] = {}

    def work(number: int) -> None:
        tries[number] = tries.get(number, 0) + 1
        if number % 5 == 0 and tries[number] < 2:
            raise ValueError("once more")
        done[number] = tries[number]
        if len(done) == 20:
            all_done.set()

    actor = dramatiq.actor(broker=broker, queue_name="dramatiq-test", max_retries=3, min_backoff=100)(work)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    worker.start()
    try:
        for number in range(20):
            actor.send(number)
        assert all_done.wait(30), done
    finally:
        worker.stop()
        broker.close()

    assert {number: count for number, count in done.items() if count > 1} == {0: 2, 5: 2, 10: 2, 15: 2}

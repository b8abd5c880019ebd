"""The tasks with a worker in this process, over a real server: the fixture `headrace_server`."""

import pytest
import tasks
from celery.contrib.testing.worker import start_worker

from headrace.pytest_plugin import HeadraceServer


@pytest.mark.filterwarnings("ignore")
def test_a_task_is_done_by_a_worker(headrace_server: HeadraceServer) -> None:
    tasks.app.conf.broker_url = headrace_server.amqp_url

    with start_worker(tasks.app, perform_ping_check=False, pool="solo", without_heartbeat=False):
        assert tasks.add.delay(2, 3).get(timeout=30) == 5

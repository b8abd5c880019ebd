"""`/ready` and the log of a real broker whose publishers are refused or wait."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.servers import Server, serving

_SECONDS = 60.0
_HALF = 20_000


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ready(server: Server) -> tuple[int, str]:
    answer = httpx.get(f"{server.http_url}/ready", timeout=60)
    return answer.status_code, answer.json().get("reason", "")


def publish(http: httpx.Client, size: int = _HALF) -> int:
    return http.post("/publish/%2F", json={"routing_key": "q", "payload": "x" * size}).status_code


@pytest.mark.parametrize("is_published_again", [True, False])
def test_a_broker_with_a_full_disk_is_not_ready_and_says_so_once(tmp_path: Path, is_published_again: bool) -> None:
    mark = tmp_path / "full"
    server = Server(tmp_path, environment={"HEADRACE_TEST_FULL": str(mark)}, program="tests.crash.full_server")
    with serving(server), httpx.Client(base_url=f"{server.http_url}/api/v1", auth=("guest", "guest")) as http:
        http.put("/queues/%2F/q", json={})
        assert publish(http) == 200
        assert ready(server) == (200, "")

        mark.touch()
        eventually(lambda: publish(http) == 503)
        for _ in range(5):
            assert publish(http) == 503
        code, reason = ready(server)
        assert code == 503
        assert "is full; free some space" in reason
        assert http.get("/overview").json()["trouble"] == reason

        mark.unlink()
        if is_published_again:
            eventually(lambda: publish(http) == 200)
        eventually(lambda: ready(server) == (200, ""))
        assert publish(http) == 200
    log = server.log().splitlines()
    assert len([line for line in log if "not ready, publishers are refused" in line and "is full" in line]) == 1
    assert len([line for line in log if "ready again, publishing goes on" in line]) == 1


def test_a_broker_whose_memory_is_full_is_not_ready_until_it_is_consumed(tmp_path: Path) -> None:
    server = Server(tmp_path, environment={"HEADRACE_LIMITS_MEMORY_BYTES": str(4 << 20)})
    with serving(server), httpx.Client(base_url=f"{server.http_url}/api/v1", auth=("guest", "guest")) as http:
        channel = server.connect().channel()
        channel.queue_declare("q")
        for _ in range(5):
            channel.basic_publish("", "q", bytes(1 << 20))
        channel.connection.process_data_events(0)

        eventually(lambda: ready(server)[0] == 503)
        assert "limits.memory_bytes" in ready(server)[1]

        http.post("/queues/%2F/q/purge").raise_for_status()
        eventually(lambda: ready(server) == (200, ""))
    assert server.log().count("not ready, publishers are refused") == 1
    assert server.log().count("ready again, publishing goes on") == 1

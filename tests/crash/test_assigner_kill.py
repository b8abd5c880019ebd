"""kill -9 while queues are filled from a stream that pika publishes to: they have what matches, each once, in order."""

import threading
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.commands import headrace
from tests.servers import Server, drain
from tests.waiting import eventually

_AT_LEAST = 60
_ROUNDS = 2
_LOGIN = ("guest", "guest")


class _Publisher(threading.Thread):
    """Publishes numbers to the stream until the server is killed, and counts those that were confirmed."""

    def __init__(self, port: int, start: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._start = start
        self.confirmed = 0

    def run(self) -> None:
        try:
            channel = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self._port)).channel()
            channel.confirm_delivery()
            while True:
                number = self._start + self.confirmed
                about = pika.BasicProperties(delivery_mode=2, headers={"number": number, "third": number % 3})
                channel.basic_publish("", "papers", b"%d" % number, about)
                self.confirmed += 1
        except (AMQPError, OSError):
            return  # the server was killed


def _declare(channel: BlockingChannel, name: str, **arguments: object) -> None:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    channel.queue_declare(name, durable=True, arguments=table)


def _by_command(server: Server, name: str, *options: str) -> None:
    headrace("queues", "declare", name, "--url", server.http_url, *options).check_returncode()


def _page(server: Server, name: str) -> str:
    return f"{server.http_url}/api/v1/queues/%2F/{name}"


def _about(server: Server, name: str) -> dict[str, Any]:
    answer = httpx.get(_page(server, name), auth=_LOGIN, timeout=60, verify=False)
    answer.raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def _stream(server: Server) -> list[int]:
    """Everything that is in the stream, by a reader of its own."""
    channel = server.connect().channel()
    channel.basic_qos(prefetch_count=1000)
    count = _about(server, "papers")["next_offset"]
    found: list[int] = []
    for method, _, body in channel.consume("papers", arguments={"x-stream-offset": "first"}, inactivity_timeout=60):
        assert method is not None
        found.append(int(body))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            return found
    raise AssertionError("the stream ended")


def _has_caught_up(server: Server, name: str) -> bool:
    return bool(_about(server, name)["source"]["state"] == "following")


@pytest.mark.parametrize("engine", ["data", "store"])
def test_queues_have_exactly_what_matches_after_kills(tmp_path: Path, engine: str) -> None:
    server = Server(tmp_path, store=f"file://{tmp_path}/store" if engine == "store" else "")
    server.start()
    filters = {"all": "", "thirds": "third = 1"}
    try:
        channel = server.connect().channel()
        _declare(channel, "papers", queue_type="stream")
        _by_command(server, "thirds", "--source", "papers", "--filter", filters["thirds"])
        _declare(channel, "all", source="papers")
        confirmed = 0
        for round_number in range(_ROUNDS):
            start = round_number * 1_000_000
            publisher = _Publisher(server.port, start)
            publisher.start()
            eventually(lambda publisher=publisher: publisher.confirmed >= _AT_LEAST)  # type: ignore[misc]
            late, filters[late] = f"late{round_number}", f"number >= {start + 20}"
            body = {"type": "stream", "source": "papers", "filter": filters[late]}
            httpx.put(_page(server, late), auth=_LOGIN, json=body, timeout=60, verify=False).raise_for_status()
            server.kill()
            publisher.join(60)
            confirmed += publisher.confirmed
            server.close_connections()
            server.start()

        published = _stream(server)
        assert len(published) >= confirmed
        assert len(set(published)) == len(published)
        channel = server.connect().channel()
        channel.basic_qos(prefetch_count=1000)
        for name in filters:
            eventually(lambda name=name: _has_caught_up(server, name))  # type: ignore[misc]
        assert [int(body) for body in drain(channel, "all", len(published))] == published
        thirds = [number for number in published if number % 3 == 1]
        assert [int(body) for body in drain(channel, "thirds", len(thirds))] == thirds
        for name in ("all", "thirds"):
            assert channel.queue_declare(name, passive=True).method.message_count == 0
        for round_number in range(_ROUNDS):
            least = round_number * 1_000_000 + 20
            wanted = [number for number in published if number >= least]
            assert _about(server, f"late{round_number}")["next_offset"] == len(wanted)
    finally:
        server.kill()
        server.close_connections()

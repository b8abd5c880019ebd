"""kill -9 while clients declare, over every protocol: what they were told is there, is; what is gone, stays gone."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from pika.exceptions import AMQPError
from proton import Link, ProtonException, Terminus
from proton.reactor import Container, ReceiverOption
from proton.utils import BlockingConnection

from tests.devices import packet, text
from tests.servers import Server
from tests.waiting import eventually

_ENOUGH = 12
_CONTAINER = "subscriber"
_GUEST = ("guest", "guest")


class Promises(threading.Thread):
    """A client that asks for one thing after the other, and keeps what it was told, until the server is gone."""

    def __init__(self, steps: Iterator[str]) -> None:
        super().__init__(daemon=True)
        self._steps = steps
        self.kept: list[str] = []

    def run(self) -> None:
        with contextlib.suppress(AMQPError, ProtonException, httpx.HTTPError, OSError):  # the server was killed
            for name in self._steps:
                self.kept.append(name)


def _amqp091(server: Server) -> Iterator[str]:
    """Queues with a binding each, and others that are deleted again."""
    channel = server.connect().channel()
    number = 0
    while True:
        number += 1
        channel.queue_declare(f"a{number}", durable=True)
        yield f"queue a{number}"
        channel.queue_bind(f"a{number}", "amq.topic")
        yield f"binding a{number}"
        channel.queue_declare(f"brief{number}", durable=True)
        channel.queue_delete(f"brief{number}")
        yield f"no queue brief{number}"


class _Durable(ReceiverOption):  # type: ignore[misc]
    def apply(self, receiver: Link) -> None:
        receiver.source.durability = Terminus.DELIVERIES
        receiver.source.expiry_policy = Terminus.EXPIRE_NEVER


def _amqp10(server: Server) -> Iterator[str]:
    """Durable subscriptions."""
    container = Container()
    container.container_id = _CONTAINER
    connection = BlockingConnection(f"127.0.0.1:{server.port}", timeout=30, container=container)
    number = 0
    while True:
        number += 1
        connection.create_receiver("news/today", name=f"s{number}", options=_Durable())
        yield f"queue {_CONTAINER}:s{number}"


def _http(server: Server) -> Iterator[str]:
    number = 0
    with httpx.Client(base_url=f"{server.http_url}/api/v1", auth=_GUEST, timeout=30, verify=False) as client:
        while True:
            number += 1
            client.put(f"/queues/%2F/h{number}", json={}).raise_for_status()
            yield f"queue h{number}"


def _mqtt(server: Server) -> Iterator[str]:
    """Sessions that outlive their connections."""
    number = 0
    while True:
        number += 1
        with socket.create_connection(("127.0.0.1", server.mqtt_port), 30) as client:
            client.sendall(packet(0x10, text("MQTT"), b"\4\0\0\0", text(f"m{number}")))
            if client.recv(4) != b"\x20\2\0\0":
                return
            yield f"session m{number}"


def _found(server: Server) -> set[str]:
    """All there is, in the words of the promises."""
    with httpx.Client(base_url=server.http_url, auth=_GUEST, timeout=30, verify=False) as client:
        queues = [queue["name"] for queue in client.get("/api/queues").json()]
        bindings = [found["destination"] for found in client.get("/api/bindings").json() if found["source"]]
        sessions = client.get("/api/v1/sessions", params={"limit": 1000}).json()["items"]
    return {
        *[f"queue {name}" for name in queues],
        *[f"binding {name}" for name in bindings],
        *[f"session {session['client_id']}" for session in sessions],
    }


@pytest.mark.parametrize("engine", ["local", "objects"])
def test_what_clients_were_told_is_so_after_kill_9(tmp_path: Path, engine: str) -> None:
    """On disks that take their time, or all would be stored before anybody can be killed."""
    server = (
        Server(tmp_path, program="tests.crash.slow_server")
        if engine == "local"
        else Server(tmp_path, store=f"file://{tmp_path}/store")
    )
    server.start()
    try:
        protocols: list[Callable[[Server], Iterator[str]]] = [_amqp091, _amqp10, _http, _mqtt]
        clients = [Promises(protocol(server)) for protocol in protocols]
        for client in clients:
            client.start()
        eventually(lambda: all([len(client.kept) >= _ENOUGH for client in clients]))
        server.kill()
        for client in clients:
            client.join(60)
            assert not client.is_alive()

        server.start()

        found = _found(server)
        promises = [promise for client in clients for promise in client.kept]
        assert [promise for promise in promises if not promise.startswith("no ") and promise not in found] == []
        assert [promise for promise in promises if promise.removeprefix("no ") in found - {promise}] == []
    finally:
        server.kill()
        server.close_connections()

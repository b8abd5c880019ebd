"""Clients that open more connections than there are descriptors for, seen from outside of a real process.

They are refused, storage goes on, and those who are connected hardly notice.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.certificates import Authority
from tests.servers import Server, serving
from tests.waiting import eventually

_FILES = 128
_SILENT = 300
_BODY = b"x" * (512 << 10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    authority = Authority(tmp_path)
    certificate, key = authority.sign("broker")
    ports = [word for name in ("amqps", "mqtts", "https", "stomp", "stream") for word in (f"--{name}", "0")]
    options = [*ports, "--tls-cert", str(certificate), "--tls-key", str(key)]
    # Files are written all the time: segments of 1 MiB, and a checkpoint for each 16 MiB.
    environment = {
        "HEADRACE_STORAGE_TAIL_BYTES": "1MiB",
        "HEADRACE_STORAGE_SEGMENT_BYTES": "1MiB",
        "HEADRACE_STORAGE_CHECKPOINT_BYTES": "16MiB",
    }
    with serving(Server(tmp_path, options=options, environment=environment, most_files=_FILES)) as running:
        yield running


def _knock(server: Server, name: str, stack: ExitStack) -> None:
    """Connect and say nothing; to be refused is fine."""
    sock = stack.enter_context(socket.socket())
    sock.settimeout(5)
    try:
        sock.connect(("127.0.0.1", server.ports[name]))
    except OSError:
        return


def _publisher(server: Server) -> BlockingChannel:
    channel = server.connect(heartbeat=0).channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    return channel


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ["amqp", "amqps", "mqtt", "http", "https", "ws", "stomp", "stream"])
def test_storage_has_descriptors_whatever_silent_connections_come(server: Server, name: str) -> None:
    channel = _publisher(server)
    with ExitStack() as stack:
        for number in range(_SILENT):
            _knock(server, name, stack)
            if number % 5 == 0:
                channel.basic_publish("", "orders", _BODY)  # returns once it is confirmed
        assert channel.queue_declare("orders", passive=True).method.message_count == _SILENT // 5
        for _ in range(_SILENT // 10):
            method, _, body = channel.basic_get("orders", auto_ack=True)
            assert method is not None
            assert body == _BODY

    eventually(lambda: _refused(server) > 0)
    lines = [line for line in server.log().splitlines() if "were refused" in line]
    assert 1 <= len(lines) <= 4, "one line in ten seconds, not one for each"
    server.connect().close()


def _refused(server: Server) -> int:
    try:
        page = httpx.get(f"{server.http_url}/metrics", auth=("guest", "guest"), timeout=30, verify=False).text
    except httpx.TransportError:
        return 0  # there are too many still
    (line,) = [line for line in page.splitlines() if line.startswith("headrace_connections_refused_total ")]
    return int(float(line.split()[1]))


@pytest.mark.timeout(60)
def test_silent_connections_make_room_for_others_after_the_time_for_a_handshake(server: Server) -> None:
    with ExitStack() as stack:
        for _ in range(_FILES):
            _knock(server, "amqp", stack)
        started = time.monotonic()

        def is_let_in() -> bool:
            with socket.create_connection(("127.0.0.1", server.port), 5) as sock:
                sock.settimeout(2)
                try:
                    sock.sendall(b"AMQP\x00\x00\x09\x01")
                    return bool(sock.recv(8))
                except OSError:
                    return False

        eventually(is_let_in)
        assert time.monotonic() - started < 20
    silent = [line for line in server.log().splitlines() if "no handshake within" in line]
    assert len(silent) < 10


def test_the_unit_brings_a_broker_back_that_ended_by_itself() -> None:
    unit = (Path(__file__).parents[2] / "deploy" / "headrace.service").read_text()

    assert "Restart=on-failure" in unit
    assert "RestartSec=" in unit
    assert "LimitNOFILE=" in unit
    assert "RestartPreventExitStatus=2 74" in unit, "a wrong configuration, or a failed disk, needs a person"

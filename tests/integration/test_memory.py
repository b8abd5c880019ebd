"""How much a broker weighs: nothing is loaded that nobody asked for."""

import importlib.util
from pathlib import Path

import httpx
import pyarrow as pa

from tests.servers import Server

MOST_BYTES = 42_000_000


def test_an_idle_broker_stays_small_and_has_no_command_line(tmp_path: Path) -> None:
    server = Server(tmp_path, is_fresh=True)
    server.start()
    try:
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
        memory = server.memory_bytes
    finally:
        server.stop()

    assert "pydantic" not in loaded
    assert "httptools" not in loaded
    assert memory < MOST_BYTES


def test_a_broker_that_replayed_a_journal_is_as_small(tmp_path: Path) -> None:
    server = Server(tmp_path, is_fresh=True)
    server.start()
    channel = server.connect().channel()
    channel.queue_declare("orders", durable=True)
    for _ in range(64):
        channel.basic_publish("", "orders", bytes(1 << 17))
    channel.queue_purge("orders")
    server.kill()
    server.close_connections()
    server.start()
    memory = server.memory_bytes
    server.stop()

    assert "were recovered from the journal" in server.log()
    assert memory < MOST_BYTES


def test_queues_are_read_in_bulk_without_pandas_though_it_is_there(tmp_path: Path) -> None:
    assert importlib.util.find_spec("pandas")
    server = Server(tmp_path, is_fresh=True)
    server.start()
    try:
        server.connect().channel().queue_declare("orders", durable=True)
        server.connect().channel().basic_publish("", "orders", b"one")
        server.close_connections()
        answer = httpx.get(
            f"{server.http_url}/bulk/messages?queue=orders", auth=("guest", "guest"), timeout=60, verify=False
        )
        loaded = Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.stop()

    assert pa.ipc.open_stream(answer.content).read_all()["payload"].to_pylist() == [b"one"]
    assert "libarrow" in loaded
    assert "pandas" not in loaded

"""Others on the machine read nothing of a broker: every file and directory is its owner's, whatever the umask."""

import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from tests.commands import headrace
from tests.servers import Server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that was started with a umask that hides nothing."""
    monkeypatch.setenv("HEADRACE_STORAGE_SEGMENT_BYTES", "1MiB")
    script = tmp_path / "python"
    script.write_text(f'#!/bin/sh\numask 000\nexec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    running = Server(tmp_path)
    running.start()
    yield running
    running.close_connections()
    assert running.stop() == 0, running.log()


def _public(directory: Path) -> list[str]:
    """Everything in a directory, and itself, that others than its owner may touch."""
    found = [directory, *directory.rglob("*")]
    return [f"{path} {stat.filemode(path.stat().st_mode)}" for path in found if path.stat().st_mode & 0o077]


def test_data_backup_and_ready_file_are_private(server: Server, tmp_path: Path) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    for _ in range(30):
        channel.basic_publish("", "orders", bytes(100_000))
    method, _, _ = channel.basic_get("orders")
    channel.basic_nack(method.delivery_tag, requeue=False)
    sink = pa.BufferOutputStream()
    table = pa.table({"payload": ["x"]})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    part = f"{server.http_url}/bulk/transactions/t/parts/p"
    body = bytes(sink.getvalue())
    assert (
        httpx.put(
            part, params={"queue": "orders"}, content=body, auth=("guest", "guest"), timeout=60, verify=False
        ).status_code
        == 200
    )
    copied = headrace("backup", tmp_path / "data", tmp_path / "copy")
    assert copied.returncode == 0, copied.stderr

    assert _public(tmp_path / "data") == []
    assert _public(tmp_path / "copy") == []
    assert list((tmp_path / "data" / "staging").rglob("*.part"))
    assert (tmp_path / "ready.json").stat().st_mode & 0o777 == 0o600
    server.close_connections()
    assert server.stop() == 0
    assert _public(tmp_path / "data") == []

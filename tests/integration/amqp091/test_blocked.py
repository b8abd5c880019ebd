"""connection.blocked and connection.unblocked over real disks: one that is slow, one that is full."""

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import ConnectionClosedByBroker, NackError

from headrace.core.flow import Flow
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.changing_server import ChangingServer
from tests.disks import FailingDisk

_SECONDS = 60.0
_BODY = b"x" * 50_000


class SlowDisk(Disk):
    """A disk on which a sync takes as long as the test wants."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()

    def write_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        assert self.may_write.wait(_SECONDS)
        super().write_synced(fd, buffers, position)

    def sync(self, fd: int) -> None:
        assert self.may_write.wait(_SECONDS)
        super().sync(fd)


def _noting(connection: BlockingConnection) -> list[str]:
    """What the connection is told, from now on."""
    notes: list[str] = []
    connection.add_on_connection_blocked_callback(lambda *_: notes.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: notes.append("unblocked"))
    return notes


def _wait(connection: BlockingConnection, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        connection.process_data_events(0.01)


def _queue(server: ChangingServer) -> BlockingChannel:
    channel = server.connect().channel()
    channel.queue_declare("q", durable=True)
    return channel


def test_publishers_wait_for_a_slow_disk_and_consumers_go_on(tmp_path: Path) -> None:
    disk = SlowDisk()
    server = ChangingServer(lambda wake: LocalEngine(tmp_path, wake, disk=disk), lambda: Flow(1 << 20, 1 << 19))
    try:
        reader = _queue(server)
        publisher = server.connect()
        told, untold = _noting(publisher), _noting(reader.connection)
        channel = publisher.channel()
        channel.basic_publish("", "q", b"first")
        _wait(publisher, lambda: _depth(reader) == 1)
        disk.may_write.clear()
        sent = 1
        while not told:
            channel.basic_publish("", "q", _BODY)
            sent += 1
            publisher.process_data_events(0)
            assert sent < 2000, "it is told long before"

        assert _get(reader, "q") == b"first", "a consumer does not wait for the disk"
        disk.may_write.set()
        _wait(publisher, lambda: told[-1] == "unblocked" and _depth(reader) == sent - 1)

        assert told == ["blocked", "unblocked"] * (len(told) // 2)
        assert untold == []
    finally:
        disk.may_write.set()
        server.close()


def _depth(channel: BlockingChannel) -> int:
    return int(channel.queue_declare("q", passive=True).method.message_count)


def _get(channel: BlockingChannel, queue: str) -> bytes:
    found: list[bytes] = []

    def is_there() -> bool:
        _, _, body = channel.basic_get(queue, auto_ack=True)
        found.extend([] if body is None else [body])
        return bool(found)

    _wait(channel.connection, is_there)
    return found[0]


def test_publishers_wait_for_a_full_disk_and_go_on_when_there_is_space(tmp_path: Path) -> None:
    disk = FailingDisk()
    settings = LocalSettings(
        journal_file_bytes=256 << 10, checkpoint_bytes=512 << 10, tail_bytes=128 << 10, segment_bytes=512 << 10
    )
    server = ChangingServer(lambda wake: LocalEngine(tmp_path, wake, settings, disk=disk))
    try:
        _queue(server)
        publisher = server.connect()
        told = _noting(publisher)
        channel = publisher.channel()
        channel.confirm_delivery()
        confirmed: list[bytes] = []
        disk.full = True
        number = 0
        while not told:
            number += 1
            _try_publish(channel, b"%d" % number + _BODY, confirmed)
            publisher.process_data_events(0)
            assert number < 2000, "the disk never ran full"

        disk.full = False
        _wait(publisher, lambda: told[-1] == "unblocked")
        before = len(confirmed)
        while len(confirmed) < before + 5:
            number += 1
            _try_publish(channel, b"%d" % number + _BODY, confirmed)

        reader = server.connect().channel()
        assert [_get(reader, "q") for _ in confirmed] == confirmed, "what was confirmed, in order, and nothing else"
        assert reader.basic_get("q")[0] is None
    finally:
        disk.full = False
        server.close()


def test_a_transaction_that_cannot_be_stored_is_506_and_did_not_happen(tmp_path: Path) -> None:
    disk = FailingDisk()
    settings = LocalSettings(
        journal_file_bytes=256 << 10, checkpoint_bytes=512 << 10, tail_bytes=128 << 10, segment_bytes=512 << 10
    )
    server = ChangingServer(lambda wake: LocalEngine(tmp_path, wake, settings, disk=disk))
    try:
        _queue(server)
        channel = server.connect().channel()
        channel.tx_select()
        disk.full = True
        committed: list[bytes] = []
        with pytest.raises(ConnectionClosedByBroker, match=r"506.*RESOURCE_ERROR"):
            _commit_until_refused(channel, committed)

        disk.full = False
        assert len(committed) == _depth(server.connect().channel())
    finally:
        disk.full = False
        server.close()


def _commit_until_refused(channel: BlockingChannel, committed: list[bytes]) -> None:
    for _ in range(1000):
        channel.basic_publish("", "q", _BODY)
        channel.tx_commit()
        committed.append(_BODY)


def _try_publish(channel: BlockingChannel, body: bytes, confirmed: list[bytes]) -> None:
    try:
        channel.basic_publish("", "q", body, pika.BasicProperties(delivery_mode=2))
    except NackError:
        return
    confirmed.append(body)

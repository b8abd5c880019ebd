"""`headrace backup` of a broker under load: the copy is sound, serves, and has what was confirmed before it began."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import headrace
from tests.servers import Server, drain


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.close_connections()
    server.kill()


def test_a_copy_taken_under_load_is_sound_and_has_all_that_was_confirmed_before(server: Server, tmp_path: Path) -> None:
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        channel = server.connect().channel()
        channel.queue_declare("orders", durable=True)
        channel.confirm_delivery()
        while not stop.is_set():
            channel.basic_publish("", "orders", b"%08d" % len(confirmed) + bytes(2000))
            confirmed.append(len(confirmed))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        while len(confirmed) < 200:
            stop.wait(0.01)
        before = len(confirmed)
        result = headrace("backup", tmp_path / "data", tmp_path / "copy")
    finally:
        stop.set()
        publisher.join()

    assert result.returncode == 0, result.stderr
    examined = headrace("doctor", tmp_path / "copy")
    assert examined.returncode == 0, examined.stdout
    (tmp_path / "restored").mkdir()
    restored = Server(tmp_path / "restored")
    assert headrace("backup", tmp_path / "copy", tmp_path / "restored" / "data").returncode == 0
    restored.start()
    try:
        channel = restored.connect().channel()
        count = channel.queue_declare("orders", durable=True, passive=True).method.message_count
        numbers = [int(body[:8]) for body in drain(channel, "orders", count)]
    finally:
        restored.close_connections()
        restored.kill()
    assert count >= before
    assert numbers == list(range(count))


def test_a_program_is_told_what_was_copied(server: Server, tmp_path: Path) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True)
    channel.basic_publish("", "orders", b"x")

    done = headrace("backup", tmp_path / "data", tmp_path / "copy", "--json")

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["target"], told["logs"], told["messages"]) == (str(tmp_path / "copy"), 1, 1)


def test_a_copy_is_never_made_over_something(server: Server, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()

    result = headrace("backup", tmp_path / "data", tmp_path / "there")

    assert result.returncode == 1
    assert "exists already" in result.stderr
    assert list((tmp_path / "there").iterdir()) == []

"""`headrace backup --store`: a store copied while a broker serves it, and the copy served."""

import threading
from pathlib import Path

import pika
import pytest

from headrace.clock import SystemClock
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import RETAINED, Commit
from headrace.storage.group_state import WORK
from headrace.storage.objects.backup import back_up_store
from headrace.storage.objects.engine import ObjectEngine, ObjectSettings
from headrace.storage.objects.location import Location
from headrace.storage.objects.view import Admin
from tests.commands import headrace
from tests.servers import Server, drain
from tests.stores import S3

QUICK = ObjectSettings(flush_interval_ms=1)


def test_a_copy_taken_under_load_serves_all_that_was_confirmed_before_it_began(tmp_path: Path) -> None:
    url, copy, again = (f"file://{tmp_path}/{name}" for name in ("store", "copy", "again"))
    (tmp_path / "source").mkdir()
    server = Server(tmp_path / "source", store=url)
    server.start()
    channel = server.connect().channel()
    channel.queue_declare("orders", durable=True)
    confirmed: list[int] = []
    stop = threading.Event()

    def publish() -> None:
        publishing = server.connect().channel()
        publishing.confirm_delivery()
        while not stop.is_set():
            body = b"%08d" % len(confirmed) + bytes(500)
            publishing.basic_publish("", "orders", body, pika.BasicProperties(delivery_mode=2))
            confirmed.append(len(confirmed))

    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        while len(confirmed) < 40:
            stop.wait(0.01)
        before = len(confirmed)
        result = headrace("backup", "--store", url, copy)
    finally:
        stop.set()
        publisher.join()
        server.close_connections()
        server.kill()
    assert result.returncode == 0, result.stderr
    assert "1 log with " in result.stdout
    examined = headrace("doctor", "--store", copy)
    assert examined.returncode == 0, examined.stdout + examined.stderr
    assert "no problems in 1 log with " in examined.stdout

    (tmp_path / "restored").mkdir()
    assert headrace("backup", "--store", copy, again).returncode == 0
    restored = Server(tmp_path / "restored", store=again)
    restored.start()
    try:
        channel = restored.connect().channel()
        count = channel.queue_declare("orders", durable=True, passive=True).method.message_count
        numbers = [int(body[:8]) for body in drain(channel, "orders", count)]
    finally:
        restored.close_connections()
        restored.kill()
    assert before <= count <= len(confirmed) + 1
    assert numbers == list(range(count))


def _commit(engine: ObjectEngine, commit: Commit) -> None:
    told: list[HeadraceError | None] = []
    engine.commit(commit, told.append)
    engine.sync()
    assert told == [None]


def _filled(url: str) -> ObjectEngine:
    engine = ObjectEngine(url, settings=QUICK)
    commit = Commit()
    commit.append("orders", [Message(Source("orders/eu"), b"%d" % number, number + 1) for number in range(100)])
    commit.create_group("orders", "workers", WORK)
    commit.claim("orders", "workers", 0, 30, "worker", 1)
    commit.ack("orders", "workers", 0, 20)
    commit.put(RETAINED, b"topic", b"last")
    commit.truncate("orders", 10)
    _commit(engine, commit)
    return engine


def test_a_copy_has_messages_groups_and_tables_as_they_were(tmp_path: Path) -> None:
    source = _filled(f"file://{tmp_path}/source")
    told: list[int] = []

    copied = back_up_store(f"file://{tmp_path}/source", f"file://{tmp_path}/copy", progress=told.append)

    commit = Commit()
    commit.append("orders", [Message(Source("later"), b"later", 1000)])
    _commit(source, commit)
    copy = ObjectEngine(f"file://{tmp_path}/copy", settings=QUICK)
    log, group = copy.log("orders"), copy.log("orders").groups["workers"]
    assert (copied.queues, copied.messages) == (1, 90)
    assert (log.first_offset, log.next_offset) == (10, 100)
    assert [message.payload for message in log.read(10, 100)] == [b"%d" % number for number in range(10, 100)]
    assert (group.cursor, group.committed, sorted(group.pending)) == (30, 20, list(range(20, 30)))
    assert dict(copy.items(RETAINED)) == {b"topic": b"last"}
    _commit(copy, commit)  # it goes on by itself, with ids of its own
    assert log.read(100, 1)[0].payload == b"later"
    copy.close()
    source.close()
    admin = Admin(Location(f"file://{tmp_path}/source"), MAIN, 30_000, SystemClock())
    assert admin.checkpoints() == {}


def test_a_bucket_is_copied_to_another_path(s3: S3) -> None:
    engine = _filled(s3.url)

    copied = back_up_store(s3.url, f"s3://{s3.bucket}/monday")

    engine.close()
    copy = ObjectEngine(f"s3://{s3.bucket}/monday", settings=QUICK)
    assert copied.messages == copy.log("orders").next_offset - copy.log("orders").first_offset == 90
    assert [message.payload for message in copy.log("orders").read(50, 2)] == [b"50", b"51"]
    copy.close()


def test_groups_are_copied_one_at_a_time_under_their_names(tmp_path: Path) -> None:
    source, copy = f"file://{tmp_path}/source", f"file://{tmp_path}/copy"
    _filled(source).close()
    hot = ObjectEngine(source, settings=QUICK, group="hot")
    commit = Commit()
    commit.append("clicks", [Message(Source("clicks"), b"x", 1)])
    _commit(hot, commit)
    hot.close()

    copied = [back_up_store(source, copy, group=group).messages for group in ("hot", "main")]

    restored = ObjectEngine(copy, settings=QUICK, group="hot")
    assert copied == [1, 90]
    assert restored.logs() == ["clicks"]
    restored.close()
    result = headrace("backup", "--store", source, "--group", "cold", copy)
    assert (result.returncode, "there are: hot, main" in result.stderr) == (1, True)
    assert "name that with --store" in headrace("backup", "a", "b", "--group", "hot").stderr
    assert "letters, digits" in headrace("backup", "--store", source, "--group", "a/b", copy).stderr


def test_a_copy_that_was_not_finished_is_no_store(tmp_path: Path) -> None:
    engine = ObjectEngine(f"file://{tmp_path}/source", settings=QUICK)
    commit = Commit()
    commit.append("orders", [Message(Source("big"), bytes(1 << 20), 1) for _ in range(10)])
    _commit(engine, commit)
    engine.close()

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        back_up_store(f"file://{tmp_path}/source", f"file://{tmp_path}/copy", progress=interrupt)

    with pytest.raises(Unavailable, match="not Headrace's"):
        ObjectEngine(f"file://{tmp_path}/copy")
    with pytest.raises(Unavailable, match="exists already"):
        back_up_store(f"file://{tmp_path}/source", f"file://{tmp_path}/copy")


def test_what_cannot_be_copied_is_said(tmp_path: Path, s3: S3) -> None:
    _filled(f"file://{tmp_path}/source").close()

    with pytest.raises(Unavailable, match="there is no store at"):
        back_up_store(f"s3://{s3.bucket}/none", f"file://{tmp_path}/copy")
    with pytest.raises(Unavailable, match="there is no directory"):
        back_up_store(f"file://{tmp_path}/none", f"file://{tmp_path}/copy")
    with pytest.raises(Refused, match="is the store that is to be copied"):
        back_up_store(f"file://{tmp_path}/source", f"file://{tmp_path}/source/")
    with pytest.raises(Refused, match="is not the URL of a store"):
        back_up_store(f"file://{tmp_path}/source", str(tmp_path / "copy"))
    _filled(s3.url).close()
    with pytest.raises(Unavailable, match="has no replication group 'cold'; there are: main"):
        back_up_store(s3.url, f"file://{tmp_path}/copy", group="cold")
    assert not (tmp_path / "copy").exists()
    result = headrace("backup", "--store", f"file://{tmp_path}/source", "a", "b")
    assert result.returncode == 2
    assert "takes one place" in result.stderr

"""`headrace serve --store`: real servers over files and over S3: killed, taken over, and refused."""

import subprocess
import sys
from pathlib import Path

import pika
import pytest

from headrace.process import EXIT_DISK_FAILED
from headrace.storage.objects import keys
from headrace.storage.objects.engine import ObjectEngine
from headrace.storage.objects.records import decode_spec
from tests.commands import headrace
from tests.servers import Server, drain
from tests.stores import S3

PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"n": 1})


def publish(server: Server, count: int, queue: str = "jobs") -> None:
    """Declare the queue and have so many messages confirmed in it."""
    channel = server.connect().channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, b"%d" % number, PERSISTENT, mandatory=True)


def serve(*options: str) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected to end by itself."""
    ports = ["--amqp", "0", "--mqtt", "0", "--http", "0", "--ws", "0"]
    command = [sys.executable, "-m", "headrace", "serve", *ports, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_was_confirmed_is_there_after_kill_9_and_what_was_acknowledged_is_not(tmp_path: Path) -> None:
    server = Server(tmp_path, store=f"file://{tmp_path}/store")
    server.start()
    publish(server, 30)
    channel = server.connect().channel()
    assert drain(channel, "jobs", 10) == [b"%d" % number for number in range(10)]
    publish(server, 1, "later")  # its confirm vouches for the acknowledgements before it
    server.close_connections()
    server.kill()

    server.start()

    assert f"serves store file://{tmp_path}/store" in server.log()
    channel = server.connect().channel()
    assert drain(channel, "jobs", 20) == [b"%d" % number for number in range(10, 30)]
    server.close_connections()
    assert server.stop() == 0


def test_queues_with_filters_share_what_is_published_once(tmp_path: Path) -> None:
    server = Server(tmp_path, store=f"file://{tmp_path}/store")
    server.start()
    try:
        papers = ("--topic", "$queue/papers/#")
        declare(server, "invoices", *papers, "--filter", "type = 'invoice' AND amount > 100")
        declare(server, "large", *papers, "--filter", "amount > 1000")
        channel = server.connect().channel()
        channel.queue_declare("letters", durable=True, arguments={"x-filter": "type = 'letter'"})
        channel.queue_bind("letters", "amq.topic", "#")
        channel.confirm_delivery()
        for number, kind, amount in ((1, "invoice", 50), (2, "invoice", 500), (3, "invoice", 5000), (4, "letter", 0)):
            about = pika.BasicProperties(delivery_mode=2, headers={"type": kind, "amount": amount})
            channel.basic_publish("", f"$queue/papers/{number}", b"%d" % number, about)
            channel.basic_publish("amq.topic", f"papers.{number}", b"%d" % number, about)

        server.close_connections()
        server.kill()
        server.start()

        channel = server.connect().channel()
        assert drain(channel, "invoices", 2) == [b"2", b"3"]
        assert drain(channel, "large", 1) == [b"3"]
        assert drain(channel, "letters", 1) == [b"4"]
    finally:
        server.close_connections()
        server.stop()


def test_queues_as_they_are_declared_share_payloads_and_their_specifications_say_what_they_are(tmp_path: Path) -> None:
    store = f"file://{tmp_path}/store"
    server = Server(tmp_path, store=store)
    server.start()
    papers = ("--topic", "$queue/papers/#")
    declare(server, "invoices", *papers, "--filter", "type = 'invoice'")
    declare(server, "all", *papers)
    channel = server.connect().channel()
    channel.confirm_delivery()
    about = pika.BasicProperties(delivery_mode=2, headers={"type": "invoice"})
    channel.basic_publish("", "$queue/papers/1", b"an invoice", about)
    channel.basic_publish("", "$queue/papers/2", b"", about)
    for queue in ("invoices", "all"):
        channel.basic_get(queue)
    server.close_connections()
    server.stop()

    engine = ObjectEngine(store)
    try:
        assert {name: len(engine.log(name).read(0, 9)) for name in engine.logs()} == {"invoices": 2, "all": 2}
        assert sorted(dict(engine._database.scan_prefix(keys.PAYLOAD)).values()) == [b"", b"an invoice"]
        specs = [decode_spec(value, "spec") for _, value in engine._database.scan_prefix(keys.SPEC)]
        assert sorted((spec.expression, spec.max_attempts) for spec in specs) == [("", 11), ("type = 'invoice'", 11)]
    finally:
        engine.close()
    assert not list(tmp_path.glob("store/probe-*"))


def declare(server: Server, queue: str, *options: str) -> None:
    """Have the command line declare a queue."""
    headrace("queues", "declare", queue, "--url", server.http_url, *options).check_returncode()


def test_another_server_takes_the_store_over_and_the_first_stops_and_says_why(tmp_path: Path, s3: S3) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    first = Server(tmp_path / "first", store=s3.url, environment=s3.environment)
    first.start()
    publish(first, 20)

    second = Server(tmp_path / "second", store=s3.url, environment=s3.environment)
    second.start()
    try:
        assert drain(second.connect().channel(), "jobs", 20) == [b"%d" % number for number in range(20)]
        with pytest.raises(pika.exceptions.AMQPError):
            publish(first, 1)
        assert first.wait() == EXIT_DISK_FAILED
        assert f"another process has opened the store {s3.url}/main" in first.log()
    finally:
        first.close_connections()
        second.close_connections()
        second.stop()


def test_a_store_that_cannot_keep_two_brokers_apart_is_refused_before_anything_is_served(s3_port: int) -> None:
    forgetful = S3(s3_port, forgetful=True)
    with forgetful.here():
        ended = serve("--store", forgetful.url)
    forgetful.close()

    assert ended.returncode == 1
    assert "does not honour conditional writes" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_contradictions_and_urls_of_no_store_are_refused_in_words(tmp_path: Path) -> None:
    both = serve("--store", "memory://", "--data", str(tmp_path))
    wrong = serve("--store", "ftp://host/dir")

    assert "everything is kept in memory://" in both.stderr
    assert "give either --data or --store" in both.stderr
    assert "'ftp://host/dir' is not the URL of a store" in wrong.stderr
    assert both.returncode != 0
    assert wrong.returncode != 0


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "slatedb").mkdir()
    (tmp_path / "slatedb" / "__init__.py").write_text("raise ImportError('No module named slatedb')")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from headrace.cli import main; main()"
    command = [sys.executable, "-c", program, str(tmp_path), "serve", "--store", "memory://", "--amqp", "0"]
    environment = {"PYTHONPATH": ":".join([str(tmp_path), *sys.path])}

    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environment)

    assert "pip install 'headrace[objects]'" in ended.stderr


def test_a_broker_without_a_store_does_not_load_what_stores_need(tmp_path: Path) -> None:
    program = "import sys, headrace.app; assert not any('slatedb' in name for name in sys.modules)"

    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

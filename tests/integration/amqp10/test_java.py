"""RabbitMQ's AMQP 1.0 client for Java, from Maven Central: declaring, outcomes, streams, filters, requests."""

from pathlib import Path

from tests.maven import libraries_of, run
from tests.servers import Server

_PROGRAM = Path(__file__).parent / "java" / "Amqp.java"


def test_the_java_client_finds_queues_and_streams_as_it_knows_them(server: Server, tmp_path: Path) -> None:
    run(_PROGRAM, libraries_of(_PROGRAM, tmp_path), str(server.port))

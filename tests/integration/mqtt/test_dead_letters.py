"""Dead letters over MQTT: `$dlq/<queue>` is read and settled like any queue, whether it is there already or not."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.paho_helpers import Paho, told, wait_for
from tests.servers import Server, serving

CONFIGURATION = """
queues:
  - {name: jobs, retry: {max_retries: 0}}
  - {name: later, retry: {max_retries: 0}}
  - {name: tidy, dlq: {enabled: false}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("letters")
    file = directory / "headrace.yaml"
    file.write_text(CONFIGURATION)
    with serving(Server(directory, options=["--config", str(file)])) as server:
        yield server


def settle(client: Paho, address: str, verb: str, number: int = 0) -> Any:
    found = told(client.messages[number])
    return client.sure(
        f"{address}/${verb}", b"", UserProperty=[(name, found[name]) for name in ("message-id", "group-id")]
    )


def fail(server: Server, queue: str, payload: str) -> None:
    """Publish a message and reject it."""
    worker = Paho(server.mqtt_port, "failing")
    worker.subscribe(f"$queue/{queue}/#", user=[("consumer-group", "workers")])
    worker.sure(f"$queue/{queue}/a/b", payload)
    worker.wait(1)
    assert not settle(worker, f"$queue/{queue}", "reject").is_failure
    worker.close()


@pytest.mark.parametrize("address", ["$dlq/jobs", "$queue/$dlq/jobs"])
@pytest.mark.parametrize("rest", ["", "/#"])
def test_a_dead_letter_is_read_and_settled(server: Server, address: str, rest: str) -> None:
    fail(server, "jobs", "bad")
    reader = Paho(server.mqtt_port, "reader")
    group = [("consumer-group", f"letters{address.count('/')}{len(rest)}")]
    assert not reader.subscribe(address + rest, user=group)[0].is_failure
    wait_for(lambda: bool(reader.messages))
    first = reader.messages[0]
    found = told(first)
    assert (first.topic, first.payload) == (address, b"bad")
    assert (found["queue"], found["_dlq_original_queue"], found["_dlq_reason"]) == ("$dlq/jobs", "jobs", "rejected")
    assert not settle(reader, address, "ack").is_failure
    assert settle(reader, address, "ack").is_failure  # it is done with
    reader.close()


def test_who_reads_before_the_first_dead_letter_gets_it_and_it_is_kept(server: Server) -> None:
    watcher = Paho(server.mqtt_port, "watcher")
    assert not watcher.subscribe("$dlq/later", user=[("consumer-group", "watchers")])[0].is_failure
    fail(server, "later", "kept")
    assert watcher.wait(1) == [b"kept"]
    watcher.close()
    assert server.connect().channel().queue_declare("$dlq/later", passive=True).method.message_count == 1
    channel = server.connect().channel()
    channel.queue_declare("$dlq/later", durable=True)  # as durable as the queue it is for
    channel.connection.close()


@pytest.mark.parametrize("queue", ["nowhere", "tidy"])
@pytest.mark.parametrize("prefix", ["$dlq/", "$queue/$dlq/"])
def test_there_are_no_dead_letters_of_what_keeps_none(server: Server, prefix: str, queue: str) -> None:
    reader = Paho(server.mqtt_port, "reader")
    assert reader.subscribe(prefix + queue)[0].value == 0x83
    assert reader.sure(f"$queue/$dlq/{queue}", b"x").is_failure
    reader.close()


def test_dead_letters_are_not_published(server: Server) -> None:
    writer = Paho(server.mqtt_port, "writer")
    assert writer.sure("$dlq/jobs", b"x").value == 0x87
    writer.close()

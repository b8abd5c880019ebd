"""Members of a group that take messages and say nothing: a healthy one gets every message, whatever they all speak."""

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from tests.crash.kills.stomp import Line
from tests.paho_helpers import Paho
from tests.servers import Server, serving

CONFIGURATION = """
queues:
  - name: jobs
    visibility_timeout: 1s
    retry: {max_retries: 1, initial_backoff: 10ms}
"""
COUNT = 40


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("silent")
    file = directory / "headrace.yaml"
    file.write_text(CONFIGURATION)
    with serving(Server(directory, options=["--stomp", "0", "--config", str(file)])) as server:
        yield server


def _be_silent_over_0_9_1(server: Server) -> object:
    channel = server.connect().channel()
    channel.basic_qos(prefetch_count=10)
    channel.basic_consume("jobs", lambda *_: None, arguments={"x-consumer-group": "crew"})
    return channel


def _be_silent_over_1_0(server: Server) -> object:
    class Member(LinkOption):  # type: ignore[misc]
        def apply(self, link: object) -> None:
            link.properties = {"consumer-group": "crew"}  # type: ignore[attr-defined]

    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", timeout=60)
    return connection.create_receiver("$queue/jobs", credit=10, options=Member())


def _be_silent_over_mqtt(server: Server) -> object:
    member = Paho(server.mqtt_port, "silent")
    member.subscribe("$queue/jobs", user=[("consumer-group", "crew")])
    return member


def _be_silent_over_stomp(server: Server) -> object:
    line = Line(server)
    headers = {"prefetch-count": "10", "x-consumer-group": "crew", "receipt": "in"}
    line.client.subscribe("$queue/jobs", id="silent", ack="client-individual", headers=headers)
    line.receipt("in")
    return line


@pytest.mark.parametrize(
    "be_silent", [_be_silent_over_0_9_1, _be_silent_over_1_0, _be_silent_over_mqtt, _be_silent_over_stomp]
)
def test_a_healthy_member_gets_every_message_and_none_dies(server: Server, be_silent: object) -> None:
    silent = be_silent(server)  # type: ignore[operator]
    healthy = server.connect().channel()
    healthy.basic_qos(prefetch_count=1)
    healthy.confirm_delivery()
    done: set[bytes] = set()

    def work(channel: object, method: pika.spec.Basic.Deliver, properties: object, body: bytes) -> None:
        done.add(body)
        healthy.basic_ack(method.delivery_tag)

    healthy.basic_consume("jobs", work, arguments={"x-consumer-group": "crew"})
    for number in range(COUNT):
        healthy.basic_publish("", "jobs", b"%d" % number)

    deadline = time.monotonic() + 30
    while len(done) < COUNT and time.monotonic() < deadline:
        healthy.connection.process_data_events(0.1)

    assert sorted(done) == sorted([b"%d" % number for number in range(COUNT)])
    assert silent is not None
    admin = server.connect().channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        admin.queue_declare("$dlq/jobs", passive=True)

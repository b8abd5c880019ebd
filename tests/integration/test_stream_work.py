"""Groups that work through a stream as through a work queue, beside its readers: over MQTT, AMQP 0-9-1 and AMQP 1.0."""

import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker
from proton import Message
from proton.reactor import LinkOption
from proton.utils import BlockingConnection

from tests.paho_helpers import Paho, told, wait_for
from tests.servers import Server, serving

CONFIGURATION = """
queues:
  - {name: events, type: stream, primary_group: workers, visibility_timeout: 1s, retry: {initial_backoff: 10ms}}
  - {name: orders, type: classic}
  - {name: brief, type: stream, limits: {message_ttl: 1s}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("work")
    file = directory / "headrace.yaml"
    file.write_text(CONFIGURATION)
    with serving(Server(directory, options=["--config", str(file)])) as server:
        yield server


@pytest.fixture
def channel(server: Server) -> pika.adapters.blocking_connection.BlockingChannel:
    return server.connect().channel()


class First(LinkOption):  # type: ignore[misc]
    """From the beginning of a stream."""

    def apply(self, link: object) -> None:
        link.properties = {"cursor": "earliest"}  # type: ignore[attr-defined]


def declare(channel: pika.adapters.blocking_connection.BlockingChannel, name: str, count: int) -> str:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", name, str(number).encode())
    return name


def test_readers_are_told_how_far_the_primary_group_is(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    device = Paho(server.mqtt_port, "device")
    for number in range(3):
        device.sure("$queue/events", str(number))
    worker = Paho(server.mqtt_port, "worker")
    worker.subscribe("$queue/events", user=[("consumer-group", "workers")])
    worker.wait(3)
    for message in worker.messages[:2]:
        ids = [(name, told(message)[name]) for name in ("message-id", "group-id")]
        answer = worker.sure("$queue/events/$ack", b"", UserProperty=ids)
        assert not answer.is_failure, answer
    reader = Paho(server.mqtt_port, "reader")
    reader.subscribe("$queue/events", user=[("consumer-group", "audit"), ("x-stream-offset", "first")])
    reader.wait(3)
    said = [told(message) for message in reader.messages[:3]]
    assert [one["x-work-acked"] for one in said] == ["true", "true", "false"]
    assert [one["x-primary-group-processed"] for one in said] == ["true", "true", "false"]
    assert {(one["x-work-group"], one["x-work-committed-offset"]) for one in said} == {("workers", "2")}
    channel.basic_qos(prefetch_count=10)
    arguments = {"x-consumer-group": "audit-too", "x-stream-offset": "first"}
    got = channel.consume("events", arguments=arguments, inactivity_timeout=60)
    told_amqp = [next(got)[1].headers for _ in range(3)]
    channel.cancel()
    assert [headers["x-work-acked"] for headers in told_amqp] == [True, True, False]
    for client in (device, worker, reader):
        client.close()


def test_what_a_worker_leaves_another_gets_and_the_stream_keeps_everything(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    name = declare(channel, "left", 4)
    arguments = {"x-consumer-group": "crew", "x-group-mode": "work"}
    channel.basic_qos(prefetch_count=1)
    tried = channel.consume(name, arguments=arguments, inactivity_timeout=60)
    first = next(tried)[0]
    channel.basic_ack(first.delivery_tag)
    next(tried)  # and this one it does not get done
    channel.connection.close()
    other = server.connect().channel()
    other.basic_qos(prefetch_count=10)
    again = other.consume(name, arguments=arguments, inactivity_timeout=60)
    got = []
    for _ in range(3):
        method, _, body = next(again)
        got.append((body, method.redelivered))
        other.basic_ack(method.delivery_tag)
    assert got == [(b"1", True), (b"2", False), (b"3", False)]
    other.cancel()
    everything = other.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=60)
    assert [next(everything)[2] for _ in range(4)] == [b"0", b"1", b"2", b"3"]


def test_a_worker_over_amqp_1_0_and_one_over_mqtt_share_a_stream(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    name = declare(channel, "shared", 6)

    class Worker(LinkOption):  # type: ignore[misc]
        def apply(self, link: object) -> None:
            link.properties = {"consumer-group": "crew", "group-mode": "work"}  # type: ignore[attr-defined]

    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", timeout=60)
    receiver = connection.create_receiver(f"$queue/{name}", credit=2, options=Worker())
    taken = [receiver.receive(60), receiver.receive(60)]  # a body is good for as long as its message
    assert [bytes(message.body) for message in taken] == [b"0", b"1"]
    worker = Paho(server.mqtt_port, "worker")
    worker.subscribe(f"$queue/{name}", user=[("consumer-group", "crew"), ("group-mode", "work")])
    reader = Paho(server.mqtt_port, "reader", version=4)
    reader.subscribe(f"$queue/{name}")
    assert reader.wait(6) == [str(number).encode() for number in range(6)]
    assert not {b"0", b"1"} & set(worker.wait(1))
    connection.close()
    assert sorted(worker.wait(6)) == [str(number).encode() for number in range(6)]
    worker.close()
    reader.close()


def test_a_group_is_in_one_mode(server: Server, channel: pika.adapters.blocking_connection.BlockingChannel) -> None:
    name = declare(channel, "modes", 1)
    for mode, address in (("work", f"$queue/{name}"), ("stream", f"$queue/{name}/#")):
        holder = Paho(server.mqtt_port, f"holder-{mode}")
        asked = [("consumer-group", "crew"), ("group-mode", mode)]
        assert not holder.subscribe(address, user=asked)[0].is_failure
        other = {"work": "stream", "stream": "work"}[mode]
        clash = holder.subscribe(address, user=[("consumer-group", "crew"), ("group-mode", other)])
        assert clash[0].value == 0x83
        holder.close()
    with pytest.raises(ChannelClosedByBroker, match="ErrGroupModeMismatch"):
        channel.basic_consume(name, print, arguments={"x-consumer-group": "crew", "x-group-mode": "stream"})


@pytest.mark.parametrize(
    ("queue", "mode", "said"),
    [("orders", "stream", "queue 'orders' is no stream"), ("events", "fast", "'fast' is none of: work, stream")],
)
def test_a_mode_that_makes_no_sense_is_refused(server: Server, queue: str, mode: str, said: str) -> None:
    channel = server.connect().channel()
    with pytest.raises(ChannelClosedByBroker, match=said):
        channel.basic_consume(queue, print, arguments={"x-group-mode": mode})


def test_a_worker_that_comes_back_goes_on_as_one(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    name = declare(channel, "back", 3)
    asked = [("consumer-group", "crew"), ("group-mode", "work")]
    worker = Paho(server.mqtt_port, "away", clean=False, expiry_s=600)
    worker.subscribe(f"$queue/{name}", user=asked)
    worker.wait(3)
    worker.close()
    back = Paho(server.mqtt_port, "away", clean=False, expiry_s=600)
    assert back.present
    assert back.wait(3) == [b"0", b"1", b"2"]
    back.close()


@pytest.mark.parametrize("mode", ["stream", "work"])
def test_nobody_gets_what_is_past_its_time(server: Server, mode: str) -> None:
    device = Paho(server.mqtt_port, "device")
    device.sure("$queue/brief", "stale")
    published = time.monotonic()
    wait_for(lambda: time.monotonic() > published + 1.1)
    late = Paho(server.mqtt_port, "late")
    late.subscribe("$queue/brief", user=[("consumer-group", f"late-{mode}"), ("group-mode", mode)])

    def gets_what_is_new() -> bool:
        device.sure("$queue/brief", "new")
        return bool(late.messages)

    wait_for(gets_what_is_new)
    assert {message.payload for message in late.messages} == {b"new"}
    device.close()
    late.close()


def test_a_stream_delivers_what_expired_whoever_published_and_whoever_reads(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel
) -> None:
    name = declare(channel, "expiring", 0)
    channel.basic_publish("", name, b"0-9-1", pika.BasicProperties(expiration="1"))
    device = Paho(server.mqtt_port, "device")
    device.sure(f"$queue/{name}", "mqtt", MessageExpiryInterval=1)
    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", timeout=60)
    connection.create_sender(f"/queues/{name}").send(Message(body=b"1.0", inferred=True, ttl=0.001))
    published = time.monotonic()
    wait_for(lambda: time.monotonic() > published + 1.5)
    expected = [b"0-9-1", b"mqtt", b"1.0"]

    channel.basic_qos(prefetch_count=10)
    got = channel.consume(name, arguments={"x-stream-offset": "first"}, inactivity_timeout=60)
    assert [next(got)[2] for _ in range(3)] == expected
    channel.cancel()
    receiver = connection.create_receiver(f"$queue/{name}", credit=10, options=First())
    taken = [receiver.receive(60) for _ in range(3)]
    assert [bytes(message.body) for message in taken] == expected
    connection.close()
    for client in (Paho(server.mqtt_port, "five"), Paho(server.mqtt_port, "four", version=4)):
        client.subscribe(f"$queue/{name}")
        assert client.wait(3) == expected
        client.close()
    device.close()


@pytest.mark.parametrize("version", [4, 5])
def test_a_reader_over_mqtt_goes_on_where_it_was(
    server: Server, channel: pika.adapters.blocking_connection.BlockingChannel, version: int
) -> None:
    name = declare(channel, f"progress-{version}", 2500)  # beyond what a client may hold
    reader = Paho(server.mqtt_port, "reader", version=version)
    reader.subscribe(f"$queue/{name}")
    assert reader.wait(2500) == [str(number).encode() for number in range(2500)]
    reader.close()
    channel.basic_publish("", name, b"new")
    again = Paho(server.mqtt_port, "reader", version=version)
    again.subscribe(f"$queue/{name}")
    wait_for(lambda: bool(again.messages) and again.messages[-1].payload == b"new")
    assert len(again.messages) < 100  # those whose PUBACK was under way when the connection ended
    again.close()


def test_work_on_a_stream_must_be_acknowledged(server: Server) -> None:
    worker = Paho(server.mqtt_port, "hasty")
    assert worker.subscribe("$queue/events", 0, [("consumer-group", "workers")])[0].value == 0x83
    worker.close()

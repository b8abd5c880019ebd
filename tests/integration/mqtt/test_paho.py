"""paho-mqtt against a real server, in every version it speaks."""

import socket

import pika
import pytest

from tests.paho_helpers import Paho, wait_for
from tests.servers import Server

VERSIONS = [3, 4, 5]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_messages_arrive_in_order(server: Server, version: int, qos: int) -> None:
    reader, writer = Paho(server.mqtt_port, "reader", version), Paho(server.mqtt_port, "writer", version)
    reader.subscribe(f"order/{version}/{qos}", qos)
    for number in range(500):
        writer.publish(f"order/{version}/{qos}", str(number), qos)
    assert reader.wait(500) == [str(number).encode() for number in range(500)]
    assert {message.qos for message in reader.messages} == {qos}
    reader.close()
    writer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_that_is_kept_gets_what_came_meanwhile(server: Server, version: int) -> None:
    name = f"kept{version}"
    first = Paho(server.mqtt_port, name, version, clean=False, expiry_s=600)
    first.subscribe(f"{name}/#", 2)
    first.close()
    writer = Paho(server.mqtt_port, "writer", version)
    for number in range(20):
        writer.sure(f"{name}/{number % 3}", str(number), 1 + number % 2)
    back = Paho(server.mqtt_port, name, version, clean=False, expiry_s=600)
    assert back.present
    back.wait(20)
    for qos in (1, 2):  # the client hands out what it got at QoS 2 when that is completed
        found = [int(message.payload) for message in back.messages if message.qos == qos]
        assert found == list(range(qos - 1, 20, 2))
    back.close()
    writer.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_wills_and_retained_messages(server: Server, version: int) -> None:
    topic = f"state/{version}"
    lost = Paho(server.mqtt_port, "lost", version, will=(topic, "gone", 1, True))
    lost.sure(topic, "here", retain=True)
    watcher = Paho(server.mqtt_port, "watcher", version)
    watcher.subscribe(topic)
    assert watcher.wait(1) == [b"here"]
    assert watcher.messages[0].retain
    lost.drop()
    assert watcher.wait(2)[1] == b"gone"
    watcher.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_with_an_empty_user_name_comes_in(server: Server, version: int) -> None:
    nameless = Paho(server.mqtt_port, "nameless", version, user_name="")
    nameless.subscribe("nameless")
    nameless.sure("nameless", "x")
    assert nameless.wait(1) == [b"x"]
    nameless.close()


def test_properties_are_passed_on(server: Server) -> None:
    reader, writer = Paho(server.mqtt_port, "reader"), Paho(server.mqtt_port, "writer")
    reader.subscribe("properties")
    writer.sure(
        "properties", "x", user=[("k", "v")], ContentType="text/plain", ResponseTopic="answers", CorrelationData=b"1",
        MessageExpiryInterval=60,
    )  # fmt: skip
    reader.wait(1)
    found = reader.messages[0].properties
    assert found is not None
    assert (found.ContentType, found.ResponseTopic, found.CorrelationData) == ("text/plain", "answers", b"1")  # type: ignore[attr-defined]
    assert found.UserProperty == [("k", "v")]  # type: ignore[attr-defined]
    assert 0 < found.MessageExpiryInterval <= 60  # type: ignore[attr-defined]
    reader.close()
    writer.close()


def test_a_group_of_workers_over_mqtt_5(server: Server) -> None:
    channel = server.connect().channel()
    channel.queue_declare("jobs", durable=True)
    workers = [Paho(server.mqtt_port, f"worker-{number}") for number in range(2)]
    for worker in workers:
        worker.subscribe("$queue/jobs/#", 1, [("consumer-group", "g")])
    writer = Paho(server.mqtt_port, "writer")
    for number in range(20):
        assert not writer.sure("$queue/jobs/x", str(number)).is_failure
    wait_for(lambda: sum(len(worker.messages) for worker in workers) == 20)
    assert [len(worker.messages) for worker in workers] == [10, 10]
    for worker in workers:
        for message in worker.messages:
            extra = dict(message.properties.UserProperty)  # type: ignore[union-attr]
            user = [(name, extra[name]) for name in ("message-id", "group-id")]
            assert not worker.sure("$queue/jobs/$ack", b"", user=user).is_failure
            assert worker.sure("$queue/jobs/$ack", b"", user=user).value == 0x80
        worker.close()
    writer.close()


@pytest.mark.parametrize("version", [3, 4])
def test_clients_of_version_3_use_queues(server: Server, version: int) -> None:
    channel = server.connect().channel()
    channel.queue_declare(f"old{version}", durable=True)
    writer = Paho(server.mqtt_port, "writer", version)
    for number in range(10):
        writer.sure(f"$queue/old{version}", str(number))
    worker = Paho(server.mqtt_port, "old-1", version)
    assert worker.subscribe(f"$queue/old{version}", 1)[0].value == 1
    assert worker.wait(10) == [str(number).encode() for number in range(10)]
    worker.close()
    again = Paho(server.mqtt_port, "old-2", version)
    again.subscribe(f"$queue/old{version}", 1)
    writer.sure(f"$queue/old{version}", "last")
    assert again.wait(1) == [b"last"]
    again.close()
    writer.close()


def test_one_queue_between_mqtt_and_amqp_both_ways(server: Server) -> None:
    channel = server.connect().channel()
    channel.queue_declare("bridge", durable=True)
    device = Paho(server.mqtt_port, "device")
    device.sure("$queue/bridge/up", "from mqtt", user=[("k", "v")], ContentType="text/plain", CorrelationData=b"7")

    method, properties, body = channel.basic_get("bridge", auto_ack=True)

    assert method is not None
    assert body == b"from mqtt"
    assert (properties.content_type, properties.correlation_id, properties.headers) == ("text/plain", "7", {"k": "v"})

    device.subscribe("$queue/bridge", 1, [("consumer-group", "g")])
    about = pika.BasicProperties(content_type="text/html", correlation_id="8", reply_to="answers", headers={"n": 5})
    channel.basic_publish("", "bridge", b"from amqp", about)
    wait_for(lambda: any(message.payload == b"from amqp" for message in device.messages))
    found = device.messages[-1].properties
    assert found is not None
    assert (found.ContentType, found.CorrelationData) == ("text/html", b"8")  # type: ignore[attr-defined]
    assert found.ResponseTopic == "$queue/answers"  # type: ignore[attr-defined]
    assert dict(found.UserProperty)["n"] == "5"  # type: ignore[attr-defined]
    device.close()


def test_the_topic_exchange_joins_devices_and_services(server: Server) -> None:
    channel = server.connect().channel()
    queue = channel.queue_declare("", exclusive=True).method.queue
    channel.queue_bind(queue, "amq.topic", "plant.*.temperature")
    device = Paho(server.mqtt_port, "device")
    device.subscribe("plant/+/command", 1)
    device.sure("plant/7/temperature", "21")
    channel.basic_publish("amq.topic", "plant.7.command", b"cool")

    method, _, body = channel.basic_get(queue, auto_ack=True)

    assert method is not None
    assert body == b"21"
    assert (method.exchange, method.routing_key) == ("amq.topic", "plant.7.temperature")
    assert device.wait(1) == [b"cool"]
    assert device.messages[0].topic == "plant/7/command"
    device.close()


def test_a_client_that_is_silent_is_disconnected_and_its_will_published(server: Server) -> None:
    watcher = Paho(server.mqtt_port, "watcher")
    watcher.subscribe("silence")
    with socket.create_connection(("127.0.0.1", server.mqtt_port)) as silent:
        will = b"\x00\x07silence\x00\x04gone"
        body = b"\x00\x04MQTT\x04\x06\x00\x01" + b"\x00\x06silent" + will
        silent.sendall(bytes((0x10, len(body))) + body)
        assert silent.recv(4) == b"\x20\x02\x00\x00"
        assert watcher.wait(1) == [b"gone"]
        assert silent.recv(1) == b""
    watcher.close()


def test_an_orderly_restart_keeps_sessions_and_publishes_wills(own_server: Server) -> None:
    kept = Paho(own_server.mqtt_port, "kept", clean=False, expiry_s=600)
    kept.subscribe("wills", 1)
    kept.close()
    there = Paho(own_server.mqtt_port, "there", will=("wills", "the broker stopped", 1, False))
    there.sure("state", "on", retain=True)

    assert own_server.stop() == 0
    there.drop()
    own_server.start()

    back = Paho(own_server.mqtt_port, "kept", clean=False, expiry_s=600)
    back.subscribe("state")
    back.wait(2)
    assert sorted(bytes(message.payload) for message in back.messages) == [b"on", b"the broker stopped"]
    back.close()

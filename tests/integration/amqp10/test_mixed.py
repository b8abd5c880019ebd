"""One queue, all protocols: what AMQP 1.0, AMQP 0-9-1 and MQTT 5 send, each of the others gets, properties and all."""

from pika import BasicProperties
from pika.adapters.blocking_connection import BlockingChannel
from proton import Message
from proton.utils import BlockingConnection

from tests.paho_helpers import Paho
from tests.servers import Server


def test_a_queue_takes_from_all_and_gives_to_1_0(
    server: Server, connection: BlockingConnection, channel: BlockingChannel
) -> None:
    channel.queue_declare("mixed.in", durable=True)
    device = Paho(server.mqtt_port, "device")
    user = [("colour", "red")]
    device.sure("$queue/mixed.in/up", "mqtt", user=user, ContentType="text/plain", CorrelationData=b"7")
    channel.basic_publish(
        "", "mixed.in", b"amqp091", BasicProperties("text/plain", headers={"colour": "red"}, correlation_id="7")
    )
    connection.create_sender("mixed.in").send(
        Message(body="amqp10", content_type="text/plain", correlation_id="7", properties={"colour": "red"})
    )
    receiver = connection.create_receiver("mixed.in", name="all", credit=10)

    for expected in ("mqtt", "amqp091", "amqp10"):
        message = receiver.receive(timeout=60)
        body = message.body if isinstance(message.body, str) else bytes(message.body).decode()
        assert body == expected
        assert message.content_type == "text/plain"
        assert message.correlation_id == "7"
        assert message.properties["colour"] == "red"
        receiver.accept()
    device.close()


def test_what_1_0_sends_arrives_over_mqtt_and_0_9_1(
    server: Server, connection: BlockingConnection, channel: BlockingChannel
) -> None:
    channel.queue_declare("mixed.out", durable=True)
    device = Paho(server.mqtt_port, "device")
    device.subscribe("$queue/mixed.out", 1, [("consumer-group", "devices")])
    connection.create_sender("mixed.out").send(
        Message(body="text", content_type="text/plain", correlation_id="7", properties={"colour": "red", "n": 5})
    )

    assert device.wait(1) == [b"text"]
    properties = device.messages[0].properties
    assert properties is not None
    said = dict(properties.UserProperty)  # type: ignore[attr-defined]
    assert (said["colour"], said["n"], said["queue"], said["protocol"]) == ("red", "5", "mixed.out", "amqp10")
    assert properties.ContentType == "text/plain"  # type: ignore[attr-defined]
    assert properties.CorrelationData == b"7"  # type: ignore[attr-defined]
    _, found, body = channel.basic_get("mixed.out", auto_ack=True)
    assert body == b"text"
    assert found is not None
    assert found.headers == {"colour": "red", "n": 5}
    device.close()


def test_a_topic_is_shared_with_mqtt(server: Server, connection: BlockingConnection) -> None:
    device = Paho(server.mqtt_port, "listener")
    device.subscribe("rooms/+/light", 1)
    receiver = connection.create_receiver("rooms/#", credit=10)
    connection.create_sender("rooms/1/light").send(Message(body=b"on", inferred=True))
    device.sure("rooms/2/light", "off")

    assert sorted(device.wait(2)) == [b"off", b"on"]
    messages = [receiver.receive(timeout=60), receiver.receive(timeout=10)]
    assert sorted([bytes(message.body) for message in messages]) == [b"off", b"on"]
    device.close()

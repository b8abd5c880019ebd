"""What is said about a message on its way between MQTT 5 and AMQP 0-9-1, with a client at either end."""

import pika
from paho.mqtt.packettypes import PacketTypes

from tests.paho_helpers import Paho, said, wait_for
from tests.servers import Server


def test_from_mqtt_to_amqp(server: Server) -> None:
    channel = server.connect().channel()
    channel.queue_declare("to-amqp", durable=True)
    client = Paho(server.mqtt_port, "to-amqp")
    told = said(
        PacketTypes.PUBLISH,
        [("colour", "green"), ("size", "7"), ("size", "8")],
        ContentType="text/plain",
        CorrelationData=b"c1",
        ResponseTopic="$queue/answers",
        MessageExpiryInterval=60,
        PayloadFormatIndicator=1,
    )
    client.client.publish("$queue/to-amqp", "grün", 1, properties=told).wait_for_publish(20)

    method, properties, body = next(channel.consume("to-amqp", auto_ack=True, inactivity_timeout=60))

    assert method is not None
    assert properties is not None
    assert body == "grün".encode()
    assert (properties.content_type, properties.correlation_id, properties.reply_to) == (
        "text/plain",
        "c1",
        "$queue/answers",
    )
    assert properties.expiration == "60000"
    assert properties.headers is not None
    assert (properties.headers["colour"], properties.headers["size"]) == ("green", "8")
    client.close()


def test_from_amqp_to_mqtt_and_the_answer_back(server: Server) -> None:
    channel = server.connect().channel()
    answers = channel.queue_declare("", exclusive=True).method.queue
    client = Paho(server.mqtt_port, "to-mqtt")
    client.subscribe("plant/#", 1)
    properties = pika.BasicProperties(
        content_type="application/json",
        correlation_id="c7",
        reply_to=answers,
        expiration="90000",
        app_id="shop",
        headers={"n": 7, "ok": True, "nested": {"a": [1]}, "raw": b"\xff"},
    )
    channel.basic_publish("amq.topic", "plant.1", b"{}", properties)
    wait_for(lambda: len(client.messages) == 1)

    (message,) = client.messages
    assert (message.topic, message.payload) == ("plant/1", b"{}")
    got = message.properties
    assert got is not None
    told = got.json()
    assert (told["ContentType"], told["CorrelationData"]) == ("application/json", b"c7".hex())
    assert 0 < told["MessageExpiryInterval"] <= 90
    user = dict(told["UserProperty"])
    assert (user["n"], user["ok"], user["nested"], user["app-id"]) == ("7", "true", '{"a": [1]}', "shop")

    client.client.publish(told["ResponseTopic"], b"done", 1).wait_for_publish(20)
    _, _, body = next(channel.consume(answers, auto_ack=True, inactivity_timeout=60))
    assert body == b"done"
    client.close()

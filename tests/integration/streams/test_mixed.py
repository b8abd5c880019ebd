"""One stream, read and written by clients of all protocols: rstream, pika, proton, paho, and Arrow."""

import asyncio
import io
from typing import Any

import httpx
import paho.mqtt.client as paho
import pika
import pyarrow as pa
from paho.mqtt.enums import CallbackAPIVersion
from proton import AnnotationDict, Described, Message, symbol
from proton.reactor import Filter
from proton.utils import BlockingConnection
from rstream import AMQPMessage, FilterConfiguration, Producer, amqp_decoder

from tests.integration.streams.test_rstream import _read
from tests.servers import Server


def _send(server: Server, stream: str, *messages: Any) -> None:
    async def work() -> None:
        async with Producer("127.0.0.1", server.ports["stream"], username="guest", password="guest") as producer:
            for message in messages:
                await producer.send_wait(stream, message)

    asyncio.run(work())


def test_a_message_of_a_stream_client_is_read_by_all_others(server: Server) -> None:
    channel = server.connect().channel()
    channel.queue_declare("mixed-out", durable=True, arguments={"x-queue-type": "stream"})
    _send(server, "mixed-out", AMQPMessage(body=b"sections", application_properties={"number": 5}), b"plain bytes")

    channel.basic_qos(prefetch_count=10)
    reading = channel.consume("mixed-out", inactivity_timeout=60, arguments={"x-stream-offset": "first"})
    found = [next(reading) for _ in range(2)]
    assert [body for _, _, body in found] == [b"sections", b"plain bytes"]
    assert [properties.headers["x-stream-offset"] for _, properties, _ in found] == [0, 1]
    assert found[0][1].headers["number"] == 5
    channel.cancel()

    connection = BlockingConnection(f"127.0.0.1:{server.port}", user="guest", password="guest")
    start = Filter({symbol("rabbitmq:stream-offset-spec"): Described(symbol("rabbitmq:stream-offset-spec"), "first")})
    receiver = connection.create_receiver("/queues/mixed-out", credit=10, options=start)
    messages = [receiver.receive(timeout=60) for _ in range(2)]  # they own the bytes of their bodies
    assert [bytes(message.body) for message in messages] == [b"sections", b"plain bytes"]
    connection.close()

    asked: dict[str, str | int] = {"queue": "mixed-out", "from": 0, "to": 2, "columns": "offset,payload"}
    answer = httpx.get(f"{server.http_url}/bulk/messages", auth=("guest", "guest"), params=asked)
    table = pa.ipc.open_stream(io.BytesIO(answer.content)).read_all()
    assert table.column("payload").to_pylist() == [b"sections", b"plain bytes"]


def test_messages_of_all_others_are_read_by_a_stream_client(server: Server) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("mixed-in", durable=True, arguments={"x-queue-type": "stream"})
    properties = pika.BasicProperties(message_id="m1", headers={"number": 7}, content_type="text/plain")
    channel.basic_publish("", "mixed-in", b"pika", properties)
    connection = BlockingConnection(f"127.0.0.1:{server.port}", user="guest", password="guest")
    connection.create_sender("/queues/mixed-in").send(Message(body=b"proton", durable=True))
    connection.close()
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.username_pw_set("guest", "guest")
    client.connect("127.0.0.1", server.mqtt_port)
    client.loop_start()
    client.publish("$queue/mixed-in", b"paho", qos=1).wait_for_publish(60)
    client.disconnect()
    client.loop_stop()
    _send(server, "mixed-in", b"rstream")

    found = asyncio.run(_read(server, "mixed-in", 4, decoder=lambda raw: raw))

    assert [offset for offset, _ in found] == [0, 1, 2, 3]
    first, second, third = [amqp_decoder(raw) for _, raw in found[:3]]
    assert [first.body, second.value, third.body] == [b"pika", b"proton", b"paho"]
    assert first.application_properties == {b"number": 7}
    assert found[3][1] == b"rstream"


def test_filter_values_mean_the_same_to_clients_of_all_protocols(server: Server) -> None:
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.queue_declare("filtered", durable=True, arguments={"x-queue-type": "stream"})
    for body, value in ((b"pika a", "a"), (b"pika b", "b"), (b"pika", "")):
        headers = {"x-stream-filter-value": value} if value else {}
        channel.basic_publish("", "filtered", body, pika.BasicProperties(headers=headers))
    connection = BlockingConnection(f"127.0.0.1:{server.port}", user="guest", password="guest")
    sender = connection.create_sender("/queues/filtered")
    for body, value in ((b"proton a", "a"), (b"proton c", "c")):
        annotations = AnnotationDict({symbol("x-stream-filter-value"): value})
        sender.send(Message(body=body, annotations=annotations, durable=True))
    _send_valued(server, "filtered", b"rstream a", b"rstream b")

    wanted = [b"pika a", b"pika", b"proton a", b"rstream a"]
    channel.basic_qos(prefetch_count=10)
    asked = {"x-stream-offset": "5m", "x-stream-filter": ["a"], "x-stream-match-unfiltered": True}
    reading = channel.consume("filtered", inactivity_timeout=60, arguments=asked)
    assert [next(reading)[2] for _ in wanted] == wanted
    channel.cancel()
    only = channel.consume("filtered", inactivity_timeout=60, arguments={**asked, "x-stream-filter": "c"})
    assert [next(only)[2] for _ in range(2)] == [b"pika", b"proton c"]
    channel.cancel()

    asked_of_1_0: dict[str, object] = {
        "stream-offset-spec": "5m",
        "stream-filter": ["a"],
        "stream-match-unfiltered": True,
    }
    assert _filtered(connection, asked_of_1_0, 4) == wanted
    assert _filtered(connection, {"stream-offset-spec": "first", "stream-filter": "b"}, 2) == [b"pika b", b"rstream b"]
    connection.close()

    configuration = FilterConfiguration(["b"], lambda message: bytes(message).endswith(b"b"), False)
    found = asyncio.run(_read(server, "filtered", 2, decoder=lambda raw: raw, filter_input=configuration))
    assert [offset for offset, _ in found] == [1, 6]


def _filtered(connection: BlockingConnection, asked: dict[str, object], count: int) -> list[bytes]:
    """The first messages that a receiver with such filters gets."""
    names = {name: symbol(f"rabbitmq:{name}") for name in asked}
    filters = Filter({names[name]: Described(names[name], value) for name, value in asked.items()})
    receiver = connection.create_receiver("/queues/filtered", credit=10, options=filters, name=str(asked))
    messages = [receiver.receive(timeout=60) for _ in range(count)]  # they own the bytes of their bodies
    return [bytes(message.body) for message in messages]


def _send_valued(server: Server, stream: str, *bodies: bytes) -> None:
    """Send messages whose last letter is their filter value."""

    async def value(message: Any) -> str:
        return chr(bytes(message)[-1])

    async def work() -> None:
        producer = Producer(
            "127.0.0.1", server.ports["stream"], username="guest", password="guest", filter_value_extractor=value
        )
        async with producer:
            for body in bodies:
                await producer.send_wait(stream, body)

    asyncio.run(work())

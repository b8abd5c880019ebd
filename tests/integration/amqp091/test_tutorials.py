"""RabbitMQ's tutorials, as its users first meet them, with pika's blocking connection."""

import time

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.servers import Server, drain

_SECONDS = 60.0


def test_1_hello_world(server: Server, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.basic_publish("", name, b"Hello World!")

    receiver = server.connect()
    bodies = drain(receiver.channel(), name, 1)
    receiver.close()

    assert bodies == [b"Hello World!"]


def test_2_work_queues_share_the_work_and_take_over_from_the_dead(server: Server, name: str) -> None:
    sender = server.connect().channel()
    sender.queue_declare(name, durable=True)
    first, second = server.connect(), server.connect()
    got: dict[str, list[bytes]] = {"first": [], "second": []}
    for who, worker in (("first", first), ("second", second)):
        channel = worker.channel()
        channel.basic_qos(prefetch_count=1)
        channel.basic_consume(name, lambda ch, method, props, body, who=who: got[who].append(body))
    for number in range(4):
        sender.basic_publish("", name, b"%d" % number, pika.BasicProperties(delivery_mode=2))
    _wait(first, lambda: len(got["first"]) == 1)
    _wait(second, lambda: len(got["second"]) == 1)

    first.close()
    rest = drain(second.channel(), name, 3)

    assert got["first"][0] in rest, "what the first had and did not acknowledge is the second's now"
    assert sorted([*got["second"], *rest]) == [b"0", b"1", b"2", b"3"]
    second.close()


def test_3_publish_subscribe_copies_to_all(server: Server, channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "fanout")
    queues = [str(channel.queue_declare("", exclusive=True).method.queue) for _ in range(2)]
    for queue in queues:
        assert queue.startswith("amq.gen-")
        channel.queue_bind(queue, name)
    channel.basic_publish(name, "", b"info: Hello World!")

    assert [drain(channel, queue, 1) for queue in queues] == [[b"info: Hello World!"]] * 2


def test_4_routing_by_key(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "direct")
    queue = str(channel.queue_declare("", exclusive=True).method.queue)
    for severity in ("warning", "error"):
        channel.queue_bind(queue, name, severity)
    for severity in ("info", "warning", "error"):
        channel.basic_publish(name, severity, severity.encode())

    assert drain(channel, queue, 2) == [b"warning", b"error"]


def test_5_topics(channel: BlockingChannel, name: str) -> None:
    channel.exchange_declare(name, "topic")
    queues = {}
    for key in ("*.orange.*", "lazy.#", "#"):
        queues[key] = str(channel.queue_declare("", exclusive=True).method.queue)
        channel.queue_bind(queues[key], name, key)
    for key in ("quick.orange.rabbit", "lazy.brown.fox", "lazy", "quick.brown.fox"):
        channel.basic_publish(name, key, key.encode())

    assert drain(channel, queues["*.orange.*"], 1) == [b"quick.orange.rabbit"]
    assert drain(channel, queues["lazy.#"], 2) == [b"lazy.brown.fox", b"lazy"]
    assert len(drain(channel, queues["#"], 4)) == 4


def test_6_rpc(server: Server, name: str) -> None:
    serving = server.connect()
    rpc = serving.channel()
    rpc.queue_declare(name)

    def on_request(ch: BlockingChannel, method: object, props: pika.BasicProperties, body: bytes) -> None:
        answer = str(int(body) ** 2).encode()
        ch.basic_publish("", str(props.reply_to), answer, pika.BasicProperties(correlation_id=props.correlation_id))
        ch.basic_ack(method.delivery_tag)  # type: ignore[attr-defined]

    rpc.basic_consume(name, on_request)
    client = server.connect()
    channel = client.channel()

    def ask(reply_queue: str) -> list[tuple[str | None, bytes]]:
        answers: list[tuple[str | None, bytes]] = []
        tag = channel.basic_consume(
            reply_queue, lambda ch, method, props, body: answers.append((props.correlation_id, body)), auto_ack=True
        )
        channel.basic_publish("", name, b"12", pika.BasicProperties(reply_to=reply_queue, correlation_id="c-1"))
        deadline = time.monotonic() + _SECONDS
        while not answers and time.monotonic() < deadline:
            serving.process_data_events(0.02)
            client.process_data_events(0.02)
        channel.basic_cancel(tag)
        return answers

    assert ask(str(channel.queue_declare("", exclusive=True).method.queue)) == [("c-1", b"144")]
    assert ask("amq.rabbitmq.reply-to") == [("c-1", b"144")]
    client.close()
    serving.close()


def test_7_publisher_confirms_and_returns(channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name)
    channel.confirm_delivery()
    channel.basic_publish("", name, b"safe", mandatory=True)
    refused = None
    try:
        channel.basic_publish("", "no-such-queue", b"lost", mandatory=True)
    except pika.exceptions.UnroutableError as error:
        refused = error.messages[0]

    assert refused is not None
    assert refused.body == b"lost"
    assert refused.method.reply_code == 312
    assert drain(channel, name, 1) == [b"safe"]


def test_8_streams(server: Server, channel: BlockingChannel, name: str) -> None:
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": "stream"})
    for number in range(5):
        channel.basic_publish("", name, b"%d" % number)
    channel.basic_qos(prefetch_count=100)

    def read(offset: object, count: int) -> list[tuple[int, bytes]]:
        got: list[tuple[int, bytes]] = []
        for method, props, body in channel.consume(
            name, arguments={"x-stream-offset": offset}, inactivity_timeout=_SECONDS
        ):
            if method is None or props is None or body is None:
                break
            got.append((props.headers["x-stream-offset"], body))
            channel.basic_ack(method.delivery_tag)
            if len(got) == count:
                break
        channel.cancel()
        return got

    assert read("first", 5) == [(number, b"%d" % number) for number in range(5)]
    assert read("first", 2) == [(0, b"0"), (1, b"1")]
    assert read(3, 2) == [(3, b"3"), (4, b"4")]
    assert read("offset=4", 1) == [(4, b"4")]


def _wait(connection: pika.BlockingConnection, is_done: object) -> None:
    deadline = time.monotonic() + _SECONDS
    while not is_done():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen"
        connection.process_data_events(0.05)

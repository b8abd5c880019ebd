"""Connections with very much on them: what they leave behind is there for others, whole and in order."""

import socket

import pika

from tests.servers import Server, drain
from tests.waiting import eventually


def test_what_a_connection_with_many_consumers_and_messages_held_is_there_for_others(server: Server, name: str) -> None:
    queues = [f"{name}-{number}" for number in range(3)]
    leaving = server.connect()
    for queue in queues:
        channel = leaving.channel()
        channel.queue_declare(queue, durable=True)
        channel.confirm_delivery()
        for number in range(50):
            channel.basic_publish("", queue, b"%d" % number)
    for queue in queues:
        for _ in range(3):
            channel = leaving.channel()
            for _ in range(50):
                channel.basic_consume(queue, lambda *_: None)
    leaving.process_data_events(0.5)

    leaving._impl._transport._sock.shutdown(socket.SHUT_RDWR)

    channel = server.connect().channel()
    eventually(lambda: all(channel.queue_declare(each, passive=True).method.message_count == 50 for each in queues))
    for queue in queues:
        assert sorted(drain(channel, queue, 50), key=int) == [b"%d" % number for number in range(50)]


def test_exclusive_queues_can_be_declared_again_as_soon_as_their_connection_is_gone(server: Server, name: str) -> None:
    queues = [f"{name}-{number}" for number in range(250)]
    first = server.connect()
    channel = first.channel()
    for queue in queues:
        channel.queue_declare(queue, exclusive=True)
    first.close()

    channel = server.connect().channel()
    for queue in reversed(queues):
        channel.queue_declare(queue, exclusive=True)
        channel.basic_publish("", queue, queue.encode(), pika.BasicProperties(delivery_mode=1))

    assert [channel.basic_get(queue)[2] for queue in queues] == [queue.encode() for queue in queues]

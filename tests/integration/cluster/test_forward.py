"""Clients of a node that does not own the store: their own libraries, unmodified, through it to the owner."""

import itertools
import socket
import struct
from collections.abc import Iterator

import httpx
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from proton import Message
from proton.utils import BlockingConnection

from tests.nodes import Nodes
from tests.paho_helpers import Paho
from tests.servers import drain
from tests.waiting import eventually

_GUEST = ("guest", "guest")
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Node a owns the store, b does not."""
    with Nodes("a", "b") as running:
        running.own("a")
        yield running


@pytest.fixture
def queue() -> str:
    return f"queue-{next(_NUMBERS)}"


def test_pika_publishes_with_confirms_and_consumes_through_another_node(nodes: Nodes, queue: str) -> None:
    there, here = nodes.pika("b").channel(), nodes.pika("a").channel()
    there.queue_declare(queue, durable=True)
    there.confirm_delivery()

    for number in range(100):
        there.basic_publish("", queue, f"{number}".encode(), mandatory=True)

    assert here.queue_declare(queue, passive=True).method.message_count == 100
    assert drain(there, queue, 100) == [f"{number}".encode() for number in range(100)]
    eventually(lambda: here.queue_declare(queue, passive=True).method.message_count == 0)


def test_large_messages_pass_whole_in_both_directions(nodes: Nodes, queue: str) -> None:
    channel = nodes.pika("b").channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    body = bytes(range(256)) * (48 << 10)

    channel.basic_publish("", queue, body)

    assert drain(channel, queue, 1) == [body]


@pytest.mark.parametrize("version", [4, 5])
def test_paho_publishes_and_subscribes_through_another_node(nodes: Nodes, queue: str, version: int) -> None:
    there, here = Paho(nodes["b"].port("mqtt"), f"{queue}-b", version), Paho(nodes["a"].port("mqtt"), f"{queue}-a", 5)
    there.subscribe(f"{queue}/+", 2)

    there.sure(f"{queue}/one", b"x" * 200_000, 1)
    here.sure(f"{queue}/two", b"y", 2)
    there.sure(f"{queue}/three", b"z", 2)

    assert sorted(there.wait(3)) == [b"x" * 200_000, b"y", b"z"]
    there.close()
    here.close()


def test_proton_sends_receives_and_settles_through_another_node(nodes: Nodes, queue: str) -> None:
    nodes.pika("a").channel().queue_declare(queue, durable=True)
    connection = BlockingConnection(f"127.0.0.1:{nodes['b'].port('amqp')}", user="guest", password="guest", timeout=60)
    sender = connection.create_sender(f"/queues/{queue}")
    for number in range(20):
        sender.send(Message(body=f"{number}"))
    receiver = connection.create_receiver(f"/queues/{queue}", credit=20)

    got = []
    for _ in range(20):
        got.append(receiver.receive(60).body)
        receiver.accept()
    connection.close()

    assert got == [f"{number}" for number in range(20)]
    left = nodes.pika("a").channel()
    eventually(lambda: left.queue_declare(queue, passive=True).method.message_count == 0)


def test_mqtt_over_a_web_socket_is_passed_on_from_both_ports(nodes: Nodes, queue: str) -> None:
    for listener in ("ws", "http"):
        received = _web_socket_round_trip(nodes["b"].port(listener), f"{queue}-{listener}")
        assert received == [b"hello"]


def _web_socket_round_trip(port: int, topic: str) -> list[bytes]:
    client = _WebSocketPaho(port, topic)
    client.subscribe(topic, 1)
    client.sure(topic, b"hello", 1)
    received = client.wait(1)
    client.close()
    return received


class _WebSocketPaho(Paho):
    """As Paho, over a WebSocket at /mqtt."""

    def __init__(self, port: int, client_id: str) -> None:
        super().__init__(port, client_id, 4, transport="websockets")


def test_who_is_connected_is_listed_with_its_own_address_and_the_node_it_came_to(nodes: Nodes, queue: str) -> None:
    parameters = {"client_properties": {"connection_name": queue}}
    nodes.pika("b", **parameters)

    def found() -> list[dict[str, object]]:
        items = httpx.get(f"{nodes['a'].url}/api/v1/connections", auth=_GUEST, timeout=60, verify=False).json()["items"]
        return [item for item in items if item["client_id"] == queue]

    eventually(lambda: bool(found()))
    (connection,) = found()
    assert connection["node"] == "b"
    assert str(connection["name"]).startswith("127.0.0.1:")
    assert str(connection["name"]).endswith(f"-> 127.0.0.1:{nodes['b'].port('amqp')}")


def test_an_operator_ends_a_connection_that_came_through_another_node(nodes: Nodes, queue: str) -> None:
    connection = nodes.pika("b", client_properties={"connection_name": queue})
    items = httpx.get(f"{nodes['b'].url}/api/v1/connections", auth=_GUEST, timeout=60, verify=False).json()["items"]
    (name,) = [item["name"] for item in items if item["client_id"] == queue]

    assert httpx.delete(
        f"{nodes['b'].url}/api/v1/connections/{name.replace(' ', '%20')}", auth=_GUEST, timeout=60, verify=False
    ).is_success

    with pytest.raises(ConnectionClosedByBroker):
        connection.process_data_events(60)


def test_a_client_that_vanishes_leaves_nothing_behind_at_either_node(nodes: Nodes) -> None:
    client = nodes.connect("b", "amqp")
    peer = f"127.0.0.1:{client.getsockname()[1]}"
    client.sendall(b"AMQP\x00\x00\x09\x01")
    assert client.recv(7)  # the owner answers
    assert [nodes[name].has(peer) for name in ("a", "b")] == [True, True]

    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()

    eventually(lambda: not nodes["a"].has(peer) and not nodes["b"].has(peer))


def test_what_a_client_sent_before_it_closed_its_side_arrives_and_so_does_the_answer(nodes: Nodes) -> None:
    with socket.create_connection(("127.0.0.1", nodes["b"].port("amqp")), timeout=60) as client:
        client.sendall(b"HTTP/1.1")
        client.shutdown(socket.SHUT_WR)
        received = b""
        while part := client.recv(4096):
            received += part

    assert received == b"AMQP\x00\x00\x09\x01"


def test_a_wrong_password_is_refused_by_the_owner_as_if_it_had_been_asked_itself(nodes: Nodes) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        nodes.pika("b", credentials=pika.PlainCredentials("guest", "wrong"))

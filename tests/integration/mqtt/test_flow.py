"""Clients that do not read and clients that flood: the server's memory stays bounded and others are served."""

import select
import socket

import pytest

from tests.devices import packet, text
from tests.paho_helpers import Paho, wait_for
from tests.servers import Server

MEBIBYTE = 1 << 20
PAYLOAD = b"x" * 100_000


def raw(server: Server, client_id: str, clean: bool = True) -> socket.socket:
    """A client that does only what the test does."""
    client = socket.create_connection(("127.0.0.1", server.mqtt_port))
    client.settimeout(30)
    client.sendall(packet(0x10, text("MQTT"), bytes((4, 2 if clean else 0)), b"\x00\x00", text(client_id)))
    assert client.recv(4)[:2] == b"\x20\x02"
    return client


def subscribed(server: Server, client_id: str, topic: str, qos: int, clean: bool = True) -> socket.socket:
    client = raw(server, client_id, clean)
    client.sendall(packet(0x82, b"\x00\x01", text(topic), bytes((qos,))))
    assert client.recv(5)[0] == 0x90
    return client


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_client_that_does_not_read_costs_little_and_nobody_else_anything(
    own_server: Server, qos: int, clean: bool
) -> None:
    stuck = subscribed(own_server, "stuck", "flood", qos, clean)
    reader = Paho(own_server.mqtt_port, "reader", clean=False, expiry_s=600)
    writer = Paho(own_server.mqtt_port, "writer", inflight=50)
    reader.subscribe("flood", 1)
    before = own_server.memory_bytes

    for _ in range(15):  # 150 MB
        mids = [writer.publish("flood", PAYLOAD, qos) for _ in range(100)]
        wait_for(lambda mids=mids: all(mid in writer.acked for mid in mids))  # type: ignore[misc]

    reader.wait(1 if qos == 0 else 1500)
    assert own_server.memory_bytes - before < 120 * MEBIBYTE
    for client in (reader, writer):
        client.close()
    stuck.close()


def test_a_flood_of_publishes_is_slowed_down_to_what_can_be_stored(own_server: Server) -> None:
    own_server.connect().channel().queue_declare("deep", durable=True)
    flood = raw(own_server, "flood")
    before = own_server.memory_bytes
    number = 0
    for _ in range(30):  # 300 MB
        batch = []
        for _ in range(100):
            number = number % 65_535 + 1
            batch.append(packet(0x32, text("$queue/deep"), number.to_bytes(2), PAYLOAD))
        flood.sendall(b"".join(batch))
    answers = 0
    while answers < 4 * 3000:
        answers += len(flood.recv(65_536))
    assert own_server.memory_bytes - before < 250 * MEBIBYTE
    flood.close()


def test_a_client_that_asks_and_does_not_read_is_not_listened_to(own_server: Server) -> None:
    client = raw(own_server, "asker")
    before = own_server.memory_bytes
    client.setblocking(False)
    pings, sent = b"\xc0\x00" * 50_000, 0
    while sent < 200 * MEBIBYTE and select.select([], [client], [], 3)[1]:
        sent += client.send(pings)
    assert sent < 200 * MEBIBYTE
    assert own_server.memory_bytes - before < 60 * MEBIBYTE
    client.close()
    other = Paho(own_server.mqtt_port, "other")
    other.subscribe("a")
    other.sure("a", "x")
    assert other.wait(1) == [b"x"]
    other.close()

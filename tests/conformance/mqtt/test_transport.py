"""Chapters 6 and 7: MQTT over WebSocket, on its own port and on the HTTP port, and over TCP, without anything more."""

import contextlib
import os
import socket
import struct
from pathlib import Path

import pytest

from tests.conformance.mqtt.clauses import clauses
from tests.conformance.mqtt.conftest import Room
from tests.conformance.mqtt.wire import PUBLISH, connect, packet, publish, subscribe, text

_CONTINUATION, _TEXT, _BINARY, _CLOSE = 0, 1, 2, 8


class WebSocketClient:
    """A WebSocket whose every byte is written here."""

    def __init__(self, port: int, path: str = "/mqtt", protocols: str = "mqtt") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self._data = b""
        request = (
            f"GET {path} HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
        )
        self._socket.sendall(request.encode())
        while b"\r\n\r\n" not in self._data:
            part = self._socket.recv(4096)
            assert part, "the server closed the connection"
            self._data += part
        self.answer, self._data = self._data.split(b"\r\n\r\n", 1)

    def send(self, opcode: int, data: bytes, fin: bool = True) -> None:
        mask = os.urandom(4)
        masked = bytes(octet ^ mask[at & 3] for at, octet in enumerate(data))
        size = bytes((0x80 | len(data),)) if len(data) < 126 else b"\xfe" + struct.pack(">H", len(data))
        self._socket.sendall(bytes((opcode | (0x80 if fin else 0),)) + size + mask + masked)

    def frame(self) -> tuple[int, bytes]:
        first, size = self._take(2)
        if size == 126:
            size = int.from_bytes(self._take(2))
        return first & 15, self._take(size)

    def mqtt(self, size: int) -> bytes:
        """The next bytes of MQTT, all of which came in binary frames."""
        data = b""
        while len(data) < size:
            opcode, part = self.frame()
            assert opcode == _BINARY
            data += part
        return data

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            part = self._socket.recv(65536)
            if not part:
                raise ConnectionError
            self._data += part
        taken, self._data = self._data[:size], self._data[size:]
        return taken

    def expect_end(self) -> None:
        """The server ends the connection; a test that waits for it in vain times out."""
        with contextlib.suppress(ConnectionError):
            while self.frame():
                pass

    def close(self) -> None:
        self._socket.close()


@clauses(v311="6.0.0-1", v5="6.0.0-1")
def test_packets_come_in_binary_frames_and_others_end_the_connection(room: Room) -> None:
    for port in room.websocket_ports:
        client = WebSocketClient(port)
        client.send(_BINARY, connect(room.version, room.name(str(port))))
        assert client.mqtt(4)[0] == 0x20

        client.send(_TEXT, b"\xc0\x00".decode("latin-1").encode())

        client.expect_end()
        client.close()


@clauses(v311="6.0.0-2", v5="6.0.0-2")
def test_packets_need_not_be_frames(room: Room) -> None:
    watching = room.subscriber((room.topic(), 1))
    for port in room.websocket_ports:
        client = WebSocketClient(port)
        data = connect(room.version, room.name(str(port)))
        client.send(_BINARY, data[:5])
        client.send(_BINARY, data[5:9], fin=False)
        client.send(_CONTINUATION, data[9:])
        assert client.mqtt(4)[0] == 0x20

        client.send(
            _BINARY,
            publish(room.version, room.topic(), b"1", qos=1, number=1)
            + publish(room.version, room.topic(), b"2", qos=1, number=2)
            + subscribe(room.version, 3, (room.topic("x"), 0))[:4],
        )

        assert [watching.message().payload, watching.message().payload] == [b"1", b"2"]
        client.close()


@clauses(v311="6.0.0-4", v5="6.0.0-4")
@pytest.mark.parametrize("offered", ["mqtt", "chat, mqtt", "mqtt, mqttv3.1"])
def test_the_server_selects_mqtt(room: Room, offered: str) -> None:
    for port in room.websocket_ports:
        client = WebSocketClient(port, protocols=offered)

        lines = client.answer.decode().lower().split("\r\n")

        assert lines[0].startswith("http/1.1 101")
        assert "sec-websocket-protocol: mqtt" in lines
        client.close()


@clauses(v311="6.0.0-3 6.0.0-4", v5="6.0.0-3 6.0.0-4")
def test_a_client_that_does_not_offer_mqtt_is_refused(room: Room) -> None:
    for port in room.websocket_ports:
        client = WebSocketClient(port, protocols="chat")

        assert client.answer.startswith(b"HTTP/1.1 400")
        client.close()


@clauses(v311="7.1.1-1 7.1.2-1", v5="4.2.0-1")
def test_clients_of_every_transport_reach_each_other(room: Room) -> None:
    over_tcp = room.subscriber((room.topic("tcp"), 0))
    for port in room.websocket_ports:
        over_web_socket = WebSocketClient(port)
        over_web_socket.send(_BINARY, connect(room.version, room.name(str(port))))
        connack = over_web_socket.frame()[1]
        assert connack[:1] == b"\x20"
        over_web_socket.send(_BINARY, subscribe(room.version, 1, (room.topic("web"), 0)))
        assert over_web_socket.frame()[1][:1] == b"\x90"

        over_web_socket.send(_BINARY, publish(room.version, room.topic("tcp"), b"from a page"))
        assert over_tcp.message().payload == b"from a page"
        room.client().publish(room.topic("web"), b"from a device")
        assert over_web_socket.frame() == (_BINARY, publish(room.version, room.topic("web"), b"from a device"))
        over_web_socket.close()


@clauses(v311="7.0.0-1")
def test_the_server_opens_no_connections_to_others(room: Room) -> None:
    room.client().publish(room.topic(), b"1")
    listening = {f"{port:04X}" for port in room.server.ports.values()}

    sockets = {
        link.name[8:-1]
        for descriptor in Path(f"/proc/{room.server.pid}/fd").iterdir()
        if (link := _target(descriptor)).name.startswith("socket:[")
    }
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    own = {fields[1].rpartition(":")[2] for fields in lines if fields[9] in sockets}

    assert own <= listening  # every connection came in at a port of its own
    assert own


def _target(descriptor: Path) -> Path:
    try:
        return descriptor.readlink()
    except FileNotFoundError:  # it was closed meanwhile
        return Path()


@clauses(v311="7.0.0-2")
def test_nothing_is_said_that_the_specification_does_not_have(room: Room) -> None:
    client = room.stranger()

    client.send(connect(4, room.name()), subscribe(4, 1, (room.topic(), 1)))
    client.send(publish(4, room.topic(), b"1", qos=1, number=2))

    expected = {b"\x20\x02\x00\x00", b"\x90\x03\x00\x01\x01", b"\x40\x02\x00\x02"}
    received = [client.receive() for _ in range(4)]
    assert {packet(last.kind << 4, last.body) for last in received if last.kind != PUBLISH} == expected
    (message,) = [last for last in received if last.kind == PUBLISH]
    assert message.body == text(room.topic()) + message.number.to_bytes(2) + b"1"

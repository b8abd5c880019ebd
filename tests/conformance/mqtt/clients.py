"""A client that speaks MQTT as a test tells it to, over TCP."""

import socket
import struct
from collections.abc import Iterable

from tests.conformance.mqtt.wire import (
    DISCONNECT,
    GOODBYE,
    PING,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    Property,
    Received,
    answer,
    publish,
    subscribe,
)

_SECONDS = 30.0
_CUT = ConnectionError("the server closed the connection")


class Client:
    """One connection."""

    def __init__(self, port: int, version: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._data = b""
        self._kept: list[Received] = []
        self._number = 0
        self.version = version
        self.port = port
        self.connack: Received | None = None

    # -- bytes -------------------------------------------------------------------------------------------------------

    def send(self, *data: bytes) -> None:
        self._socket.sendall(b"".join(data))

    def receive(self) -> Received:
        """The next packet. Raises ConnectionError when the server has closed the connection."""
        if self._kept:
            return self._kept.pop(0)
        return self._receive()

    def _receive(self) -> Received:
        first = self._take(1)[0]
        size = shift = 0
        while True:
            digit = self._take(1)[0]
            size |= (digit & 127) << shift
            shift += 7
            if digit < 128:
                break
        return Received(first >> 4, first & 15, self._take(size), self.version)

    def _take(self, size: int) -> bytes:
        while len(self._data) < size:
            part = self._socket.recv(65536)
            if not part:
                raise _CUT
            self._data += part
        part, self._data = self._data[:size], self._data[size:]
        return part

    def cut(self) -> None:
        """End the connection as a broken network would."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def leave(self) -> None:
        """Say goodbye, and wait until the server has closed the connection."""
        self.send(GOODBYE)
        self.expect_end()

    def close(self) -> None:
        self._socket.close()

    # -- what tests say ----------------------------------------------------------------------------------------------

    def expect(self, kind: int) -> Received:
        """The next packet, which is of this kind."""
        received = self.receive()
        assert received.kind == kind, f"expected packet type {kind}, got {received}"
        return received

    def expect_end(self) -> list[Received]:
        """What comes until the server ends the connection, which it does."""
        received: list[Received] = []
        try:
            while True:
                received.append(self.receive())
        except ConnectionError:
            return received

    def ends_with(self, *reasons: int) -> None:
        """The server ends the connection; in MQTT 5 it says why."""
        ending = self.expect_end()
        if self.version == 5:
            assert [last.kind for last in ending] == [DISCONNECT], ending
            assert ending[0].reason in reasons, ending
        else:
            assert ending == []

    def expect_nothing(self) -> None:
        """Nothing is on its way: a ping is answered, and nothing came before that."""
        self.send(PING)
        received = self.receive()
        assert received.kind == PINGRESP, f"expected nothing, got {received}"

    def number(self) -> int:
        """A packet identifier that this client has not used."""
        self._number += 1
        return self._number

    def subscribe(self, *filters: tuple[str, int], said: Iterable[Property] = ()) -> Received:
        """Subscribe; the SUBACK."""
        number = self.number()
        self.send(subscribe(self.version, number, *filters, said=said))
        suback = self.expect(SUBACK)
        assert suback.number == number
        return suback

    def publish(
        self, topic: str, payload: bytes = b"", qos: int = 0, retain: bool = False, said: Iterable[Property] = ()
    ) -> Received | None:
        """Publish, all the way to the end of the QoS; what ended it."""
        number = self.number() if qos else 0
        self.send(publish(self.version, topic, payload, qos=qos, number=number, retain=retain, said=said))
        if qos == 1:
            return self.expect(PUBACK)
        if qos == 2:
            self.expect(PUBREC)
            self.send(answer(PUBREL, number))
            return self.expect(PUBCOMP)
        self.expect_nothing()  # it was taken when the ping behind it is answered
        return None

    def message(self) -> Received:
        """The next message, acknowledged all the way to the end of its QoS."""
        received = self.expect(PUBLISH)
        if received.qos == 1:
            self.send(answer(PUBACK, received.number))
        elif received.qos == 2:
            self.send(answer(PUBREC, received.number))
            while (between := self._receive()).kind != PUBREL:
                self._kept.append(between)  # what else is on its way is for later
            assert between.number == received.number
            self.send(answer(PUBCOMP, received.number))
        return received

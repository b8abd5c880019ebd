"""The frames that a server of STOMP sends."""

import socket
from typing import BinaryIO

from headrace.protocols.stomp import codec
from tests.answers.decisions import SECONDS, Answers, NotPromised, Place, Request, Synced

_ORDERED = NotPromised("clients send it, and the server never does")


def in_the_code() -> set[str]:
    """All commands that the codec names."""
    return {value for name, value in vars(codec).items() if isinstance(value, str) and value == name}


class Connection:
    """A client of STOMP 1.2 with a real connection."""

    def __init__(self, place: Place) -> None:
        self._socket = socket.create_connection(("127.0.0.1", place.server.ports["stomp"]), SECONDS)
        self._file: BinaryIO = self._socket.makefile("rb")
        place.on_close(self._close)
        self.send("CONNECT", "accept-version:1.2", "host:/")
        self.expect("CONNECTED")

    def _close(self) -> None:
        self._file.close()
        self._socket.close()

    def send(self, command: str, *headers: str, body: str = "") -> None:
        self._socket.sendall("\n".join([command, *headers, "", f"{body}\0"]).encode())

    def expect(self, command: str) -> dict[str, str]:
        """The headers of the next frame of this kind."""
        while True:
            lines = []
            while line := self._file.readline().decode().rstrip("\n"):
                lines.append(line)
            if not lines:
                continue
            headers = dict(each.split(":", 1) for each in lines[1:])
            self._file.read(int(headers.get("content-length", 0)) + 1)
            if lines[0] == command:
                return headers
            assert lines[0] != codec.ERROR, headers


def _asking(connection: Connection, command: str, *headers: str) -> Request:
    def request() -> None:
        connection.send(command, *headers, "receipt:r")
        connection.expect(codec.RECEIPT)

    return request


def _send(place: Place) -> Request:
    return _asking(Connection(place), "SEND", f"destination:/queue/{place.declare()}", "persistent:true")


def _subscribe(place: Place) -> Request:
    return _asking(Connection(place), "SUBSCRIBE", f"destination:/queue/{place.name()}", "id:1")


def _subscribe_durably(place: Place) -> Request:
    return _asking(
        Connection(place), "SUBSCRIBE", f"destination:/topic/{place.name()}", f"id:{place.name()}", "durable:true"
    )


def _unsubscribe(place: Place) -> Request:
    connection, name = Connection(place), place.name()
    _asking(connection, "SUBSCRIBE", f"destination:/topic/{name}", f"id:{name}", "durable:true")()
    return _asking(connection, "UNSUBSCRIBE", f"id:{name}", "durable:true")


def _with_message(place: Place) -> tuple[Connection, str]:
    connection = Connection(place)
    connection.send("SUBSCRIBE", f"destination:/queue/{place.filled()}", "id:1", "ack:client-individual")
    return connection, connection.expect(codec.MESSAGE)["ack"]


def _ack(place: Place) -> Request:
    connection, name = _with_message(place)
    return _asking(connection, "ACK", f"id:{name}")


def _nack(place: Place) -> Request:
    connection, name = _with_message(place)
    return _asking(connection, "NACK", f"id:{name}", "requeue:false")


def _commit(place: Place) -> Request:
    connection = Connection(place)
    connection.send("BEGIN", "transaction:t")
    connection.send("SEND", f"destination:/queue/{place.declare()}", "transaction:t")
    return _asking(connection, "COMMIT", "transaction:t")


def _disconnect(place: Place) -> Request:
    connection = Connection(place)
    queue = place.declare()

    def request() -> None:
        connection.send("SEND", f"destination:/queue/{queue}")
        connection.send("DISCONNECT", "receipt:r")
        connection.expect(codec.RECEIPT)

    return request


def _begin(place: Place) -> Request:
    return _asking(Connection(place), "BEGIN", "transaction:t")


ANSWERS: Answers = {
    "RECEIPT of SEND": Synced(_send),
    "RECEIPT of SUBSCRIBE to a new queue": Synced(_subscribe),
    "RECEIPT of SUBSCRIBE to a topic for good": Synced(_subscribe_durably),
    "RECEIPT of UNSUBSCRIBE for good": Synced(_unsubscribe),
    "RECEIPT of ACK": Synced(_ack),
    "RECEIPT of NACK": Synced(_nack),
    "RECEIPT of COMMIT": Synced(_commit),
    "RECEIPT of DISCONNECT": Synced(_disconnect),
    "RECEIPT of BEGIN": NotPromised("nothing of a transaction happens before its end", _begin),
    "CONNECTED": NotPromised("a connection survives no crash"),
    "MESSAGE": NotPromised("a delivery that is not settled comes again"),
    "ERROR": NotPromised("it says that a frame did not take effect, or why the connection ends"),
    "CONNECT": _ORDERED,
    "STOMP": _ORDERED,
}

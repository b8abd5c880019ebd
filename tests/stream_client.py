"""A client of RabbitMQ's stream protocol without rules of its own: frames as bytes, over a socket or not."""

import socket
import struct
from collections.abc import Sequence
from typing import Final

from headrace.protocols.streams import frames

SECONDS: Final = 60.0


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def texts(*values: str) -> bytes:
    return struct.pack(">I", len(values)) + b"".join(map(text, values))


def table(**values: str) -> bytes:
    pairs = [text(key.replace("_", "-")) + text(value) for key, value in values.items()]
    return struct.pack(">I", len(pairs)) + b"".join(pairs)


def command(key: int, body: bytes = b"", version: int = 1) -> bytes:
    return struct.pack(">IHH", len(body) + 4, key, version) + body


def request(key: int, correlation: int, body: bytes = b"") -> bytes:
    return command(key, struct.pack(">I", correlation) + body)


def entry(number: int, message: bytes) -> bytes:
    return struct.pack(">QI", number, len(message)) + message


def batch(number: int, messages: Sequence[bytes], packed: bytes | None = None, compression: int = 0) -> bytes:
    """An entry with several messages, packed by the caller if they are compressed."""
    unpacked = b"".join([struct.pack(">I", len(message)) + message for message in messages])
    packed = unpacked if packed is None else packed
    kind = 0x80 | compression << 4
    return struct.pack(">QBHII", number, kind, len(messages), len(unpacked), len(packed)) + packed


def publish(publisher: int, *entries: bytes, version: int = 1) -> bytes:
    return command(frames.PUBLISH, struct.pack(">BI", publisher, len(entries)) + b"".join(entries), version)


def position(kind: int, value: int = 0) -> bytes:
    return struct.pack(">H", kind) + (struct.pack(">Q", value) if kind >= frames.OFFSET else b"")


def subscription(number: int, stream: str, start: bytes, credit: int = 10, **properties: str) -> bytes:
    """The fields of a subscribe."""
    return bytes([number]) + text(stream) + start + struct.pack(">H", credit) + table(**properties)


class Frame:
    """A frame of the server."""

    def __init__(self, raw: bytes) -> None:
        self.key, self.version = struct.unpack_from(">HH", raw)
        self.body = raw[4:]

    @property
    def code(self) -> int:
        """The code of a response."""
        return int.from_bytes(self.body[4:6])

    @property
    def fields(self) -> bytes:
        """The fields of a response behind its code."""
        return self.body[6:]

    @property
    def ids(self) -> list[int]:
        """The publishing ids of a confirm."""
        count = int.from_bytes(self.body[1:5])
        return list(struct.unpack_from(f">{count}Q", self.body, 5))

    @property
    def errors(self) -> list[tuple[int, int]]:
        """The publishing ids and codes of a refusal."""
        count = int.from_bytes(self.body[1:5])
        return [struct.unpack_from(">QH", self.body, 5 + 10 * index) for index in range(count)]

    @property
    def first_offset(self) -> int:
        """The offset of the first message of a delivered chunk."""
        return int.from_bytes(self._chunk[24:32])

    @property
    def messages(self) -> list[bytes]:
        """The messages of a delivered chunk."""
        chunk, found = self._chunk, []
        at = 48
        while at < len(chunk):
            size = int.from_bytes(chunk[at : at + 4])
            found.append(chunk[at + 4 : at + 4 + size])
            at += 4 + size
        assert int.from_bytes(chunk[2:4]) == int.from_bytes(chunk[4:8]) == len(found)
        return found

    @property
    def _chunk(self) -> bytes:
        return self.body[1 if self.version == 1 else 9 :]


class Cutter:
    """Cuts the bytes of a server into frames."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> list[Frame]:
        self._data += data
        found: list[Frame] = []
        while len(self._data) >= 4 and len(self._data) >= (end := 4 + int.from_bytes(self._data[:4])):
            found.append(Frame(self._data[4:end]))
            self._data = self._data[end:]
        return found


LOGIN: Final = (
    request(frames.PEER_PROPERTIES, 1, table(product="test")),
    request(frames.SASL_HANDSHAKE, 2),
    request(frames.SASL_AUTHENTICATE, 3, text("PLAIN") + struct.pack(">I", 12) + b"\0guest\0guest"),
    command(frames.TUNE | frames.RESPONSE, struct.pack(">II", 1 << 20, 0)),
    request(frames.OPEN, 4, text("/")),
)


_STEPS: Final = (frames.PEER_PROPERTIES, frames.SASL_HANDSHAKE, frames.SASL_AUTHENTICATE)


class StreamClient:
    """A client over a socket, logged in."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._cutter = Cutter()
        self._heard: list[Frame] = []
        self._correlation = 10
        try:
            for command, key in zip(LOGIN[:3], _STEPS, strict=True):  # RabbitMQ takes one at a time
                self.send(command)
                self.expect(key | frames.RESPONSE)
            self.expect(frames.TUNE)
            self.send(*LOGIN[3:])
            assert self.expect(frames.OPEN | frames.RESPONSE).code == frames.OK
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "StreamClient":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def send(self, *commands: bytes) -> None:
        self.socket.sendall(b"".join(commands))

    def ask(self, key: int, body: bytes = b"", code: int = frames.OK) -> Frame:
        """Send a request and wait for its response."""
        self._correlation += 1
        self.send(request(key, self._correlation, body))
        response = self.expect(key | frames.RESPONSE)
        if key != frames.METADATA:
            assert response.code == code, (response.code, code)
        return response

    def expect(self, key: int) -> Frame:
        """The next frame with this key; others wait for their turn."""
        while True:
            for frame in self._heard:
                if frame.key == key:
                    self._heard.remove(frame)
                    return frame
            data = self.socket.recv(1 << 16)
            assert data, "the server closed the connection"
            self._heard += self._cutter.feed(data)

    def close(self) -> None:
        self.socket.close()

"""A WebSocket as a connection, seen from a client that writes every byte of it itself."""

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.net.connection import Wire
from headrace.net.handler import Handler
from headrace.net.listener import Listener
from headrace.net.websocket import STRANGER_FRAME_BYTES, Endpoint, WebSocket

_MASK = b"\x11\x22\x33\x44"
_KEY = "dGhlIHNhbXBsZSBub25jZQ=="  # the sample of RFC 6455, 1.3, and its answer
_ACCEPT = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
_MAX_FRAME = 4 << 20

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


class Echo(Handler):
    """Sends back what comes; trusts its peer from the first byte on when told to."""

    def __init__(self, trusts: bool = True) -> None:
        self._trusts = trusts
        self.wire: Wire | None = None
        self.is_lost = False

    def opened(self, wire: Wire) -> None:
        self.wire = wire
        if self._trusts:
            wire.keep_alive(0)

    def feed(self, data: bytes) -> None:
        assert self.wire is not None
        if data == b"close":
            self.wire.send(b"last")
            self.wire.close()
        elif data == b"loopback?":
            self.wire.send(b"yes" if self.wire.is_loopback else b"no")
        else:
            self.wire.send(data)

    def hold_output(self, is_held: bool) -> None:
        pass

    def beat(self) -> None:
        pass

    def stop(self) -> None:
        assert self.wire is not None
        self.wire.close()

    def lost(self) -> None:
        self.is_lost = True


def frame(opcode: int, data: bytes = b"", fin: bool = True, masked: bool = True) -> bytes:
    size = len(data)
    first = opcode | (0x80 if fin else 0)
    bit = 0x80 if masked else 0
    if size < 126:
        head = bytes((first, bit | size))
    elif size < 1 << 16:
        head = bytes((first, bit | 126)) + struct.pack(">H", size)
    else:
        head = bytes((first, bit | 127)) + struct.pack(">Q", size)
    if not masked:
        return head + data
    return head + _MASK + bytes(octet ^ _MASK[at & 3] for at, octet in enumerate(data))


def hello(path: str = "/mqtt", protocol: str | None = "mqtt", *more: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: broker",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {_KEY}",
        "Sec-WebSocket-Version: 13",
        *([f"Sec-WebSocket-Protocol: {protocol}"] if protocol is not None else []),
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """The status and the headers of the answer to a handshake."""
        raw = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 10)
        status, *lines = raw.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines if line)
        return int(status.split()[1]), {name.lower(): value for name, value in headers.items()}

    async def frame(self) -> tuple[int, bytes]:
        first, size = await self._exactly(2)
        assert first & 0x80
        if size == 126:
            (size,) = struct.unpack(">H", await self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", await self._exactly(8))
        return first & 15, await self._exactly(size)

    async def ends(self) -> bytes:
        """What comes until the server ends the connection."""
        return await asyncio.wait_for(self._reader.read(), 10)

    async def _exactly(self, size: int) -> bytes:
        return await asyncio.wait_for(self._reader.readexactly(size), 10)

    def close(self) -> None:
        self._writer.close()


def run(scene: Callable[[Client], Awaitable[None]], trusts: bool = True) -> Echo:
    """Play a scene between a client and an echo behind a WebSocket."""
    echo = Echo(trusts)

    async def play() -> None:
        listener = Listener(lambda: WebSocket({"/mqtt": Endpoint(lambda: echo, ["mqtt", "mqttv3.1"], _MAX_FRAME)}))
        await listener.open("127.0.0.1", 0)
        client = Client(*await asyncio.open_connection("127.0.0.1", listener.port))
        try:
            await scene(client)
        finally:
            client.close()
            await listener.close()

    asyncio.run(play())
    return echo


async def shake_hands(client: Client, *more: str) -> None:
    client.send(hello("/mqtt", "mqtt", *more))
    status, headers = await client.head()
    assert (status, headers["sec-websocket-accept"], headers["sec-websocket-protocol"]) == (101, _ACCEPT, "mqtt")


@pytest.mark.parametrize("size", [1, 125, 126, 65_535, 65_536, 3 << 20])
def test_data_goes_both_ways(size: int) -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(frame(BINARY, b"x" * size))
        received = b""
        while len(received) < size:
            opcode, data = await client.frame()
            assert opcode == BINARY
            received += data
        assert received == b"x" * size

    assert run(scene).is_lost


def test_the_older_subprotocol_is_known_and_the_newer_preferred() -> None:
    async def old(client: Client) -> None:
        client.send(hello(protocol="mqttv3.1"))
        assert (await client.head())[1]["sec-websocket-protocol"] == "mqttv3.1"

    async def both(client: Client) -> None:
        client.send(hello(protocol="mqttv3.1, mqtt"))
        assert (await client.head())[1]["sec-websocket-protocol"] == "mqtt"

    run(old)
    run(both)


def test_data_may_come_with_the_handshake_and_a_byte_at_a_time() -> None:
    async def scene(client: Client) -> None:
        for octet in hello() + frame(BINARY, b"abc"):
            client.send(bytes((octet,)))
            await asyncio.sleep(0)
        assert (await client.head())[0] == 101
        received = b""
        while len(received) < 3:
            received += (await client.frame())[1]
        assert received == b"abc"

    run(scene)


def test_fragments_are_passed_on_as_they_come_and_pings_between_them_are_answered() -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(frame(BINARY, b"ab", fin=False))
        assert await client.frame() == (BINARY, b"ab")
        client.send(frame(PING, b"there?"))
        assert await client.frame() == (PONG, b"there?")
        client.send(frame(CONTINUATION, b"", fin=False) + frame(CONTINUATION, b"cd"))
        assert await client.frame() == (BINARY, b"cd")

    run(scene)


def test_many_messages_of_one_read_are_answered_with_one() -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(frame(BINARY, b"ab") * 10)
        assert await client.frame() == (BINARY, b"ab" * 10)

    run(scene)


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (frame(TEXT, b"hello"), 1003),
        (frame(BINARY, b"hello", masked=False), 1002),
        (frame(CONTINUATION, b"hello"), 1002),
        (frame(3, b"hello"), 1002),
        (frame(BINARY, b"a", fin=False) + frame(BINARY, b"b"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (b"\xff\xff\xff", 1002),
        (frame(BINARY, bytes(1))[:1] + b"\xff" + struct.pack(">Q", _MAX_FRAME + 1) + _MASK, 1009),
    ],
)
def test_what_breaks_the_protocol_is_told_so_and_the_connection_ends(wire: bytes, code: int) -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(wire)
        while True:
            opcode, data = await client.frame()
            if opcode == CLOSE:
                break
        assert struct.unpack(">H", data[:2])[0] == code
        assert await client.ends() == b""

    assert run(scene).is_lost


def test_a_stranger_cannot_have_a_large_frame_kept_for_it() -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(b"\x82\xff" + struct.pack(">Q", STRANGER_FRAME_BYTES + 1) + _MASK)
        opcode, data = await client.frame()
        assert (opcode, struct.unpack(">H", data[:2])[0]) == (CLOSE, 1009)

    run(scene, trusts=False)


def test_a_goodbye_is_answered() -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(frame(CLOSE, struct.pack(">H", 1001)))
        assert await client.frame() == (CLOSE, struct.pack(">H", 1001))
        assert await client.ends() == b""

    assert run(scene).is_lost


def test_a_close_by_the_protocol_says_goodbye_after_the_last_data() -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client)
        client.send(frame(BINARY, b"close") + frame(BINARY, b"ignored"))
        assert await client.frame() == (BINARY, b"last")
        assert await client.frame() == (CLOSE, struct.pack(">H", 1000))
        assert await client.ends() == b""

    assert run(scene).is_lost


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (hello(protocol=None), 400),
        (hello(protocol="chat"), 400),
        (hello(path="/elsewhere"), 404),
        (b"GET /mqtt HTTP/1.1\r\nHost: broker\r\n\r\n", 426),
        (hello().replace(b"Version: 13", b"Version: 12"), 400),
        (hello().replace(_KEY.encode(), b"short"), 400),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\n\r\n", 414),
    ],
)
def test_a_handshake_that_cannot_be_is_refused(request_bytes: bytes, status: int) -> None:
    async def scene(client: Client) -> None:
        client.send(request_bytes)
        assert (await client.head())[0] == status
        await client.ends()

    assert run(scene).wire is None


def test_what_is_no_http_at_all_ends_the_connection() -> None:
    async def scene(client: Client) -> None:
        client.send(b"\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01a\r\n\r\n")
        assert await client.ends() == b""

    assert run(scene).wire is None


@pytest.mark.parametrize(
    ("origin", "answer"),
    [
        ("http://localhost:3000", b"yes"),
        ("http://127.0.0.1", b"yes"),
        ("http://[::1]:80", b"yes"),
        ("https://elsewhere.example", b"no"),
        ("null", b"no"),
        ("http://[", b"no"),
    ],
)
def test_a_page_of_another_site_is_not_this_machine(origin: str, answer: bytes) -> None:
    async def scene(client: Client) -> None:
        await shake_hands(client, f"Origin: {origin}")
        client.send(frame(BINARY, b"loopback?"))
        assert await client.frame() == (BINARY, answer)

    run(scene)


class _Sink(asyncio.Transport):
    """A transport that remembers whether it was ended, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_ended = True

    def is_closing(self) -> bool:
        return self.is_ended


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=8), st.booleans())
def test_garbage_ends_its_connection_and_is_no_error_of_ours(pieces: list[bytes], greets: bool) -> None:
    errors: list[logging.LogRecord] = []

    class Catcher(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.ERROR:
                errors.append(record)

    async def play() -> None:
        wire = Wire(WebSocket({"/mqtt": Endpoint(Echo, ["mqtt"], 1 << 16)}), lambda wire: None)
        wire.connection_made(_Sink())
        if greets:
            wire.data_received(hello())
        for piece in pieces:
            wire.data_received(piece)
        wire.connection_lost(None)

    catcher = Catcher()
    logging.getLogger().addHandler(catcher)
    try:
        asyncio.run(play())
    finally:
        logging.getLogger().removeHandler(catcher)

    assert errors == []

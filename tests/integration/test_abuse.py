"""Clients that take all the memory they can get: the broker stays within its limit, and others go on beside them.

Memory is measured from outside of a real process. HEADRACE_ABUSE=10 sends ten times as much.
"""

import base64
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from headrace.protocols.amqp10.codec import encode_frame
from headrace.protocols.amqp10.performatives import Attach, Coordinator, Declared, Disposition, Source, Transactional
from tests.amqp10_client import RawClient, body, sender, transfer
from tests.bare import Bare
from tests.devices import packet, text, varint
from tests.servers import Server

_MIB = 1 << 20
_MEMORY_BYTES = 256 * _MIB
_MOST_BYTES = _MEMORY_BYTES + 128 * _MIB
_TIMES = int(os.environ.get("HEADRACE_ABUSE", "1"))
_PIECE = bytes(100_000)
_SECONDS = 0.4
"""How long an abuser tries to send where it is not read from."""


class Healthy(threading.Thread):
    """A publisher with confirms that goes on beside an abuse."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._channel = server.connect(heartbeat=0).channel()
        self._channel.queue_declare("healthy", durable=True)
        self._channel.confirm_delivery()
        self._is_over = threading.Event()
        self.confirmed = 0
        self.longest = 0.0
        self.most_bytes = 0

    def run(self) -> None:
        while not self._is_over.is_set():
            started = time.monotonic()
            self._channel.basic_publish("", "healthy", b"x" * 1000)
            self._channel.basic_get("healthy", auto_ack=True)
            self.longest = max(self.longest, time.monotonic() - started)
            self.confirmed += 1
            self.most_bytes = max(self.most_bytes, self._server.memory_bytes)
            time.sleep(0.005)

    def end(self) -> None:
        self._is_over.set()
        self.join(30)
        assert not self.is_alive(), "it hangs"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path, environment={"HEADRACE_LIMITS_MEMORY_BYTES": "256MiB"}, is_fresh=True)
    running.start()
    yield running
    running.close_connections()
    assert running.stop() == 0, running.log()
    assert "Traceback" not in running.log(), running.log()


def _push(sock: socket.socket, data: bytes) -> bool:
    """Send as much as is taken; False when no more is."""
    sock.settimeout(_SECONDS)
    try:
        sock.sendall(data)
    except OSError:
        return False
    return True


def _open(server: Server, stack: ExitStack) -> Bare:
    client = Bare(server)
    stack.callback(client.socket.close)
    client.open()
    return client


def _begin_body(channel: int, size: int) -> bytes:
    """A publish to a queue that is not there, up to its body."""
    method = struct.pack(">HHH", 60, 40, 0) + b"\0\0" + b"\0"
    header = struct.pack(">HHQH", 60, 0, size, 0)
    return _frame(1, channel, method) + _frame(2, channel, header)


def _frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def unfinished_bodies(server: Server, stack: ExitStack) -> None:
    for _ in range(20 * _TIMES):
        client = _open(server, stack)
        _push(client.socket, _begin_body(1, 30 * _MIB) + _frame(3, 1, _PIECE) * 300)


def bodies_on_many_channels(server: Server, stack: ExitStack) -> None:
    for _ in range(_TIMES):
        client = _open(server, stack)
        for channel in range(2, 600):
            opening = _frame(1, channel, struct.pack(">HHB", 20, 10, 0))
            if not _push(client.socket, opening + _begin_body(channel, 2 * _MIB) + _frame(3, channel, _PIECE) * 12):
                break


def bodies_in_tiny_pieces(server: Server, stack: ExitStack) -> None:
    for _ in range(6 * _TIMES):
        client = _open(server, stack)
        _push(client.socket, _begin_body(1, 30 * _MIB) + _frame(3, 1, b"x") * 1_000_000)


def transactions(server: Server, stack: ExitStack) -> None:
    for _ in range(10 * _TIMES):
        client = _open(server, stack)
        client.send(1, commands.Tx.Select)
        message = _begin_body(1, 1_000_000) + _frame(3, 1, _PIECE) * 10
        for _ in range(60):
            if not _push(client.socket, message):
                break


def unfinished_deliveries(server: Server, stack: ExitStack) -> None:
    server.connect().channel().queue_declare("orders")
    for number in range(20 * _TIMES):
        client = RawClient(server.port, f"abuser {number}")
        stack.callback(client.close)
        client.begin()
        client.send(sender("s", "/queues/orders"))
        client.expect(Attach)
        first = transfer(0, _PIECE, more=True)
        frame = encode_frame(0, first.encode(), _PIECE)
        for _ in range(290):
            if not _push(client._socket, frame):
                break


def open_transactions(server: Server, stack: ExitStack) -> None:
    server.connect().channel().queue_declare("orders")
    for number in range(6 * _TIMES):
        client = RawClient(server.port, f"abuser {number}")
        stack.callback(client.close)
        client.begin()
        control = Attach("tx", 1, False)
        control.source, control.target = Source("here"), Coordinator([])
        client.send(control, sender("s", "/queues/orders"))
        for _ in range(2):
            client.expect(Attach)
        client.send(transfer(0, bytes.fromhex("005377005331c00100"), handle=1))
        declared = client.expect(Disposition).state
        assert isinstance(declared, Declared)
        for at in range(1000):
            post = transfer(at + 1, body(_PIECE), settled=True, state=Transactional(declared.transaction))
            if not _push(client._socket, encode_frame(0, post.encode(), post.payload)):
                break


def _mqtt(server: Server, stack: ExitStack, number: int) -> socket.socket:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.mqtt_port), 10))
    sock.sendall(packet(0x10, text("MQTT"), b"\x04\xc2", struct.pack(">H", 0), text(f"a{number}"), _login()))
    assert sock.recv(16)[:1] == b"\x20"
    return sock


def _login() -> bytes:
    return text("guest") + text("guest")


def unfinished_packets(server: Server, stack: ExitStack) -> None:
    for number in range(20 * _TIMES):
        sock = _mqtt(server, stack, number)
        _push(sock, b"\x30" + varint(30 * _MIB) + text("t") + _PIECE * 290)


def unfinished_frames(server: Server, stack: ExitStack) -> None:
    for number in range(20 * _TIMES):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.ports["ws"]), 10))
        sock.sendall(
            b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        assert b"101" in sock.recv(1000)
        hello = packet(0x10, text("MQTT"), b"\x04\xc2", struct.pack(">H", 0), text(f"w{number}"), _login())
        sock.sendall(bytes((0x82, 0x80 | len(hello))) + bytes(4) + hello)
        assert sock.recv(16)
        _push(sock, b"\x82\xff" + (30 * _MIB).to_bytes(8) + bytes(4) + _PIECE * 290)


def unfinished_requests(server: Server, stack: ExitStack) -> None:
    login = base64.b64encode(b"guest:guest")
    for _ in range(30 * _TIMES):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port), 10))
        head = b"PUT /bulk/transactions/t/parts/p?queue=q HTTP/1.1\r\nHost: x\r\nAuthorization: Basic " + login
        _push(sock, head + b"\r\nContent-Length: 31000000\r\n\r\n" + _PIECE * 300)


def deliveries_that_nobody_reads(server: Server, stack: ExitStack) -> None:
    _fill(server, "backlog", 64, {"x-queue-type": "stream"})
    for _ in range(16 * _TIMES):
        client = _open(server, stack)
        client.send(1, commands.Basic.Qos, prefetch_count=100)
        client.send(
            1, commands.Basic.Consume, queue="backlog", consumer_tag="c", arguments={"x-stream-offset": "first"}
        )


def _fill(server: Server, queue: str, mib: int, arguments: dict[str, object] | None = None) -> BlockingChannel:
    channel = server.connect(heartbeat=0).channel()
    channel.queue_declare(queue, durable=True, arguments=arguments)
    channel.confirm_delivery()
    for _ in range(mib):
        channel.basic_publish("", queue, bytes(_MIB))
    return channel


def retained_messages(server: Server, stack: ExitStack) -> None:
    sock = _mqtt(server, stack, 0)
    for number in range(600 * _TIMES):
        if not _push(sock, packet(0x31, text(f"t/{number}"), bytes(_MIB))):
            break


def messages_for_subscribers_that_do_not_read(server: Server, stack: ExitStack) -> None:
    for number in range(40 * _TIMES):
        sock = _mqtt(server, stack, number)
        sock.sendall(packet(0x82, struct.pack(">H", 1), text(f"own/{number}"), b"\x00"))
        assert sock.recv(16)
    publisher = _mqtt(server, stack, 1_000_000)
    for number in range(40 * _TIMES):
        for _ in range(20):
            _push(publisher, packet(0x30, text(f"own/{number}"), bytes(_MIB)))


_ABUSES: list[Callable[[Server, ExitStack], None]] = [
    unfinished_bodies,
    bodies_on_many_channels,
    bodies_in_tiny_pieces,
    transactions,
    unfinished_deliveries,
    open_transactions,
    unfinished_packets,
    unfinished_frames,
    unfinished_requests,
    deliveries_that_nobody_reads,
    retained_messages,
    messages_for_subscribers_that_do_not_read,
]


@pytest.mark.timeout(120 * _TIMES)
@pytest.mark.parametrize("abuse", _ABUSES, ids=lambda abuse: str(abuse.__name__))
def test_memory_stays_within_its_limit(server: Server, abuse: Callable[[Server, ExitStack], None]) -> None:
    idle = server.memory_bytes
    healthy = Healthy(server)
    healthy.start()
    with ExitStack() as stack:
        abuse(server, stack)
        before = healthy.confirmed
        time.sleep(1)
        after = healthy.confirmed
    time.sleep(0.5)
    left = server.memory_bytes
    healthy.end()
    print(
        f"\nRSS {abuse.__name__}: idle {idle // _MIB}, most {healthy.most_bytes // _MIB}, after {left // _MIB} MiB; "
        f"healthy {after - before}/s, longest {healthy.longest:.2f} s"
    )
    assert healthy.most_bytes <= _MOST_BYTES
    assert after > before, "others do not go on"

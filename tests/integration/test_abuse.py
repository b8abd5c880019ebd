"""Clients that take all the memory they can get: the broker stays within its limit, and others go on beside them.

Memory is measured from outside of a real process. HEADRACE_ABUSE=10 sends ten times as much.
"""

import base64
import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pamqp import commands
from pika.adapters.blocking_connection import BlockingChannel

from headrace.protocols.amqp10.codec import encode_frame
from headrace.protocols.amqp10.performatives import Attach, Coordinator, Declared, Disposition, Source, Transactional
from headrace.protocols.streams import frames
from headrace.wire.types import Described, Map, Symbol
from tests.amqp10_client import RawClient, body, credit, receiver, sender, transfer
from tests.bare import Bare
from tests.coap_client import post
from tests.devices import packet, properties, text, varint
from tests.servers import Server
from tests.stream_client import StreamClient, entry, position, publish, subscription, table
from tests.stream_client import text as stream_text
from tests.waiting import eventually

_MIB = 1 << 20
_MEMORY_BYTES = 256 * _MIB
_MOST_BYTES = _MEMORY_BYTES + 128 * _MIB
_OPTIONS = ("--stomp", "0", "--stream", "0", "--coap", "0")
_MOST_LEFT_BYTES = 128 * _MIB
"""The most that a broker keeps, beyond what it had, when the clients of an abuse are gone: holes in its heap."""
_GIVEN_BACK_SECONDS = 10
_TIMES = int(os.environ.get("HEADRACE_ABUSE", "1"))
_PIECE = bytes(100_000)
_OFFSET = Symbol("rabbitmq:stream-offset-spec")
_HEAVY = ("/bulk/messages?queue=backlog", "/api/v1/queues/%2F/backlog/messages?max_bytes=1048576")
_PORTS = ("amqp", "mqtt", "ws", "http", "stomp", "stream")
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
    environment = {"HEADRACE_LIMITS_MEMORY_BYTES": "256MiB"}
    running = Server(tmp_path, options=_OPTIONS, environment=environment, is_fresh=True)
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


def silent_connections(server: Server, stack: ExitStack) -> None:
    for number in range(1500 * _TIMES):
        port = server.ports[_PORTS[number % len(_PORTS)]]
        stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))


def publishes_to_exclusive_queues_that_nobody_reads(server: Server, stack: ExitStack) -> None:
    """Almost as much as queues in memory may hold; with more, all publishers wait."""
    for _ in range(5):
        client = _open(server, stack)
        client.send(1, commands.Queue.Declare, queue="", exclusive=True)
        declared = client.method().method
        assert isinstance(declared, commands.Queue.DeclareOk)
        queue = str(declared.queue).encode()
        method = struct.pack(">HHH", 60, 40, 0) + b"\0" + bytes([len(queue)]) + queue + b"\0"
        header = struct.pack(">HHQH", 60, 0, _MIB, 0)
        message = _frame(1, 1, method) + _frame(2, 1, header) + _frame(3, 1, bytes(_MIB // 16)) * 16
        for _ in range(40):
            assert _push(client.socket, message)


def listings_of_many_queues(server: Server, stack: ExitStack) -> None:
    client = _open(server, stack)
    for number in range(10_000):
        client.send(1, commands.Queue.Declare, queue=f"many.{number}", exclusive=True, nowait=True)
    client.send(1, commands.Queue.Declare, queue="last")
    client.socket.settimeout(60)
    client.method()
    for path in ("/api/queues", "/api/v1/queues?limit=1000", "/api/definitions", "/bulk/queues", "/metrics") * 2:
        _ask(server, stack, path)
    time.sleep(2)


def _ask(server: Server, stack: ExitStack, path: str) -> socket.socket:
    """Ask for a page; nobody reads it."""
    sock = stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(10)
    sock.connect(("127.0.0.1", server.http_port))
    login = base64.b64encode(b"guest:guest").decode()
    _push(sock, f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {login}\r\n\r\n".encode())
    return sock


def _load_libraries(server: Server) -> None:
    """Have what HTTP and bulk reads need loaded, which is no message's memory."""
    url = f"{server.http_url}/bulk/messages?queue=healthy"
    httpx.get(url, auth=("guest", "guest"), timeout=60, verify=False).raise_for_status()


def answers_that_nobody_reads(server: Server, stack: ExitStack) -> None:
    _fill(server, "backlog", 64, {"x-queue-type": "stream"})
    for number in range(40 * _TIMES):
        _ask(server, stack, _HEAVY[number % len(_HEAVY)])


def long_topics(server: Server, stack: ExitStack) -> None:
    for number in range(6 * _TIMES):
        sock = _mqtt(server, stack, number)
        for count in range(150):
            topic = f"{count}".ljust(60_000, "t")
            _push(sock, packet(0x30, text(topic), b"x"))
            _push(sock, packet(0x82, b"\0\1", text(topic), b"\0"))


def long_aliases(server: Server, stack: ExitStack) -> None:
    for number in range(20 * _TIMES):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.mqtt_port), 10))
        sock.sendall(packet(0x10, text("MQTT"), b"\x05\xc2\0\0", properties({}), text(f"l{number}"), _login()))
        said = sock.recv(1000)
        assert said[0] == 0x20
        assert said[3] == 0, said
        for alias in range(1, 1001):
            topic = text(f"{alias}".ljust(60_000, "t"))
            if not _push(sock, packet(0x30, topic, properties({0x23: alias}), b"x")):
                break


def _stomp(server: Server, stack: ExitStack) -> socket.socket:
    sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.ports["stomp"]), 10))
    sock.sendall(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
    assert sock.recv(1000).startswith(b"CONNECTED")
    return sock


def unfinished_frames_of_stomp(server: Server, stack: ExitStack) -> None:
    for number in range(20 * _TIMES):
        head = b"SEND\ndestination:/queue/a\n" + (b"content-length:31000000\n" if number % 2 else b"")
        _push(_stomp(server, stack), head + b"\n" + _PIECE.replace(b"\0", b"x") * 300)


def transactions_of_stomp(server: Server, stack: ExitStack) -> None:
    for _ in range(10 * _TIMES):
        sock = _stomp(server, stack)
        _push(sock, b"BEGIN\ntransaction:t\n\n\0")
        frame = b"SEND\ndestination:/queue/a\ntransaction:t\ncontent-length:%d\n\n" % len(_PIECE)
        for _ in range(300):
            if not _push(sock, frame + _PIECE + b"\0"):
                break


def _stream(server: Server, stack: ExitStack) -> StreamClient:
    return stack.enter_context(StreamClient(server.ports["stream"]))


def publishes_to_streams_without_reading_confirms(server: Server, stack: ExitStack) -> None:
    """A frame has a hundred thousand messages of no bytes."""
    _stream(server, stack).ask(frames.CREATE, stream_text("numbers") + table(max_length_bytes="20000000"))
    for number in range(10 * _TIMES):
        client = _stream(server, stack)
        client.ask(frames.DECLARE_PUBLISHER, b"\0" + stream_text(f"p{number}") + stream_text("numbers"))
        for start in range(0, 400_000, 80_000):
            frame = publish(0, *[entry(each, b"") for each in range(start, start + 80_000)])
            if not _push(client.socket, frame):
                break


def unfinished_frames_of_streams(server: Server, stack: ExitStack) -> None:
    for _ in range(200 * _TIMES):
        client = _stream(server, stack)
        _push(client.socket, struct.pack(">IHHBI", 1 << 20, frames.PUBLISH, 1, 0, 1) + bytes(1_000_000))


def streams_that_nobody_reads(server: Server, stack: ExitStack) -> None:
    _fill(server, "backlog", 64, {"x-queue-type": "stream"})
    for _ in range(20 * _TIMES):
        client = _stream(server, stack)
        start = position(frames.FIRST)
        for number in range(10):
            client.ask(frames.SUBSCRIBE, subscription(number, "backlog", start, credit=60_000))


def blocks_of_coap(server: Server, stack: ExitStack) -> None:
    """Bodies of almost a mebibyte, of which the last block never comes; each of another sender."""
    for number in range(200 * _TIMES):
        sock = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        sock.connect(("127.0.0.1", server.ports["coap"]))
        sock.settimeout(_SECONDS)
        for block in range(1000 if number % 4 == 0 else 50):
            sock.send(post(block, ["$queue", "orders"], bytes(1024), block=(block << 4 | 0x0E).to_bytes(3)))
            with contextlib.suppress(OSError):
                sock.recv(100)


def receivers_that_do_not_read(server: Server, stack: ExitStack) -> None:
    """Receivers of AMQP 1.0 with a wide window and much credit."""
    _fill(server, "backlog", 64, {"x-queue-type": "stream"})
    for number in range(8 * _TIMES):
        client = RawClient(server.port, f"reader {number}")
        stack.callback(client.close)
        client.begin(incoming_window=1 << 30)
        attach = receiver("r", "/queues/backlog")
        assert attach.source is not None
        attach.source.filter = Map([(_OFFSET, Described(_OFFSET, "first"))])
        client.send(attach)
        client.expect(Attach)
        client.send(credit(0, 1 << 20, incoming_window=1 << 30))


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
    silent_connections,
    publishes_to_exclusive_queues_that_nobody_reads,
    listings_of_many_queues,
    answers_that_nobody_reads,
    long_topics,
    long_aliases,
    unfinished_frames_of_stomp,
    transactions_of_stomp,
    publishes_to_streams_without_reading_confirms,
    unfinished_frames_of_streams,
    streams_that_nobody_reads,
    blocks_of_coap,
    receivers_that_do_not_read,
]


@pytest.mark.timeout(120 * _TIMES)
@pytest.mark.parametrize("abuse", _ABUSES, ids=lambda abuse: str(abuse.__name__))
def test_memory_stays_within_its_limit(server: Server, abuse: Callable[[Server, ExitStack], None]) -> None:
    healthy = Healthy(server)
    _load_libraries(server)
    idle = server.memory_bytes
    healthy.start()
    with ExitStack() as stack:
        abuse(server, stack)
        before = healthy.confirmed
        time.sleep(1)
        eventually(lambda: healthy.confirmed > before)
    most_left_bytes = idle + _MOST_LEFT_BYTES
    deadline = time.monotonic() + _GIVEN_BACK_SECONDS
    while (left := server.memory_bytes) > most_left_bytes and time.monotonic() < deadline:
        time.sleep(0.05)
    healthy.end()
    print(
        f"\nRSS {abuse.__name__}: idle {idle // _MIB}, most {healthy.most_bytes // _MIB}, after {left // _MIB} MiB; "
        f"longest {healthy.longest:.2f} s"
    )
    assert healthy.most_bytes <= _MOST_BYTES
    assert left <= most_left_bytes, "memory is not given back"

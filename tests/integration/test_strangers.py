"""Bytes from strangers, on every port: whatever comes before a login, the broker finds no fault of its own.

HEADRACE_ABUSE=10 sends ten times as many.
"""

import os
import random
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.devices import packet, text
from tests.servers import Server, serving

_TIMES = int(os.environ.get("HEADRACE_ABUSE", "1"))
_UPGRADE = (
    b"GET %s HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)
_SUBPROTOCOL = b"Sec-WebSocket-Protocol: mqtt\r\n"
_CONNECT = packet(0x10, text("MQTT"), b"\x05\x02", struct.pack(">H", 60), b"\0", text("stranger"))
_PING = b"\xc0\x00"
_WELL_MEANT = {
    "amqp": [
        b"AMQP\x00\x00\x09\x01" + b"\x01\x00\x00\x00\x00\x00\x0a\x00\x0a\x00\x0b\x00\x00\x00\x00\x05PLAI\xce",
        b"AMQP\x00\x01\x00\x00" + bytes.fromhex("0000001802000000005310c00b0ba10373747240404040ff"),
        b"AMQP\x03\x01\x00\x00" + bytes.fromhex("0000001a02010000005341c00d03a305504c41494ea0010040"),
    ],
    "mqtt": [_CONNECT + _PING + packet(0x30, text("t"), b"\0x"), packet(0x10, text("MQIsdp"), b"\x03\x02\0\0")],
    "ws": [_UPGRADE % (b"/mqtt", _SUBPROTOCOL)],
    "http": [
        _UPGRADE % (b"/mqtt", _SUBPROTOCOL),
        b"PUT /api/queues/%2F/q HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n{}{}",
        b"GET /ws HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    ],
}


def _masked(opcode: int, data: bytes) -> bytes:
    return bytes((opcode, 0x80 | len(data))) + bytes(4) + data


_FRAMES = {
    "an unknown opcode": b"\xff\xff\xff\xff\xff\xff",
    "no mask": b"\x82\x02ab",
    "a long control frame": b"\x88\xfe\x00\x90" + bytes(148),
    "text": _masked(0x81, b"hi"),
    "a ping of MQTT": _masked(0x82, _PING),
    "a continuation of nothing": _masked(0x80, b"x"),
    "a close": _masked(0x88, b"\x03\xe8"),
    "two frames": _masked(0x82, _CONNECT) + b"\xff\xff",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--coap", "0"]
    with serving(Server(tmp_path_factory.mktemp("server"), in_memory=True, options=options)) as running:
        yield running


def _say(server: Server, name: str, *parts: bytes, waits: bool = False) -> bytes:
    """What a stranger hears until the connection is closed; a reset is a close too."""
    heard = b""
    with socket.create_connection(("127.0.0.1", server.ports[name]), 10) as sock:
        sock.settimeout(8 if waits else 0.02)
        try:
            for part in parts:
                sock.sendall(part)
            while data := sock.recv(4096):
                heard += data
        except TimeoutError:
            assert not waits, f"{name} says {heard!r} and does not close"
        except OSError:
            return heard
    return heard


def _assert_no_fault(server: Server) -> None:
    log = server.log()
    assert "error of ours" not in log, log
    assert "Traceback" not in log, log


@pytest.mark.parametrize("port", ["ws", "http"])
@pytest.mark.parametrize("frame", _FRAMES)
def test_a_frame_in_the_segment_of_an_upgrade_is_answered_and_the_connection_closed(
    server: Server, port: str, frame: str
) -> None:
    upgrade = _UPGRADE % (b"/mqtt", _SUBPROTOCOL)
    heard = _say(server, port, upgrade + _FRAMES[frame], waits=True)
    assert heard.startswith(b"HTTP/1.1 101")
    assert b"\x88" in heard, "a WebSocket is closed by a frame that says so"
    heard = _say(server, port, upgrade[:-3], upgrade[-3:] + _FRAMES[frame], waits=True)
    assert heard.startswith(b"HTTP/1.1 101")
    _assert_no_fault(server)


@pytest.mark.parametrize("port", ["ws", "http"])
@pytest.mark.parametrize("frame", ["", *_FRAMES])
@pytest.mark.parametrize(
    ("path", "said"), [(b"/nothing", _SUBPROTOCOL), (b"/mqtt", b""), (b"/mqtt", b"Sec-WebSocket-Protocol: x\r\n")]
)
def test_an_upgrade_that_is_refused_closes_the_connection(
    server: Server, port: str, frame: str, path: bytes, said: bytes
) -> None:
    heard = _say(server, port, _UPGRADE % (path, said) + _FRAMES.get(frame, b""), waits=True)

    assert heard.startswith(b"HTTP/1.1 4")
    _assert_no_fault(server)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("port", ["amqp", "mqtt", "ws", "http"])
def test_no_bytes_of_strangers_are_a_fault_of_ours(server: Server, port: str) -> None:
    """Random bytes; what is well meant, cut anywhere, changed anywhere, twice, with anything behind it."""
    chance = random.Random(port)
    frames = list(_FRAMES.values())

    def one(_: int) -> None:
        whole = chance.choice(_WELL_MEANT[port])
        at = chance.randrange(len(whole) + 1)
        noise = chance.randbytes(chance.choice((1, 8, 60, 400)))
        behind = chance.choice((noise, whole, chance.choice(frames)))
        parts = chance.choice(
            [
                (noise,),
                (whole[:at], noise),
                (whole[:at] + noise + whole[at:],),
                (whole + behind,),
                (whole[:at], whole[at:] + behind),
                (whole, behind),
            ]
        )
        _say(server, port, *parts)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, range(300 * _TIMES)))
    _assert_no_fault(server)


def test_no_datagrams_of_strangers_are_a_fault_of_ours(server: Server) -> None:
    chance = random.Random("coap")
    put = bytes.fromhex("40030001b66f7264657273ff78")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(500 * _TIMES):
            at = chance.randrange(len(put) + 1)
            noise = chance.randbytes(chance.choice((0, 1, 8, 60)))
            sock.sendto(chance.choice((noise, put[:at] + noise, put[:at] + noise + put[at:])), _coap(server))
    _say(server, "http", b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", waits=True)
    _assert_no_fault(server)


def _coap(server: Server) -> tuple[str, int]:
    return ("127.0.0.1", server.ports["coap"])


def test_a_queue_that_is_declared_and_deleted_at_once_over_http_is_no_fault_of_ours(tmp_path: Path) -> None:
    calls = [
        ("PUT", "/api/v1/queues/%2F/q", {}),
        ("DELETE", "/api/v1/queues/%2F/q", None),
        ("PUT", "/api/queues/%2F/q", {"durable": True}),
        ("DELETE", "/api/queues/%2F/q", None),
        ("PUT", "/api/v1/queues/%2F/q?update=true", {}),
        ("GET", "/api/v1/queues/%2F/q", None),
        ("DELETE", "/api/queues/%2F/q/contents", None),
    ]
    statuses: set[int] = set()
    lock = threading.Lock()
    with serving(Server(tmp_path)) as server:

        def one(number: int) -> None:
            method, path, body = calls[number % len(calls)]
            with httpx.Client(base_url=server.http_url, auth=("guest", "guest"), timeout=30, verify=False) as http:
                answer = http.request(method, path, json=body)
            with lock:
                statuses.add(answer.status_code)

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(one, range(30 * len(calls) * _TIMES)))
        _assert_no_fault(server)

    assert statuses <= {200, 201, 204, 404}

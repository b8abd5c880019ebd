"""The bounds of one HTTP connection in time, on an event loop that the test moves."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.config import Config
from uvicorn.server import ServerState

from headrace.admin.stack import HEAD_SECONDS, STALL_SECONDS, BoundedProtocol


class Loop(asyncio.SelectorEventLoop):
    """Time passes only when it is told to."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for _ in range(3):
            self.run_until_complete(asyncio.sleep(0))


class Transport(asyncio.Transport):
    """A connection without a network."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_aborted = False
        self.is_paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self.is_aborted

    def close(self) -> None:
        self.is_aborted = True

    def abort(self) -> None:
        self.is_aborted = True

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False


async def _answer_at_once(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _read_all(scope: Any, receive: Any, send: Any) -> None:
    while (await receive()).get("more_body"):
        pass
    await _answer_at_once(scope, receive, send)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    asyncio.set_event_loop(loop)
    yield loop
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    asyncio.set_event_loop(None)
    loop.close()


def connect(loop: Loop, application: Any = _answer_at_once) -> tuple[BoundedProtocol, Transport]:
    config = Config(
        application,
        lifespan="off",
        interface="asgi3",
        log_config=None,
        ws="none",
        proxy_headers=False,
        timeout_keep_alive=3600,
    )
    config.load()
    protocol = BoundedProtocol(config, ServerState())
    transport = Transport()
    protocol.connection_made(transport)
    return protocol, transport


def test_a_client_that_says_nothing_is_ended(loop: Loop) -> None:
    _, transport = connect(loop)

    loop.pass_time(HEAD_SECONDS - 1)
    assert not transport.is_aborted
    loop.pass_time(2)

    assert transport.is_aborted


def test_a_client_that_sends_its_headers_byte_by_byte_is_ended(loop: Loop) -> None:
    protocol, transport = connect(loop)

    for byte in b"GET / HTTP":
        protocol.data_received(bytes([byte]))
        loop.pass_time(HEAD_SECONDS / 9)

    assert transport.is_aborted


def test_the_second_request_has_as_long_as_the_first(loop: Loop) -> None:
    protocol, transport = connect(loop)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    loop.pass_time(0)
    loop.pass_time(HEAD_SECONDS + 1)
    assert not transport.is_aborted

    protocol.data_received(b"GET /")
    loop.pass_time(HEAD_SECONDS + 1)

    assert transport.is_aborted


def test_a_body_that_stops_halfway_is_given_up(loop: Loop) -> None:
    protocol, transport = connect(loop, _read_all)

    protocol.data_received(b"POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
    loop.pass_time(STALL_SECONDS - 1)
    protocol.data_received(b"more")
    loop.pass_time(STALL_SECONDS - 1)
    assert not transport.is_aborted
    loop.pass_time(2)

    assert transport.is_aborted


def test_a_client_that_does_not_read_its_answer_is_ended(loop: Loop) -> None:
    protocol, transport = connect(loop)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    loop.pass_time(1)

    protocol.pause_writing()
    loop.pass_time(STALL_SECONDS + 1)

    assert transport.is_aborted


def test_a_client_that_reads_on_in_time_is_kept(loop: Loop) -> None:
    protocol, transport = connect(loop)
    protocol.data_received(b"GET / HTTP/1.1\r\n\r\n")
    loop.pass_time(1)

    protocol.pause_writing()
    loop.pass_time(STALL_SECONDS - 1)
    protocol.resume_writing()
    loop.pass_time(2)

    assert not transport.is_aborted
    assert transport.written.endswith(b"ok")

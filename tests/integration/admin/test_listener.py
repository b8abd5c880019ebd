"""The HTTP port itself: loaded when it is first used, bounded against clients that are slow, large or confused."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from headrace.admin import listener
from headrace.admin import stack as protocol
from headrace.admin.listener import HttpListener, Speaker
from headrace.admin.site import Site
from headrace.admin.stack import Stack
from headrace.clock import ManualClock
from headrace.core.access.access import Access
from headrace.core.access.logins import Background, Result
from headrace.core.hosts import Hosts
from headrace.storage.local.staging import StagingArea
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.servers import Server
from tests.waiting import eventually


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Server]:
    """A server that nobody asked anything yet."""
    running = Server(tmp_path, in_memory=True, is_fresh=True)
    running.start()
    yield running
    running.stop()


@contextlib.contextmanager
def raw(server: Server) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.http_port), timeout=30) as connection:
        yield connection


def everything(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def test_health_and_readiness_need_no_login(server: Server) -> None:
    assert httpx.get(f"{server.http_url}/health", timeout=60, verify=False).json() == {"status": "healthy"}
    assert httpx.get(f"{server.http_url}/ready", timeout=60, verify=False).json() == {"status": "ready"}


def test_nothing_of_http_is_loaded_before_the_first_connection(fresh: Server) -> None:
    maps = Path(f"/proc/{fresh.pid}/maps")
    before = maps.read_text()

    assert httpx.get(f"{fresh.http_url}/health", timeout=60, verify=False).status_code == 200

    assert "httptools" not in before
    assert "httptools" in maps.read_text()


def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_no_traceback(fresh: Server) -> None:
    head = "POST /api/v1/publish/%2F HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n"
    with raw(fresh) as connection:
        connection.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        eventually(lambda: "connected" in fresh.log())
    eventually(lambda: "the connection is ended" in fresh.log())

    assert httpx.get(f"{fresh.http_url}/health", timeout=60, verify=False).status_code == 200
    assert "Traceback" not in fresh.log()


def test_clients_that_come_while_http_is_loaded_are_all_answered(fresh: Server) -> None:
    with ThreadPoolExecutor(20) as pool:
        answers = list(
            pool.map(lambda _: httpx.get(f"{fresh.http_url}/health", timeout=60, verify=False).status_code, range(20))
        )

    assert answers == [200] * 20


def test_a_page_that_does_not_exist_is_a_404_that_says_so(http: httpx.Client) -> None:
    answer = http.get("/nothing/here")

    assert answer.status_code == 404
    assert answer.json()["error"] == "not_found"


def test_a_wrong_method_is_a_405(http: httpx.Client) -> None:
    answer = http.post("/health")

    assert answer.status_code == 405
    assert answer.json()["error"] == "method_not_allowed"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"AMQP\x00\x00\x09\x01",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /health HTTP/1.1\r\nbroken header\r\n\r\n",
        b"GET /health HTTP/1.1\r\nContent-Length: many\r\n\r\n",
        b"GET /health HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_answered_with_400_and_closed(server: Server, request_bytes: bytes) -> None:
    with raw(server) as connection:
        connection.sendall(request_bytes)
        connection.shutdown(socket.SHUT_WR)

        assert everything(connection).startswith(b"HTTP/1.1 400 ")


def test_headers_without_end_are_refused(server: Server) -> None:
    with raw(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):
            for number in range(2 * protocol.MAX_HEAD_BYTES // 100):
                connection.sendall(f"X-{number}: {'x' * 100}\r\n".encode())

        assert everything(connection).startswith(b"HTTP/1.1 431 ")


def test_several_requests_in_one_piece_are_answered_in_order(server: Server) -> None:
    with raw(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\nGET /ready HTTP/1.1\r\nConnection: close\r\n\r\n")

        answers = everything(connection)

    assert answers.count(b"HTTP/1.1 200 OK") == 2
    assert answers.index(b"healthy") < answers.index(b'"ready"')


def test_a_server_that_stops_ends_connections_that_are_kept_alive(fresh: Server) -> None:
    with raw(fresh) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b"}"):
            answer += connection.recv(65536)

        code = fresh.stop()

        assert code == 0
        assert everything(connection) == b""


# -- how many at once


class _AtOnce(Background):
    """No other threads: what is asked for is done."""

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        done(work())

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        call()


def _site() -> Site:
    house, clock, engine = House(), ManualClock(), MemoryEngine()
    hosts = Hosts(engine, lambda *_: house.broker)
    access = Access(engine, clock, _AtOnce(), hosts)
    return Site(hosts, access, list, dict, str, clock, "0", StagingArea(Path("nowhere"), 0))


def _speaker() -> Speaker:
    return Stack.of_site(_site(), [])


@pytest.mark.parametrize("is_loaded", [False, True])
def test_one_connection_too_many_is_closed_and_the_others_go_on(
    is_loaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 2)

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"GET /health HTTP/1.1\r\n\r\n")
        return await reader.readuntil(b"}")

    async def scenario() -> None:
        opened = HttpListener(_speaker)
        await opened.open("127.0.0.1", 0)
        first = await asyncio.open_connection("127.0.0.1", opened.port)
        if is_loaded:
            await ask(*first)
        second = await asyncio.open_connection("127.0.0.1", opened.port)
        third = await asyncio.open_connection("127.0.0.1", opened.port)

        with contextlib.suppress(ConnectionResetError):
            assert await third[0].read() == b""
        assert b"healthy" in await ask(*first)
        assert b"healthy" in await ask(*second)

        for _, writer in (first, second, third):
            writer.close()
        await opened.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))

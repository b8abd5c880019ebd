"""One server in memory for all tests of a module: each test has queues and exchanges of its own."""

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.servers import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), in_memory=True)) as running:
        yield running


@pytest.fixture(autouse=True)
def _connections_end(server: Server) -> Iterator[None]:
    yield
    server.close_connections()


@pytest.fixture
def connection(server: Server) -> pika.BlockingConnection:
    return server.connect()


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a queue or an exchange that no other test has."""
    return str(request.node.name)

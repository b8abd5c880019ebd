"""One server in memory for all tests of a module: each test has queues and links of its own."""

from collections.abc import Iterator

import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton.utils import BlockingConnection

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
def channel(server: Server) -> BlockingChannel:
    """A channel of AMQP 0-9-1, for what the other side of a queue sees."""
    return server.connect().channel()


@pytest.fixture
def connection(server: Server) -> Iterator[BlockingConnection]:
    opened = BlockingConnection(f"127.0.0.1:{server.port}", user="guest", password="guest", timeout=60)
    yield opened
    opened.close()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a queue or an exchange that no other test has."""
    return str(request.node.name)


@pytest.fixture
def queue(channel: BlockingChannel, name: str) -> str:
    """A durable queue that no other test has."""
    channel.queue_declare(name, durable=True)
    return name

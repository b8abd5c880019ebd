"""A server for the tests of this folder, and MQTT clients to it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("mqtt"))
    server.start()
    yield server
    server.close_connections()
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may stop and start."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.close_connections()
    server.stop()

"""A server with the stream protocol for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("streams"), options=["--stream", "0"])) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """One that a test may kill and start again."""
    server = Server(tmp_path, options=["--stream", "0"])
    server.start()
    yield server
    server.close_connections()
    server.stop()

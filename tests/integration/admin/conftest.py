"""One server in memory for all tests of a module, and clients of its HTTP port."""

from collections.abc import Iterator

import httpx
import pytest

from tests.servers import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"), in_memory=True)) as running:
        yield running


@pytest.fixture
def http(server: Server) -> Iterator[httpx.Client]:
    """A client that logged in."""
    with httpx.Client(base_url=server.http_url, auth=("guest", "guest"), timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a queue or an exchange that no other test has."""
    return str(request.node.name)

"""Limits of users over every protocol: connections, channels, messages per second. Sizes: test_access_everywhere.py."""

import re
import threading
from collections.abc import Iterator

import httpx
import pyarrow as pa
import pytest

from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission
from headrace.core.access.users import Limits
from headrace.core.hosts import Hosts
from tests.endpoints import must, prepare
from tests.protocol_clients import PROTOCOL_CLIENTS, Amqp091, Amqp10, Connected, ProtocolClient, Unconnected
from tests.servers import Server, serving
from tests.waiting import eventually

CONNECTED = [kind for kind in PROTOCOL_CLIENTS if issubclass(kind, Connected)]
UNCONNECTED = [kind for kind in PROTOCOL_CLIENTS if issubclass(kind, Unconnected)]
_HOUR = 3600
_LIMITS = {
    "few": Limits(max_connections=1),
    "narrow": Limits(max_channels=1),
    "hasty": Limits(max_message_rate=1),
    "free": Limits(),
}


def _slug(kind: type[ProtocolClient]) -> str:
    return re.sub("[^a-z0-9]+", "-", kind.name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Each protocol has users of its own, as limits count over all of a user's connections; passwords are names."""
    directory = tmp_path_factory.mktemp("server")

    def users(hosts: Hosts, access: Access) -> None:
        for kind in PROTOCOL_CLIENTS:
            for word, limits in _LIMITS.items():
                name = f"{word}-{_slug(kind)}"
                access.put_user(name, name, ["management"], must)
                access.put_permission(Permission(name, "/", ".*", ".*", ".*"), must)
                access.set_limits(name, limits, must)

    prepare(directory / "data", users)
    with serving(Server(directory, options=["--coap", "0"])) as running:
        _put(running, "orders", {})
        _put(running, "everybodys", {})
        yield running


def _put(server: Server, queue: str, body: dict[str, object]) -> None:
    url = f"{server.http_url}/api/v1/queues/%2F/{queue}"
    assert httpx.put(url, auth=("guest", "guest"), json=body, timeout=30, verify=False).is_success


def _depth(server: Server, queue: str) -> int:
    url = f"{server.http_url}/api/v1/queues/%2F/{queue}"
    return int(httpx.get(url, auth=("guest", "guest"), timeout=30, verify=False).json()["counters"]["ready"])


@pytest.mark.parametrize("kind", CONNECTED, ids=_slug)
def test_a_user_has_no_more_connections_than_it_may(server: Server, kind: type[Connected]) -> None:
    client = kind(server)
    user, other = f"few-{_slug(kind)}", f"free-{_slug(kind)}"

    with client.inside(user, user):
        assert not client.may_enter(user, user)
        with client.inside(other, other):
            assert client.may_enter(other, other)

    eventually(lambda: client.may_enter(user, user))


@pytest.mark.parametrize("kind", UNCONNECTED, ids=_slug)
def test_single_requests_count_as_no_connections(server: Server, kind: type[Unconnected]) -> None:
    user = f"few-{_slug(kind)}"

    with Amqp091(server).inside(user, user):
        assert kind(server).may_publish(user, user, "$queue/orders")


@pytest.mark.parametrize("kind", [Amqp091, Amqp10], ids=_slug)
def test_a_user_has_no_more_channels_than_it_may(server: Server, kind: type[Amqp091 | Amqp10]) -> None:
    client = kind(server)
    user, other = f"narrow-{_slug(kind)}", f"free-{_slug(kind)}"

    assert client.may_open_channels(user, user, 1)
    assert not client.may_open_channels(user, user, 2)
    assert client.may_open_channels(other, other, 2)
    eventually(lambda: client.may_open_channels(user, user, 1))  # what was open is given back


@pytest.mark.parametrize("kind", UNCONNECTED, ids=_slug)
def test_a_user_that_published_too_much_is_put_off(server: Server, kind: type[Unconnected]) -> None:
    client = kind(server)
    user, other = f"hasty-{_slug(kind)}", f"free-{_slug(kind)}"
    assert not client.is_put_off(user, user, "$queue/orders")

    _publish_much(server, user)

    assert client.is_put_off(user, user, "$queue/orders")
    assert not client.is_put_off(other, other, "$queue/orders")


@pytest.mark.parametrize("kind", CONNECTED, ids=_slug)
def test_a_user_that_published_too_much_is_not_heard_for_a_while(server: Server, kind: type[Connected]) -> None:
    client = kind(server)
    user, other, queue = f"hasty-{_slug(kind)}", f"free-{_slug(kind)}", f"heard-{_slug(kind)}"
    _put(server, queue, {})
    _publish_much(server, user)
    confirmed: list[int] = []
    publishing = threading.Thread(target=lambda: confirmed.append(client.publish_all(user, user, f"$queue/{queue}", 2)))

    publishing.start()
    eventually(lambda: _depth(server, queue) == 1)
    assert client.publish_all(other, other, f"$queue/{queue}", 2) == 2

    assert _depth(server, queue) == 3
    gone = httpx.delete(f"{server.http_url}/api/v1/users/{user}", auth=("guest", "guest"), timeout=30, verify=False)
    assert gone.is_success  # which ends its connections, also one that is not heard
    publishing.join(60)
    assert confirmed == [1]
    assert _depth(server, queue) == 3


def _publish_much(server: Server, user: str) -> None:
    """As much as the user may publish in an hour: it is put off for as long, on whatever machine."""
    table = pa.table({"payload": [b"x"] * _HOUR})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    with httpx.Client(
        base_url=f"{server.http_url}/bulk/transactions/{user}", auth=(user, user), timeout=30, verify=False
    ) as http:
        assert http.put("/parts/p", params={"queue": "orders"}, content=bytes(sink.getvalue())).is_success
        done = http.post("/commit", json={"parts": ["p"]})
    assert done.json()["rows"] == _HOUR, done.text

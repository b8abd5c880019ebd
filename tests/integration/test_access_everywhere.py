"""The same users with the same permissions over every protocol: who may log in, publish, consume, and who may not."""

from collections.abc import Iterator

import httpx
import pytest

from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.access.users import Limits
from headrace.core.hosts import Hosts
from tests.endpoints import must, prepare
from tests.protocol_clients import PROTOCOL_CLIENTS, Connected, ProtocolClient
from tests.servers import Server, serving

_QUEUES = "^orders$|^everybodys$"
_DEFAULT = "^amq[.]default$"
_USERS = {
    "owner": ("^orders$", f"{_QUEUES}|{_DEFAULT}", "^orders$"),
    "writer": ("", f"{_QUEUES}|{_DEFAULT}", ""),
    "reader": ("", "^everybodys$", "^orders$"),
    "stranger": ("^other$", "^other$", "^other$"),
    "gardener": (".*", ".*", ".*"),
    "clerk": (".*", ".*", ".*"),
    "small": (".*", ".*", ".*"),
}
_MOST_BYTES = 100


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Every user's password is the name; `outsider` may enter no virtual host."""
    directory = tmp_path_factory.mktemp("server")

    def users(hosts: Hosts, access: Access) -> None:
        for name in (*_USERS, "outsider"):
            access.put_user(name, name, ["management"], must)
        for name, patterns in _USERS.items():
            access.put_permission(Permission(name, "/", *patterns), must)
        for name, exchange, write, read in (
            ("gardener", "amq.topic", r"^plant\.", r"^plant\."),
            ("clerk", "$queue", "^orders/eu|^everybodys", "^orders/eu"),
        ):
            access.put_topic_permission(TopicPermission(name, "/", exchange, write, read), must)
        access.set_limits("small", Limits(max_message_bytes=_MOST_BYTES), must)

    prepare(directory / "data", users)
    with serving(Server(directory, options=["--coap", "0"])) as running:
        channel = running.connect().channel()
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("everybodys", durable=True)
        channel.queue_bind("everybodys", "amq.topic", "#")
        yield running


@pytest.fixture(params=PROTOCOL_CLIENTS, ids=[kind.name for kind in PROTOCOL_CLIENTS])
def client(request: pytest.FixtureRequest, server: Server) -> ProtocolClient:
    made = request.param(server)
    assert isinstance(made, ProtocolClient)
    return made


@pytest.mark.parametrize(
    ("user", "publishes", "consumes"),
    [("owner", True, True), ("writer", True, False), ("reader", False, True), ("stranger", False, False)],
)
def test_a_user_may_do_the_same_over_every_protocol(
    client: ProtocolClient, user: str, publishes: bool, consumes: bool
) -> None:
    assert client.may_publish(user, user, "$queue/orders") is publishes
    if client.consumes:
        assert client.may_consume(user, user, "$queue/orders") is consumes


def test_a_wrong_password_and_a_host_without_permission_are_refused(client: ProtocolClient) -> None:
    for user, password in (("reader", "wrong"), (f"nobody-{client.name}", "nobody"), ("outsider", "outsider")):
        assert client.may_enter("reader", "reader")  # so that a failure is the first in a row, and answered soon
        assert not client.may_enter(user, password)


def test_topic_permissions_count_for_plain_topics_over_every_protocol(client: ProtocolClient) -> None:
    assert client.may_publish("gardener", "gardener", "plant/1")
    assert not client.may_publish("gardener", "gardener", "house/1")
    if client.name.startswith(("amqp", "mqtt")):  # over HTTP only queues are read
        assert client.may_consume("gardener", "gardener", "plant/1")
        assert not client.may_consume("gardener", "gardener", "house/1")


def test_topic_permissions_count_for_addresses_over_every_protocol(client: ProtocolClient) -> None:
    assert client.may_publish("clerk", "clerk", "$queue/orders/eu/1")
    assert not client.may_publish("clerk", "clerk", "$queue/orders/us/1")
    if client.name.startswith(("amqp", "mqtt")):
        assert client.may_consume("clerk", "clerk", "$queue/orders/eu/#")
        assert not client.may_consume("clerk", "clerk", "$queue/orders/us/#")


def test_a_plain_topic_needs_its_exchange_over_every_protocol(client: ProtocolClient) -> None:
    assert not client.may_publish("owner", "owner", "plant/1")


def test_a_message_larger_than_the_user_may_send_is_refused_over_every_protocol(client: ProtocolClient) -> None:
    assert client.may_publish("small", "small", "$queue/orders", b"x" * 10)
    assert not client.may_publish("small", "small", "$queue/orders", b"x" * 1000)


@pytest.mark.parametrize(
    "kind", [kind for kind in PROTOCOL_CLIENTS if issubclass(kind, Connected)], ids=lambda kind: kind.name
)
def test_who_may_not_read_any_more_reads_no_more_and_is_told(server: Server, kind: type[Connected]) -> None:
    user, queue = "gone", "$queue/nothing-in-it"
    with httpx.Client(base_url=f"{server.http_url}/api/v1", auth=("guest", "guest"), timeout=60, verify=False) as http:

        def allow(read: str) -> None:
            body = {"configure": ".*", "write": ".*", "read": read}
            http.put(f"/permissions/%2F/{user}", json=body).raise_for_status()

        http.put(f"/users/{user}", json={"password": user, "tags": []}).raise_for_status()
        allow(".*")

        assert kind(server).is_stopped(user, user, queue, lambda: allow("^other$"))
        allow(".*")
        assert not http.delete(f"/permissions/%2F/{user}").is_error

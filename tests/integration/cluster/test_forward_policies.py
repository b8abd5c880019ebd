"""What a node that does not own the store does with clients where it is not to pass them on."""

import socket
from collections.abc import Iterator

import httpx
import paho.mqtt.client as paho
import pytest
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from proton import ConnectionException
from proton.utils import BlockingConnection

from tests.integration.cluster.test_forward_changes import connack
from tests.nodes import Nodes

_GUEST = ("guest", "guest")


@pytest.fixture(scope="module")
def rejecting() -> Iterator[Nodes]:
    with Nodes("a", "b", policy="reject") as running:
        running.own("a")
        yield running


def test_reject_closes_amqp_with_where_the_owner_is(rejecting: Nodes) -> None:
    place = f"127.0.0.1:{rejecting['a'].port('amqp')}"

    with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError), match=place):
        rejecting.pika("b")

    assert rejecting.pika("a").is_open


def test_reject_redirects_amqp_1_0(rejecting: Nodes) -> None:
    with pytest.raises(ConnectionException, match="amqp:connection:redirect") as refused:
        BlockingConnection(f"127.0.0.1:{rejecting['b'].port('amqp')}", user="guest", password="guest", timeout=60)

    assert f"127.0.0.1:{rejecting['a'].port('amqp')}" in str(refused.value)


@pytest.mark.parametrize("transport", ["tcp", "websockets"])
def test_reject_sends_mqtt_5_to_another_server(rejecting: Nodes, transport: str) -> None:
    listener = "ws" if transport == "websockets" else "mqtt"

    reason, said = connack(rejecting["b"].port(listener), paho.MQTTv5, transport)

    assert reason == "Use another server"
    assert said.ServerReference == f"127.0.0.1:{rejecting['a'].port('mqtt')}"


def test_reject_tells_mqtt_3_that_this_server_is_none(rejecting: Nodes) -> None:
    assert connack(rejecting["b"].port("mqtt"), paho.MQTTv311)[0] == "Server unavailable"


def test_reject_redirects_http_and_a_client_that_follows_is_served(rejecting: Nodes) -> None:
    answer = httpx.get(f"{rejecting['b'].url}/api/v1/queues?limit=1", auth=_GUEST, timeout=60, verify=False)
    followed = httpx.put(
        f"{rejecting['b'].url}/api/v1/queues/%2F/there",
        json={},
        auth=_GUEST,
        follow_redirects=True,
        timeout=60,
        verify=False,
    )

    assert answer.status_code == 307
    assert answer.headers["location"] == f"{rejecting['a'].url}/api/v1/queues?limit=1"
    assert followed.is_success or followed.status_code == 401  # a login is not sent to another address by itself
    assert httpx.get(f"{rejecting['b'].url}/ready", timeout=60, verify=False).status_code == 503
    assert httpx.get(f"{rejecting['b'].url}/health", timeout=60, verify=False).status_code == 200


def test_local_refuse_listens_only_where_clients_are_served() -> None:
    with Nodes("a", "b", policy="local-refuse") as nodes:
        nodes.own("a")

        for listener in ("amqp", "mqtt", "ws"):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", nodes["b"].port(listener)), timeout=60)
        ready = httpx.get(f"{nodes['b'].url}/ready", timeout=60, verify=False)
        assert (ready.status_code, ready.json()["role"], ready.json()["owner"]) == (503, "follower", "a")
        refused = httpx.get(f"{nodes['b'].url}/api/v1/queues", auth=_GUEST, timeout=60, verify=False)
        assert refused.status_code == 503
        assert nodes.pika("a").is_open

        nodes.own("b")

        assert nodes.pika("b").is_open
        assert connack(nodes["b"].port("mqtt"), paho.MQTTv5)[0] == "Success"
        assert httpx.get(f"{nodes['b'].url}/ready", timeout=60, verify=False).status_code == 200

"""TLS ends at the node that a client comes to; between nodes it is another, bound to the secret that they share."""

import asyncio
import ssl
from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingConnection

from headrace.cluster.forwarding.preamble import AMQP
from headrace.cluster.forwarding.upstream import reach
from headrace.cluster.lease import Node
from headrace.errors import Unavailable
from headrace.net.facts import Origin
from headrace.net.tls import to_nodes
from tests.certificates import Authority
from tests.nodes import SECRET, Nodes


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def nodes(authority: Authority) -> Iterator[Nodes]:
    certificate, key = authority.sign("localhost", "server")
    options = {
        "tls__certificate": str(certificate),
        "tls__key": str(key),
        "tls__authority": str(authority.path),
        "listeners__amqps": "0",
        "listeners__mqtts": "off",
        "listeners__https": "off",
    }
    with Nodes("a", "b", **options) as running:
        running.own("a")
        yield running


def test_a_client_logs_in_at_the_owner_with_the_certificate_that_it_showed_another_node(
    nodes: Nodes, authority: Authority
) -> None:
    certificate, key = authority.sign("guest")
    context = ssl.create_default_context(cafile=str(authority.path))
    context.load_cert_chain(certificate, key)
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        nodes["b"].port("amqps"),
        ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=pika.credentials.ExternalCredentials(),
        connection_attempts=1,
    )
    connection = BlockingConnection(parameters)

    assert connection.channel().queue_declare("secured").method.queue == "secured"
    wires = [wire for wire in nodes["a"].program._listeners.wires() if wire.node == "b"]
    assert [(wire.is_tls, wire.certificate_name) for wire in wires] == [(True, "guest")]
    connection.close()


def test_a_node_that_does_not_speak_tls_is_not_understood(nodes: Nodes) -> None:
    origin = Origin("127.0.0.1", 1, "127.0.0.1:1", "b")
    owner = nodes["a"].node

    with pytest.raises(Unavailable):
        nodes.ask(reach(owner, AMQP, origin, SECRET, None))
    nodes.ask(reach(owner, AMQP, origin, SECRET, to_nodes())).abort()


def test_whoever_stands_between_two_nodes_with_another_certificate_is_found_out(
    nodes: Nodes, authority: Authority
) -> None:
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(*authority.sign("localhost", "stranger"))
    owner = nodes["a"].node

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(4096):
            target.write(data)
        target.close()

    async def meddle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection(*owner.internal, ssl=to_nodes())
        await asyncio.gather(pump(reader, outer), pump(inner, writer))

    async def scenario() -> None:
        server = await asyncio.start_server(meddle, "127.0.0.1", 0, ssl=shown)
        between = Node("a", f"127.0.0.1:{server.sockets[0].getsockname()[1]}", "0", 0)
        try:
            await reach(between, AMQP, Origin("127.0.0.1", 1, "127.0.0.1:1", "b"), SECRET, to_nodes())
        finally:
            server.close()

    with pytest.raises(Unavailable):
        nodes.ask(scenario())


def test_a_certificate_that_was_replaced_is_shown_to_nodes_from_the_next_connection_on(
    nodes: Nodes, authority: Authority
) -> None:
    before = nodes["a"].program._tls
    assert before is not None
    fingerprint = before.fingerprint
    authority.sign("localhost", "server")

    for name in ("a", "b"):
        nodes.ask(nodes[name].reload())

    assert before.fingerprint != fingerprint
    nodes.ask(reach(nodes["a"].node, AMQP, Origin("127.0.0.1", 1, "127.0.0.1:1", "b"), SECRET, to_nodes())).abort()

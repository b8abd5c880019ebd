"""When the owner changes, dies or is not there: clients of other nodes are told so, and get in again the same way."""

import threading
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker
from proton import ConnectionException
from proton.utils import BlockingConnection

from tests.nodes import Nodes
from tests.paho_helpers import Paho
from tests.waiting import eventually

_FORCED = 320
_SHUTTING_DOWN = 0x8B


class _Farewell:
    """What a paho client hears last."""

    def __init__(self, client: Paho) -> None:
        self.reasons: list[Any] = []
        client.client.reconnect_delay_set(1, 1)
        client.client.on_disconnect = lambda c, data, flags, reason, properties: self.reasons.append(reason.value)


def test_when_another_node_becomes_the_owner_every_client_is_told_and_comes_back_through_the_same_node() -> None:
    with Nodes("a", "b", "c") as nodes:
        nodes.own("a")
        amqp = nodes.pika("b")
        amqp10 = BlockingConnection(f"127.0.0.1:{nodes['b'].port('amqp')}", user="guest", password="guest", timeout=60)
        five, three = Paho(nodes["b"].port("mqtt"), "five", 5), Paho(nodes["b"].port("mqtt"), "three", 4)
        farewells = [_Farewell(five), _Farewell(three)]

        nodes.own("c")

        with pytest.raises(ConnectionClosedByBroker) as closed:
            amqp.process_data_events(60)
        assert closed.value.reply_code == _FORCED
        assert "'c'" in closed.value.reply_text
        with pytest.raises(ConnectionException, match="amqp:connection:forced"):
            amqp10.create_sender("/queues/none")
        eventually(lambda: all(farewell.reasons for farewell in farewells))
        assert farewells[0].reasons[0] == _SHUTTING_DOWN
        eventually(lambda: five.connections == 2 and three.connections == 2)
        channel = nodes.pika("b").channel()
        channel.queue_declare("later", durable=True)
        assert nodes.pika("c").channel().queue_declare("later", passive=True).method.queue == "later"
        five.close()
        three.close()


def test_when_the_owner_dies_its_clients_are_told_and_those_who_come_meanwhile_wait_for_the_next() -> None:
    with Nodes("a", "b", "c") as nodes:
        nodes.own("a")
        amqp = nodes.pika("b")
        idle = Paho(nodes["b"].port("mqtt"), "idle", 5)
        farewell = _Farewell(idle)

        nodes.ask(nodes["a"].vanish())

        with pytest.raises(ConnectionClosedByBroker) as closed:
            amqp.process_data_events(60)
        assert closed.value.reply_code == _FORCED
        eventually(lambda: bool(farewell.reasons))
        assert farewell.reasons[0] == _SHUTTING_DOWN
        came: list[pika.BlockingConnection] = []
        waiting = threading.Thread(target=lambda: came.append(nodes.pika("b", socket_timeout=60)))
        waiting.start()
        nodes.tell("")
        nodes.own("c")
        waiting.join(60)
        assert came
        came[0].channel().queue_declare("next", durable=True)
        assert nodes.pika("c").channel().queue_declare("next", passive=True).method.queue == "next"
        eventually(lambda: idle.connections == 2)
        idle.close()


def test_those_who_wait_get_in_when_this_node_itself_becomes_the_owner() -> None:
    with Nodes("a", "b") as nodes:
        came: list[object] = []
        port = nodes["b"].port("mqtt")
        ways = (
            lambda: came.append(nodes.pika("b", socket_timeout=60)),
            lambda: came.append(Paho(port, "tcp", 5)),
            lambda: came.append(Paho(nodes["b"].port("ws"), "ws", 4, transport="websockets")),
        )
        waiting = [threading.Thread(target=way) for way in ways]
        for thread in waiting:
            thread.start()
        eventually(lambda: nodes["b"].wires == len(ways))

        nodes.own("b")

        for thread in waiting:
            thread.join(60)
        assert len(came) == len(ways)
        for client in came:
            if isinstance(client, Paho):
                assert client.sure("a/b", b"x") is not None
                client.close()
            else:
                assert isinstance(client, pika.BlockingConnection)
                client.channel().queue_declare("own", durable=True)


def test_who_waits_in_vain_is_refused_in_the_terms_of_its_protocol() -> None:
    with Nodes("a", "b") as nodes:
        nodes["b"].impatient()
        with pytest.raises((ConnectionClosedByBroker, AMQPConnectionError), match="no node serves"):
            nodes.pika("b")
        with pytest.raises(ConnectionException, match="no node serves"):
            BlockingConnection(f"127.0.0.1:{nodes['b'].port('amqp')}", user="guest", password="guest", timeout=60)
        assert connack(nodes["b"].port("mqtt"), paho.MQTTv311)[0] == "Server unavailable"
        reason, said = connack(nodes["b"].port("mqtt"), paho.MQTTv5)
        assert reason == "Server unavailable"
        assert "no node serves" in said.ReasonString


def connack(port: int, version: Any, transport: Any = "tcp") -> tuple[str, Any]:
    """What the first answer to a client says, and its properties."""
    client = paho.Client(CallbackAPIVersion.VERSION2, "asks", protocol=version, transport=transport)
    answers: list[tuple[str, Any]] = []
    client.on_connect = lambda c, data, flags, reason, properties: answers.append((str(reason), properties))
    client.connect("127.0.0.1", port)
    client.loop_start()
    eventually(lambda: bool(answers))
    client.loop_stop()
    return answers[0]

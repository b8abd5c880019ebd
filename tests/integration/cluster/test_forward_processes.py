"""Three broker processes over one store: clients know one node, which is not the owner, and the owner is killed."""

from pathlib import Path

import httpx
import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from proton import Message
from proton.utils import BlockingConnection

from tests.clusters import Cluster
from tests.paho_helpers import Paho
from tests.servers import drain
from tests.waiting import eventually

_GUEST = ("guest", "guest")
_QUEUE = "jobs"
_PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_all_protocols_go_on_through_one_node_when_the_owner_behind_it_is_killed(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/store", "5s") as cluster:
        owner = cluster.owner()
        node = next(each for each in cluster.nodes.values() if each is not owner)
        connection = node.connect()
        channel = connection.channel()
        channel.queue_declare(_QUEUE, durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", _QUEUE, b"by pika", _PERSISTENT)
        amqp10 = BlockingConnection(f"127.0.0.1:{node.ports['amqp']}", user="guest", password="guest", timeout=60)
        amqp10.create_sender(f"/queues/{_QUEUE}").send(Message(body=b"by proton", durable=True, inferred=True))
        five, three = (Paho(node.ports["mqtt"], f"v{version}", version, clean=True) for version in (5, 4))
        for client in (five, three):
            client.client.reconnect_delay_set(1, 1)
        five.sure(f"$queue/{_QUEUE}", b"by paho")
        listed = httpx.get(
            f"http://127.0.0.1:{node.ports['http']}/api/v1/connections", auth=_GUEST, timeout=60, verify=False
        ).json()
        assert {item["node"] for item in listed["items"]} == {node.name}

        owner.kill()

        with pytest.raises(ConnectionClosedByBroker):
            connection.process_data_events(60)
        eventually(lambda: five.connections > 1 and three.connections > 1)
        three.sure(f"$queue/{_QUEUE}", b"after it")
        again = node.connect()
        bodies = drain(again.channel(), _QUEUE, 4)
        assert sorted(bodies) == [b"after it", b"by paho", b"by pika", b"by proton"]
        again.close()
        for client in (five, three):
            client.close()

"""A node that passes bytes on keeps few of them: whoever does not read makes the other side wait."""

import asyncio

import httpx

from headrace.net.connection import BY_BROKER, Wire
from headrace.net.handler import Handler
from tests.nodes import Nodes

_GUEST = ("guest", "guest")
_BODY = bytes(16 << 10)
_MESSAGES = 6000
_BOUND = 48 << 20
"""More than the buffers of two nodes and of four sockets hold, and half of what is sent."""


def test_a_consumer_that_stops_reading_makes_the_owner_wait_and_gets_all_in_the_end() -> None:
    with Nodes("a", "b") as nodes:
        nodes.own("a")
        channel = nodes.pika("a").channel()
        channel.queue_declare("large", durable=True)
        for _ in range(_MESSAGES):
            channel.basic_publish("", "large", _BODY)
        slow = nodes.pika("b", client_properties={"connection_name": "slow"})
        got: list[int] = []
        consuming = slow.channel()
        consuming.basic_consume("large", lambda c, method, properties, body: got.append(len(body)), auto_ack=True)

        def sent() -> int:
            items = httpx.get(f"{nodes['a'].url}/api/v1/connections", auth=_GUEST, timeout=60, verify=False).json()[
                "items"
            ]
            return int(next(item["sent_bytes"] for item in items if item["client_id"] == "slow"))

        amounts = [-1, 0]
        while amounts[-1] != amounts[-2]:
            amounts.append(sent())
            nodes.ask(asyncio.sleep(0.5))
        assert amounts[-1] < _BOUND

        while len(got) < _MESSAGES:
            slow.process_data_events(60)
        assert got == [len(_BODY)] * _MESSAGES


class _Deaf(Handler):
    """Meets a client, and reads nothing."""

    def opened(self, wire: Wire) -> None:
        wire.pause_reading(BY_BROKER)

    def feed(self, data: bytes) -> None:
        return

    def hold_output(self, is_held: bool) -> None:
        return

    def beat(self) -> None:
        return

    def stop(self) -> None:
        return

    def lost(self) -> None:
        return


def test_a_publisher_waits_for_an_owner_that_does_not_read() -> None:
    with Nodes("a", "b") as nodes:
        nodes.own("a")
        nodes.meet_by("a", _Deaf)
        client = nodes.connect("b", "amqp")
        client.settimeout(2)
        taken = 0
        try:
            while taken < _MESSAGES * len(_BODY):
                taken += client.send(_BODY * 16)
        except TimeoutError:
            pass

        assert taken < _BOUND
        client.close()

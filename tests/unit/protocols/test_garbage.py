"""A connection that has ended is freed at once: the collector seldom looks at what lives long."""

import asyncio
import gc
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from headrace.net.connection import Wire
from headrace.net.handler import Handler
from tests.devices import Field
from tests.unit.protocols.amqp091.test_promises import _Client


class _Held(Handler):
    """A handler that keeps its connection."""

    def opened(self, wire: Wire) -> None:
        self.wire = wire

    def feed(self, data: bytes) -> None:
        self.wire.send(data)

    def hold_output(self, is_held: bool) -> None:
        return

    def beat(self) -> None:
        return

    def stop(self) -> None:
        return

    def lost(self) -> None:
        return


@pytest.fixture
def garbage() -> Iterator[Callable[[], set[str]]]:
    """The names of the classes of all that only the collector can free."""

    def found() -> set[str]:
        gc.collect()
        names = {type(each).__name__ for each in gc.garbage}
        gc.garbage.clear()
        return names

    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    yield found
    gc.set_debug(0)
    gc.garbage.clear()
    gc.enable()


def test_a_connection_and_its_handler(garbage: Callable[[], set[str]]) -> None:
    async def run() -> None:
        lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Wire(_Held(), lambda _: lost.set()), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"ping")
        assert await reader.read(4) == b"ping"
        writer.close()
        await lost.wait()
        server.close()

    asyncio.run(run())

    assert garbage() & {"Wire", "Output", "_Held"} == set()


def test_an_amqp_client_with_a_consumer(garbage: Callable[[], set[str]]) -> None:
    client = _Client()
    client.say(commands.Confirm.Select)
    client.say(commands.Queue.Declare, queue="orders", durable=False)
    client.say(commands.Basic.Consume, queue="orders", consumer_tag="one")
    client.publish("orders", b"new")
    kept = client.house, client.engine
    client.connection.lost()
    del client
    kept[0].turn()

    assert garbage() & {"Connection", "Inlet", "Channel", "Answers", "Publisher", "Subscription", "Consumer"} == set()


def test_an_mqtt_client(garbage: Callable[[], set[str]]) -> None:
    field = Field()
    device = field.device()
    device.connection.lost()
    field.devices.clear()
    del device
    field.run()

    assert garbage() & {"Connection", "Inlet", "Publisher"} == set()

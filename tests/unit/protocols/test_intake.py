"""Memory of incomplete messages is reported, and freed at once when the connection ends."""

import asyncio
import gc
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import cast

import pytest
from pamqp import commands
from starlette.requests import Request

from headrace.admin.pages import BadRequest, Call
from headrace.admin.site import Site, Visitor
from headrace.core.flow import Intake
from headrace.net.connection import Wire
from headrace.net.websocket import Endpoint, WebSocket
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp10.frames import DECLARE
from headrace.protocols.amqp10.performatives import Coordinator, Declared, Disposition, Transactional
from headrace.protocols.mqtt.connection import Connection as MqttConnection
from headrace.protocols.server import Server
from headrace.protocols.stomp.connection import Connection as StompConnection
from headrace.protocols.streams import frames
from headrace.protocols.streams.connection import Connection as StreamConnection
from headrace.wire.types import Described, ULong
from tests.amqp10_client import body, sender, transfer
from tests.amqp10_harness import Office, only
from tests.devices import Field, text, varint
from tests.stream_client import LOGIN
from tests.unit.protocols.amqp091.test_promises import _Client
from tests.wires import FakeWire

_MIB = 1 << 20
_PIECE = 100_000


class Party:
    """A connection that sends parts of a message, and no end of it."""

    def __init__(self, intake: Intake, begin: Callable[[int], None], lose: Callable[[], None]) -> None:
        self.intake = intake
        self.send = begin
        self.lose = lose


def _body(is_transaction: bool) -> Party:
    client = _Client()
    if is_transaction:
        client.say(commands.Tx.Select)
    publish = encode_method(1, commands.Basic.Publish, {"exchange": "", "routing_key": "q"})

    def send(size: int) -> None:
        content = encode_content(1, b"\0\0", bytes(size), 131072)
        client.connection.feed(publish + (content if is_transaction else content[:-_PIECE]))

    return Party(client.house.broker.intake, send, client.connection.lost)


def _delivery() -> Party:
    office = Office()
    caller = office.connect()
    caller.say(sender("s", "/queues/q"))

    def send(size: int) -> None:
        for _ in range(size // _PIECE):
            caller.say(transfer(0, bytes(_PIECE), more=True))

    return Party(office.house.broker.intake, send, caller.lose)


def _packet() -> Party:
    field = Field()
    device = field.device()

    def send(size: int) -> None:
        device.connection.feed(b"\x30" + varint(size + _PIECE) + text("t") + bytes(size))

    return Party(field.broker.intake, send, device.connection.lost)


def _transaction() -> Party:
    """A transaction of AMQP 1.0."""
    office = Office()
    caller = office.connect()
    control = sender("tx", "", 1)
    control.target = Coordinator([])
    caller.say(control, sender("s", "/queues/q"))
    (disposition,) = only(Disposition, caller.say(transfer(0, body(Described(ULong(DECLARE), [])), 1)))
    state = disposition.state
    assert isinstance(state, Declared)

    def send(size: int) -> None:
        for number in range(size // _PIECE):
            caller.say(transfer(number + 1, body(bytes(_PIECE)), state=Transactional(state.transaction)))

    return Party(office.house.broker.intake, send, caller.lose)


def _frame() -> Party:
    """A frame of STOMP."""
    field = Field()
    connection = StompConnection(Server(field.hosts, field.access, "test"), field.house.clock)
    connection.opened(cast("Wire", FakeWire()))
    connection.feed(b"CONNECT\naccept-version:1.2\nhost:/\n\n\0")
    field.run()

    def send(size: int) -> None:
        connection.feed(b"SEND\ndestination:/queue/q\ncontent-length:%d\n\n" % (2 * size))
        for _ in range(size // _PIECE):
            connection.feed(bytes(_PIECE))

    return Party(field.broker.intake, send, connection.lost)


def _stream_frames() -> Party:
    """Frames of the stream protocol, each of almost a mebibyte, on several connections."""
    field = Field()
    server = Server(field.hosts, field.access, "test")
    connections = [StreamConnection(server, field.house.clock) for _ in range(5)]
    for connection in connections:
        connection.opened(cast("Wire", FakeWire()))
        for each in LOGIN:
            connection.feed(each)
            field.run()

    def send(size: int) -> None:
        for connection in connections:
            part = size // len(connections)
            connection.feed(struct.pack(">IHH", _MIB, frames.PUBLISH, 1) + bytes(part))

    def lose() -> None:
        for connection in connections:
            connection.lost()

    return Party(field.broker.intake, send, lose)


def _websocket() -> Party:
    """A frame of WebSocket with a packet of MQTT in it."""
    field = Field()
    endpoint = Endpoint(lambda: MqttConnection(field.server), ["mqtt"], 32 * _MIB)
    socket, line = WebSocket({"/mqtt": endpoint}), FakeWire()
    line.write_between = lambda data: None  # type: ignore[attr-defined]
    line.enclose = lambda envelope: None  # type: ignore[attr-defined]
    line.is_established = True  # type: ignore[attr-defined]
    socket.opened(cast("Wire", line))
    socket.feed(
        b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )

    def send(size: int) -> None:
        socket.feed(b"\x82\xff" + (2 * size).to_bytes(8) + bytes(4))
        for _ in range(size // _PIECE):
            socket.feed(bytes(_PIECE))

    return Party(field.broker.intake, send, socket.lost)


def _request() -> Party:
    """The body of a request over HTTP."""
    field, loop = Field(), asyncio.new_event_loop()
    arrived: asyncio.Queue[dict[str, object]] = asyncio.Queue()
    call = Call(
        Request({"type": "http", "headers": []}, arrived.get),
        cast("Site", SimpleNamespace(hosts=field.hosts)),
        cast("Visitor", None),
    )

    async def read() -> None:
        try:
            with suppress(BadRequest):
                await call.body()
        finally:
            call.release()

    reading = loop.create_task(read())

    def send(size: int) -> None:
        for _ in range(size // _PIECE):
            arrived.put_nowait({"type": "http.request", "body": bytes(_PIECE), "more_body": True})
        while not arrived.empty():
            loop.run_until_complete(asyncio.sleep(0))

    def lose() -> None:
        arrived.put_nowait({"type": "http.disconnect"})
        loop.run_until_complete(reading)
        loop.close()

    return Party(field.broker.intake, send, lose)


_PARTIES = {
    "a body over HTTP": _request,
    "a transaction of AMQP 1.0": _transaction,
    "a frame of STOMP": _frame,
    "frames of streams": _stream_frames,
    "a frame of WebSocket": _websocket,
    "a body": lambda: _body(False),
    "a transaction": lambda: _body(True),
    "a delivery": _delivery,
    "a packet": _packet,
}


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("kind", _PARTIES)
def test_it_counts_while_it_is_held_and_is_freed_without_the_collector(kind: str) -> None:
    party = _PARTIES[kind]()
    before, _ = tracemalloc.get_traced_memory()

    party.send(4 * _MIB)
    held, _ = tracemalloc.get_traced_memory()
    assert 3 * _MIB < party.intake.size_bytes < 5 * _MIB
    assert held - before > 3 * _MIB

    party.lose()
    after, _ = tracemalloc.get_traced_memory()
    assert party.intake.size_bytes == 0
    assert after - before < _MIB // 4

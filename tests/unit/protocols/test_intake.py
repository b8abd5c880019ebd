"""Memory of incomplete messages is reported, and freed at once when the connection ends."""

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from pamqp import commands

from headrace.core.flow import Intake
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.methods import encode_method
from tests.amqp10_client import sender, transfer
from tests.amqp10_harness import Office
from tests.devices import Field, text, varint
from tests.unit.protocols.amqp091.test_promises import _Client

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


_PARTIES = {
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

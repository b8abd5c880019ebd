"""A power loss right after core or AMQP 0-9-1 confirmed a transaction: all of it is there.

Every protocol's confirmation waits for the sync: tests/integration/test_answers_are_synced.py.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from pamqp import commands

from headrace.core.queue.definition import declared
from headrace.core.queue.group import ACK
from headrace.core.transaction import Publish
from headrace.net.connection import Wire
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import encode_method
from headrace.protocols.amqp091.server import Server
from headrace.storage.local.engine import LocalEngine
from tests.disks import LosingDisk
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire


class Forgetful(random.Random):
    """Of what was not synced, nothing is left."""

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return a


class Place:
    """A broker over a disk that can lose power, with work held by a consumer."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._disk = LosingDisk()
        self.engine = LocalEngine(root / "live", disk=self._disk)
        self.house = House(self.engine)
        self.house.broker.declare(declared("in", durable=True))
        self.house.broker.declare(declared("out", durable=True))
        self.house.publish("in", "work")

    def after_power_loss(self) -> dict[str, list[bytes]]:
        """What the queues hold for a broker that starts over what is left now."""
        self._disk.lose_power(self._root / "live", self._root / "left", Forgetful())
        engine = LocalEngine(self._root / "left")
        broker = House(engine).broker
        found = {name: [message.payload for _, message in broker.queue(name).browse(0, 10)] for name in ("in", "out")}
        engine.close()
        return found


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.engine.close()


def test_a_confirmed_transaction_survives_a_power_loss(place: Place) -> None:
    house = place.house
    inbox = house.consume("in")
    left: list[dict[str, list[bytes]]] = []

    house.broker.transaction(
        [Publish(house.message("result", "out"))],
        [(inbox.got[0], ACK)],
        lambda error: left.append(place.after_power_loss()) if error is None else None,
    )
    house.run()

    assert left == [{"in": [], "out": [b"result"]}]


def test_tx_commit_ok_comes_when_the_transaction_would_survive_a_power_loss(place: Place) -> None:
    house = place.house
    line = FakeWire()
    connection = Connection(Server(*access_to(house.broker, clock=house.clock), "test"), house.clock)
    connection.opened(cast("Wire", line))
    start = {"mechanism": "PLAIN", "response": b"\0guest\0guest"}
    connection.feed(PROTOCOL_HEADER + encode_method(0, commands.Connection.StartOk, start))
    connection.feed(encode_method(0, commands.Connection.TuneOk))
    connection.feed(encode_method(0, commands.Connection.Open, {"virtual_host": "/"}))
    connection.feed(encode_method(1, commands.Channel.Open) + encode_method(1, commands.Tx.Select))
    connection.feed(encode_method(1, commands.Basic.Publish, {"exchange": "", "routing_key": "out"}))
    connection.feed(encode_content(1, b"\0\0", b"result", 4096))
    house.run()
    line.sent = []

    connection.feed(encode_method(1, commands.Tx.Commit))
    while not line.sent:
        house.turn()

    assert b"".join(line.sent) == encode_method(1, commands.Tx.CommitOk)
    assert place.after_power_loss()["out"] == [b"result"]

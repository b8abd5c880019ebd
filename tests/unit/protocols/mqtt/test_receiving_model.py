"""A session that comes and goes, against what MQTT promises of each of its messages.

Messages come in order, at QoS 1 at least once and at QoS 2 exactly once; never more than the Receive Maximum are out,
each with a packet identifier of its own.
"""

import random

import pytest

from tests.devices import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Device, Field, Packet

KEPT = 3600
STEPS = ("publish", "publish", "answer", "answer", "answer", "finish", "finish", "break", "hold")


class Reader:
    """One session that reads the topic `a`, and a publisher."""

    def __init__(self, seed: int, version: int, most: int, qos: int) -> None:
        self.chance = random.Random(seed)
        self.version, self.most, self.qos = version, most, qos
        self.field = Field()
        self.number = 0
        self.meant: dict[int, int] = {}
        """The QoS at which each confirmed message is to come."""
        self.first: list[int] = []
        """Messages in the order in which they came for the first time."""
        self.numbers: dict[int, int] = {}
        """The packet identifier of each message."""
        self.sent: set[int] = set()
        """Messages that came since the broker started."""
        self.out: dict[int, int] = {}
        """Messages to answer with PUBACK or PUBREC, by packet identifier."""
        self.received: dict[int, int] = {}
        """The same for messages that were answered with PUBREC and wait for PUBREL, or whose PUBCOMP is not sent."""
        self.released: set[int] = set()
        """Packet identifiers with a PUBREL that is not answered."""
        self.done: set[int] = set()
        """Messages at QoS 2 that will not come again, and those at QoS 1 while the broker runs."""
        self.connect_all()
        self.device.subscribe(("a", qos))
        self.look()

    def connect_all(self) -> None:
        self.publisher = self.field.device("publisher", self.version)
        self.connect()

    def connect(self) -> None:
        self.device = Device(self.field, self.version)
        said = {0x11: KEPT, 0x21: self.most} if self.version == 5 else None
        self.out.clear()
        self.released.clear()
        self.device.connect("reader", clean=False, said=said)
        for packet in self.device.more:
            self.hear(packet)
        self.look()

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        getattr(self, f"do_{self.chance.choice(STEPS)}")()
        self.look()

    def do_publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.number += 1
            qos = self.chance.choice([1, 2])
            number = self.publisher.publish("a", str(self.number), qos)
            answer = self.publisher.take_one(PUBACK if qos == 1 else PUBREC)
            assert (answer.number, answer.reason) == (number, 0)
            if qos == 2:
                self.publisher.answer(PUBREL, number)
                assert self.publisher.take_one(PUBCOMP).number == number
            self.meant[self.number] = min(qos, self.qos)

    def do_answer(self) -> None:
        """Acknowledge one message, in any order."""
        if self.out:
            number = self.chance.choice(list(self.out))
            message = self.out.pop(number)
            if self.meant[message] == 1:
                self.done.add(message)
                self.device.answer(PUBACK, number)
            else:
                self.received[number] = message
                self.device.answer(PUBREC, number)

    def do_finish(self) -> None:
        if self.released:
            number = self.chance.choice(sorted(self.released))
            self.released.remove(number)
            del self.received[number]
            self.device.answer(PUBCOMP, number)

    def do_break(self) -> None:
        """Lose the connection, or the whole broker."""
        if self.chance.random() < 0.3:
            self.field = self.field.restart()
            self.sent.clear()
            self.done = {message for message in self.done if self.meant[message] == 2}
            self.connect_all()
        elif self.chance.random() < 0.5:
            self.device.lose()
            if self.chance.random() < 0.5:
                self.do_publish()
            self.connect()

    def do_hold(self) -> None:
        """Be slow for a while."""
        self.device.connection.hold_output(True)
        self.do_publish()
        self.do_answer()
        self.look()
        self.device.connection.hold_output(False)

    # -- what came ---------------------------------------------------------------------------------------------------

    def look(self) -> None:
        self.field.run()
        for packet in self.device.take():
            self.hear(packet)
        assert not self.device.line.is_closed
        assert len(self.out) + len(self.received) <= self.most, "more is out than the client takes"

    def hear(self, packet: Packet) -> None:
        if packet.kind == PUBREL:
            assert packet.number in self.received
            self.released.add(packet.number)
            self.done.add(self.received[packet.number])
        if packet.kind != PUBLISH:
            return
        message = int(packet.payload)
        assert packet.qos == self.meant.get(message, packet.qos)
        assert packet.number not in self.out, "a packet identifier is in use"
        assert packet.number not in self.received, "a packet identifier is in use"
        assert message not in self.done, "a message came again"
        assert message not in self.out.values()
        assert packet.dup >= (message in self.sent), "a message that comes again says so"
        self.sent.add(message)
        assert self.numbers.setdefault(message, packet.number) == packet.number, "it keeps its packet identifier"
        if message not in self.first:
            assert message > max(self.first, default=0), "messages come in order"
            self.first.append(message)
        self.out[packet.number] = message

    def drain(self) -> None:
        """Answer everything; then everything has come, and the next start finds nothing."""
        for _ in range(3 * len(self.meant) + 3):
            self.do_answer()
            self.look()
            self.do_finish()
            self.look()
        assert self.first == sorted(self.meant)
        assert (self.out, self.received) == ({}, {})
        self.field.advance(2)
        self.field = self.field.restart()
        self.connect_all()
        assert (self.out, self.received) == ({}, {})


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize(("version", "most"), [(5, 1), (5, 3), (5, 20), (4, 65_535)])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_session_gets_every_message_as_its_qos_promises(version: int, most: int, qos: int, seed: int) -> None:
    reader = Reader(seed, version, most, qos)
    for _ in range(80):
        reader.step()
    reader.drain()

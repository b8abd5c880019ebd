"""A publisher that does not wait for answers: each message is answered once, in order, and enters its queue once."""

import random

import pytest

from headrace.core.queue.definition import REJECT_PUBLISH, QueueDefinition
from tests.devices import PUBACK, PUBCOMP, PUBREC, PUBREL, Device, Field
from tests.refusing_engine import RefusingEngine

FAILURE = 0x80


class Sender:
    """A client with messages on their way, over storage that takes its time."""

    def __init__(self, seed: int, version: int) -> None:
        self.chance = random.Random(seed)
        self.version = version
        self.engine = RefusingEngine()
        self.field = Field(self.engine)
        self.field.broker.declare(QueueDefinition("ok"))
        self.field.broker.declare(QueueDefinition("full", max_length=1, overflow=REJECT_PUBLISH))
        self.field.run()
        self.field.house.publish("full", "first")
        self.device = self.connect()
        self.choices = ["$queue/ok", "$queue/ok", "plain"]
        if version == 5:
            self.choices.append("$queue/full")  # MQTT 3.1.1 has no way to refuse a message but to end the connection
        self.number = 0
        self.sent: dict[int, list[int]] = {1: [], 2: []}
        """Packet identifiers that wait for PUBACK, and for PUBREC, in order."""
        self.topics: dict[int, str] = {}
        self.taken: list[int] = []
        """Packet identifiers whose PUBREL is to be sent."""
        self.repeated: list[int] = []
        """Packet identifiers of messages that were sent again: their PUBREC does not wait for others."""
        self.released: list[int] = []
        """Packet identifiers that wait for PUBCOMP."""
        self.stored: list[str] = []

    def connect(self) -> Device:
        return self.field.device("sender", self.version, clean=False, said={0x11: 3600} if self.version == 5 else None)

    def step(self) -> None:
        kind = self.chance.choice(["publish", "publish", "publish", "again", "release", "release", "door"])
        getattr(self, f"do_{kind}")()
        self.look()

    def do_publish(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.number += 1
            qos, topic = (
                self.chance.choice([1, 2]),
                self.chance.choice(self.choices),
            )
            self.topics[self.number] = topic
            self.sent[qos].append(self.number)
            if topic == "$queue/ok":
                self.stored.append(str(self.number))
            self.device.publish(topic, str(self.number), qos, number=self.number)

    def do_again(self) -> None:
        """Send a message at QoS 2 again that the broker has: it is answered again and enters no second time."""
        if self.taken:
            number = self.chance.choice(self.taken)
            self.taken.remove(number)
            self.repeated.append(number)
            self.device.publish(self.topics[number], str(number), 2, number=number, dup=True)

    def do_release(self) -> None:
        if self.taken:
            number = self.taken.pop(self.chance.randrange(len(self.taken)))
            self.released.append(number)
            self.device.answer(PUBREL, number)

    def do_door(self) -> None:
        if self.engine.is_closed_door:
            self.engine.open_door()
        else:
            self.engine.is_closed_door = True

    def look(self) -> None:
        self.field.run()
        for packet in self.device.take():
            if packet.kind == PUBCOMP:
                assert packet.reason == 0
                self.released.remove(packet.number)
                continue
            assert packet.kind in (PUBACK, PUBREC)
            if packet.kind == PUBREC and packet.number in self.repeated:
                self.repeated.remove(packet.number)
                self.taken.append(packet.number)
                continue
            waiting = self.sent[1 if packet.kind == PUBACK else 2]
            assert packet.number == waiting.pop(0), "answers come in the order of the messages"
            is_refused = self.topics[packet.number] == "$queue/full"
            assert (packet.reason >= FAILURE) == is_refused
            if packet.kind == PUBREC and not is_refused:
                self.taken.append(packet.number)

    def end(self) -> None:
        if self.engine.is_closed_door:
            self.engine.open_door()
        for _ in range(5):
            self.look()
        while self.taken:
            self.do_release()
            self.look()
        for _ in range(5):
            self.look()

        assert (self.sent, self.repeated, self.released) == ({1: [], 2: []}, [], [])
        found = self.field.broker.queue("ok").browse(0, 10_000)
        assert [message.payload.decode() for _, message in found] == self.stored


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("seed", range(4))
def test_each_message_is_answered_once_in_order_and_enters_its_queue_once(version: int, seed: int) -> None:
    sender = Sender(seed, version)
    for _ in range(60):
        sender.step()
    sender.end()

"""An AMQP 1.0 connection without a network: frames go in, events come out, the test moves the clock."""

from typing import TypeVar, cast

from headrace.core.queue.definition import QueueDefinition
from headrace.net.connection import Wire
from headrace.protocols.amqp10.codec import Decoder, Event, encode_frame
from headrace.protocols.amqp10.connection import Connection
from headrace.protocols.amqp10.frames import AMQP_HEADER
from headrace.protocols.amqp10.performatives import Begin, Open, Performative, Transfer
from headrace.protocols.amqp10.server import Server
from headrace.storage.api import Engine
from tests.endpoints import access_to
from tests.house import House
from tests.wires import FakeWire

E = TypeVar("E")


class Office:
    """A broker with the queue `q`, and connections to it."""

    def __init__(self, engine: Engine | None = None) -> None:
        self.house = House(engine)
        self.house.broker.declare(QueueDefinition("q"))
        hosts, self.access = access_to(self.house.broker, clock=self.house.clock)
        self.server = Server(hosts, self.access, self.house.clock, "test")

    def connect(self, container_id: str = "client") -> "Caller":
        return Caller(self, container_id)


class Caller:
    """One connection with one session."""

    def __init__(self, office: Office, container_id: str) -> None:
        self._office = office
        self._connection = Connection(office.server, office.house.clock)
        self._wire = FakeWire()
        self._decoder = Decoder()
        self._connection.opened(cast("Wire", self._wire))
        self._connection.feed(AMQP_HEADER)
        self.say(Open(container_id), Begin(None, 0, 1000, 1000))

    def say(self, *performatives: Performative) -> list[Event]:
        """Send performatives, and return the answers."""
        for performative in performatives:
            payload = performative.payload if isinstance(performative, Transfer) else b""
            self._connection.feed(encode_frame(performative.channel, performative.encode(), payload))
            self._office.house.run()
            self._wire.flush()
        return self.heard()

    def say_at_once(self, *performatives: Performative) -> list[Event]:
        """Send performatives as one read brings them, and return the answers."""
        frames: list[bytes] = []
        for performative in performatives:
            payload = performative.payload if isinstance(performative, Transfer) else b""
            frames.append(encode_frame(performative.channel, performative.encode(), payload))
        self._connection.feed(b"".join(frames))
        return self.heard()

    def heard(self) -> list[Event]:
        """Return the events since the last call."""
        self._office.house.run()
        self._wire.flush()
        sent, self._wire.sent = self._wire.sent, []
        return self._decoder.feed(b"".join(sent))

    def break_off(self) -> None:
        """Break the connection without another turn of the broker."""
        self._connection.lost()

    def lose(self) -> None:
        """Break the connection, and let the broker work."""
        self.break_off()
        self._office.house.run()


def only(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]

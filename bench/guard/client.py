"""A client of AMQP 0-9-1 without a network: what it sends is fed to a connection as a socket would. No counts."""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar, cast

from pamqp import base, commands, common, frame

from headrace.clock import ManualClock
from headrace.config.settings import Settings
from headrace.core.access.access import Access
from headrace.core.access.logins import Background
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.queue.definition import declared
from headrace.net.connection import OUTPUT_HIGH_BYTES, Wire
from headrace.net.handler import Handler
from headrace.net.output import Output
from headrace.protocols import Backend, Protocols
from headrace.protocols.amqp091.codec import encode_content
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.frames import BASIC_ACK, BASIC_PUBLISH, FRAME_MAX_SIZE, METHOD, PROTOCOL_HEADER
from headrace.protocols.amqp091.server import Server
from headrace.storage.api import Engine

PERSISTENT: Final = b"\x10\x00\x02"  # property flags with delivery-mode alone, and its value
Result = TypeVar("Result")


def method_frame(payload: bytes) -> bytes:
    return bytes((METHOD, 0, 1)) + len(payload).to_bytes(4) + payload + b"\xce"


def publish_frames(key: str, payload: bytes, exchange: str = "", properties: bytes = PERSISTENT) -> bytes:
    """A persistent message to a queue, or with this key to an exchange, as it is sent on channel 1."""
    names = b"".join([bytes((len(name),)) + name for name in (exchange.encode(), key.encode())])
    method = BASIC_PUBLISH.to_bytes(4) + b"\0\0" + names + b"\0"
    return method_frame(method) + encode_content(1, properties, payload, FRAME_MAX_SIZE)


def ack_frame(tag: int, is_multiple: bool) -> bytes:
    return method_frame(BASIC_ACK.to_bytes(4) + tag.to_bytes(8) + bytes((is_multiple,)))


class _Here(Background):
    """Background work that is done at once."""

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        done(work())

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        raise AssertionError("a login was refused")


class Pipe:
    """Stands where a connection's socket is: keeps what is sent, and calls back at the end of a turn."""

    certificate_name = ""
    address = "127.0.0.1"
    peer = "127.0.0.1:1"
    is_loopback = True
    is_closing = False

    def __init__(self, soon: list[Callable[[], None]]) -> None:
        self._soon = soon
        self.output = Output(OUTPUT_HIGH_BYTES, lambda: None, lambda: None)
        self.hand_over: Callable[[Handler], None] = lambda handler: None

    def send(self, data: bytes) -> None:
        self.output.send(data)

    def withhold(self, more_bytes: int) -> None:
        return

    def before_flush(self, call: Callable[[], None]) -> None:
        self._soon.append(call)

    def keep_alive(self, interval_seconds: float, silence_seconds: float = 0) -> None:
        return

    def watch(self, seconds: float, silent: Callable[[], None]) -> None:
        return

    def pause_reading(self, why: int) -> None:
        return

    def resume_reading(self, why: int) -> None:
        return


class House:
    """A broker with everything that a connection asks for; `turn` lets happen what was started."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.clock = ManualClock()
        self.soon: list[Callable[[], None]] = []
        self._hosts = hosts = Hosts(engine, lambda name, _: Broker(engine, self.clock, self.soon.append, name))
        access = Access(engine, self.clock, _Here(), hosts)
        self.handler = Protocols(Backend(hosts, access, self.clock, Settings())).handler
        self.server = Server(hosts, access, "guard")

    def declare(self, queue: str) -> None:
        broker = self._hosts.find("/")
        assert broker is not None
        broker.declare(declared(queue, durable=True))

    def turn(self) -> None:
        while self.soon:
            soon, self.soon[:] = list(self.soon), []
            for call in soon:
                call()
            self._engine.sync()


class Peer:
    """A connection of any protocol, which is given what the test made of bytes."""

    def __init__(self, house: House, listener: str) -> None:
        self._house = house
        self._pipe = Pipe(house.soon)
        self._pipe.hand_over = self._hand_over
        self._handler = house.handler(listener)
        self._handler.opened(cast("Wire", self._pipe))

    def _hand_over(self, handler: Handler) -> None:
        self._handler = handler

    def give(self, data: bytes) -> None:
        """Have the broker read this; what follows happens with the next turn."""
        self._handler.feed(data)

    def feed(self, data: bytes) -> None:
        """Have the broker read this, and do all that follows from it."""
        self._handler.feed(data)
        self._house.turn()

    def take(self) -> bytes:
        """Return the bytes that the broker sent since the last look."""
        return self._pipe.output.take()


class Client:
    """A connection that is open, with channel 1, confirms on it and room for many deliveries."""

    def __init__(self, house: House, prefetch: int) -> None:
        self.delivered = 0
        """The last delivery tag, where a scenario counts deliveries."""
        self._house = house
        self._pipe = Pipe(house.soon)
        self._connection = Connection(house.server, house.clock)
        self._connection.opened(cast("Wire", self._pipe))
        self.feed(PROTOCOL_HEADER)
        self.call(commands.Connection.StartOk({}, "PLAIN", "\0guest\0guest", "en_US"), 0)
        self.call(commands.Connection.TuneOk(0, FRAME_MAX_SIZE, 0), 0)
        self.call(commands.Connection.Open("/"), 0)
        self.call(commands.Channel.Open())
        self.call(commands.Confirm.Select())
        self.call(commands.Basic.Qos(prefetch_count=prefetch))

    def call(self, command: base.Frame, channel: int = 1) -> None:
        self.feed(frame.marshal(command, channel))

    def call_all(self, asked: Sequence[base.Frame]) -> None:
        self.feed(b"".join([frame.marshal(command, 1) for command in asked]))

    def declare(self, queue: str, kind: str, arguments: common.FieldTable | None = None) -> None:
        given: common.FieldTable = {"x-queue-type": kind, **(arguments or {})}
        self.call(commands.Queue.Declare(queue=queue, durable=True, arguments=given))

    def consume_all(self, queues: list[str]) -> None:
        """Declare many queues and consume them, all at once."""
        asked: list[base.Frame] = []
        for queue in queues:
            asked.append(commands.Queue.Declare(queue=queue, durable=True))
            asked.append(commands.Basic.Consume(queue=queue, consumer_tag=queue))
        self.call_all(asked)

    def feed(self, data: bytes) -> None:
        """Have the broker read this, and do all that follows from it."""
        self._connection.feed(data)
        self._house.turn()

    def take(self) -> bytes:
        """Return the bytes that the broker sent since the last look."""
        return self._pipe.output.take()

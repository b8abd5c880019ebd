"""A client that sends single frames and shows the answers, for tests of frames that no library sends."""

import socket
import time
from typing import TypeVar

from headrace.protocols.amqp10.codec import Decoder, Event, Hello, encode_frame
from headrace.protocols.amqp10.frames import AMQP_HEADER
from headrace.protocols.amqp10.performatives import Attach, Begin, Flow, Open, Performative, Source, Target, Transfer
from headrace.wire.amqp10_values import encode_value

_SECONDS = 60.0
E = TypeVar("E")


def body(value: object) -> bytes:
    """Return a message with this value for a body."""
    return b"\x00\x53\x77" + encode_value(value)


class RawClient:
    """One connection, without SASL."""

    def __init__(self, port: int, container_id: str = "raw", **options: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _SECONDS)
        self._decoder = Decoder()
        self._events: list[Event] = []
        self.heartbeats = 0
        opening = Open(container_id)
        for name, value in options.items():
            setattr(opening, name, value)
        self._socket.sendall(AMQP_HEADER)
        assert isinstance(self.next(), Hello)
        self.send(opening)
        self.expect(Open)

    def send(self, *performatives: Performative) -> None:
        for performative in performatives:
            payload = performative.payload if isinstance(performative, Transfer) else b""
            self._socket.sendall(encode_frame(performative.channel, performative.encode(), payload))

    def begin(self, channel: int = 0, incoming_window: int = 1000) -> None:
        begin = Begin(None, 0, incoming_window, 1000)
        begin.channel = channel
        self.send(begin)
        self.expect(Begin)

    def next(self, seconds: float = _SECONDS) -> Event:
        """Return the next event. Raises TimeoutError, or ConnectionError at the end of the connection."""
        deadline = time.monotonic() + seconds
        while not self._events:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionError("closed")
            self.heartbeats += data.count(b"\x00\x00\x00\x08\x02\x00\x00\x00")
            self._events += self._decoder.feed(data)
        return self._events.pop(0)

    def expect(self, kind: type[E], seconds: float = _SECONDS) -> E:
        """Return the next event of this kind. Events of other kinds are skipped."""
        while True:
            event = self.next(seconds)
            if isinstance(event, kind):
                return event

    def all_of(self, kind: type[E], count: int) -> list[E]:
        """Return `count` events of this kind, and more if they follow at once."""
        found: list[E] = []
        while True:
            try:
                event = self.next(_SECONDS if len(found) < count else 0.3)
            except TimeoutError:
                return found
            if isinstance(event, kind):
                found.append(event)

    def close(self) -> None:
        self._socket.close()


def receiver(name: str, address: str, handle: int = 0) -> Attach:
    """Return an attach of a receiver."""
    attach = Attach(name, handle, True)
    attach.source = Source(address)
    attach.target = Target("here")
    return attach


def sender(name: str, address: str, handle: int = 0) -> Attach:
    """Return an attach of a sender."""
    attach = Attach(name, handle, False)
    attach.source = Source("here")
    attach.target = Target(address)
    return attach


def credit(handle: int, count: int, **options: int) -> Flow:
    """Return a flow that gives credit from the first delivery on."""
    flow = Flow()
    flow.next_incoming_id = 0
    flow.incoming_window = 1000
    flow.outgoing_window = 1000
    flow.handle = handle
    flow.delivery_count = 0
    flow.link_credit = count
    for name, value in options.items():
        setattr(flow, name, value)
    return flow


def transfer(number: int, message: bytes, handle: int = 0, **options: object) -> Transfer:
    """Return one piece of a delivery."""
    piece = Transfer(0, handle)
    piece.id = number
    piece.tag = b"%d" % number
    piece.settled = False
    piece.payload = message
    for name, value in options.items():
        setattr(piece, name, value)
    return piece

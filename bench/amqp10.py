"""How fast AMQP 1.0 clients send to and receive from a durable queue, on any broker that speaks it.

    python bench/amqp10.py 127.0.0.1:5672 --messages 200000 --pid 4242
    python bench/amqp10.py 127.0.0.1:5672 --address /amq/queue/bench      # the form that RabbitMQ's plugin knows

The queue must be there. Sends are unsettled: a message counts once the broker has said what became of it. The bytes
are made here, not by a client library, whose cost would be most of what is measured. With --pid, the processor time
of that process per message is told too; it depends less on what else the machine does.
"""

import argparse
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Final

from headrace.protocols.amqp10.codec import Decoder, encode_accepted, encode_frame, encode_sasl
from headrace.protocols.amqp10.frames import AMQP_HEADER, SASL_HEADER
from headrace.protocols.amqp10.performatives import Attach, Begin, Close, Disposition, Flow, Open, SaslInit, Transfer
from headrace.protocols.amqp10.reading import Reader
from headrace.protocols.amqp10.states import Accepted
from headrace.protocols.amqp10.termini import Source, Target

_TRANSFER: Final = struct.Struct(">IBBH4sBBBBIBBIBB")
_SERIAL: Final = 0xFFFFFFFF
_AT_ONCE: Final = 256
_CREDIT: Final = 1000
_ACCEPT_EVERY: Final = 100


class Client:
    """One connection with one session."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), 30)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = Decoder()
        self._log_in()
        self._socket.sendall(AMQP_HEADER)
        opening = Open("bench", "localhost")
        opening.max_frame_size = 65536
        self.send(opening.encode())
        self.wait_for(Open)
        self.send(Begin(None, 0, 0x7FFFFFF, 0x7FFFFFF).encode())
        begin = self.wait_for(Begin)
        assert isinstance(begin, Begin)
        self.window = begin.incoming_window
        self.sent = 0

    def _log_in(self) -> None:
        self._socket.sendall(SASL_HEADER)
        self._exactly(8)
        self._raw_frame()
        self._socket.sendall(encode_sasl(SaslInit("PLAIN", b"\0guest\0guest").encode()))
        outcome = Reader(self._raw_frame(), 4)
        outcome.descriptor()
        assert outcome.fields()[0] == 0, "the login as guest is refused"

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self._socket.recv(size - len(data))
        return data

    def _raw_frame(self) -> bytes:
        size = int.from_bytes(self._exactly(4))
        return self._exactly(size - 4)

    def send(self, performative: bytes) -> None:
        self._socket.sendall(encode_frame(0, performative))

    def send_raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def events(self) -> list[object]:
        """What comes next; waits for it."""
        data = self._socket.recv(262144)
        if not data:
            raise ConnectionError("the broker closed the connection")
        found: list[object] = list(self._decoder.feed(data))
        for event in found:
            if isinstance(event, Close):
                raise ConnectionError(f"the broker closes the connection: {event.error}")
        return found

    def wait_for(self, kind: type) -> object:
        while True:
            for event in self.events():
                if isinstance(event, kind):
                    return event

    def close(self) -> None:
        self.send(Close().encode())
        self._socket.close()


def _frames(first: int, count: int, message: bytes) -> bytes:
    """The transfers of so many deliveries; their tags are their numbers."""
    size = _TRANSFER.size + len(message)
    pack = _TRANSFER.pack
    head = (size, 2, 0, 0, b"\x00\x53\x14\xc0", 15, 5, 0x43, 0x70)
    parts = [pack(*head, number, 0xA0, 4, number, 0x43, 0x42) + message for number in range(first, first + count)]
    return b"".join(parts)


def send(client: Client, address: str, messages: int, size: int) -> float:
    """Send so many messages and wait until all are accepted; returns the seconds that took."""
    attach = Attach("bench-sender", 0, False)
    attach.sender_settles = 0
    attach.source, attach.target = Source("bench"), Target(address)
    client.send(attach.encode())
    message = b"\x00\x53\x70\xc0\x02\x01\x41" + b"\x00\x53\x75" + b"\xb0" + size.to_bytes(4) + b"x" * size
    sent = settled = 0
    credit_to = window_to = 0
    started = 0.0
    while settled < messages:
        room = min(credit_to, window_to, messages) - sent
        if room > 0:
            started = started or time.perf_counter()
            count = min(room, _AT_ONCE)
            client.send_raw(_frames(sent, count, message))
            sent += count
            if room > count and sent % (8 * _AT_ONCE):
                continue
        for event in client.events() if settled < sent or room <= 0 else []:
            if isinstance(event, Flow):
                window_to = (event.next_incoming_id or 0) + event.incoming_window
                if event.handle is not None:
                    credit_to = (event.delivery_count or 0) + (event.link_credit or 0)
            elif isinstance(event, Disposition):
                assert isinstance(event.state, Accepted), "a message was not accepted"
                settled += event.last - event.first + 1
        window_to = window_to or client.window
    return time.perf_counter() - started


def receive(client: Client, address: str, messages: int) -> float:
    """Receive so many messages, accepting a hundred at a time; returns the seconds that took."""
    attach = Attach("bench-receiver", 1, True)
    attach.source, attach.target = Source(address), Target("bench")
    client.send(attach.encode())
    started = time.perf_counter()
    received = granted = accepted = 0
    while received < messages:
        if granted - received <= _CREDIT // 2:
            granted = received + _CREDIT
            client.send(_credit(received, _CREDIT).encode())
        for event in client.events():
            if isinstance(event, Transfer) and not event.more:
                received += 1
        while received - accepted >= _ACCEPT_EVERY or (received >= messages and accepted < received):
            last = min(accepted + _ACCEPT_EVERY, received)
            client.send_raw(encode_accepted(0, True, accepted, last - 1, True))
            accepted = last
    return time.perf_counter() - started


def _credit(received: int, count: int) -> Flow:
    flow = Flow()
    flow.next_incoming_id = received
    flow.incoming_window = 0x7FFFFFF
    flow.outgoing_window = 0x7FFFFFF
    flow.handle = 1
    flow.delivery_count = received
    flow.link_credit = count
    return flow


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _told(what: str, messages: int, seconds: float, spent: float) -> None:
    processor = f", {spent / messages * 1e6:6.1f} us of the broker each" if spent else ""
    print(f"{what:8} {messages:9,} messages in {seconds:7.2f} s: {messages / seconds:9,.0f}/s{processor}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("broker", help="host:port")
    parser.add_argument("--address", default="/queues/bench")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--pid", type=int, default=0, help="the broker's process, for its processor time")
    options = parser.parse_args()
    host, _, port = options.broker.rpartition(":")
    client = Client(host, int(port))
    for what in ("send", "receive"):
        before = _processor_seconds(options.pid) if options.pid else 0.0
        if what == "send":
            seconds = send(client, options.address, options.messages, options.size)
        else:
            seconds = receive(client, options.address, options.messages)
        spent = _processor_seconds(options.pid) - before if options.pid else 0.0
        _told(what, options.messages, seconds, spent)
    client.close()


if __name__ == "__main__":
    main()

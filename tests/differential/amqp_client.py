"""A client of AMQP 0-9-1 that shows every frame it gets. It hides nothing, repairs nothing and checks nothing."""

import select
import socket
import struct
import time
from typing import Final

from pamqp import commands

from headrace.protocols.amqp091.frames import BODY, FRAME_END, HEADER, METHOD, PROTOCOL_HEADER
from headrace.protocols.amqp091.methods import decode_method, encode_method
from headrace.wire.amqp091 import decode_properties, encode_properties
from headrace.wire.properties import Properties

DEADLINE_SECONDS: Final = 60.0
_HEAD: Final = struct.Struct(">BHI")
_CONTENT: Final = struct.Struct(">HHQ")
_END: Final = bytes([FRAME_END])


class Frame:
    """A method from the broker, with its content if it has one."""

    def __init__(self, channel: int, method: object) -> None:
        self.channel = channel
        self.method = method
        self.name: str = method.name  # type: ignore[attr-defined]
        self.is_taken = False
        """True once somebody waited for it."""
        self.is_hidden = False
        """True if it is no part of what is compared."""
        self.size = -1
        self.properties = Properties()
        self.body = b""

    @property
    def is_whole(self) -> bool:
        """True once the content is here, if one follows."""
        return self.name not in CONTENT or len(self.body) == self.size


CONTENT: Final = frozenset({"Basic.Deliver", "Basic.GetOk", "Basic.Return"})


class Gone(Exception):
    """The broker closed the connection, with or without a method."""


class AmqpClient:
    """One connection. Frames stay in `frames`, in their order, until `take`."""

    def __init__(self, port: int, host: str = "/") -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self._open: dict[int, Frame] = {}
        self.frames: list[Frame] = []
        self.is_gone = False
        self._socket.sendall(PROTOCOL_HEADER)
        self.wait(0, "Connection.Start")
        capabilities = dict.fromkeys(("consumer_cancel_notify", "basic.nack", "publisher_confirms"), True)
        self.send(
            0,
            commands.Connection.StartOk,
            client_properties={"capabilities": capabilities},
            mechanism="PLAIN",
            response=b"\0guest\0guest",
            locale="en_US",
        )
        self.wait(0, "Connection.Tune")
        self.send(0, commands.Connection.TuneOk, channel_max=2047, frame_max=131072, heartbeat=0)
        self.send(0, commands.Connection.Open, virtual_host=host)
        self.wait(0, "Connection.OpenOk")
        self.take()

    def send(self, channel: int, kind: type, **fields: object) -> None:
        """Send a method."""
        self.send_raw(encode_method(channel, kind, fields))

    def publish(self, channel: int, properties: Properties, body: bytes, **fields: object) -> None:
        """Send basic.publish with its content."""
        encoded = encode_properties(properties)
        head = _CONTENT.pack(60, 0, len(body)) + encoded
        parts = [
            encode_method(channel, commands.Basic.Publish, fields),
            _HEAD.pack(HEADER, channel, len(head)) + head + _END,
        ]
        parts += [
            _HEAD.pack(BODY, channel, len(piece)) + piece + _END
            for piece in (body[at : at + 100_000] for at in range(0, len(body), 100_000))
        ]
        self.send_raw(b"".join(parts))

    def send_raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_gone = True

    def wait(self, channel: int, *names: str) -> Frame:
        """Return the next whole frame of the channel with one of the names. Raises Gone when none can come."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            for frame in self.frames:
                is_meant = (frame.channel == channel and frame.name in names) or frame.name == "Connection.Close"
                if is_meant and frame.is_whole and not frame.is_taken:
                    frame.is_taken = True
                    if frame.name == "Connection.Close" and channel:
                        self.is_gone = True
                        raise Gone
                    return frame
            if self.is_gone:
                raise Gone
            left = deadline - time.monotonic()
            assert left > 0, f"nothing of {names} came on channel {channel}"
            self._read(left)

    def take(self) -> list[Frame]:
        """Take all whole frames that came so far."""
        found = [frame for frame in self.frames if frame.is_whole]
        self.frames = [frame for frame in self.frames if not frame.is_whole]
        return found

    def close(self) -> None:
        self._socket.close()
        self.is_gone = True

    def _read(self, seconds: float) -> None:
        ready, _, _ = select.select([self._socket], [], [], seconds)
        if not ready:
            return
        try:
            data = self._socket.recv(1 << 18)
        except OSError:
            data = b""
        if not data:
            self.is_gone = True
            return
        data = self._rest + data
        at = 0
        while len(data) - at >= 8:
            kind, channel, size = _HEAD.unpack_from(data, at)
            if len(data) - at < 8 + size:
                break
            assert data[at + 7 + size] == FRAME_END
            self._frame(kind, channel, data[at + 7 : at + 7 + size])
            at += 8 + size
        self._rest = data[at:]

    def _frame(self, kind: int, channel: int, payload: bytes) -> None:
        if kind == METHOD:
            frame = Frame(channel, decode_method(payload))
            if frame.name in CONTENT:
                assert channel not in self._open, "a method came in the middle of a content"
                self._open[channel] = frame
            self.frames.append(frame)
            if frame.name == "Connection.Close":
                self.send(0, commands.Connection.CloseOk)
            elif frame.name == "Channel.Close":
                self.send(channel, commands.Channel.CloseOk)
            return
        if kind == HEADER:
            frame = self._open[channel]
            frame.size = _CONTENT.unpack_from(payload)[2]
            frame.properties = decode_properties(payload[12:])
        elif kind == BODY:
            frame = self._open[channel]
            frame.body += payload
        else:
            return
        if frame.is_whole:
            del self._open[channel]

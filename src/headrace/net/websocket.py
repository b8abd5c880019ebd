"""A WebSocket as a connection for a protocol's handler, which its path chooses. No broker, no protocols.

`websockets` does the handshake, the frames and the closing, without its sockets. Message boundaries mean nothing here:
the handler gets the data of each frame as it comes, and the output of each turn is one binary message.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, final
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from headrace.net.connection import Wire
from headrace.net.facts import ConnectionFacts
from headrace.net.handler import Envelope, Handler

_log: Final = logging.getLogger("headrace.net.websocket")
_log.setLevel(logging.WARNING)  # the library logs every handshake at INFO
STRANGER_FRAME_BYTES: Final = 1 << 20
"""Largest frame before the login."""
_LOCAL_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_HEAD_END: Final = b"\r\n\r\n"
_SHORT: Final = 126
_LONG: Final = 127
_DATA: Final = (Opcode.BINARY, Opcode.TEXT, Opcode.CONT)


@final
class _Frames(Envelope):
    """Output as binary messages. A server does not mask, so a frame is a head and the data: 0.2 us a turn."""

    def wrap(self, data: bytes) -> bytes:
        size = len(data)
        if size < _SHORT:
            return bytes((0x82, size)) + data
        if size < 1 << 16:
            return bytes((0x82, _SHORT)) + size.to_bytes(2) + data
        return bytes((0x82, _LONG)) + size.to_bytes(8) + data

    def goodbye(self) -> bytes:
        return Frame(Opcode.CLOSE, CloseCode.NORMAL_CLOSURE.to_bytes(2)).serialize(mask=False)


@final
class Endpoint:
    """A protocol behind a path."""

    def __init__(
        self, make: Callable[[], Handler], subprotocols: Sequence[str], max_frame_bytes: int, takes_text: bool = False
    ) -> None:
        self.make = make
        """Makes the handler of a connection."""
        self.subprotocols = subprotocols
        self.max_frame_bytes = max_frame_bytes
        self.takes_text = takes_text
        """True if text messages count as their bytes; otherwise only binary ones are understood."""


@final
class WebSocket(Handler):
    """One WebSocket, with the handler of the protocol inside."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        self._endpoints = endpoints
        """By path."""
        self._endpoint: Endpoint | None = None
        """None until the handshake."""
        self._handler: Handler | None = None
        self._protocol = ServerProtocol(max_size=(None, STRANGER_FRAME_BYTES), logger=_log)
        self._wire: Wire | None = None
        self._tail = b""
        """Last bytes of the handshake so far; its end may lie between two segments."""

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        if self._handler is None:
            data = self._hear_head(wire, data)
        if self._handler is not None and data:
            self._hear(wire, data)
            self._handler.buffered(len(self._protocol.reader.buffer))

    def _hear_head(self, wire: Wire, data: bytes) -> bytes:
        """Take bytes up to the end of the handshake; returns the rest.

        Frames in the same segment must wait for the answer to the handshake.
        """
        seen = self._tail + data
        end = seen.find(_HEAD_END)
        self._tail = seen[-len(_HEAD_END) + 1 :]
        cut = len(data) if end < 0 else end + len(_HEAD_END) - len(seen) + len(data)
        self._hear(wire, data[:cut])
        return data[cut:]

    def _hear(self, wire: Wire, data: bytes) -> None:
        protocol = self._protocol
        if self._endpoint is not None:
            most_bytes = self._endpoint.max_frame_bytes
            protocol.max_fragment_size = most_bytes if wire.is_established else min(STRANGER_FRAME_BYTES, most_bytes)
        protocol.receive_data(data)
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(wire, event)
            elif isinstance(event, Frame) and not wire.is_closing:
                self._take(event)
        for output in protocol.data_to_send():
            wire.write_between(output)
        if protocol.close_expected():
            wire.end()

    def _answer(self, wire: Wire, request: Request) -> None:
        """Accept or reject a handshake."""
        protocol = self._protocol
        path = request.path.partition("?")[0]
        endpoint = self._endpoints.get(path)
        if endpoint is not None:
            protocol.available_subprotocols = [Subprotocol(name) for name in endpoint.subprotocols]
            response = protocol.accept(request)
        else:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"There is no WebSocket at {path}.\n")
        protocol.send_response(response)
        if endpoint is None or response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return
        for output in protocol.data_to_send():
            wire.write_between(output)
        wire.enclose(_Frames())
        if not _is_from_here(request.headers.get("Origin", "")):
            wire.is_loopback = False  # a foreign page in a local browser counts as remote
        self._endpoint = endpoint
        self._handler = endpoint.make()
        self._handler.opened(wire)

    def _take(self, frame: Frame) -> None:
        handler, endpoint = self._handler, self._endpoint
        if handler is None or endpoint is None:
            return
        if frame.opcode is Opcode.TEXT and not endpoint.takes_text:  # MQTT 5 [MQTT-6.0.0-1]
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "only binary messages are understood here")
        elif frame.opcode in _DATA and frame.data:
            handler.feed(bytes(frame.data))

    def facts(self) -> ConnectionFacts | None:
        return None if self._handler is None else self._handler.facts()

    def hold_output(self, is_held: bool) -> None:
        if self._handler is not None:
            self._handler.hold_output(is_held)

    def beat(self) -> None:
        if self._handler is not None:
            self._handler.beat()

    def stop(self) -> None:
        if self._handler is not None:
            self._handler.stop()
        elif self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None
        self._protocol.reader.buffer.clear()
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.lost()


def _is_from_here(origin: str) -> bool:
    """True for pages of this machine and for programs, which name no origin."""
    try:
        return not origin or urlsplit(origin).hostname in _LOCAL_NAMES
    except ValueError:
        return False

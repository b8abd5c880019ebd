"""A WebSocket as a connection for a protocol's handler. No broker, no MQTT.

`websockets` does the handshake, the frames and the closing, without its sockets. Message boundaries mean nothing here:
the handler gets the data of each frame as it comes, and the output of each turn is one binary message.
"""

import logging
from collections.abc import Collection, Sequence
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
class WebSocket(Handler):
    """One WebSocket, with the handler of the protocol inside."""

    def __init__(
        self, handler: Handler, subprotocols: Sequence[str], paths: Collection[str], max_frame_bytes: int
    ) -> None:
        self._handler = handler
        self._paths = paths
        self._max_frame_bytes = max_frame_bytes
        self._protocol = ServerProtocol(
            subprotocols=[Subprotocol(name) for name in subprotocols],
            max_size=(None, min(STRANGER_FRAME_BYTES, max_frame_bytes)),
            logger=_log,
        )
        self._wire: Wire | None = None
        self._tail = b""
        """Last bytes of the handshake so far; its end may lie between two segments."""
        self._is_open = False

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        wire = self._wire
        if wire is None:
            return
        if not self._is_open:
            data = self._hear_head(wire, data)
        if self._is_open and data:
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
        if wire.is_established:
            protocol.max_fragment_size = self._max_frame_bytes
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
        if path in self._paths:
            response = protocol.accept(request)
        else:
            response = protocol.reject(HTTPStatus.NOT_FOUND, f"There is no WebSocket at {path}.\n")
        protocol.send_response(response)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            return
        for output in protocol.data_to_send():
            wire.write_between(output)
        wire.enclose(_Frames())
        if not _is_from_here(request.headers.get("Origin", "")):
            wire.is_loopback = False  # a foreign page in a local browser counts as remote
        self._is_open = True
        self._handler.opened(wire)

    def _take(self, frame: Frame) -> None:
        if frame.opcode is Opcode.BINARY or frame.opcode is Opcode.CONT:
            if frame.data:
                self._handler.feed(bytes(frame.data))
        elif frame.opcode is Opcode.TEXT:  # MQTT 5 [MQTT-6.0.0-1]
            self._protocol.fail(CloseCode.UNSUPPORTED_DATA, "only binary messages are understood here")

    def facts(self) -> ConnectionFacts | None:
        return self._handler.facts()

    def hold_output(self, is_held: bool) -> None:
        if self._is_open:
            self._handler.hold_output(is_held)

    def beat(self) -> None:
        if self._is_open:
            self._handler.beat()

    def stop(self) -> None:
        if self._is_open:
            self._handler.stop()
        elif self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None
        self._protocol.reader.buffer.clear()
        if self._is_open:
            self._is_open = False
            self._handler.lost()


def _is_from_here(origin: str) -> bool:
    """True for pages of this machine and for programs, which name no origin."""
    try:
        return not origin or urlsplit(origin).hostname in _LOCAL_NAMES
    except ValueError:
        return False

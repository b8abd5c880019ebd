"""Requests of CoAP as bytes, and a device that sends them; for tests of what no library would send, too."""

import socket
from collections.abc import Sequence
from typing import Final, final

from headrace.protocols.coap import codec

_LOGIN: Final = ("username=guest", "password=guest")
_URI_PATH: Final = 11
_URI_QUERY: Final = 15
_BLOCK1: Final = 27
_CONFIRMABLE_POST: Final = b"\x40\x02"
_AGAIN_SECONDS: Final = 5.0
_TIMES: Final = 6


def post(
    message_id: int, path: Sequence[str], payload: bytes, query: Sequence[str] = (), block: bytes | None = None
) -> bytes:
    """A confirmable POST of guest's; `block` is the value of Block1."""
    options = [(_URI_PATH, part.encode()) for part in path]
    options += [(_URI_QUERY, part.encode()) for part in (*_LOGIN, *query)]
    options += [(_BLOCK1, block)] if block is not None else []
    encoded, last = b"", 0
    for number, value in options:
        encoded += _option(number - last, value)
        last = number
    return _CONFIRMABLE_POST + message_id.to_bytes(2) + encoded + b"\xff" + payload


def _option(delta: int, value: bytes) -> bytes:
    length = len(value)
    more = b""
    if length > 12:
        length, more = 13, bytes([length - 13])
    return bytes([min(delta, 13) << 4 | length]) + (bytes([delta - 13]) if delta > 12 else b"") + more + value


@final
class Device:
    """A client that publishes one message after the other, each as often as it takes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", port))
        self._socket.settimeout(_AGAIN_SECONDS)
        self._message_id = 0

    def publish(self, queue: str, key: str, payload: bytes) -> None:
        """Publish to a queue; returns when the answer says that it is stored. Raises OSError when none comes."""
        self._message_id += 1
        request = post(self._message_id & 0xFFFF, ["$queue", queue, key], payload)
        for _ in range(_TIMES):
            self._socket.send(request)
            try:
                answer = self._answer()
            except TimeoutError:
                continue
            assert answer[1] == codec.CHANGED, answer
            return
        raise TimeoutError("no answer")

    def _answer(self) -> bytes:
        """The answer to the last request; late ones to others are passed over."""
        while True:
            answer = self._socket.recv(2048)
            if answer[2:4] == (self._message_id & 0xFFFF).to_bytes(2):
                return answer

    def close(self) -> None:
        self._socket.close()

"""A client's socket: waits while a measurement is prepared, never waits once it runs. No protocol."""

import socket
from typing import final

from bench.compare.load import Endpoint

_PATIENCE_SECONDS = 60.0
_READ_BYTES = 262144
_SEND_BUFFER_BYTES = 131072


@final
class Wire:
    """One TCP connection."""

    __slots__ = ("_socket", "rest")

    def __init__(self, endpoint: Endpoint) -> None:
        self._socket = socket.create_connection((endpoint.host, endpoint.port), _PATIENCE_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    # -- waiting -----------------------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)

    def more(self) -> None:
        """Wait for more bytes and put them into `rest`. Raises ConnectionError when there will be none."""
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self.rest += data

    def exactly(self, size: int) -> bytes:
        while len(self.rest) < size:
            self.more()
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def until(self, end: bytes) -> bytes:
        """Take the data before these bytes, and these bytes too."""
        while end not in self.rest:
            self.more()
        data, _, self.rest = self.rest.partition(end)
        return data

    # -- not waiting -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """From now on nothing waits; little is kept by the kernel, so that what was sent was taken."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._socket.setblocking(False)

    def wait(self) -> None:
        """From now on everything waits again."""
        self._socket.settimeout(_PATIENCE_SECONDS)

    def offer(self, data: memoryview) -> int:
        """Send what the kernel takes; returns how many bytes that was."""
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    def take(self) -> bytes:
        """Return the data that has come, behind what the caller put back into `rest`."""
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:
            raise ConnectionError("the broker closed the connection")
        data, self.rest = self.rest + data, b""
        return data

    def take_into(self, view: memoryview) -> int:
        try:
            size = self._socket.recv_into(view)
        except BlockingIOError:
            return 0
        if not size:
            raise ConnectionError("the broker closed the connection")
        return size

    def close(self) -> None:
        self._socket.close()

"""Stands between a client and a broker and changes the bodies of measured messages on their way to the client."""

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType

from bench.compare.payload import MAGIC

Change = Callable[[bytes], bytes]

_BODY_BYTES = 100


class FaultProxy:
    """Listens on a free port. Bodies are those of 100 bytes of the load generator; `head` is what stands before one.

    With another `marker`, it changes the 100 bytes that begin with that instead.
    """

    def __init__(self, port: int, change: Change, head: bytes = b"", marker: bytes = MAGIC) -> None:
        self._marker = head + marker
        self._size = len(head) + _BODY_BYTES
        self._broker = port
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> "FaultProxy":
        self._begin(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = socket.create_connection(("127.0.0.1", self._broker))
            self._sockets += [client, broker]
            self._begin(self._forward, client, broker, False)
            self._begin(self._forward, broker, client, True)

    def _forward(self, source: socket.socket, target: socket.socket, meddles: bool) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if meddles:
                    data, rest = self._meddle(rest + data)
                target.sendall(data)
            target.sendall(rest)
            target.shutdown(socket.SHUT_WR)

    def _meddle(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the data to send on, and the rest that may begin an incomplete message."""
        out, at = [], 0
        while (found := data.find(self._marker, at)) >= 0 and len(data) - found >= self._size:
            out += [data[at:found], self._change(data[found : found + self._size])]
            at = found + self._size
        if found < 0:
            sizes = range(min(len(self._marker) - 1, len(data) - at), 0, -1)
            found = len(data) - next((size for size in sizes if self._marker.startswith(data[-size:])), 0)
        return b"".join([*out, data[at:found]]), data[found:]

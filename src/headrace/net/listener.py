"""A port that accepts connections, opened anew or inherited. No protocol: that is the handler's.

The sockets accept by themselves and not through the event loop's server. A connection beyond the limit of descriptors
is closed as it is accepted, before its TLS handshake, so that storage always has some left.
"""

import asyncio
import errno
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Final, final

from headrace.errors import Unavailable
from headrace.net.connection import CLOSE_SECONDS, HANDSHAKE_SECONDS, Gate, Seldom, Wire
from headrace.net.handler import Handler

_log: Final = logging.getLogger("headrace.net")
_BACKLOG: Final = 1024
_AT_ONCE: Final = 128
"""Connections accepted in one turn of the event loop."""
_SHORT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS: Final = 0.5
_TELL_SECONDS: Final = 10.0
_LEAST_RESERVE: Final = 32
_MOST_RESERVE: Final = 512


def most_descriptors() -> int:
    """Limit of descriptors for connections; the rest is for storage and other files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return 1 << 31
    return limit - min(max(limit // 8, _LEAST_RESERVE), _MOST_RESERVE)


@final
class Port:
    """Listening sockets, until `close`."""

    def __init__(
        self, sockets: list[socket.socket], accept: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None
    ) -> None:
        self.sockets = sockets
        self._accept = accept
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._most = most_descriptors()
        self._seldom = Seldom(_TELL_SECONDS)
        self.refused = 0
        """Connections closed for lack of descriptors."""
        for listening in sockets:
            listening.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept no more; open connections stay."""
        self._deafen()
        for task in self._tasks:
            task.cancel()
        for listening in self.sockets:
            listening.close()

    def _listen(self) -> None:
        self._resuming = None
        for listening in self.sockets:
            self._loop.add_reader(listening, self._take, listening)

    def _deafen(self) -> None:
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
            return
        for listening in self.sockets:
            if listening.fileno() >= 0:  # `close` may run twice
                self._loop.remove_reader(listening)

    def _take(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SHORT:
                    raise
                # The connection stays in the backlog and the socket readable: without a pause this would spin.
                self._refuse(error.strerror or str(error))
                self._deafen()
                self._resuming = self._loop.call_later(_PAUSE_SECONDS, self._listen)
                return
            if accepted.fileno() >= self._most:
                accepted.close()
                self._refuse(f"descriptors from {self._most} on are kept for storage")
                continue
            task = self._loop.create_task(self._serve(accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _refuse(self, why: str) -> None:
        self.refused += 1
        count = self._seldom.note(self._loop.time())
        if count:
            _log.warning(
                "%d connections were refused, there are too many: %s. Raise the limit of open files (LimitNOFILE, "
                "ulimit -n), or look for clients that open more than they need",
                count,
                why,
            )

    async def _serve(self, accepted: socket.socket) -> None:
        try:
            accepted.setblocking(False)
            if accepted.family in (socket.AF_INET, socket.AF_INET6):
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await self._loop.connect_accepted_socket(
                self._accept,
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_SECONDS,
            )
        except asyncio.CancelledError:
            accepted.close()
            raise
        except OSError as error:  # TLS errors are OSErrors too
            accepted.close()
            _log.debug("a connection ended before it began: %s", error)


async def open_server(
    accept: Callable[[], asyncio.BaseProtocol], host: str, port: int, tls: ssl.SSLContext | None, left: int | None
) -> Port:
    """Listen on an address, where port 0 picks a free one, or on an inherited descriptor.

    Raises Unavailable when the address is taken; `Listeners` adds the setting that moves the port.
    """
    if left is not None:
        os.set_inheritable(left, False)
        return Port([socket.socket(fileno=left)], accept, tls)
    opened: list[socket.socket] = []
    try:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys([(each[0], each[4]) for each in found]):
            opened.append(socket.create_server(address, family=family, backlog=_BACKLOG))
    except OSError as error:
        for listening in opened:
            listening.close()
        raise Unavailable(f"cannot listen on {host}:{port}: {reason(error)}") from error
    return Port(opened, accept, tls)


def reason(error: OSError) -> str:
    """Return the system's own words; Python's may have the address in them once more."""
    number = error.errno or 0
    return os.strerror(number) if number in errno.errorcode else error.strerror or str(error)


def leave(server: Port) -> int:
    """Duplicate the listening descriptor so that it survives an exec."""
    descriptor = os.dup(server.sockets[0].fileno())
    os.set_inheritable(descriptor, True)
    return descriptor


@final
class Listener:
    """Connections of one address, or those that another listener hands over."""

    def __init__(self, make_handler: Callable[[], Handler]) -> None:
        self._make_handler = make_handler
        self._server: Port | None = None
        self._wires: set[Wire] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.port = 0
        self.gate: Gate | None = None
        """Write gate of new connections; None = always open."""

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None, left: int | None = None) -> None:
        """Listen; port 0 picks a free port. Raises Unavailable when the address is taken.

        `left` is an inherited listening descriptor, see `leave`.
        """
        self._server = await open_server(self.accept, host, port, tls, left)
        self.port = self._server.sockets[0].getsockname()[1]

    def leave(self) -> int | None:
        """A listening descriptor for the program that replaces this process; None when closed."""
        return None if self._server is None else leave(self._server)

    @property
    def is_open(self) -> bool:
        return self._server is not None

    @property
    def refused(self) -> int:
        """Connections closed for lack of descriptors."""
        return 0 if self._server is None else self._server.refused

    def shut(self) -> None:
        """Accept no more until the next `open`; open connections stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Accept no more, close all connections and wait for them, at most CLOSE_SECONDS."""
        if self._server is not None:
            self._server.close()
        for wire in list(self._wires):
            wire.stop()
        try:
            await asyncio.wait_for(self._is_empty.wait(), CLOSE_SECONDS)
        except TimeoutError:
            for wire in list(self._wires):
                wire.abort()

    @property
    def wires(self) -> list[Wire]:
        """Open connections."""
        return list(self._wires)

    def accept(self) -> Wire:
        """Make the protocol of a new connection."""
        wire = Wire(self._make_handler(), self._ended, self._began)
        wire.gate = self.gate
        return wire

    def _began(self, wire: Wire) -> None:
        """Count a connection after its TLS handshake, which many never complete."""
        self._wires.add(wire)
        self._is_empty.clear()

    def _ended(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if not self._wires:
            self._is_empty.set()

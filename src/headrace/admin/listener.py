"""The HTTP port. The server itself, stack.py, is loaded with the first connection.

Its modules need more memory than an idle broker. A thread imports them, so the event loop goes on; connections wait
meanwhile.
"""

import asyncio
import importlib
import logging
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast, final

from headrace.net.connection import Seldom
from headrace.net.facts import Origin
from headrace.net.listener import Port, leave, open_server

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

_log: Final = logging.getLogger("headrace.admin")
_STACK: Final = "headrace.admin.stack"
MAX_CONNECTIONS: Final = 1024
"""Most HTTP connections; more are closed at once."""
_TELL_SECONDS: Final = 10.0

Contribute = Callable[[], "list[BaseRoute]"]
"""Returns the routes of another room; called once, when HTTP is loaded."""


class Speaker(ABC):
    """The HTTP server, once it is loaded."""

    @abstractmethod
    def protocol(self, origin: Origin | None = None) -> asyncio.Protocol:
        """Make the protocol of a new connection; `origin` is the client of a forwarded one."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """Return the number of connections."""

    @abstractmethod
    async def close(self) -> None:
        """Let requests finish for a short time, and end all connections."""


Furnish = Callable[[], Speaker]
"""Makes the HTTP server; called once its modules are loaded."""


@final
class HttpListener:
    """Accepts HTTP connections on one address until it is closed."""

    def __init__(self, furnish: Furnish) -> None:
        self._furnish = furnish
        self._server: Port | None = None
        self._speaker: Speaker | None = None
        self._loading: asyncio.Task[None] | None = None
        self._newcomers: set[_Newcomer] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._crowded = Seldom(_TELL_SECONDS)
        self._turned_away = 0
        self.port = 0

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None, left: int | None = None) -> None:
        """Listen; port 0 is any free port. Raises Unavailable if the address is taken.

        `left` is the descriptor of a listening socket, see `leave`.
        """
        self._server = await open_server(self.accept, host, port, tls, left)
        self.port = self._server.sockets[0].getsockname()[1]

    def leave(self) -> int | None:
        """Return the listening socket for the next program of this process; None if it is not open."""
        return None if self._server is None else leave(self._server)

    async def close(self) -> None:
        """Stop accepting, let requests finish, and end all connections."""
        if self._server is not None:
            self._server.close()
        for newcomer in list(self._newcomers):
            newcomer.refuse()
        if self._loading is not None:
            self._loading.cancel()
        if self._speaker is not None:
            await self._speaker.close()
        await asyncio.gather(*self._leaving)

    def refurnish(self) -> None:
        """Serve new connections by a new server; requests under way may finish."""
        speaker, self._speaker = self._speaker, None
        if speaker is None:
            return
        self._loading = None
        leaving = asyncio.get_running_loop().create_task(speaker.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    @property
    def refused(self) -> int:
        """Return the number of connections closed because there were too many."""
        return self._turned_away + (0 if self._server is None else self._server.refused)

    @property
    def connections(self) -> int:
        return len(self._newcomers) + (self._speaker.connections if self._speaker is not None else 0)

    def accept(self, origin: Origin | None = None) -> asyncio.Protocol:
        """Make the protocol of a new connection; `origin` is the client of a forwarded one."""
        if self._speaker is not None and self.connections < MAX_CONNECTIONS:
            return self._speaker.protocol(origin)
        return _Newcomer(self, origin)

    def arrived(self, newcomer: "_Newcomer") -> None:
        """Let a connection wait for the server, or refuse it."""
        if self.connections >= MAX_CONNECTIONS:
            self._turned_away += 1
            count = self._crowded.note(asyncio.get_running_loop().time())
            if count:
                _log.warning("%d HTTP connections were closed: there are %d already", count, self.connections)
            newcomer.refuse()
            return
        self._newcomers.add(newcomer)
        if self._speaker is not None:  # the server was loaded after the connection was accepted
            newcomer.hand_over(self._speaker.protocol(newcomer.origin))
        elif self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load())

    def left(self, newcomer: "_Newcomer") -> None:
        self._newcomers.discard(newcomer)

    async def _load(self) -> None:
        try:
            await asyncio.to_thread(importlib.import_module, _STACK)
            self._speaker = self._furnish()
        except Exception:
            _log.exception("HTTP cannot be served: its modules do not load")
            self._loading = None
            for newcomer in list(self._newcomers):
                newcomer.refuse()
            return
        for newcomer in list(self._newcomers):
            newcomer.hand_over(self._speaker.protocol(newcomer.origin))


@final
class _Newcomer(asyncio.Protocol):
    """A connection that waits for the server; it reads one segment and then pauses."""

    def __init__(self, listener: HttpListener, origin: Origin | None) -> None:
        self._listener = listener
        self.origin = origin
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # transports of uvloop are no subclasses
        self._listener.arrived(self)

    def data_received(self, data: bytes) -> None:
        self._data += data
        if self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._listener.left(self)

    def refuse(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def hand_over(self, protocol: asyncio.Protocol) -> None:
        """Hand the connection to another protocol."""
        transport, self._transport = self._transport, None
        self._listener.left(self)
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            if self._data:
                transport.resume_reading()
                protocol.data_received(self._data)

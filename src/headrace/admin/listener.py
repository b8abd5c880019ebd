"""The port that HTTP clients connect to. What speaks HTTP is loaded when the first of them comes: see stack.py.

The modules behind it weigh more than an idle broker. They are imported in a thread, so that the event loop goes on, and
connections that come meanwhile wait.
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
"""As many HTTP connections as there may be at once; more are closed as they come."""
_TELL_SECONDS: Final = 10.0

Contribute = Callable[[], "list[BaseRoute]"]
"""Gives the routes that another room brings; called once, when HTTP is loaded."""


class Speaker(ABC):
    """What speaks HTTP, once it is loaded."""

    @abstractmethod
    def protocol(self, origin: Origin | None = None) -> asyncio.Protocol:
        """The protocol of one new connection; of one that was passed on, with where it comes from."""

    @property
    @abstractmethod
    def connections(self) -> int:
        """How many there are now."""

    @abstractmethod
    async def close(self) -> None:
        """Let requests that are being answered finish, not for long, and end all connections."""


Furnish = Callable[[], Speaker]
"""Makes what speaks HTTP; called when the modules that it takes are loaded."""


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
        """Listen; port 0 picks a free one. Raises Unavailable when the address cannot be had.

        `left` is the descriptor of a socket that listens already, see `leave`.
        """
        self._server = await open_server(self.accept, host, port, tls, left)
        self.port = self._server.sockets[0].getsockname()[1]

    def leave(self) -> int | None:
        """What this listens on, for the program that this process runs next; None when it is not open."""
        return None if self._server is None else leave(self._server)

    async def close(self) -> None:
        """Accept no more, let requests finish, and end all connections."""
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
        """Have what comes from now on served by what `furnish` gives then; requests under way may finish."""
        speaker, self._speaker = self._speaker, None
        if speaker is None:
            return
        self._loading = None
        leaving = asyncio.get_running_loop().create_task(speaker.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    @property
    def refused(self) -> int:
        """Connections that were closed because there were too many."""
        return self._turned_away + (0 if self._server is None else self._server.refused)

    @property
    def connections(self) -> int:
        return len(self._newcomers) + (self._speaker.connections if self._speaker is not None else 0)

    def accept(self, origin: Origin | None = None) -> asyncio.Protocol:
        """The protocol of a new connection; of one that was passed on, with where it comes from."""
        if self._speaker is not None and self.connections < MAX_CONNECTIONS:
            return self._speaker.protocol(origin)
        return _Newcomer(self, origin)

    def arrived(self, newcomer: "_Newcomer") -> None:
        """A connection waits for somebody who speaks HTTP, or is one too many."""
        if self.connections >= MAX_CONNECTIONS:
            self._turned_away += 1
            count = self._crowded.note(asyncio.get_running_loop().time())
            if count:
                _log.warning("%d HTTP connections were closed: there are %d already", count, self.connections)
            newcomer.refuse()
            return
        self._newcomers.add(newcomer)
        if self._speaker is not None:  # it came between the connection's acceptance and its beginning
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
    """A connection that waits; the first bytes that come are kept, and then nothing more is read."""

    def __init__(self, listener: HttpListener, origin: Origin | None) -> None:
        self._listener = listener
        self.origin = origin
        self._transport: asyncio.Transport | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are no subclasses of it
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
        """Let another protocol have the connection."""
        transport, self._transport = self._transport, None
        self._listener.left(self)
        if transport is not None and not transport.is_closing():
            transport.set_protocol(protocol)
            protocol.connection_made(transport)
            if self._data:
                transport.resume_reading()
                protocol.data_received(self._data)

"""A port that accepts connections and the connections that came from it. No protocol: that is the handler's."""

import asyncio
import ssl
from collections.abc import Callable
from typing import final

from headrace.net.connection import CLOSE_SECONDS, Gate, Wire
from headrace.net.handler import Handler
from headrace.net.inheritance import leave, open_server


@final
class Listener:
    """Accepts on one address until it is closed, or what another listener hands over."""

    def __init__(self, make_handler: Callable[[], Handler]) -> None:
        self._make_handler = make_handler
        self._server: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self.port = 0
        self.gate: Gate | None = None
        """Whether the connections from now on may write anything, at any moment; None for always."""

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None = None, left: int | None = None) -> None:
        """Listen; port 0 picks a free one. Raises Unavailable when the address cannot be had.

        `left` is the descriptor of a socket that listens already, see `leave`.
        """
        self._server = await open_server(self.accept, host, port, tls, left)
        self.port = self._server.sockets[0].getsockname()[1]

    def leave(self) -> int | None:
        """What this listens on, for the program that this process runs next; None when it is not open."""
        return None if self._server is None else leave(self._server)

    @property
    def is_open(self) -> bool:
        return self._server is not None

    def shut(self) -> None:
        """Accept no more until it is opened again; those who are connected stay."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Accept no more, say goodbye to all that are connected, and wait for them, but not for long."""
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
        """The connections that there are now."""
        return list(self._wires)

    def accept(self) -> Wire:
        """The protocol of a new connection."""
        wire = Wire(self._make_handler(), self._ended, self._began)
        wire.gate = self.gate
        return wire

    def _began(self, wire: Wire) -> None:
        """A connection is there; with TLS only once its handshake is done, and many do not come so far."""
        self._wires.add(wire)
        self._is_empty.clear()

    def _ended(self, wire: Wire) -> None:
        self._wires.discard(wire)
        if not self._wires:
            self._is_empty.set()

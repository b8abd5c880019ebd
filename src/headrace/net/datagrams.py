"""A UDP port: it passes datagrams to a handler and sends answers at once. No protocol."""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import Final, cast, final

from headrace.errors import Unavailable
from headrace.net.connection import is_loopback
from headrace.net.listener import reason

_log: Final = logging.getLogger("headrace.net")


@final
class Peer:
    """Sender of a datagram; equal for equal addresses."""

    __slots__ = ("address", "host", "is_loopback")

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.host = address[0]
        self.is_loopback = is_loopback(address[0])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Peer) and self.address == other.address

    def __hash__(self) -> int:
        return hash(self.address)


class DatagramHandler(ABC):
    """A protocol's side of a UDP port."""

    @abstractmethod
    def opened(self, port: "DatagramListener") -> None:
        """Hear that the port is open."""

    @abstractmethod
    def received(self, data: bytes, peer: Peer) -> None:
        """Take a datagram."""


@final
class DatagramListener(asyncio.DatagramProtocol):
    """One UDP address, from `open` to `close`."""

    def __init__(self, handler: DatagramHandler) -> None:
        self._handler = handler
        self._transport: asyncio.DatagramTransport | None = None
        self._is_full = False
        self.port = 0

    async def open(self, host: str, port: int) -> None:
        """Listen; port 0 picks a free port. Raises Unavailable when the address is taken."""
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: self, (host, port))
        except OSError as error:
            raise Unavailable(f"cannot listen on {host}:{port} (UDP): {reason(error)}") from error
        self.port = transport.get_extra_info("sockname")[1]

    async def close(self) -> None:
        """Stop listening."""
        if self._transport is not None:
            self._transport.close()

    def send(self, data: bytes, peer: Peer) -> None:
        """Send a datagram; a full buffer drops it."""
        if self._transport is not None and not self._is_full:
            self._transport.sendto(data, peer.address)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # uvloop's transports are no subclasses
        self._handler.opened(self)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            self._handler.received(data, Peer(addr))
        except Exception:
            _log.exception("a datagram from %s is dropped by an error of ours", addr[0])

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False

    def error_received(self, exc: Exception) -> None:
        _log.debug("a datagram could not be delivered: %s", exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

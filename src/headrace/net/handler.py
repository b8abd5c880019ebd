"""What others implement who use a connection: a protocol's handler, and what is put around output. No sockets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.net.facts import ConnectionFacts

if TYPE_CHECKING:
    from headrace.net.connection import Wire


class Handler(ABC):
    """What a protocol does with a connection. Never called after `lost`."""

    @abstractmethod
    def opened(self, wire: "Wire") -> None:
        """The peer is there."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Bytes came."""

    @abstractmethod
    def hold_output(self, is_held: bool) -> None:
        """Produce no more that can wait, as the peer does not keep up; or go on."""

    @abstractmethod
    def beat(self) -> None:
        """Nothing was sent for half a keepalive interval: show that we live."""

    @abstractmethod
    def stop(self) -> None:
        """The server stops: say goodbye and close."""

    @abstractmethod
    def lost(self) -> None:
        """The connection is gone, whoever ended it."""

    def ended(self) -> bool:
        """The peer sends no more. Returns whether it is still to be sent something; otherwise that was all."""
        return False

    def buffered(self, size_bytes: int) -> None:
        """So many bytes came for this and are not passed on yet, because what is around them is not whole."""
        return

    def facts(self) -> ConnectionFacts | None:
        """Who this is; None as long as nobody logged in."""
        return None


class Envelope(ABC):
    """What is put around output where a connection carries another within it."""

    @abstractmethod
    def wrap(self, data: bytes) -> bytes:
        """All output of one turn, as it is to be written."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """The last bytes before the connection is closed by us."""

"""Interfaces of a connection's users: a protocol's handler, and an envelope around output. No sockets."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, final

from headrace.net.facts import ConnectionFacts

if TYPE_CHECKING:
    from headrace.net.connection import Wire


class Handler(ABC):
    """A protocol's side of a connection. `lost` is the last call."""

    @abstractmethod
    def opened(self, wire: "Wire") -> None:
        """Hear that the connection is open."""

    @abstractmethod
    def feed(self, data: bytes) -> None:
        """Take bytes of the peer."""

    @abstractmethod
    def hold_output(self, is_held: bool) -> None:
        """Pause deliveries because the peer reads too slowly, or go on."""

    @abstractmethod
    def beat(self) -> None:
        """Send a heartbeat: half a keepalive interval passed without output."""

    @abstractmethod
    def stop(self) -> None:
        """Say goodbye and close, because the server stops."""

    @abstractmethod
    def lost(self) -> None:
        """Hear that the connection is gone."""

    def ended(self) -> bool:
        """Hear that the peer sends no more; returns True if it still has to receive something."""
        return False

    def buffered(self, size_bytes: int) -> None:
        """Hear how many bytes wait in front of the handler, as part of an incomplete frame around them."""
        return

    def facts(self) -> ConnectionFacts | None:
        """Facts of the login; None before it."""
        return None


@final
class Gone(Handler):
    """The handler of a connection that has ended: it hears nothing and says nothing."""

    def opened(self, wire: "Wire") -> None:
        return

    def feed(self, data: bytes) -> None:
        return

    def hold_output(self, is_held: bool) -> None:
        return

    def beat(self) -> None:
        return

    def stop(self) -> None:
        return

    def lost(self) -> None:
        return


class Envelope(ABC):
    """Frame around the output of a connection that is carried within another."""

    @abstractmethod
    def wrap(self, data: bytes) -> bytes:
        """Wrap the output of one turn."""

    @abstractmethod
    def goodbye(self) -> bytes:
        """Last bytes before this side closes the connection."""

"""Interface of a protocol for forwarding: where its frames end, and how it refuses or dismisses a client.

Each protocol brings a tracker and a refusal. No protocol is in here.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace.errors import ProtocolError
from headrace.net.connection import Wire
from headrace.net.handler import Handler

START_BYTES: Final = 16
"""First bytes of a client that identify its protocol and version."""


@dataclass(frozen=True)
class Redirect:
    """Reason of a refusal, with the address of the node that serves."""

    why: str
    address: str = ""
    """host:port; "" if no such node is known."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2] or 0)


FindRedirect = Callable[[bool], Redirect]
"""Finds the node that serves now; True asks for its TLS listener."""


class Refusal(Handler):
    """Handler that only tells a client, in its protocol, that another node serves."""

    def __init__(self, find_redirect: FindRedirect) -> None:
        self._find_redirect = find_redirect
        self._wire: Wire | None = None

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        try:
            self._hear(data)
        except ProtocolError:
            self.end()

    @abstractmethod
    def _hear(self, data: bytes) -> None:
        """Answer the client. Raises ProtocolError for bytes outside of its protocol."""

    def hold_output(self, is_held: bool) -> None:
        return  # a refusal fits any buffer

    def beat(self) -> None:
        return  # no keepalive is negotiated

    def stop(self) -> None:
        self.end()

    def lost(self) -> None:
        self._wire = None

    @property
    def redirect(self) -> Redirect:
        return self._find_redirect(self._wire is not None and self._wire.is_tls)

    def send(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.send(data)

    def end(self, after_seconds: float = 0.0) -> None:
        """Close at once, or give the client so many seconds to close first."""
        if self._wire is not None:
            self._wire.close(after_seconds)


class Tracker(ABC):
    """Follows the frames that a server sends to a client, to find the gap where a goodbye fits."""

    def __init__(self) -> None:
        self._left = 0
        """Missing bytes of the current frame."""
        self._head = b""
        """First bytes of a frame whose length is still unknown."""
        self.is_admitted = False
        """True after the server accepted the login."""
        self.has_parted = False
        """True after the server's own goodbye."""

    def passed(self, data: bytes) -> None:
        """Follow bytes of the server on their way to the client."""
        left = self._left
        size = len(data)
        if left >= size:
            self._left = left - size
            return
        if self._head:
            data = self._head + data
            size = len(data)
            self._head = b""
        self._left = 0
        at = left
        while at < size:
            length = self._measure(data, at, size)
            if not length:
                self._head = data[at:]
                return
            at += length
        self._left = at - size

    @property
    def is_between(self) -> bool:
        """True between two frames."""
        return not self._left and not self._head

    def goodbye(self, why: str) -> bytes:
        """Bytes that dismiss the client; b"" in the middle of a frame or after a goodbye."""
        return self._goodbye(why) if self.is_between and not self.has_parted else b""

    @abstractmethod
    def _measure(self, data: bytes, at: int, size: int) -> int:
        """Length of the frame that starts at `at`; 0 if more bytes are needed to know it."""

    @abstractmethod
    def _goodbye(self, why: str) -> bytes:
        """Bytes that dismiss the client; b"" if it would not understand them."""

    @property
    def awaits_farewell(self) -> bool:
        """True if clients answer a goodbye before they close."""
        return True

    def is_farewell(self, data: bytes) -> bool:
        """True if these bytes are the client's answer to the goodbye."""
        return False


@dataclass(frozen=True)
class WireProtocol:
    """A protocol, as forwarding knows it."""

    name: str
    """Name of its listener."""
    track: Callable[[bytes], Tracker]
    """Makes the tracker of a connection from the client's first bytes."""
    refuse: Callable[[FindRedirect], Handler]

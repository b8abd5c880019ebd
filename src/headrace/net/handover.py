"""What those who pass a connection on must know of its protocol: where frames end, and how clients are told to go.

No protocol is in here: each brings a tracker and a way to turn clients away.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.net.connection import Wire
from headrace.net.handler import Handler

START_BYTES: Final = 16
"""How much of what a client says first tells which protocol it speaks, and which version of it."""


@final
class Redirect:
    """Why a client is not served here, and where it would be."""

    __slots__ = ("address", "why")

    def __init__(self, why: str, address: str = "") -> None:
        self.why = why
        self.address = address
        """host:port, or "" where nobody serves, or nobody knows who."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0].strip("[]")

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2] or 0)


FindRedirect = Callable[[bool], Redirect]
"""Says where clients are served now; those who came with TLS, if that is true, where there is TLS too."""


class Refusal(Handler):
    """Meets a client only to tell it, as its protocol does that, why it is not served here."""

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
        """Answer what the client says. Raises ProtocolError where it is nothing that its protocol knows."""

    def hold_output(self, is_held: bool) -> None:
        return  # little is sent

    def beat(self) -> None:
        return  # nothing was agreed

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
        """Close the connection: at once, or when the client has done so, but not later than then."""
        if self._wire is not None:
            self._wire.close(after_seconds)


class Tracker(ABC):
    """Looks at the bytes that a server sends a client, to know when something of our own may be said in between."""

    def __init__(self) -> None:
        self._left = 0
        """How many bytes of the frame are still to come."""
        self._head = b""
        """The first bytes of a frame that does not say yet how long it is."""
        self.is_admitted = False
        """Whether the client was let in."""
        self.has_parted = False
        """Whether the server has said goodbye."""

    def passed(self, data: bytes) -> None:
        """The server said this, and the client gets it."""
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
        """Whether the last frame is whole."""
        return not self._left and not self._head

    def goodbye(self, why: str) -> bytes:
        """What tells the client to go; b"" where nothing can be said now."""
        return self._goodbye(why) if self.is_between and not self.has_parted else b""

    @abstractmethod
    def _measure(self, data: bytes, at: int, size: int) -> int:
        """How long the frame is that begins there, 0 when that takes more bytes; a few are always enough."""

    @abstractmethod
    def _goodbye(self, why: str) -> bytes:
        """What tells the client to go, b"" where it would not understand."""

    @property
    def awaits_farewell(self) -> bool:
        """Whether a client answers a goodbye before it goes."""
        return True

    def is_farewell(self, data: bytes) -> bool:
        """Whether the client has answered the goodbye, so that nothing more will come."""
        return False


@final
class WireProtocol:
    """A protocol, as far as those know it who pass its clients on."""

    __slots__ = ("name", "refuse", "track")

    def __init__(self, name: str, track: Callable[[bytes], Tracker], refuse: Callable[[FindRedirect], Handler]) -> None:
        self.name = name
        """As its listener is called."""
        self.track = track
        """Makes what looks at one connection; it is told what the client said first."""
        self.refuse = refuse

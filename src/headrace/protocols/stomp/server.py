"""One open connection as its parts see it. No frames."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.core.client import Client
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.net.connection import Wire

PROTOCOL: Final = "stomp"


@final
class ConnectionContext:
    """An open connection, seen from its publisher and its subscriptions."""

    __slots__ = ("broker", "client", "end", "is_held", "now_us", "session", "version", "wire")

    def __init__(self, wire: "Wire", client: Client, version: str, session: str) -> None:
        self.wire = wire
        self.broker = client.broker
        self.client = client
        self.version = version
        """The version of STOMP."""
        self.session = session
        """The name of the connection, which is part of message ids."""
        self.end: Callable[[HeadraceError, str], None] = _nothing
        """Ends the connection for an error; the text names the receipt that the frame asked for, if it did."""
        self.now_us = 0
        self.is_held = False
        """True while the peer reads more slowly than we send."""


def _nothing(error: HeadraceError, receipt: str) -> None:
    return

"""What the connections of this protocol share: the server, and one open connection as its parts see it. No frames."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.client import Client
from headrace.core.flow import Intake
from headrace.core.hosts import Hosts
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.net.connection import Wire

PROTOCOL: Final = "stomp"


@final
class Server:
    """The state that all connections share."""

    __slots__ = ("_hosts", "access", "version")

    def __init__(self, hosts: Hosts, access: Access, version: str) -> None:
        self._hosts = hosts
        self.access = access
        self.version = version

    @property
    def intake(self) -> Intake:
        """The memory of all connections that holds unpublished messages."""
        return self._hosts.intake

    def find_broker(self, host: str) -> Broker | None:
        """The broker of a virtual host, or None."""
        return self._hosts.find(host)


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

"""State shared by the connections of this protocol: server and virtual hosts; the reply code of each error."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from pamqp import base

from headrace.core.access.access import Access
from headrace.core.broker import Broker
from headrace.core.client import Client
from headrace.core.hosts import Hosts
from headrace.errors import (
    AccessRefused,
    Corrupt,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    Refused,
    ResourceLocked,
    TooLarge,
    Unavailable,
)
from headrace.model import Message
from headrace.protocols import server as protocols
from headrace.protocols.amqp091.codec import RouteRoom
from headrace.protocols.amqp091.frames import (
    ACCESS_REFUSED,
    CONTENT_TOO_LARGE,
    INTERNAL_ERROR,
    NO_CONSUMERS,
    NOT_FOUND,
    PRECONDITION_FAILED,
    REPLY_NAMES,
    RESOURCE_ERROR,
    RESOURCE_LOCKED,
)
from headrace.protocols.amqp091.methods import encode_method

if TYPE_CHECKING:
    from headrace.net.connection import Wire

# The first kind that fits counts.
_CODES: Final[tuple[tuple[type[HeadraceError], int], ...]] = (
    (NotFound, NOT_FOUND),
    (AccessRefused, ACCESS_REFUSED),
    (ResourceLocked, RESOURCE_LOCKED),
    (PreconditionFailed, PRECONDITION_FAILED),
    (TooLarge, CONTENT_TOO_LARGE),
    (Refused, PRECONDITION_FAILED),
    (Corrupt, PRECONDITION_FAILED),
    (Unavailable, RESOURCE_ERROR),
)

# AMQP 0-9-1 calls them soft errors: the channel ends, the connection goes on.
_OF_CHANNEL: Final = frozenset(
    {CONTENT_TOO_LARGE, NO_CONSUMERS, ACCESS_REFUSED, NOT_FOUND, RESOURCE_LOCKED, PRECONDITION_FAILED}
)


def code_of(error: HeadraceError) -> int:
    if isinstance(error, ProtocolError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return INTERNAL_ERROR


def ends_channel_only(error: HeadraceError) -> bool:
    return not isinstance(error, ProtocolError) and code_of(error) in _OF_CHANNEL


def reply_text(code: int, message: str) -> str:
    """The name of the code and the message, as RabbitMQ words it."""
    return f"{REPLY_NAMES.get(code, 'INTERNAL_ERROR')} - {message}"


def close_fields(error: HeadraceError, index: int = 0) -> dict[str, object]:
    """The fields of channel.close and connection.close; `index` is the method that failed, 0 for none."""
    code = code_of(error)
    return {
        "reply_code": code,
        "reply_text": reply_text(code, str(error)),
        "class_id": index >> 16,
        "method_id": index & 0xFFFF,
    }


@final
class Host:
    """A virtual host as this protocol sees it: its broker, and the clients that wait for direct replies."""

    __slots__ = ("broker", "name", "replies")

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.replies: dict[str, Callable[[Message], None]] = {}
        """By reply key, the way to the client that consumes from the pseudo queue for direct replies."""


@final
class Server(protocols.Server):
    """The state that all connections share."""

    __slots__ = ("_met", "routes")

    def __init__(self, hosts: Hosts, access: Access, version: str) -> None:
        super().__init__(hosts, access, version)
        self._met: dict[str, Host] = {}
        self.routes = RouteRoom()

    def find_host(self, name: str) -> Host | None:
        """The virtual host of that name, or None."""
        broker = self._hosts.find(name)
        if broker is None:
            self._met.pop(name, None)
            return None
        host = self._met.get(name)
        if host is None or host.broker is not broker:
            host = self._met[name] = Host(name, broker)
        return host


@final
class ConnectionContext:
    """An open connection, seen from its channels."""

    __slots__ = (
        "broker",
        "capabilities",
        "client",
        "end",
        "frame_max",
        "host",
        "is_held",
        "now_us",
        "staged_bytes",
        "wire",
    )

    def __init__(
        self, wire: "Wire", host: Host, client: Client, capabilities: Mapping[str, object], frame_max: int
    ) -> None:
        self.wire = wire
        self.host = host
        self.broker = host.broker
        self.client = client
        self.capabilities = capabilities
        self.frame_max = frame_max
        self.end: Callable[[HeadraceError], None] = _nothing
        """Ends the connection for an error that shows later than its cause."""
        self.now_us = 0
        self.staged_bytes = 0
        """Memory of transactions that are not committed."""
        self.is_held = False
        """True while the peer reads more slowly than we send."""

    def has(self, capability: str) -> bool:
        return self.capabilities.get(capability) is True

    def send(self, channel: int, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> None:
        """Send a method."""
        self.wire.send(encode_method(channel, kind, fields))


def _nothing(error: HeadraceError) -> None:
    return

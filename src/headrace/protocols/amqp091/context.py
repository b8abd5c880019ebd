"""What the channels of one connection share, and the reply code of each error. No decisions."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, final

from pamqp import base

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Rights
from headrace.core.broker import Broker
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
from headrace.protocols.amqp091.frames import (
    ACCESS_REFUSED,
    CONTENT_TOO_LARGE,
    FRAME_MAX_SIZE,
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
    """As RabbitMQ words it: the name of the code, then what happened."""
    return f"{REPLY_NAMES.get(code, 'INTERNAL_ERROR')} - {message}"


@final
class Host:
    """A virtual host as this protocol sees it: its broker, and who waits for direct replies."""

    __slots__ = ("broker", "name", "replies")

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        self.broker = broker
        self.replies: dict[str, Callable[[Message], None]] = {}
        """The way to each client that consumes from the pseudo queue for direct replies, by its key."""


@final
class ConnectionContext:
    """One connection, seen from its channels."""

    __slots__ = (
        "account",
        "capabilities",
        "client_id",
        "end",
        "frame_max",
        "has_published",
        "host",
        "is_held",
        "now_us",
        "owner",
        "published",
        "rights",
        "staged_bytes",
        "wire",
    )

    def __init__(self, wire: "Wire", owner: object, host: Host, account: Account, rights: Rights) -> None:
        self.wire = wire
        self.owner = owner
        self.host = host
        self.account = account
        self.rights = rights
        self.end: Callable[[HeadraceError], None] = _nothing
        """Ends the connection, for what goes wrong later than what asked for it."""
        self.client_id = ""
        self.capabilities: Mapping[str, object] = {}
        self.frame_max = FRAME_MAX_SIZE
        self.now_us = 0
        self.has_published = False
        self.published = 0
        """How many messages came since this was last looked at; counted for users with limits only."""
        self.staged_bytes = 0
        """Memory that transactions take which are not committed."""
        self.is_held = False
        """Whether the peer does not keep up with what it is sent."""

    @property
    def broker(self) -> Broker:
        return self.host.broker

    def has(self, capability: str) -> bool:
        return self.capabilities.get(capability) is True

    def send(self, channel: int, kind: type[base.Frame], fields: Mapping[str, object] | None = None) -> None:
        """Send a method."""
        self.wire.send(encode_method(channel, kind, fields))


def _nothing(error: HeadraceError) -> None:
    return

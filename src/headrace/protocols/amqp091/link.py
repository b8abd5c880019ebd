"""What the channels of one connection share: the way out, the virtual host, the user, the limits. No decisions."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, final

from pamqp import base

from headrace.core.account import Account
from headrace.core.broker import Broker
from headrace.core.rights import Rights
from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.protocols.amqp091.frames import FRAME_MAX_SIZE
from headrace.protocols.amqp091.methods import encode_method

if TYPE_CHECKING:
    from headrace.net.connection import Wire


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
class Link:
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

"""What the sessions of one connection share: the way out, the virtual host, the user, the limits. No decisions."""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from headrace.core.broker import Broker
from headrace.protocols.amqp10.codec import encode_frame
from headrace.protocols.amqp10.frames import MIN_FRAME_SIZE
from headrace.protocols.amqp10.sasl import Claim

if TYPE_CHECKING:
    from headrace.net.connection import Wire
    from headrace.protocols.amqp10.suspended import Suspended


Authenticate = Callable[[Claim, bool], str | None]
"""The user that a claim is that of, None when it is nobody's who may come in; the flag says: from this machine."""
FindHost = Callable[[str], "Host | None"]
"""The virtual host of that name, None when there is none."""


@final
class Host:
    """A virtual host as this protocol sees it: its broker, and the links that may be resumed."""

    __slots__ = ("broker", "name", "suspended")

    def __init__(self, name: str, broker: Broker, suspended: "Suspended") -> None:
        self.name = name
        self.broker = broker
        self.suspended = suspended


@final
class Server:
    """What all connections of the server share."""

    __slots__ = ("authenticate", "find_host", "version")

    def __init__(self, find_host: FindHost, authenticate: Authenticate, version: str) -> None:
        self.find_host = find_host
        self.authenticate = authenticate
        self.version = version


@final
class Peer:
    """One connection, seen from its sessions."""

    __slots__ = ("container_id", "frame_max", "has_published", "host", "is_held", "now_us", "owner", "user", "wire")

    def __init__(self, wire: "Wire", owner: object, host: Host, user: str, container_id: str) -> None:
        self.wire = wire
        self.owner = owner
        self.host = host
        self.user = user
        self.container_id = container_id
        self.frame_max = MIN_FRAME_SIZE
        """The largest frame that the peer takes."""
        self.now_us = 0
        self.has_published = False
        self.is_held = False
        """Whether the peer does not keep up with what it is sent."""

    @property
    def broker(self) -> Broker:
        return self.host.broker

    def send(self, channel: int, performative: bytes) -> None:
        self.wire.send(encode_frame(channel, performative))

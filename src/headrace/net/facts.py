"""What a connection tells about itself, and where it comes from when another node hands it over. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final


@final
class Origin:
    """A client as the node saw it that it came to."""

    __slots__ = ("address", "certificate_name", "is_loopback", "is_tls", "local", "node", "port")

    def __init__(
        self,
        address: str,
        port: int,
        local: str,
        node: str,
        is_tls: bool = False,
        is_loopback: bool = False,
        certificate_name: str = "",
    ) -> None:
        self.address = address
        """Where the client is, without its port."""
        self.port = port
        self.local = local
        """Which address of the node it came to, as host:port."""
        self.node = node
        """Which node that is."""
        self.is_tls = is_tls
        self.is_loopback = is_loopback
        """Whether the client is on the machine of that node."""
        self.certificate_name = certificate_name
        """The common name of the certificate that the client proved to have."""


@dataclass(frozen=True)
class ChannelFacts:
    """One channel of a connection, or what a protocol has in its place: a session, a client."""

    number: int
    prefetch: int = 0
    """How many unsettled messages all consumers of it may have together; 0 without a limit."""
    unsettled: int = 0
    is_confirming: bool = False
    is_transactional: bool = False
    consumers: Sequence[object] = ()
    """Core's consumers that belong to it."""


@dataclass(frozen=True)
class ConnectionFacts:
    """Who is connected, from where, by which protocol."""

    protocol: str
    user: str
    host: str
    """The virtual host."""
    client_id: str = ""
    heartbeat_seconds: int = 0
    frame_max: int = 0
    channel_max: int = 0
    client_properties: Mapping[str, object] = field(default_factory=dict)
    channels: Sequence[ChannelFacts] = ()

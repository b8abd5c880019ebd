"""Facts about a connection and about the origin of a forwarded one. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final


@final
class Origin:
    """A client, as the node that it connected to sees it."""

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
        """Address of the client, without the port."""
        self.port = port
        self.local = local
        """Local address of the connection, as host:port."""
        self.node = node
        """Name of that node."""
        self.is_tls = is_tls
        self.is_loopback = is_loopback
        """True if the client runs on that node's machine."""
        self.certificate_name = certificate_name
        """Common name of the client certificate; "" without one."""


@dataclass(frozen=True)
class ChannelFacts:
    """One channel of a connection; a session or a client in protocols without channels."""

    number: int
    prefetch: int = 0
    """Limit of unsettled messages over all its consumers; 0 = unlimited."""
    unsettled: int = 0
    is_confirming: bool = False
    is_transactional: bool = False
    consumers: Sequence[object] = ()
    """Its consumers in core."""


@dataclass(frozen=True)
class ConnectionFacts:
    """User, virtual host and protocol of a connection."""

    protocol: str
    user: str
    host: str
    """Virtual host."""
    client_id: str = ""
    heartbeat_seconds: int = 0
    frame_max: int = 0
    channel_max: int = 0
    client_properties: Mapping[str, object] = field(default_factory=dict)
    channels: Sequence[ChannelFacts] = ()

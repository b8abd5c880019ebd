"""Facts about a connection and about the origin of a forwarded one. Values only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Origin:
    """A client, as the node that it connected to sees it."""

    address: str
    """Address of the client, without the port."""
    port: int
    local: str
    """Local address of the connection, as host:port."""
    node: str
    """Name of that node."""
    is_tls: bool = False
    is_loopback: bool = False
    """True if the client runs on that node's machine."""
    certificate_name: str = ""
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

"""What a connection tells about itself to those who look after the broker. Values: each protocol fills them in."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


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

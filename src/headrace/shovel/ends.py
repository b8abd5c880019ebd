"""The two ends of a shovel: where messages come from, and where they go. Protocols are in the other modules.

A source counts deliveries from 1 and is told up to which one all are safe. A destination counts what it sends from 1
and tells which numbers are confirmed. So neither knows the other.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import SplitResult, unquote, urlsplit

from headrace.errors import Refused

WINDOW: Final = 4000
"""Messages that are on their way at most."""
WINDOW_BYTES: Final = 64 << 20
"""Bytes on their way at which a source is asked for no more."""


@final
class Shipment:
    """One message on its way."""

    __slots__ = ("body", "exchange", "key", "offset", "properties")

    def __init__(self, exchange: str, key: str, properties: bytes, body: bytes, offset: int = -1) -> None:
        self.exchange = exchange
        self.key = key
        self.properties = properties
        """Property flags and values as AMQP 0-9-1 encodes them."""
        self.body = body
        self.offset = offset
        """Offset in the stream it is from; -1 if unknown."""


@final
@dataclass(frozen=True)
class Place:
    """A broker with a login, and a queue there, or an exchange or topic."""

    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str = "/"
    queue: str = ""
    exchange: str = ""
    """Exchange to publish to, with the key of each message; "" for the queue."""
    has_tls: bool = False

    @property
    def has_topics(self) -> bool:
        """True for MQTT: `queue` is a topic filter then, or the topic to publish to; "" for that of each message."""
        return self.scheme.startswith("mqtt")

    @property
    def shown(self) -> str:
        """The place without its login, for people."""
        return f"{self.scheme}://{self.host}:{self.port}/{'' if self.vhost == '/' else self.vhost}"


_PORTS: Final = {"amqp": 5672, "amqps": 5671, "mqtt": 1883, "mqtts": 8883}


def read_place(url: str, queue: str = "", exchange: str = "") -> Place:
    """Read the address of a broker: `amqp://user:password@host:port/vhost`. Raises Refused."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = SplitResult("", "", "", "", ""), None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise Refused(
            "the address of a broker is like amqp://guest:guest@localhost:5672; schemes: " + ", ".join(_PORTS)
        )
    vhost = unquote(parts.path[1:]) if len(parts.path) > 1 else "/"
    return Place(
        parts.scheme,
        parts.hostname,
        port or _PORTS[parts.scheme],
        unquote(parts.username or "guest"),
        unquote(parts.password or "guest"),
        vhost,
        queue,
        exchange,
        parts.scheme in ("amqps", "mqtts"),
    )


Arrived = Callable[[list[Shipment]], None]
Confirmed = Callable[[int, bool], None]
"""Called with a number, and whether all numbers below are confirmed, too."""


class Source(ABC):
    """The end that messages come from."""

    @abstractmethod
    async def open(self, arrived: Arrived) -> None:
        """Connect and ask for messages. Raises Unavailable, Refused."""

    @abstractmethod
    def settle(self, count: int) -> None:
        """Let go of the first `count` deliveries: they are safe elsewhere."""

    @abstractmethod
    def pause(self, is_paused: bool) -> None:
        """Read nothing for now, or go on."""

    @abstractmethod
    async def waiting(self) -> int:
        """Return how many messages wait there that nobody has."""

    @abstractmethod
    async def silence(self) -> None:
        """Ask for no more messages; what is delivered can still be settled."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection once all settlements are sent."""


class Destination(ABC):
    """The end that messages go to."""

    @abstractmethod
    async def open(self, confirmed: Confirmed) -> None:
        """Connect. Raises Unavailable, Refused."""

    @abstractmethod
    def send(self, shipments: list[Shipment]) -> None:
        """Publish messages with confirms."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""

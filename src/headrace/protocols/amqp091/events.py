"""What comes out of the decoder. Values; codec.py makes them, connection.py acts on them."""

from typing import TYPE_CHECKING, final

from pamqp import base

from headrace.core.properties import Properties
from headrace.model import Source

if TYPE_CHECKING:
    from headrace.core.queue import Queue


@final
class Route:
    """What a basic.publish says; one value for all that say the same. Source and queue are the connection's to set."""

    __slots__ = ("exchange", "immediate", "key", "mandatory", "queue", "source")

    def __init__(self, exchange: str, key: str, mandatory: bool, immediate: bool) -> None:
        self.source: Source | None = None
        self.queue: Queue | None = None
        """Where it leads without an exchange, as long as that is not deleted."""
        self.exchange = exchange
        self.mandatory = mandatory
        self.immediate = immediate
        self.key = key


@final
class Publish:
    """Whole messages, one or a row of them that differ in nothing but their bodies.

    `said` is what `properties` mean: shared, never to be changed.
    """

    __slots__ = ("bodies", "channel", "properties", "route", "said")

    def __init__(self, channel: int, route: Route, properties: bytes, said: Properties, body: bytes) -> None:
        self.channel = channel
        self.route = route
        self.properties = properties
        self.said = said
        self.bodies = [body]


@final
class Ack:
    """basic.ack from the client, or a row of them: those that came one by one for neighbouring tags are one value."""

    __slots__ = ("channel", "first", "multiple", "tag")

    def __init__(self, channel: int, tag: int, multiple: bool) -> None:
        self.channel = channel
        self.first = tag
        """Where the row begins; the tag itself where there is none."""
        self.tag = tag
        self.multiple = multiple


@final
class Method:
    """Any other method."""

    __slots__ = ("channel", "method")

    def __init__(self, channel: int, method: base.Frame) -> None:
        self.channel = channel
        self.method = method


@final
class TooLarge:
    """A message whose header announces more than is allowed; its body is passed over."""

    __slots__ = ("channel", "size")

    def __init__(self, channel: int, size: int) -> None:
        self.channel = channel
        self.size = size


@final
class Hello:
    """The protocol header that opens a connection; `is_ours` when it is that of 0-9-1."""

    __slots__ = ("is_ours",)

    def __init__(self, is_ours: bool) -> None:
        self.is_ours = is_ours


Event = Publish | Ack | Method | TooLarge | Hello

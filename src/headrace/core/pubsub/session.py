"""A session, its subscriptions, its connection's interface, and the bytes of single messages. No storage.

A message by itself, numbers big-endian:

     0  1  version 1
     1  1  flags: bits 0-1 assurance, bit 2 to be retained
     2  1  encoding of the properties
     3  1  priority
     4  8  timestamp, microseconds since 1970 UTC
    12  8  expiry, the same; 0 for never
    20  4  length of the properties
    24  2  length of the topic        26  2  of the exchange
    28  2  of the client id           30  2  of the protocol's name
    32     topic, exchange, client id, protocol (UTF-8), properties; the payload is the rest

A message in a session's log has a mark in front of its properties:

     0  1  flags: bits 0-1 assurance, bit 2 retained, bits 3-7 how many identifiers (31: the count is in the next byte)
     1     identifiers, 4 bytes each
"""

import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

from mypy_extensions import mypyc_attr

from headrace.config.settings import MqttSettings
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer
from headrace.core.routing.address import is_read_address
from headrace.errors import Corrupt, Refused
from headrace.model import Message, Source
from headrace.names import check_filter, quoted

if TYPE_CHECKING:
    from headrace.core.queue.queue import Queue

_VERSION: Final = 1
_HEAD: Final = struct.Struct(">BBBBqqIHHHH")
_RETAIN: Final = 4
_MANY: Final = 31
MAX_IDENTIFIERS: Final = 255


@final
class Envelope:
    """A message with its publisher's wishes for delivery."""

    __slots__ = ("assurance", "message", "retain")

    def __init__(self, message: Message, assurance: int, retain: bool) -> None:
        self.message = message
        self.assurance = assurance
        self.retain = retain


def encode_envelope(envelope: Envelope) -> bytes:
    message = envelope.message
    source = message.source
    texts = [text.encode() for text in (source.topic, source.exchange, source.client_id, source.protocol)]
    head = _HEAD.pack(
        _VERSION,
        envelope.assurance | (_RETAIN if envelope.retain else 0),
        source.encoding,
        message.priority,
        message.timestamp_us,
        message.expires_us,
        len(message.properties),
        *[len(text) for text in texts],
    )
    return b"".join((head, *texts, message.properties, message.payload))


def decode_envelope(data: bytes, where: str) -> Envelope:
    """Raises Corrupt, naming `where`."""
    if len(data) < _HEAD.size or data[0] != _VERSION:
        raise Corrupt(where, 0, f"no message of version {_VERSION} (found {data[:1]!r}, {len(data)} bytes)")
    numbers: tuple[int, ...] = _HEAD.unpack_from(data)
    _, flags, encoding, priority, timestamp_us, expires_us, properties_bytes, *lengths = numbers
    at = _HEAD.size
    texts: list[str] = []
    try:
        for length in lengths:
            texts.append(data[at : at + length].decode())
            at += length
    except UnicodeDecodeError:
        raise Corrupt(where, at, "a name is not UTF-8") from None
    if at + properties_bytes > len(data):
        raise Corrupt(where, len(data), "the message ends early")
    topic, exchange, client_id, protocol = texts
    source = Source(topic, exchange, client_id, protocol, encoding)
    properties, payload = data[at : at + properties_bytes], data[at + properties_bytes :]
    message = Message(source, payload, timestamp_us, properties, priority, expires_us)
    return Envelope(message, flags & 3, bool(flags & _RETAIN))


@final
class Mark:
    """Delivery options of a message in a session's log."""

    __slots__ = ("assurance", "identifiers", "properties", "retain")

    def __init__(self, assurance: int, retain: bool, identifiers: tuple[int, ...], properties: bytes) -> None:
        self.assurance = assurance
        self.retain = retain
        self.identifiers = identifiers
        self.properties = properties
        """The message's own properties, as its publisher's protocol encoded them."""


def marked(message: Message, assurance: int, retain: bool, identifiers: tuple[int, ...] = ()) -> Message:
    """The message with a mark, for a session's log; identifiers beyond 255 are left out."""
    flags = assurance | (_RETAIN if retain else 0)
    if not identifiers:
        mark = bytes((flags,))
    else:
        identifiers = identifiers[:MAX_IDENTIFIERS]
        count = len(identifiers)
        head = bytes((flags | count << 3,)) if count < _MANY else bytes((flags | _MANY << 3, count))
        mark = head + struct.pack(f">{count}I", *identifiers)
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        mark + message.properties,
        message.priority,
        message.expires_us,
    )


def read_mark(message: Message) -> Mark:
    """Read the mark of `marked`. Raises Corrupt."""
    data = message.properties
    if not data:
        raise Corrupt("a session's log", 0, "a message has no mark")
    count, at = data[0] >> 3, 1
    if count == _MANY and len(data) > 1:
        count, at = data[1], 2
    end = at + 4 * count
    if end > len(data):
        raise Corrupt("a session's log", at, "a message's mark ends early")
    identifiers = struct.unpack_from(f">{count}I", data, at) if count else ()
    return Mark(data[0] & 3, bool(data[0] & _RETAIN), identifiers, data[end:])


_MAX_MESSAGE_BYTES: Final = 1 << 30


@final
class Bounds:
    """Limits of waiting messages per session and of retained messages per virtual host."""

    __slots__ = ("retained_bytes", "retained_messages", "session")

    def __init__(self, settings: MqttSettings, memory_bytes: int = 1 << 40) -> None:
        """Retained messages, which are in memory too, take at most a quarter of `memory_bytes`."""
        self.session = QueueDefinition(
            "",
            max_length=settings.session_messages,
            max_length_bytes=settings.session_bytes,
            overflow=settings.session_overflow,
            max_message_bytes=_MAX_MESSAGE_BYTES,
        )
        """Definition of the broker's own queues, but for the name."""
        self.retained_messages = settings.retained_messages
        self.retained_bytes = min(settings.retained_bytes, memory_bytes // 4)


DEFAULT_BOUNDS: Final = Bounds(MqttSettings())


# Assurance of delivery, asked for by publisher and subscriber; the lower one counts.
BEST_EFFORT: Final = 0
AT_LEAST_ONCE: Final = 1
EXACTLY_ONCE: Final = 2

# Retained messages at the start of a subscription.
RETAINED_ALWAYS: Final = 0
RETAINED_IF_NEW: Final = 1
RETAINED_NEVER: Final = 2

SHARE_PREFIX: Final = "$share/"


@final
class Subscription:
    """One pattern of one session. A second one for the same pattern replaces it."""

    __slots__ = (
        "assurance",
        "auto_commit",
        "group",
        "identifier",
        "keeps_retain",
        "no_echo",
        "pattern",
        "retained",
        "session",
    )

    def __init__(
        self,
        session: "Session",
        pattern: str,
        assurance: int = BEST_EFFORT,
        identifier: int = 0,
        no_echo: bool = False,
        keeps_retain: bool = False,
        retained: int = RETAINED_ALWAYS,
        group: str = "",
        auto_commit: bool = True,
    ) -> None:
        self.session = session
        self.pattern = pattern
        self.assurance = assurance
        self.identifier = identifier
        """The subscriber's number for it; 0 = none."""
        self.no_echo = no_echo
        """True if the session's own messages are left out."""
        self.keeps_retain = keeps_retain
        """True if deliveries keep the retain flag of the publisher."""
        self.retained = retained
        self.group = group
        """For a queue's address: the subscriber's group."""
        self.auto_commit = auto_commit

    @property
    def is_shared(self) -> bool:
        return self.pattern.startswith(SHARE_PREFIX)

    @property
    def is_queue(self) -> bool:
        return is_read_address(self.pattern)

    def __repr__(self) -> str:
        return f"Subscription({self.pattern!r}, {self.assurance})"


@final
class Grant:
    """Delivery options of a session for one topic: all of its matching subscriptions, merged."""

    __slots__ = ("assurance", "identifiers", "keeps_retain", "no_echo")

    def __init__(self, assurance: int, keeps_retain: bool, no_echo: bool, identifiers: tuple[int, ...]) -> None:
        self.assurance = assurance
        self.keeps_retain = keeps_retain
        self.no_echo = no_echo
        self.identifiers = identifiers

    @property
    def key(self) -> tuple[int, bool, bool, tuple[int, ...]]:
        """Equal for equal grants."""
        return self.assurance, self.keeps_retain, self.no_echo, self.identifiers


def merged(subscriptions: list[Subscription]) -> Grant:
    """Merge matching subscriptions: a message is delivered once, with the highest assurance."""
    if len(subscriptions) == 1:
        one = subscriptions[0]
        return Grant(one.assurance, one.keeps_retain, one.no_echo, (one.identifier,) if one.identifier else ())
    identifiers = sorted({one.identifier for one in subscriptions if one.identifier})
    return Grant(
        max([one.assurance for one in subscriptions]),
        any([one.keeps_retain for one in subscriptions]),
        all([one.no_echo for one in subscriptions]),
        tuple(identifiers),
    )


def topics_read(pattern: str) -> str:
    """The pattern of a subscription without its share group. Raises Refused."""
    return parse_share(pattern)[1] if pattern.startswith(SHARE_PREFIX) else pattern


def parse_share(pattern: str) -> tuple[str, str]:
    """Group and pattern of `$share/<group>/<pattern>`. Raises Refused for other texts."""
    group, slash, inner = pattern[len(SHARE_PREFIX) :].partition("/")
    if not group or not slash or "+" in group or "#" in group:
        raise Refused(f"{quoted(pattern)} is no shared subscription: those are $share/<group>/<topic filter>")
    check_filter(inner)
    if is_read_address(inner):
        raise Refused(f"{quoted(pattern)} shares a queue: subscribe to {quoted(inner)} with a consumer group instead")
    return group, inner


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscriber(ABC):
    """The connection of a session."""

    session: "Session | None"

    @abstractmethod
    def outlet(self, grant: Grant) -> "Outlet":
        """The outlet of all subscribers that get messages in the same shape under this grant."""

    @abstractmethod
    def consumer(self, subscription: Subscription | None) -> Consumer:
        """Make a consumer for the session's queue or, with a subscription, for the queue of its share."""

    @abstractmethod
    def replaced(self) -> None:
        """Tell the client that another connection took its session, and close."""

    @abstractmethod
    def restricted(self) -> None:
        """Tell the client that it lost the right to a subscription, and close."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(ABC):
    """Encodes a message once for all subscribers of the same shape."""

    @abstractmethod
    def deliver(self, message: Message, assurance: int, retain: bool, subscribers: list[Subscriber]) -> None:
        """Send a message with this assurance, from memory only; a slow subscriber may miss it."""


FOREVER: Final = -1
"""Lifetime of a session that never expires."""


@final
class Will:
    """The message that the broker publishes when a session loses its connection, and its delay."""

    __slots__ = ("delay_s", "envelope", "expires_s")

    def __init__(self, envelope: Envelope, delay_s: int = 0, expires_s: int = 0) -> None:
        self.envelope = envelope
        self.delay_s = delay_s
        self.expires_s = expires_s
        """Time to live of the message after its publish; 0 = unlimited."""

    def message(self, now_us: int) -> Message:
        """The message to publish now."""
        given = self.envelope.message
        expires_us = now_us + self.expires_s * 1_000_000 if self.expires_s else 0
        return Message(given.source, given.payload, now_us, given.properties, given.priority, expires_us)


@final
class Session:
    """The state of one client, connected or not."""

    __slots__ = (
        "client_id",
        "completing",
        "consumer",
        "due_us",
        "is_stored",
        "left_us",
        "lifetime_s",
        "link",
        "pattern_size",
        "queue",
        "sharing",
        "subscriptions",
        "taken",
        "user",
        "will",
    )

    def __init__(self, client_id: str, user: str = "") -> None:
        self.client_id = client_id
        self.user = user
        """Owner; the session is invisible to other users."""
        self.lifetime_s = 0
        """Seconds that it outlives its connection; FOREVER, or 0 for not at all."""
        self.link: Subscriber | None = None
        """The connection; None while there is none."""
        self.subscriptions: dict[str, Subscription] = {}
        self.pattern_size = 0
        """Characters of their patterns."""
        self.queue: Queue | None = None
        """Waiting messages; opened with the first one."""
        self.consumer: Consumer | None = None
        """The connection's consumer of that queue."""
        self.sharing: dict[str, Consumer] = {}
        """The connection's consumers of shared subscriptions, by pattern."""
        self.will: Will | None = None
        self.left_us = 0
        """Time of the disconnect; 0 while connected."""
        self.due_us = 0
        """Time of its end or of its will, the earlier one; 0 if neither is due."""
        self.is_stored = False
        """True if the session is in storage."""
        self.taken: set[int] = set()
        """Numbers of received exactly-once messages that the client has not released."""
        self.completing: set[int] = set()
        """Numbers of delivered exactly-once messages that the client has not completed."""

    @property
    def is_kept(self) -> bool:
        """True if its messages are stored, because they may have to wait for the next connection."""
        return self.lifetime_s != 0 or self.queue is not None

    @property
    def ends_us(self) -> int:
        """Time of its end without a new connection; 0 = never."""
        if not self.left_us or self.lifetime_s == FOREVER:
            return 0
        return self.left_us + self.lifetime_s * 1_000_000

    def __repr__(self) -> str:
        return f"Session({self.client_id!r}, {self.lifetime_s})"

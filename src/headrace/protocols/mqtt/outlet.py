"""Messages to PUBLISH packets, encoded once for all clients that get the same bytes, and the `$SYS` topics."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast, final

from headrace.core.broker import Broker
from headrace.core.pubsub.session import Outlet, Subscriber
from headrace.core.routing.address import is_addressable, queue_topic
from headrace.core.routing.topology import topic_of
from headrace.errors import Refused
from headrace.model import MQTT5, Message
from headrace.names import check_topic
from headrace.protocols.mqtt.codec import PublishEncoder, delivered_properties, encode_publish
from headrace.protocols.mqtt.packets import V5
from headrace.wire.encodings import decode_properties
from headrace.wire.mqtt5 import encode_properties
from headrace.wire.properties import Properties

if TYPE_CHECKING:
    from headrace.protocols.mqtt.receiver import Receiver
    from headrace.protocols.mqtt.server import Host

INTERVAL_US: Final = 10_000_000
_ROOT: Final = "$SYS/broker/"


@final
class Counters:
    """The MQTT messages of one virtual host since the start."""

    __slots__ = ("dropped", "received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0
        self.dropped = 0


@final
class SystemTopics:
    """Publishes changed values to `$SYS`, at an interval."""

    __slots__ = ("_due_us", "_host", "_published", "_started_us", "_version")

    def __init__(self, host: "Host", version: str, now_us: int) -> None:
        self._host = host
        self._version = version
        self._started_us = now_us
        self._due_us = now_us
        self._published: dict[str, str] = {}

    def tick(self, now_us: int) -> None:
        """Publish changed values, if it is time. `now_us` is monotonic."""
        if now_us < self._due_us:
            return
        self._due_us = now_us + INTERVAL_US
        for name, value in self._values(now_us).items():
            if self._published.get(name) != value:
                self._published[name] = value
                self._host.broker.announce(_ROOT + name, value.encode())

    def _values(self, now_us: int) -> dict[str, str]:
        broker, counters = self._host.broker, self._host.counters
        sessions = broker.sessions
        retained = broker.pubsub.retained
        return {
            "version": f"headrace {self._version}",
            "uptime": f"{(now_us - self._started_us) // 1_000_000} seconds",
            "clients/connected": str(sessions.connected),
            "clients/disconnected": str(len(sessions) - sessions.connected),
            "clients/total": str(len(sessions)),
            "subscriptions/count": str(len(broker.pubsub)),
            "retained messages/count": str(retained.stored),
            "store/messages/bytes": str(retained.size_bytes),
            "publish/messages/received": str(counters.received),
            "publish/messages/sent": str(counters.sent),
            "publish/messages/dropped": str(counters.dropped),
        }


_BATCH_BYTES: Final = 64 << 10


@final
class Fan:
    """Collects best-effort packets of one turn. Consecutive packets of one topic are sent together.

    It holds one topic at a time, so every client gets messages in the order in which they were published.
    """

    __slots__ = ("_is_due", "active", "broker", "counters", "topic")

    def __init__(self, broker: Broker, counters: Counters) -> None:
        self.broker = broker
        self.counters = counters
        self.topic = ""
        self.active: list[SharedOutlet] = []
        """The outlets with collected packets."""
        self._is_due = False

    def begin(self, topic: str) -> None:
        """Begin another topic: send the packets of the last one."""
        if self.active:
            self.flush()
        self.topic = topic

    def flush_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.broker.at_flush(self._flush)

    def _flush(self) -> None:
        self._is_due = False
        self.flush()

    def flush(self) -> None:
        """Send all collected packets."""
        active, self.active = self.active, []
        for outlet in active:
            outlet.flush()

    def properties(self, message: Message, now_us: int, identifiers: Sequence[int] = ()) -> bytes:
        """The property list of a message for MQTT 5 clients."""
        return own_properties(message, message.properties, now_us, identifiers)


def own_properties(
    message: Message, raw: bytes, now_us: int, identifiers: Sequence[int] = (), topic_alias: int = 0
) -> bytes:
    """The property list of a delivery; `raw` are the publisher's properties, in the encoding of its protocol."""
    if message.source.encoding != MQTT5:
        raw = translated(message, raw)
    if not (message.expires_us or identifiers or topic_alias):
        return raw
    expiry_s = max(0, -((now_us - message.expires_us) // 1_000_000)) if message.expires_us else None
    return delivered_properties(raw, expiry_s, identifiers, topic_alias)


def translated(message: Message, raw: bytes) -> bytes:
    """Properties of another protocol in the encoding of MQTT 5; none if they cannot be read."""
    try:
        properties = decode_properties(message.source.encoding, raw)
        if properties.reply_to:
            _use_as_topic(properties)
        return encode_properties(properties)
    except Refused:
        return b""


def _use_as_topic(properties: Properties) -> None:
    """Make a response topic of `reply_to`: a queue's name becomes its address. What is none becomes a header."""
    reply_to = properties.reply_to
    topic = queue_topic(reply_to) if is_addressable(reply_to) else reply_to
    try:
        check_topic(topic)
        properties.reply_to = topic
    except Refused:
        properties.reply_to = ""
        properties.headers = {"reply-to": reply_to, **properties.headers}


@final
class SharedOutlet(Outlet):
    """Encodes messages for all clients of one version that get the same subscription identifiers."""

    __slots__ = ("_fan", "_identifiers", "_max_packet_bytes", "_members", "_packets", "_size", "_version")

    def __init__(self, fan: Fan, version: int, max_packet_bytes: int, identifiers: tuple[int, ...]) -> None:
        self._fan = fan
        self._version = version
        self._max_packet_bytes = max_packet_bytes
        self._identifiers = identifiers
        self._members: list[Receiver] = []
        self._packets: list[bytes] = []
        self._size = 0

    def deliver(self, message: Message, assurance: int, retain: bool, subscribers: "list[Subscriber]") -> None:
        fan = self._fan
        source = message.source
        topic = topic_of(source) if source.exchange else source.topic
        properties = b""
        if self._version == V5 and (message.properties or message.expires_us or self._identifiers):
            properties = fan.properties(message, message.timestamp_us, self._identifiers)
        if assurance:
            if fan.active:
                fan.flush()
            encoder = PublishEncoder(self._version, topic, message.payload, properties)
            size = len(message.payload)
            for receiver in cast("list[Receiver]", subscribers):
                receiver.outbox.offer(encoder, assurance, retain, size)
            return
        packet = encode_publish(self._version, topic, message.payload, 0, retain, properties=properties)
        if self._max_packet_bytes and len(packet) > self._max_packet_bytes:
            return
        if topic != fan.topic:
            fan.begin(topic)
        self._add(packet, cast("list[Receiver]", subscribers))

    def _add(self, packet: bytes, members: "list[Receiver]") -> None:
        if members is not self._members:
            if self._packets:
                self.flush()
            self._members = members
        if not self._packets:
            self._fan.active.append(self)
            self._fan.flush_later()
        self._packets.append(packet)
        self._size += len(packet)
        if self._size > _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Send the collected packets to each client in one piece."""
        packets = self._packets
        if not packets:
            return
        count = len(packets)
        data = packets[0] if count == 1 else b"".join(packets)
        self._packets = []
        self._size = 0
        members, self._members = self._members, []
        self._fan.counters.sent += count * len(members)
        for receiver in members:
            receiver.push(data, count)


@final
class AliasOutlet(Outlet):
    """Encodes messages for one client that takes topic aliases."""

    __slots__ = ("_identifiers", "_receiver")

    def __init__(self, receiver: "Receiver", identifiers: tuple[int, ...]) -> None:
        self._receiver = receiver
        self._identifiers = identifiers

    def deliver(self, message: Message, assurance: int, retain: bool, subscribers: "list[Subscriber]") -> None:
        receiver = self._receiver
        topic = topic_of(message.source)
        alias = 0
        if not assurance:
            if receiver.is_held:
                receiver.host.counters.dropped += 1
                return
            topic, alias = receiver.aliases.use(topic)
        properties = own_properties(message, message.properties, message.timestamp_us, self._identifiers, alias)
        if assurance:
            encoder = PublishEncoder(V5, topic, message.payload, properties)
            receiver.outbox.offer(encoder, assurance, retain, len(message.payload))
            return
        packet = encode_publish(V5, topic, message.payload, 0, retain, properties=properties)
        if receiver.max_packet_bytes and len(packet) > receiver.max_packet_bytes:
            receiver.aliases.take_back(topic)
            return
        receiver.host.counters.sent += 1
        receiver.wire.send(packet)


@final
class Aliases:
    """The topics that one client knows by a number: the first ones, as many as it takes.

    Only packets that are sent at once have aliases: the packet that introduces an alias must be the first to use it.
    """

    __slots__ = ("_numbers", "maximum")

    def __init__(self, maximum: int) -> None:
        self.maximum = maximum
        self._numbers: dict[str, int] = {}

    def use(self, topic: str) -> tuple[str, int]:
        """The topic to send, "" for one that the client knows, and its alias, 0 if there is no room."""
        number = self._numbers.get(topic)
        if number is not None:
            return "", number
        if len(self._numbers) >= self.maximum:
            return topic, 0
        number = self._numbers[topic] = len(self._numbers) + 1
        return topic, number

    def take_back(self, topic: str) -> None:
        """Forget an alias whose first packet was not sent."""
        self._numbers.pop(topic, None)

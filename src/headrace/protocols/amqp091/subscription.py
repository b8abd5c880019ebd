"""One consumer of a channel: deliveries to basic.deliver. Who consumes what is in subscriptions.py."""

from typing import Final, final

from headrace.core.address import format_message_id
from headrace.core.broker import Broker
from headrace.core.definition import QUORUM
from headrace.core.delivery import UNLIMITED, Consumer, Credit, Delivery, Recipient
from headrace.core.properties import Properties
from headrace.core.stream import StreamGroup
from headrace.model import AMQP091, Message
from headrace.protocols.amqp091.encoding import DeliverEncoder
from headrace.protocols.amqp091.fields import encode_entry, encode_shortstr
from headrace.protocols.amqp091.link import Link
from headrace.protocols.amqp091.properties import NONE, PRIORITY, encode_properties, with_headers
from headrace.protocols.amqp091.tags import Tags
from headrace.protocols.answers import Answers

STREAM_OFFSET: Final = "x-stream-offset"
_STREAM_OFFSET_ENTRY: Final = encode_shortstr(STREAM_OFFSET) + b"l"
"""The name and the type of the header, as RabbitMQ has it, up to the eight bytes of the offset."""


@final
class Subscription(Recipient):
    """A consumer tag and what is delivered to it."""

    __slots__ = (
        "_answers",
        "_channel",
        "_encoder",
        "_link",
        "_tags",
        "asked_for",
        "consumer",
        "consumer_tag",
        "expects_acks",
        "forgets_group",
        "is_addressed",
        "is_quorum",
        "is_stream",
        "queue",
    )

    def __init__(self, link: Link, channel: int, consumer_tag: str, queue: str, tags: Tags, answers: Answers) -> None:
        # What every delivery looks at comes first: with thousands of these it is read from memory, line by line.
        self._answers = answers
        self._tags = tags
        self._encoder = DeliverEncoder(channel, consumer_tag, link.frame_max)
        self.expects_acks = True
        """Whether the client acknowledges; it may where the queue does not wait for that."""
        self.is_quorum = False
        self.is_addressed = False
        """Whether it came by a `$queue/` address or with a group: deliveries then say where they are from."""
        self.is_stream = False
        self.forgets_group = False
        """Whether the group was made for this consumer alone and goes with it."""
        self._link = link
        self._channel = channel
        self.consumer_tag = consumer_tag
        self.queue = queue
        self.asked_for = queue
        """The name or the address that the client gave, which its user must be allowed to read."""
        self.consumer: Consumer | None = None

    def open(self, prefetch: int, no_ack: bool, priority: int, shared: Credit | None) -> Consumer:
        """The consumer that core is given."""
        consumer = Consumer(self.consumer_tag, self, prefetch, no_ack, priority, shared, self._link.owner)
        consumer.tells_offsets = self.is_stream or self.is_addressed
        if self.is_stream and not self.is_addressed:
            self._encoder = DeliverEncoder(self._channel, self.consumer_tag, self._link.frame_max, _STREAM_OFFSET_ENTRY)
        self.consumer = consumer
        self.expects_acks = not no_ack
        return consumer

    def allow(self, is_open: bool) -> None:
        """Have messages delivered, or none for now."""
        if self.consumer is not None:
            self._link.broker.allow(self.consumer, UNLIMITED if is_open else 0)

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send what core delivers."""
        tags = self._tags
        is_held = self.expects_acks
        is_plain = not (self.is_quorum or self.is_addressed)
        encoder = self._encoder
        out = self._answers.parts()
        size_bytes = 0
        for delivery in deliveries:
            tag = tags.hold(delivery) if is_held else tags.pass_by()
            message = delivery.message
            source = message.source
            properties = message.properties
            if not (is_plain and properties and source.encoding == AMQP091):
                properties = self._adorned(delivery)
            redelivered, offset = delivery.redelivered, delivery.offset
            size_bytes += encoder.encode(
                out, source, tags.encoded(tag), redelivered, properties, message.payload, offset
            )
        self._answers.sent(size_bytes)

    def glance(self) -> int:
        return self._encoder.glance()

    def deliver_reply(self, message: Message) -> None:
        """Send a direct reply, which no queue held."""
        tags = self._tags
        tag = tags.encoded(tags.pass_by())
        properties = own_properties(self._link.broker, message)
        out = self._answers.parts()
        self._answers.sent(self._encoder.encode(out, message.source, tag, False, properties, message.payload))

    def _adorned(self, delivery: Delivery) -> bytes:
        """The properties with all that deliveries carry besides, but for the number that the encoder adds."""
        if self.is_addressed:
            return self._addressed(delivery)
        properties = own_properties(self._link.broker, delivery.message)
        return counted(properties, delivery) if self.is_quorum else properties

    def _addressed(self, delivery: Delivery) -> bytes:
        message = delivery.message
        properties = _said(self._link.broker, message)
        properties.message_id = format_message_id(self.queue, delivery.offset)
        properties.headers.update(
            {
                "group-id": delivery.group.name,
                "queue": self.queue,
                "offset": delivery.offset,
                "x-source-topic": message.source.topic,
                "client_id": message.source.client_id,
                "protocol": message.source.protocol,
            }
        )
        if self.is_stream:
            properties.headers[STREAM_OFFSET] = delivery.offset
            properties.headers["x-stream-timestamp"] = message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                properties.headers.update(delivery.group.work_headers(delivery.offset))
        return encode_properties(properties)


def own_properties(broker: Broker, message: Message) -> bytes:
    """The message's properties as 0-9-1 has them, translated if another protocol brought the message."""
    if message.source.encoding == AMQP091:
        return message.properties or NONE
    return encode_properties(_said(broker, message))


def _said(broker: Broker, message: Message) -> Properties:
    """What the message says; how long it is good for and how urgent it is too, which others leave to the broker."""
    properties = broker.codecs.decode(message)
    if message.expires_us and not properties.expiration:
        properties.expiration = str((message.expires_us - message.timestamp_us) // 1000)
    if message.priority:
        properties.extra.setdefault(PRIORITY, message.priority)
    return properties


def counted(properties: bytes, delivery: Delivery) -> bytes:
    """The properties with how often the message came back, where the queue counts that."""
    if delivery.attempts < 2 or delivery.group.queue.definition.kind != QUORUM:
        return properties
    return with_headers(properties, encode_entry("x-delivery-count", delivery.attempts - 1))

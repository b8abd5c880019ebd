"""What core delivers to a consumer, as messages of AMQP 1.0; outcomes to settlements. Credit and tags: outgoing.py."""

from typing import Final, final

from headrace.core.address import format_message_id
from headrace.core.broker import Broker
from headrace.core.delivery import Consumer, Delivery
from headrace.core.group import ACK, NACK, REJECT, RELEASE
from headrace.core.stream import StreamGroup
from headrace.errors import NotFound, ProtocolError, Refused
from headrace.model import AMQP10, Message, Source
from headrace.protocols.amqp10.frames import RESOURCE_DELETED
from headrace.protocols.amqp10.head import TO, Head, annotated, decode_head, with_changes
from headrace.protocols.amqp10.neutral import from_neutral, to_neutral
from headrace.protocols.amqp10.outgoing import Origin, OutgoingLink
from headrace.protocols.amqp10.properties import translated
from headrace.protocols.amqp10.sections import joined, parts, stored
from headrace.protocols.amqp10.states import Accepted, Modified, Outcome, Rejected
from headrace.protocols.amqp10.types import Map

STREAM_OFFSET: Final = "x-stream-offset"
_MAX_ROUTED: Final = 256


@final
class Subscription(Origin):
    """A consumer of one queue, for one link."""

    def __init__(self, broker: Broker, queue: str, owner: object = None) -> None:
        self.broker = broker
        self.queue = queue
        self._owner = owner
        self.link: OutgoingLink | None = None
        self.consumer: Consumer | None = None
        self.is_stream = False
        self.is_addressed = False
        """Whether it came by a `$queue/` address or with a group: deliveries then say where they are from."""
        self.tells_route = False
        """Whether deliveries have annotations with where they were published to, as RabbitMQ's clients expect."""
        self.not_from = ""
        """The container whose own messages are not for this link; "" for none."""
        self._routed: dict[tuple[Source, bytes], bytes] = {}
        self.forgets_group = False
        """Whether the group was made for this link alone and goes with it."""
        self.deletes_queue = False
        """Whether the queue was made for this link alone and goes with it."""
        self.stays = False
        """Whether that queue stays until the link is closed, not only detached."""
        self.former: list[Consumer] = []
        """Who holds what an earlier link of this name had not settled."""

    # -- deliveries --------------------------------------------------------------------------------------------------

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Send what core delivers, in one piece."""
        link = self.link
        if link is None or link.is_over:
            return
        if self.not_from:
            deliveries = self._from_others(link, deliveries)
        is_plain = not (self.is_stream or self.is_addressed)
        messages: list[bytes] = []
        for delivery in deliveries:
            message = delivery.message
            is_first = delivery.attempts == 1 and not delivery.notes
            if not (is_plain and is_first and message.source.encoding == AMQP10):
                messages.append(self.rendered(delivery))
            elif self.tells_route:
                messages.append(joined(self._with_route(message), message.payload))
            else:
                messages.append(joined(message.properties, message.payload))
        link.send(messages, deliveries)

    def _from_others(self, link: OutgoingLink, deliveries: list[Delivery]) -> list[Delivery]:
        """Those that another container published; the others are done with, and their credit is there again."""
        wanted = [delivery for delivery in deliveries if delivery.message.source.client_id != self.not_from]
        for delivery in deliveries:
            if delivery not in wanted and not delivery.consumer.auto_ack:
                self.broker.settle(delivery, ACK)
        if len(wanted) < len(deliveries):
            self.broker.after_delivery(self.queue, link.refresh)
        return wanted

    def _with_route(self, message: Message) -> bytes:
        """The properties with their route, looked up where the same ones went out before."""
        key = (message.source, message.properties)
        found = self._routed.get(key)
        if found is None:
            head, footer = parts(message.properties)
            found = stored(message.properties[0], with_changes(head, None, route_of(message)), footer)
            if len(self._routed) >= _MAX_ROUTED:
                self._routed.clear()
            self._routed[key] = found
        return found

    def rendered(self, delivery: Delivery) -> bytes:
        """The whole message, with what this delivery adds to it."""
        properties, payload = own_message(self.broker, delivery.message)
        head, footer = parts(properties)
        count = delivery.attempts - 1
        annotations: dict[str, object] = {STREAM_OFFSET: delivery.offset} if self.is_stream else {}
        if self.tells_route:
            annotations.update(route_of(delivery.message))
        annotations.update(delivery.notes or {})
        if count or annotations:
            head = with_changes(head, count or None, annotations)
        if self.is_addressed:
            head = self._addressed(head, delivery)
        return joined(stored(properties[0], head, footer), payload)

    def _addressed(self, raw: bytes, delivery: Delivery) -> bytes:
        """The head with the names that consumers of `$queue/` addresses know."""
        source = delivery.message.source
        old = decode_head(raw)
        head = Head()
        head.header, head.delivery_annotations, head.annotations = old.header, old.delivery_annotations, old.annotations
        fields = list(old.properties or [])
        fields += [None] * (TO + 1 - len(fields))
        fields[0] = format_message_id(self.queue, delivery.offset)
        fields[TO] = source.topic
        head.properties = fields
        said: dict[str, object] = {
            "group-id": delivery.group.name,
            "queue": self.queue,
            "offset": delivery.offset,
            "x-source-topic": source.topic,
            "client_id": source.client_id,
            "protocol": source.protocol,
        }
        if self.is_stream:
            said[STREAM_OFFSET] = delivery.offset
            said["x-stream-timestamp"] = delivery.message.timestamp_us // 1000
            if isinstance(delivery.group, StreamGroup):
                said.update(delivery.group.work_headers(delivery.offset))
        more = Map([(name, from_neutral(value)) for name, value in said.items()])
        head.application = annotated(old.application or Map(), more)
        return head.encode()

    def open(self, link: OutgoingLink) -> None:
        self.link = link

    # -- what the link calls -----------------------------------------------------------------------------------------

    def allow(self, count: int) -> None:
        if self.consumer is not None:
            self.broker.allow(self.consumer, count)

    def settled(self, delivery: Delivery, outcome: Outcome) -> None:
        settlement = settlement_of(self.broker, delivery, outcome)
        try:
            self.broker.settle(delivery, settlement)
        except Refused:
            return  # its time ran out and another has it, or its consumer left: nothing is left to settle

    def leave(self) -> None:
        consumer, self.consumer = self.consumer, None
        if consumer is not None:
            self.broker.cancel(consumer, keep=True)
            self.former.append(consumer)

    def give_back(self) -> None:
        """What this link and those before it held goes back in line."""
        broker = self.broker
        for consumer in self.former:
            group = consumer.group
            broker.cancel(consumer)
            if self.forgets_group and group is not None and not group.queue.is_gone and not len(group.consumers):
                broker.groups.delete(self.queue, group.name)
        self.former.clear()

    def end(self, is_closed: bool) -> None:
        self.leave()
        self.give_back()
        broker = self.broker
        if self.deletes_queue and (is_closed or not self.stays):
            try:
                broker.delete(self.queue, owner=self._owner)
            except (NotFound, Refused):
                return  # gone already, with its connection or by another's hand

    def cancelled(self) -> None:
        """The queue went away under the consumer."""
        link = self.link
        if link is not None:
            link.detach(ProtocolError(RESOURCE_DELETED, f"the queue '{self.queue}' was deleted"))


def consumer_name(key: tuple[str, str]) -> str:
    """The consumer of a link, as its queue's group knows it: also after a restart."""
    return "/".join(key)[:255]


def route_of(message: Message) -> dict[str, object]:
    """Where a message was published to, as RabbitMQ's clients are told."""
    return {"x-exchange": message.source.exchange, "x-routing-key": message.source.topic}


def own_message(broker: Broker, message: Message) -> tuple[bytes, bytes]:
    """Properties and payload as AMQP 1.0 has them, translated if another protocol brought the message."""
    if message.source.encoding == AMQP10 and message.properties:
        return message.properties, message.payload
    return translated(message, broker.codecs.decode(message))


def settlement_of(broker: Broker, delivery: Delivery, outcome: Outcome) -> int:
    """How core is to end a delivery; what a receiver noted on it goes with it."""
    if isinstance(outcome, Accepted):
        return ACK
    if isinstance(outcome, Rejected):
        return REJECT
    if not isinstance(outcome, Modified):
        return RELEASE
    if outcome.annotations is not None:
        delivery.notes = {**(delivery.notes or {}), **outcome.annotations.texts()}
    if outcome.undeliverable_here:
        if delivery.notes:
            delivery.message = _noted(broker, delivery.message, delivery.notes)
        return REJECT
    return NACK if outcome.delivery_failed else RELEASE


def _noted(broker: Broker, message: Message, notes: dict[str, object]) -> Message:
    """The message with what a receiver noted on it, in its own encoding: what a dead letter is made from."""
    properties = broker.codecs.decode(message)
    properties.headers.update({name: to_neutral(value) for name, value in notes.items()})
    raw = broker.codecs.encode(message.source.encoding, properties)
    return Message(
        message.source,
        message.payload,
        message.timestamp_us,
        raw,
        message.priority,
        message.expires_us,
        message.not_before_us,
    )

"""The client's end of a session: messages and queue deliveries as packets. Requests are in connection.py."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.pubsub.session import (
    AT_LEAST_ONCE,
    BEST_EFFORT,
    EXACTLY_ONCE,
    Grant,
    Mark,
    Outlet,
    Subscriber,
    Subscription,
    marked,
    merged,
    read_mark,
)
from headrace.core.queue.definition import EPHEMERAL
from headrace.core.queue.dispatch import UNLIMITED, Consumer, Delivery
from headrace.core.queue.group import STREAM_MODE, mode_to_join
from headrace.core.queue.queue import Queue
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import format_message_id
from headrace.core.routing.topology import topic_of
from headrace.errors import Corrupt, ProtocolError, Refused
from headrace.model import Message, Source
from headrace.protocols.mqtt.encoding import PublishEncoder
from headrace.protocols.mqtt.outbox import LOG_IDENTIFIERS, Outbox
from headrace.protocols.mqtt.outlet import Aliases, AliasOutlet, own_properties
from headrace.protocols.mqtt.packets import V5, Connect
from headrace.protocols.mqtt.properties import REASON_STRING, PropertyList, encode_user_property
from headrace.protocols.mqtt.reasons import IMPLEMENTATION_SPECIFIC_ERROR, NOT_AUTHORIZED
from headrace.protocols.mqtt.server import Host, Server

if TYPE_CHECKING:
    from headrace.net.connection import Wire
    from headrace.protocols.mqtt.connection import Connection


@final
class QueueReader:
    """One client's membership in one group of one queue."""

    __slots__ = ("_client", "_group", "_origin", "_qos", "_queue", "_root", "_source", "consumer", "is_stream")

    def __init__(self, client: "Client", queue: str, root: str, qos: int) -> None:
        self._client = client
        self._queue = queue
        self._qos = qos
        self._root = root
        """The address that the client has for the queue, without a key."""
        self._group = b""
        self._source: Source | None = None
        self._origin = b""
        self.is_stream = False
        # At QoS 0 nothing is acknowledged; only streams and ephemeral queues can be read so.
        self.consumer = Consumer(client.client_id, self._deliver, client.prefetch, auto_ack=qos == 0)
        self.consumer.owner = client
        self.consumer.allowance = client.allowance

    def open(self, group: str, key_filter: str, position: str, auto_commit: bool, mode: str) -> None:
        """Become a member. Raises Refused where the queue or the group does not allow it."""
        broker = self._client.host.broker
        queue = broker.addressed(self._queue, self._client)
        joined = mode_to_join(queue, group, mode)
        self.is_stream = joined == STREAM_MODE
        if not self._qos and not (self.is_stream or queue.definition.kind == EPHEMERAL):
            raise Refused(f"queue '{self._queue}' takes no subscription at QoS 0: its messages must be acknowledged")
        self.consumer.cancelled = lambda: self._cancelled(queue)
        members = broker.consume(
            self._queue, self.consumer, group, key_filter, joined, position or None, auto_commit=auto_commit
        )
        self._group = encode_user_property("group-id", members.name) + encode_user_property("queue", self._queue)

    def close(self) -> None:
        """Leave the group; what is unsettled goes back in line."""
        self._client.host.broker.cancel(self.consumer)

    def _cancelled(self, queue: Queue) -> None:
        """The queue went away. Who waits for what a damaged one holds is told by the end of its connection: MQTT has no
        other word for it."""
        if queue.refusal is not None:
            self._client.refuse(ProtocolError(IMPLEMENTATION_SPECIFIC_ERROR, str(queue.refusal)))

    def _deliver(self, deliveries: list[Delivery]) -> None:
        client = self._client
        now_us = client.now_us()
        settles = self.is_stream or client.version != V5
        for delivery in deliveries:
            message = delivery.message
            properties = self._properties(delivery, now_us) if client.version == V5 else b""
            packet = PublishEncoder(client.version, self._topic(message.source), message.payload, properties)
            if self._qos:
                client.outbox.deliver(packet, 1, False, delivery, 0, settles)
            else:
                client.send_plain(packet, False)

    def _topic(self, source: Source) -> str:
        """An address is kept as it was published; what came another way has the queue's own."""
        topic = source.topic
        if topic == self._root or (topic.startswith(self._root) and topic[len(self._root)] == "/"):
            return topic
        return self._root

    def _properties(self, delivery: Delivery, now_us: int) -> bytes:
        message = delivery.message
        said = own_properties(self._client.host.broker, message, message.properties, now_us)
        place = encode_user_property("message-id", format_message_id(self._queue, delivery.offset))
        offset = encode_user_property("offset", str(delivery.offset))
        parts = [said, place, self._group, offset, self._origin_of(message)]
        if self.is_stream:
            parts += _stream_properties(delivery)
        return b"".join(parts)

    def _origin_of(self, message: Message) -> bytes:
        """Who published what; the same for all messages of one source."""
        source = message.source
        if source is not self._source:
            self._source = source
            self._origin = b"".join(
                (
                    encode_user_property("x-source-topic", source.topic),
                    encode_user_property("client_id", source.client_id),
                    encode_user_property("protocol", source.protocol),
                )
            )
        return self._origin


def _stream_properties(delivery: Delivery) -> list[bytes]:
    said = [("x-stream-offset", str(delivery.offset))]
    said.append(("x-stream-timestamp", str(delivery.message.timestamp_us // 1000)))
    progress = delivery.group.work_progress() if isinstance(delivery.group, StreamGroup) else None
    if progress is not None:
        primary, committed = progress
        is_done = "true" if delivery.offset < committed else "false"
        said += [("x-work-group", primary), ("x-work-committed-offset", str(committed))]
        said += [("x-work-acked", is_done), ("x-primary-group-processed", is_done)]
    return [encode_user_property(name, value) for name, value in said]


_SLACK: Final = 16
_REPLAYED_AT_ONCE: Final = 256
_REASON_CHARACTERS: Final = 1000
_REASON_SPARE: Final = 64
"""Bytes that the rest of a packet with a reason string may take."""


@final
class Client(Subscriber):
    """One client while it is connected."""

    __slots__ = (
        "_clock",
        "_connection",
        "_consumers",
        "_is_full",
        "_replaying",
        "_replays",
        "_swept_at",
        "aliases",
        "client_id",
        "host",
        "is_closed",
        "is_held",
        "limits",
        "max_packet_bytes",
        "outbox",
        "prefetch",
        "readers",
        "session",
        "version",
        "wants_reasons",
        "wire",
    )

    def __init__(self, connection: "Connection", wire: "Wire", host: Host, server: Server, connect: Connect) -> None:
        self.session = None
        self._connection = connection
        self.wire = wire
        self.host = host
        self.limits = limits = server.limits
        self._clock = server.clock
        self.version = connect.version
        self.wants_reasons = connect.wants_problem_information
        self.client_id = connect.client_id
        self.max_packet_bytes = connect.maximum_packet_bytes
        self.prefetch = min(connect.receive_maximum, limits.prefetch)
        self.aliases = Aliases(min(connect.topic_alias_maximum, limits.topic_alias_maximum))
        self.outbox = Outbox(self, connect.receive_maximum)
        self.is_held = False
        """Whether the client does not keep up with what it is sent."""
        self._is_full = False
        self.is_closed = False
        self.readers: dict[str, QueueReader] = {}
        """Its queue subscriptions, by topic filter."""
        self._consumers: list[Consumer] = []
        """On its log and on what it shares; some may have left."""
        self._swept_at = _SLACK
        """From how many on those that left are taken out."""
        self._replays: dict[str, Subscription] = {}
        """Subscriptions whose retained messages it is still to get."""
        self._replaying: tuple[Iterator[str], Subscription] | None = None

    # -- what core asks ----------------------------------------------------------------------------------------------

    def outlet(self, grant: Grant) -> Outlet:
        if self.aliases.maximum:
            return AliasOutlet(self, grant.identifiers)
        return self.host.outlet(self.version, self.max_packet_bytes, grant)

    def consumer(self, subscription: Subscription | None) -> Consumer:
        if subscription is None:
            consumer = Consumer(self.client_id, self._deliver_kept, self.prefetch)
        else:
            consumer = Consumer(self.client_id, lambda found: self._deliver_shared(subscription, found), self.prefetch)
            consumer.auto_ack = subscription.assurance == BEST_EFFORT
        consumer.allowance = self.allowance
        if len(self._consumers) >= self._swept_at:
            self._consumers = [other for other in self._consumers if other.group is not None]
            self._swept_at = 2 * len(self._consumers) + _SLACK
        self._consumers.append(consumer)
        return consumer

    def consumers(self) -> list[Consumer]:
        """On queues, on its log and on what it shares."""
        readers = [reader.consumer for reader in self.readers.values()]
        return [consumer for consumer in (*readers, *self._consumers) if consumer.group is not None]

    @property
    def unsettled(self) -> int:
        """How many messages it has and did not settle."""
        return sum([consumer.holding for consumer in self.consumers()])

    def replaced(self) -> None:
        self._connection.taken_over()

    def restricted(self) -> None:
        self._connection.expel(NOT_AUTHORIZED, "what it has subscribed to may not be read any more")

    def reasons(self, *texts: str) -> PropertyList | None:
        """A reason string of these, for a client that wants to be told and takes packets of that size."""
        text = "; ".join(texts)[:_REASON_CHARACTERS]
        most = self.max_packet_bytes
        if not text or not self.wants_reasons or (most and len(text.encode()) + _REASON_SPARE > most):
            return None
        properties = PropertyList()
        properties.texts[REASON_STRING] = text
        return properties

    def begin_publishing(self) -> None:
        """It is one of those from now on who wait when the broker has too much in hand."""
        self.host.add_publisher(self._connection)

    def refuse(self, error: ProtocolError) -> None:
        """End the connection for a reason."""
        self._connection.end(error)

    # -- deliveries --------------------------------------------------------------------------------------------------

    def push(self, data: bytes, count: int) -> None:
        """Send packets that need no acknowledgement; a client that does not keep up misses them."""
        if self.is_held:
            self.host.counters.sent -= count
            self.host.counters.dropped += count
        else:
            self.wire.send(data)

    def send_plain(self, packet: PublishEncoder, retain: bool) -> None:
        """Send a packet that needs no acknowledgement and was asked for: whoever asks stops when it is too much."""
        data = packet.encode(0, retain)
        if not self.max_packet_bytes or len(data) <= self.max_packet_bytes:
            self.host.counters.sent += 1
            self.wire.send(data)

    def _deliver_kept(self, deliveries: list[Delivery]) -> None:
        """What waited in the session's log: the packet identifier follows from the offset."""
        now_us = self._clock.now_us()
        for delivery in deliveries:
            mark = self._mark_of(delivery)
            if mark is None:
                continue
            packet = self._packet(delivery.message, mark.properties, mark.identifiers, now_us)
            number = delivery.offset % LOG_IDENTIFIERS + 1
            self.outbox.deliver(packet, mark.assurance, mark.retain, delivery, number, True)

    def _deliver_shared(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """What waited for one of those who share a subscription.

        What is handed over exactly once is this client's from now on, whatever becomes of it: MQTT 5 [MQTT-4.8.2-4],
        [MQTT-4.8.2-5].
        """
        now_us = self._clock.now_us()
        session = self.session
        assert session is not None
        identifiers = (subscription.identifier,) if subscription.identifier else ()
        for delivery in deliveries:
            mark = self._mark_of(delivery)
            if mark is None:
                continue
            retain = mark.retain and subscription.keeps_retain
            assurance = min(mark.assurance, subscription.assurance)
            if assurance == EXACTLY_ONCE and session.is_kept:
                said = delivery.message
                plain = Message(said.source, said.payload, said.timestamp_us, mark.properties, 0, said.expires_us)
                self.host.broker.hand_over(delivery, session, marked(plain, assurance, retain, identifiers))
                continue
            packet = self._packet(delivery.message, mark.properties, identifiers, now_us)
            if assurance == BEST_EFFORT:
                self.send_plain(packet, retain)
            elif assurance == AT_LEAST_ONCE:
                self.outbox.deliver(packet, assurance, retain, delivery, 0, True)
            else:
                self.outbox.settle(delivery)
                self.outbox.offer(packet, assurance, retain, len(delivery.message.payload))

    def _mark_of(self, delivery: Delivery) -> Mark | None:
        """How it is to be sent; None for one that cannot be read, which is done with by that."""
        try:
            return read_mark(delivery.message)
        except Corrupt:
            self.outbox.settle(delivery)
            return None

    def _packet(self, message: Message, said: bytes, identifiers: tuple[int, ...], now_us: int) -> PublishEncoder:
        properties = b""
        if self.version == V5:
            properties = own_properties(self.host.broker, message, said, now_us, identifiers)
        return PublishEncoder(self.version, topic_of(message.source), message.payload, properties)

    # -- retained messages -------------------------------------------------------------------------------------------

    def replay(self, subscription: Subscription) -> None:
        """Send the retained messages that match, as fast as the client takes them, one subscription at a time."""
        self._replays[subscription.pattern] = subscription
        self._go_on_replaying()

    def _go_on_replaying(self) -> None:
        while not self.is_held and not self.outbox.waiting:
            if self._replaying is None:
                if not self._replays:
                    return
                subscription = self._replays.pop(next(iter(self._replays)))
                self._replaying = iter(self.host.broker.pubsub.retained.match(subscription.pattern)), subscription
            topics, subscription = self._replaying
            for _ in range(_REPLAYED_AT_ONCE):
                topic = next(topics, None)
                if topic is None:
                    self._replaying = None
                    break
                self._send_retained(topic, subscription)

    def _send_retained(self, topic: str, subscription: Subscription) -> None:
        now_us = self._clock.now_us()
        broker = self.host.broker
        kept = broker.pubsub.retained.get(topic, now_us)
        session = self.session
        if kept is None or session is None:
            return
        assurance = min(kept.assurance, subscription.assurance)
        grant = merged([subscription])
        if assurance != BEST_EFFORT and session.is_kept:
            broker.keep(session, marked(kept.message, assurance, True, grant.identifiers))
            return
        packet = self._packet(kept.message, kept.message.properties, grant.identifiers, now_us)
        if assurance:
            self.outbox.offer(packet, assurance, True, len(kept.message.payload))
        else:
            self.send_plain(packet, True)

    # -- keeping up --------------------------------------------------------------------------------------------------

    def hold(self, is_held: bool) -> None:
        """The client does not keep up: nothing more is produced for it that can wait; or it goes on."""
        self.is_held = is_held
        self._allow()
        if not is_held:
            self.has_room()

    def has_room(self) -> None:
        """Something was acknowledged or written: send what waits for that."""
        self.outbox.drain()
        if self._replaying is not None or self._replays:
            self._go_on_replaying()

    def fill(self, is_full: bool) -> None:
        """As much waits for acknowledgements as may: core delivers no more for now; or it goes on."""
        if is_full != self._is_full:
            self._is_full = is_full
            self._allow()

    @property
    def allowance(self) -> int:
        """How much core may deliver now."""
        return 0 if self.is_held or self._is_full else UNLIMITED

    def _allow(self) -> None:
        broker = self.host.broker
        count = self.allowance
        for consumer in self._consumers:
            broker.allow(consumer, count)
        for reader in self.readers.values():
            broker.allow(reader.consumer, count)

    def now_us(self) -> int:
        return self._clock.now_us()

    def close(self) -> None:
        """The connection is gone: its queue consumers leave; those of the session, core ends itself."""
        self.is_closed = True
        for reader in self.readers.values():
            reader.close()
        self.readers = {}
        self._replays.clear()
        self._replaying = None

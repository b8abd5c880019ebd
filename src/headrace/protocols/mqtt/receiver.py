"""A connected client as a receiver: messages of its session, shared and retained ones as packets. No requests."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.client import Client
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
from headrace.core.queue.dispatch import UNLIMITED, Consumer, Delivery
from headrace.core.routing.topology import topic_of
from headrace.errors import Corrupt, ProtocolError
from headrace.model import Message
from headrace.protocols.mqtt.codec import PublishEncoder
from headrace.protocols.mqtt.outbox import LOG_IDENTIFIERS, Outbox
from headrace.protocols.mqtt.outlet import Aliases, AliasOutlet, own_properties
from headrace.protocols.mqtt.packets import V5, Connect
from headrace.protocols.mqtt.reasons import NOT_AUTHORIZED, SESSION_TAKEN_OVER
from headrace.protocols.mqtt.server import Host, Server
from headrace.wire.mqtt5 import REASON_STRING, PropertyList

if TYPE_CHECKING:
    from headrace.net.connection import Wire
    from headrace.protocols.mqtt.subscriptions import QueueReader


_SLACK: Final = 16
_REASON_CHARACTERS: Final = 1000
_REASON_SPARE: Final = 64
"""Bytes of a packet besides its reason string, at most."""


@final
class Receiver(Subscriber):
    """The messages that one connected client gets."""

    __slots__ = (
        "_clock",
        "_consumers",
        "_is_full",
        "_is_replaying",
        "_replaying",
        "_replays",
        "_swept_at",
        "aliases",
        "client",
        "client_id",
        "host",
        "is_closed",
        "is_held",
        "limits",
        "max_packet_bytes",
        "outbox",
        "prefetch",
        "readers",
        "refuse",
        "session",
        "version",
        "wants_reasons",
        "wire",
    )

    def __init__(
        self,
        refuse: Callable[[ProtocolError], None],
        wire: "Wire",
        host: Host,
        server: Server,
        connect: Connect,
        client: Client,
    ) -> None:
        self.session = None
        self.client = client
        self.refuse = refuse
        """Ends the connection for a reason."""
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
        """True while the client reads more slowly than we send."""
        self._is_full = False
        self.is_closed = False
        self.readers: dict[str, QueueReader] = {}
        """Queue subscriptions, by topic filter."""
        self._consumers: list[Consumer] = []
        """Consumers of the session's log and of shared subscriptions; some may have left."""
        self._swept_at = _SLACK
        """The number of consumers at which those that left are removed."""
        self._replays: dict[str, Subscription] = {}
        """Subscriptions whose retained messages are still to be sent."""
        self._replaying: tuple[Iterator[str], Subscription] | None = None
        self._is_replaying = False
        """True while steps of it are on their way."""

    # -- calls from core -----------------------------------------------------------------------------------------------

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
        """The consumers of queues, of the session's log and of shared subscriptions."""
        readers = [reader.consumer for reader in self.readers.values()]
        return [consumer for consumer in (*readers, *self._consumers) if consumer.group is not None]

    @property
    def unsettled(self) -> int:
        """Messages that the client has and did not settle."""
        return sum([consumer.holding for consumer in self.consumers()])

    def replaced(self) -> None:
        self.refuse(ProtocolError(SESSION_TAKEN_OVER, "another connection has this client identifier now"))

    def restricted(self) -> None:
        self.refuse(ProtocolError(NOT_AUTHORIZED, "what it has subscribed to may not be read any more"))

    def reasons(self, *texts: str) -> PropertyList | None:
        """A reason string, unless the client wants none or takes no packet of that size."""
        text = "; ".join(texts)[:_REASON_CHARACTERS]
        most = self.max_packet_bytes
        if not text or not self.wants_reasons or (most and len(text.encode()) + _REASON_SPARE > most):
            return None
        properties = PropertyList()
        properties.texts[REASON_STRING] = text
        return properties

    # -- deliveries --------------------------------------------------------------------------------------------------

    def push(self, data: bytes, count: int) -> None:
        """Send packets without acknowledgement; a slow client misses them."""
        if self.is_held:
            self.host.counters.sent -= count
            self.host.counters.dropped += count
        else:
            self.wire.send(data)

    def send_plain(self, packet: PublishEncoder, retain: bool) -> None:
        """Send a packet without acknowledgement even to a slow client: the caller stops in time."""
        data = packet.encode(0, retain)
        if not self.max_packet_bytes or len(data) <= self.max_packet_bytes:
            self.host.counters.sent += 1
            self.wire.send(data)

    def _deliver_kept(self, deliveries: list[Delivery]) -> None:
        """Send messages of the session's log; the packet identifier follows from the offset."""
        now_us = self._clock.now_us()
        for delivery in deliveries:
            mark = self._mark_of(delivery)
            if mark is None:
                continue
            packet = self._packet(delivery.message, mark.properties, mark.identifiers, now_us)
            number = delivery.offset % LOG_IDENTIFIERS + 1
            self.outbox.deliver(packet, mark.assurance, mark.retain, delivery, number, True)

    def _deliver_shared(self, subscription: Subscription, deliveries: list[Delivery]) -> None:
        """Send messages of a shared subscription.

        A message at QoS 2 stays this client's from now on: MQTT 5 [MQTT-4.8.2-4], [MQTT-4.8.2-5].
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
                kept = delivery.message
                plain = Message(kept.source, kept.payload, kept.timestamp_us, mark.properties, 0, kept.expires_us)
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
        """The form in which to send a message; None for an unreadable one, which is settled."""
        try:
            return read_mark(delivery.message)
        except Corrupt:
            self.outbox.settle(delivery)
            return None

    def _packet(self, message: Message, raw: bytes, identifiers: tuple[int, ...], now_us: int) -> PublishEncoder:
        properties = b""
        if self.version == V5:
            properties = own_properties(message, raw, now_us, identifiers)
        return PublishEncoder(self.version, topic_of(message.source), message.payload, properties)

    # -- retained messages -------------------------------------------------------------------------------------------

    def replay(self, subscription: Subscription) -> None:
        """Send the retained messages that match, as fast as the client takes them, one subscription at a time."""
        self._replays[subscription.pattern] = subscription
        self._go_on_replaying()

    def _go_on_replaying(self) -> None:
        if not self._is_replaying:
            self._is_replaying = True
            self.host.broker.in_steps(self._replay_each())

    def _replay_each(self) -> Iterator[None]:
        """Send one message in each step, until the client reads more slowly."""
        try:
            while not (self.is_held or self.outbox.waiting):
                topic = self._next_retained()
                if topic is None:
                    return
                self._send_retained(topic[0], topic[1])
                yield
        finally:
            self._is_replaying = False

    def _next_retained(self) -> tuple[str, Subscription] | None:
        """The next topic to send for a subscription; None after the last one."""
        while True:
            if self._replaying is None:
                if not self._replays:
                    return None
                subscription = self._replays.pop(next(iter(self._replays)))
                self._replaying = self.host.broker.pubsub.retained.match(subscription.pattern), subscription
            topics, subscription = self._replaying
            is_wanted = (
                self.session is not None and self.session.subscriptions.get(subscription.pattern) is subscription
            )
            topic = next(topics, None) if is_wanted else None
            if topic is not None:
                return topic, subscription
            self._replaying = None

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
        """Stop or resume deliveries, as the client's reading allows."""
        self.is_held = is_held
        self._allow()
        if not is_held:
            self.has_room()

    def has_room(self) -> None:
        """Send messages that waited for an acknowledgement or for the client to read."""
        self.outbox.drain()
        if self._replaying is not None or self._replays:
            self._go_on_replaying()

    def fill(self, is_full: bool) -> None:
        """Stop core's deliveries while the outbox is full, or resume them."""
        if is_full != self._is_full:
            self._is_full = is_full
            self._allow()

    @property
    def allowance(self) -> int:
        """The number of messages that core may deliver now."""
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
        """End the queue consumers; core ends those of the session."""
        self.is_closed = True
        for reader in self.readers.values():
            reader.close()
        self.readers = {}
        self._replays.clear()
        self._replaying = None

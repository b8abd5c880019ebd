"""The client's end of a session: what core delivers, as packets. What the client asks for is in connection.py."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, final

from headrace.core.delivery import UNLIMITED, Consumer, Delivery
from headrace.core.envelope import Mark, marked, read_mark
from headrace.core.session import Session
from headrace.core.subscriber import Outlet, Subscriber
from headrace.core.subscription import AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, Grant, Subscription, merged
from headrace.core.topology import topic_of
from headrace.errors import Corrupt, ProtocolError
from headrace.model import Message
from headrace.protocols.mqtt.encoding import PublishEncoder
from headrace.protocols.mqtt.outbox import LOG_IDENTIFIERS, Outbox
from headrace.protocols.mqtt.outlet import Aliases, AliasOutlet, own_properties
from headrace.protocols.mqtt.packets import V5, Connect
from headrace.protocols.mqtt.property_list import REASON_STRING, PropertyList
from headrace.protocols.mqtt.queue_reader import QueueReader
from headrace.protocols.mqtt.reasons import NOT_AUTHORIZED
from headrace.protocols.mqtt.server import Host, Server

if TYPE_CHECKING:
    from headrace.net.connection import Wire
    from headrace.protocols.mqtt.connection import Connection

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
        self.session: Session | None = None
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
        self._consumers = [other for other in self._consumers if other.group is not None]
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

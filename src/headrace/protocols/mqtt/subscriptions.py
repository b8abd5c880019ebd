"""SUBSCRIBE and UNSUBSCRIBE: plain and shared topics to the session, addresses to queues; and queue deliveries."""

from collections.abc import Iterator
from typing import Final, final

from headrace.config.kinds import is_switched_on
from headrace.core.client import ConsumePlan, ConsumeRequest
from headrace.core.pubsub.session import AT_LEAST_ONCE, BEST_EFFORT, SHARE_PREFIX, Subscription, topics_read
from headrace.core.queue.definition import EPHEMERAL
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.queue import Queue
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import (
    DEAD_LETTER_PREFIX,
    format_message_id,
    group_of_client,
    is_read_address,
    parse_address,
    queue_topic,
)
from headrace.errors import AccessRefused, Corrupt, HeadraceError, ProtocolError, Refused, TooLarge
from headrace.model import Message, Source
from headrace.protocols.mqtt.codec import PublishEncoder, encode_suback, encode_unsuback
from headrace.protocols.mqtt.outlet import own_properties
from headrace.protocols.mqtt.packets import V5, Subscribe, Unsubscribe
from headrace.protocols.mqtt.packets import Subscription as Asked
from headrace.protocols.mqtt.reasons import (
    IMPLEMENTATION_SPECIFIC_ERROR,
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORIZED,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SUCCESS,
    TOPIC_FILTER_INVALID,
)
from headrace.protocols.mqtt.receiver import Receiver
from headrace.wire.mqtt5 import encode_text, encode_user_property

CONSUMER_GROUP: Final = "consumer-group"
STREAM_OFFSET: Final = "x-stream-offset"
AUTO_COMMIT: Final = "x-auto-commit"
GROUP_MODE: Final = "group-mode"
_MESSAGE_ID: Final = encode_user_property("message-id", "")[:-2]
_MEAN_PATTERN: Final = 256
"""Mean length of the topic filters of a session with as many of them as it may have."""
_LONGEST_PATTERN: Final = 65_535
_OFFSET: Final = encode_user_property("offset", "")[:-2]
"""User properties up to their values."""


@final
class QueueReader:
    """One client's membership in one group of one queue."""

    __slots__ = (
        "_group",
        "_origin",
        "_plan",
        "_qos",
        "_queue",
        "_receiver",
        "_root",
        "_settles",
        "_source",
        "consumer",
    )

    def __init__(self, receiver: Receiver, plan: ConsumePlan, root: str, qos: int) -> None:
        """Become a member of the group. Raises Refused where the queue or the group does not allow it."""
        queue = plan.queue
        if not qos and not (plan.is_stream or queue.definition.kind == EPHEMERAL):
            raise Refused(f"queue '{queue.name}' takes no subscription at QoS 0: its messages must be acknowledged")
        self._receiver = receiver
        self._plan = plan
        self._queue = queue.name
        self._qos = qos
        self._root = root
        """The queue's address without a key, in the form that the client uses."""
        self._settles = plan.is_stream or receiver.version != V5
        """True if a PUBACK settles the message; otherwise the client publishes a settlement."""
        self._source: Source | None = None
        self._origin = b""
        self.consumer = receiver.client.consumer(plan, receiver.client_id, self._deliver)
        self.consumer.allowance = receiver.allowance
        self.consumer.cancelled = lambda: self._cancelled(queue)
        members = receiver.client.consume(plan, self.consumer)
        self._group = encode_user_property("group-id", members.name) + encode_user_property("queue", queue.name)

    def close(self) -> None:
        """Leave the group; unsettled messages go back to the queue."""
        self._receiver.client.broker.cancel(self.consumer)

    def _cancelled(self, queue: Queue) -> None:
        """End the connection of a client whose queue is damaged: MQTT has no other way to tell it."""
        if queue.refusal is not None:
            self._receiver.refuse(ProtocolError(IMPLEMENTATION_SPECIFIC_ERROR, str(queue.refusal)))

    def _deliver(self, deliveries: list[Delivery]) -> None:
        receiver = self._receiver
        now_us = receiver.now_us()
        for delivery in deliveries:
            message = delivery.message
            properties = self._properties(delivery, now_us) if receiver.version == V5 else b""
            packet = PublishEncoder(receiver.version, self._topic(message.source), message.payload, properties)
            if self._qos:
                receiver.outbox.deliver(packet, 1, False, delivery, 0, self._settles)
            else:
                receiver.send_plain(packet, False)

    def _topic(self, source: Source) -> str:
        """The address that the message was published to; the queue's address if it came another way."""
        topic = source.topic
        if topic == self._root or (topic.startswith(self._root) and topic[len(self._root)] == "/"):
            return topic
        return self._root

    def _properties(self, delivery: Delivery, now_us: int) -> bytes:
        message = delivery.message
        own = own_properties(message, message.properties, now_us)
        message_id = encode_text(format_message_id(self._queue, delivery.offset))
        offset = encode_text(str(delivery.offset))
        parts = [own, _MESSAGE_ID, message_id, self._group, _OFFSET, offset, self._origin_of(message)]
        if self._plan.is_stream:
            parts += _stream_properties(delivery)
        return b"".join(parts)

    def _origin_of(self, message: Message) -> bytes:
        """The user properties of a source, kept for the next message."""
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
    given = [("x-stream-offset", str(delivery.offset))]
    given.append(("x-stream-timestamp", str(delivery.message.timestamp_us // 1000)))
    progress = delivery.group.work_progress() if isinstance(delivery.group, StreamGroup) else None
    if progress is not None:
        primary, committed = progress
        is_done = "true" if delivery.offset < committed else "false"
        given += [("x-work-group", primary), ("x-work-committed-offset", str(committed))]
        given += [("x-work-acked", is_done), ("x-primary-group-processed", is_done)]
    return [encode_user_property(name, value) for name, value in given]


def subscribe(receiver: Receiver, packet: Subscribe) -> Iterator[None]:
    """Subscribe to one topic filter in each step, then answer; retained messages follow the answer."""
    reasons: list[int] = []
    refusals: list[str] = []
    replays: list[Subscription] = []
    user = dict(packet.user)
    for asked in packet.subscriptions:
        if receiver.is_closed:
            return
        try:
            receiver.client.rights.check_topic_subscribe(topics_read(asked.pattern), receiver.client_id)
            _check_room(receiver, asked.pattern)
            subscription = _subscription(receiver, asked, packet.identifier, user)
            if subscription.is_queue:
                _join(receiver, subscription, user.get(STREAM_OFFSET, ""), user.get(GROUP_MODE, ""))
            begins_with_retained = receiver.host.broker.sessions.subscribe(subscription)
        except ProtocolError:
            raise
        except HeadraceError as error:
            reasons.append(_code_of(error))
            refusals.append(str(error))
            yield
            continue
        reasons.append(subscription.assurance)
        if begins_with_retained:
            replays.append(subscription)
        yield
    _when_safe(receiver, encode_suback(receiver.version, packet.packet_id, reasons, receiver.reasons(*refusals)))
    for subscription in replays:
        receiver.replay(subscription)


def unsubscribe(receiver: Receiver, packet: Unsubscribe) -> Iterator[None]:
    """Unsubscribe from one topic filter in each step, then answer."""
    assert receiver.session is not None
    reasons: list[int] = []
    for pattern in packet.patterns:
        if receiver.is_closed:
            return
        found = receiver.host.broker.sessions.unsubscribe(receiver.session, pattern)
        reasons.append(SUCCESS if found is not None else NO_SUBSCRIPTION_EXISTED)
        reader = receiver.readers.pop(pattern, None)
        if reader is not None:
            reader.close()
        yield
    _when_safe(receiver, encode_unsuback(receiver.version, packet.packet_id, reasons))


def resume(receiver: Receiver) -> None:
    """Join the queues of a session whose client is back. Subscriptions that it may not have any more end."""
    session = receiver.session
    assert session is not None
    for subscription in list(session.subscriptions.values()):
        try:
            receiver.client.rights.check_topic_subscribe(topics_read(subscription.pattern), receiver.client_id)
            if subscription.is_queue:
                _join(receiver, subscription, is_return=True)
        except Corrupt:
            continue  # the subscription stays, for when the queue is mended
        except HeadraceError:
            receiver.host.broker.sessions.unsubscribe(session, subscription.pattern)


def _check_room(receiver: Receiver, pattern: str) -> None:
    """Raises TooLarge if the session may have no more subscriptions."""
    session, most = receiver.session, receiver.limits.max_subscriptions
    if session is None or pattern in session.subscriptions:
        return
    if len(session.subscriptions) >= most:
        raise TooLarge(f"the session has {most} subscriptions and may have no more")
    most_size = max(most * _MEAN_PATTERN, _LONGEST_PATTERN)
    if session.pattern_size + len(pattern) > most_size:
        raise TooLarge(f"the topic filters of the session have {session.pattern_size} characters, {most_size} at most")


def _subscription(receiver: Receiver, asked: Asked, identifier: int, user: dict[str, str]) -> Subscription:
    assert receiver.session is not None
    pattern = asked.pattern
    assurance = asked.qos
    if is_read_address(pattern):
        assurance = min(assurance, AT_LEAST_ONCE)  # what a queue hands out comes again when it is not settled in time
    if asked.no_local and pattern.startswith(SHARE_PREFIX):  # MQTT 5 [MQTT-3.8.3-4]
        raise ProtocolError(PROTOCOL_ERROR, f"SUBSCRIBE: {pattern!r} is shared and must not be without its own")
    return Subscription(
        receiver.session,
        pattern,
        assurance,
        identifier,
        asked.no_local,
        asked.retain_as_published,
        asked.retain_handling,
        _group(receiver, user) if is_read_address(pattern) else "",
        is_switched_on(user.get(AUTO_COMMIT, "true")),
    )


def _group(receiver: Receiver, user: dict[str, str]) -> str:
    """The group that the client names, or its own: numbered clients of MQTT 3 share one."""
    default = receiver.client_id if receiver.version == V5 else group_of_client(receiver.client_id)
    return user.get(CONSUMER_GROUP) or default


def _join(
    receiver: Receiver, subscription: Subscription, position: str = "", mode: str = "", is_return: bool = False
) -> None:
    """Read the queue of an address. A subscription with the same topic filter ends first. Raises Refused kinds."""
    pattern = subscription.pattern
    address = parse_address(pattern)
    if address.verb:
        raise Refused(f"{pattern!r} ends in a verb: messages are published to it, it is not subscribed to")
    former = receiver.readers.pop(pattern, None)
    if former is not None:
        former.close()
    request = ConsumeRequest(pattern, True, subscription.group)
    request.position = position
    request.mode = mode
    request.is_return = is_return
    request.auto_commit = subscription.auto_commit
    request.credit = receiver.prefetch
    request.auto_ack = subscription.assurance == BEST_EFFORT
    plan = receiver.client.resolve(request)
    root = address.queue if pattern.startswith(DEAD_LETTER_PREFIX) else queue_topic(address.queue)
    receiver.readers[pattern] = QueueReader(receiver, plan, root, subscription.assurance)


def _code_of(error: HeadraceError) -> int:
    if isinstance(error, AccessRefused):
        return NOT_AUTHORIZED
    if isinstance(error, TooLarge):
        return QUOTA_EXCEEDED
    if isinstance(error, Refused) and "topic filter" in str(error):
        return TOPIC_FILTER_INVALID
    return IMPLEMENTATION_SPECIFIC_ERROR


def _when_safe(receiver: Receiver, answer: bytes) -> None:
    """Answer now or, for a stored session, once the subscription is durable."""

    def safe(error: HeadraceError | None) -> None:
        if error is None:
            receiver.wire.send(answer)
        elif not receiver.is_closed:
            _when_safe(receiver, answer)  # what could not be stored is tried again

    if receiver.session is not None and receiver.session.is_stored:
        receiver.host.broker.when_safe(safe)
    else:
        receiver.wire.send(answer)

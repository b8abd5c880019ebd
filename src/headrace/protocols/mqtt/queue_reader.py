"""A subscription to a queue: its deliveries as PUBLISH packets with what it takes to settle them. No SUBSCRIBE."""

from typing import TYPE_CHECKING, final

from headrace.core.address import format_message_id
from headrace.core.definition import EPHEMERAL
from headrace.core.delivery import Consumer, Delivery
from headrace.core.modes import STREAM_MODE, mode_to_join
from headrace.core.stream import StreamGroup
from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.protocols.mqtt.encoding import PublishEncoder
from headrace.protocols.mqtt.outlet import own_properties
from headrace.protocols.mqtt.packets import V5
from headrace.protocols.mqtt.property_list import encode_user_property

if TYPE_CHECKING:
    from headrace.protocols.mqtt.client import Client


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
        members = broker.consume(
            self._queue, self.consumer, group, key_filter, joined, position or None, auto_commit=auto_commit
        )
        self._group = encode_user_property("group-id", members.name) + encode_user_property("queue", self._queue)

    def close(self) -> None:
        """Leave the group; what is unsettled goes back in line."""
        self._client.host.broker.cancel(self.consumer)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        client = self._client
        now_us = client.now_us()
        settles = client.version != V5
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

"""Messages that a client must acknowledge: packet identifiers, receive maximum, messages that wait. No topics.

The packet identifier of a message from the session's log follows from its offset, so that a message that is sent again,
even after a restart, has the same one. All others are from the upper half.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK
from headrace.errors import HeadraceError, ProtocolError, Refused
from headrace.protocols.mqtt.codec import PublishEncoder, encode_acknowledgement
from headrace.protocols.mqtt.packets import NAMES, PUBACK, PUBCOMP, PUBREC, PUBREL, V5
from headrace.protocols.mqtt.reasons import FAILURE, PACKET_IDENTIFIER_NOT_FOUND, PROTOCOL_ERROR

if TYPE_CHECKING:
    from headrace.protocols.mqtt.receiver import Receiver

LOG_IDENTIFIERS: Final = 32_767
_FIRST_OTHER: Final = 32_768
_LAST: Final = 65_535

_NOTHING: Final[deque["Item"]] = deque(maxlen=0)
_NOTHING_EITHER: Final[deque["Memory"]] = deque(maxlen=0)
"""Shared by all clients without waiting messages: a deque takes 700 bytes."""

Item = tuple[PublishEncoder, int, bool, Delivery, int, bool]
"""Packet, QoS, retain, delivery, packet identifier (0 for any); True if an acknowledgement settles the delivery."""
Memory = tuple[PublishEncoder, int, bool, int]
"""Packet, QoS, retain, size in bytes."""


@final
class Outbox:
    """The unacknowledged messages of one client, and those that wait to be sent."""

    __slots__ = (
        "_flights",
        "_last",
        "_memory",
        "_memory_bytes",
        "_receipts",
        "_receiver",
        "_storing",
        "_waiting",
        "_window",
    )

    def __init__(self, receiver: "Receiver", receive_maximum: int) -> None:
        self._receiver = receiver
        self._window = min(receive_maximum, LOG_IDENTIFIERS)
        self._flights: dict[int, Delivery | None] = {}
        """Sent at QoS 1, by packet identifier, with the delivery that a PUBACK settles, if any."""
        self._receipts: dict[int, Delivery | None] = {}
        """Sent at QoS 2, without a PUBREC so far."""
        self._waiting: deque[Item] = _NOTHING
        """Deliveries of core that wait: no more than the client may hold."""
        self._memory: deque[Memory] = _NOTHING_EITHER
        """Messages that only memory holds, up to the limits; the oldest makes room."""
        self._memory_bytes = 0
        self._last = _LAST
        self._storing: list[tuple[int, list[int]]] = []
        """Received identifiers by the batch that stores them; PUBREL follows once that batch is durable."""

    @property
    def waiting(self) -> int:
        """The number of messages that wait in memory only."""
        return len(self._memory)

    @property
    def room(self) -> int:
        """The number of messages that may be sent now."""
        session = self._receiver.session
        completing = len(session.completing) if session is not None else 0
        return self._window - len(self._flights) - len(self._receipts) - completing

    # -- sending -----------------------------------------------------------------------------------------------------

    def offer(self, packet: PublishEncoder, qos: int, retain: bool, size: int) -> None:
        """Send a message, or keep it in memory."""
        if self._memory or self._receiver.is_held or self.room <= 0:
            self._remember((packet, qos, retain, size))
        else:
            self._send(packet, qos, retain, False, self._free_identifier(), None)

    def deliver(
        self, packet: PublishEncoder, qos: int, retain: bool, delivery: Delivery, number: int, settles: bool
    ) -> None:
        """Send a delivery of core, or let it wait; `number` 0 stands for any packet identifier."""
        item = (packet, qos, retain, delivery, number, settles)
        if self._waiting or self.room <= 0 or not self._try(item):
            if self._waiting is _NOTHING:
                self._waiting = deque()
            self._waiting.append(item)
            if len(self._waiting) >= self._receiver.limits.prefetch:
                self._receiver.fill(True)

    def drain(self) -> None:
        """Send waiting messages, as far as there is room."""
        waiting = self._waiting
        while waiting and self.room > 0 and self._try(waiting[0]):
            waiting.popleft()
        if not waiting:
            self._receiver.fill(False)
        memory = self._memory
        while memory and self.room > 0 and not self._receiver.is_held:
            packet, qos, retain, size = memory.popleft()
            self._memory_bytes -= size
            self._send(packet, qos, retain, False, self._free_identifier(), None)

    def _remember(self, item: Memory) -> None:
        limits = self._receiver.limits
        if self._memory is _NOTHING_EITHER:
            self._memory = deque()
        memory, size = self._memory, item[3]
        while memory and (len(memory) >= limits.waiting_messages or self._memory_bytes + size > limits.waiting_bytes):
            self._memory_bytes -= memory.popleft()[3]
            self._receiver.host.counters.dropped += 1
        memory.append(item)
        self._memory_bytes += size

    def _try(self, item: Item) -> bool:
        """Send a message; False if its packet identifier is still in use."""
        packet, qos, retain, delivery, number, settles = item
        if number and self._is_used(number):
            return False
        settled = delivery if settles else None
        self._send(packet, qos, retain, delivery.redelivered, number or self._free_identifier(), settled)
        return True

    def _send(
        self, packet: PublishEncoder, qos: int, retain: bool, dup: bool, number: int, delivery: Delivery | None
    ) -> None:
        receiver = self._receiver
        data = packet.encode(qos, retain, number, dup)
        if receiver.max_packet_bytes and len(data) > receiver.max_packet_bytes:
            self.settle(delivery)  # MQTT 5 [MQTT-3.1.2-25]: as if it had been sent
            return
        (self._flights if qos == 1 else self._receipts)[number] = delivery
        receiver.host.counters.sent += 1
        receiver.wire.send(data)

    def _free_identifier(self) -> int:
        number = self._last
        while True:
            number = number + 1 if number < _LAST else _FIRST_OTHER
            if not self._is_used(number):
                self._last = number
                return number

    def _is_used(self, number: int) -> bool:
        if number in self._flights or number in self._receipts:
            return True
        session = self._receiver.session
        return session is not None and number in session.completing

    # -- acknowledgements --------------------------------------------------------------------------------------------

    def acknowledged(self, number: int) -> None:
        """PUBACK; ignored if no message has that identifier. Raises ProtocolError."""
        if number in self._flights:
            self.settle(self._flights.pop(number))
            self._receiver.has_room()
        else:
            self._check_kind(number, PUBACK)

    def received(self, number: int, reason: int) -> None:
        """PUBREC: the client has the message or refuses it; it is not sent again. Raises ProtocolError."""
        receiver = self._receiver
        session = receiver.session
        assert session is not None
        if number not in self._receipts:
            if number in self._flights:
                self._check_kind(number, PUBREC)
            if reason >= FAILURE:
                self.completed(number)  # MQTT 5 [MQTT-4.3.3-4]: no PUBREL
                return
            known = number in session.completing
            self._release(number, 0 if known else PACKET_IDENTIFIER_NOT_FOUND)
            return
        self.settle(self._receipts.pop(number))
        if reason >= FAILURE:
            receiver.has_room()
            return
        receiver.host.broker.sessions.complete(session, number)
        if not session.is_stored:
            self._release(number)
            return
        batch = receiver.host.broker.batch_number
        if self._storing and self._storing[-1][0] == batch:
            self._storing[-1][1].append(number)
        else:
            self._storing.append((batch, [number]))
            receiver.host.broker.when_safe(self._stored)

    def completed(self, number: int) -> None:
        """PUBCOMP: the packet identifier is free again. Raises ProtocolError."""
        receiver = self._receiver
        if number in self._flights or number in self._receipts:
            self._check_kind(number, PUBCOMP)
        if receiver.session is not None and receiver.host.broker.sessions.finish_completing(receiver.session, number):
            receiver.has_room()

    def _check_kind(self, number: int, kind: int) -> None:
        """Raises ProtocolError for MQTT 3 if the message with this identifier has acknowledgements of another kind.

        MQTT 5 lets the receiver of an acknowledgement say that it does not know the identifier.
        """
        if self._receiver.version != V5 and self._is_used(number):  # MQTT 3.1.1 [MQTT-4.8.0-1]
            name = NAMES[kind]
            raise ProtocolError(PROTOCOL_ERROR, f"{name}: message {number} is acknowledged by packets of another type")

    def resume(self) -> None:
        """Send PUBREL again for messages that a returning client had received."""
        session = self._receiver.session
        assert session is not None
        for number in sorted(session.completing):
            self._release(number)

    def _stored(self, error: HeadraceError | None) -> None:
        """Send PUBREL for the oldest batch, which is durable. Batches are stored in order, also after a retry."""
        if error is not None:  # what could not be stored is tried again
            self._receiver.host.broker.when_safe(self._stored)
            return
        _, numbers = self._storing.pop(0)
        for number in numbers:
            self._release(number)

    def _release(self, number: int, reason: int = 0) -> None:
        self._receiver.wire.send(encode_acknowledgement(self._receiver.version, PUBREL, number, reason))

    def settle(self, delivery: Delivery | None) -> None:
        """Acknowledge a delivery, if it is still pending."""
        if delivery is None:
            return
        try:
            self._receiver.host.broker.settle(delivery, ACK)
        except Refused:
            return  # its lease ran out or its queue is gone: nothing is left to settle

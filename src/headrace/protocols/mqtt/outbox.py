"""What a client must acknowledge: packet identifiers, its receive maximum, what waits until there is room. No topics.

Messages from the session's log have the packet identifier that follows from their offset, so that one that is sent
again, even after a restart, has the same one; all others have one from the upper half.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.group import ACK
from headrace.errors import HeadraceError, Refused
from headrace.protocols.mqtt.codec import PublishEncoder, encode_acknowledgement
from headrace.protocols.mqtt.packets import PUBREL
from headrace.protocols.mqtt.reasons import FAILURE, PACKET_IDENTIFIER_NOT_FOUND

if TYPE_CHECKING:
    from headrace.protocols.mqtt.receiver import Receiver

LOG_IDENTIFIERS: Final = 32_767
_FIRST_OTHER: Final = 32_768
_LAST: Final = 65_535

_NOTHING: Final[deque["Item"]] = deque(maxlen=0)
_NOTHING_EITHER: Final[deque["Memory"]] = deque(maxlen=0)
"""One for all clients that nothing waits for; a deque of its own takes 700 bytes."""

Item = tuple[PublishEncoder, int, bool, Delivery, int, bool]
"""Packet, QoS, retain, what core delivered, packet identifier (0 for any), whether its acknowledgement settles it."""
Memory = tuple[PublishEncoder, int, bool, int]
"""Packet, QoS, retain, how large."""


@final
class Outbox:
    """The messages of one client that are sent and not acknowledged, and those that wait for their turn."""

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
        """Sent at QoS 1, by packet identifier; with the delivery that a PUBACK settles, if it does."""
        self._receipts: dict[int, Delivery | None] = {}
        """Sent at QoS 2 and not received as far as is known."""
        self._waiting: deque[Item] = _NOTHING
        """What core delivered: no more than the client may hold."""
        self._memory: deque[Memory] = _NOTHING_EITHER
        """What nobody else keeps: no more than the limits allow, the oldest makes room."""
        self._memory_bytes = 0
        self._last = _LAST
        self._storing: list[tuple[int, list[int]]] = []
        """Received identifiers by the turn that stores them; PUBREL follows when that turn is stored."""

    @property
    def waiting(self) -> int:
        """How many wait in memory only."""
        return len(self._memory)

    @property
    def room(self) -> int:
        """How many more may be sent now."""
        session = self._receiver.session
        completing = len(session.completing) if session is not None else 0
        return self._window - len(self._flights) - len(self._receipts) - completing

    # -- sending -----------------------------------------------------------------------------------------------------

    def offer(self, packet: PublishEncoder, qos: int, retain: bool, size: int) -> None:
        """Send it, or have it wait in memory."""
        if self._memory or self._receiver.is_held or self.room <= 0:
            self._remember((packet, qos, retain, size))
        else:
            self._send(packet, qos, retain, False, self._free_identifier(), None)

    def deliver(
        self, packet: PublishEncoder, qos: int, retain: bool, delivery: Delivery, number: int, settles: bool
    ) -> None:
        """Send what core delivered, or have it wait; `number` 0 stands for any packet identifier."""
        item = (packet, qos, retain, delivery, number, settles)
        if self._waiting or self.room <= 0 or not self._try(item):
            if self._waiting is _NOTHING:
                self._waiting = deque()
            self._waiting.append(item)
            if len(self._waiting) >= self._receiver.limits.prefetch:
                self._receiver.fill(True)

    def drain(self) -> None:
        """Send what waits, as far as there is room."""
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
        """Send one unless its packet identifier is still in use."""
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
        """PUBACK. One for nothing that was sent is ignored."""
        if number in self._flights:
            self.settle(self._flights.pop(number))
            self._receiver.has_room()

    def received(self, number: int, reason: int) -> None:
        """PUBREC: the client has it, or does not want it; it is not sent again."""
        receiver = self._receiver
        session = receiver.session
        assert session is not None
        if number not in self._receipts:
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
        turn = receiver.host.broker.turn_number
        if self._storing and self._storing[-1][0] == turn:
            self._storing[-1][1].append(number)
        else:
            self._storing.append((turn, [number]))
            receiver.host.broker.when_safe(self._stored)

    def completed(self, number: int) -> None:
        """PUBCOMP: the packet identifier is free again."""
        receiver = self._receiver
        if receiver.session is not None and receiver.host.broker.sessions.finish_completing(receiver.session, number):
            receiver.has_room()

    def resume(self) -> None:
        """The client is back: finish what it had received."""
        session = self._receiver.session
        assert session is not None
        for number in sorted(session.completing):
            self._release(number)

    def _stored(self, error: HeadraceError | None) -> None:
        """No crash makes the broker send the oldest of them again: the client may forget that it has them.

        Turns are stored in order, so each call is about the oldest batch, also after a turn was tried again.
        """
        if error is not None:  # what could not be stored is tried again
            self._receiver.host.broker.when_safe(self._stored)
            return
        _, numbers = self._storing.pop(0)
        for number in numbers:
            self._release(number)

    def _release(self, number: int, reason: int = 0) -> None:
        self._receiver.wire.send(encode_acknowledgement(self._receiver.version, PUBREL, number, reason))

    def settle(self, delivery: Delivery | None) -> None:
        """The client is done with it, or cannot be told of it."""
        if delivery is None:
            return
        try:
            self._receiver.host.broker.settle(delivery, ACK)
        except Refused:
            return  # its time ran out and another has it, or its queue is gone: nothing is left to settle

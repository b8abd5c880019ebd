"""PUBLISH to core's publish, answered once the message is durable; and settlements by topic."""

import struct
from collections import deque
from collections.abc import Mapping
from typing import Final, final

from headrace.core.batch import Confirm
from headrace.core.queue.group import ACK as ACKED
from headrace.core.queue.group import NACK as NACKED
from headrace.core.queue.group import REJECT as REJECTED
from headrace.core.routing.address import (
    ACK,
    COMMIT,
    NACK,
    REJECT,
    Address,
    is_read_address,
    parse_address,
    parse_message_id,
)
from headrace.errors import HeadraceError, ProtocolError, Refused
from headrace.protocols.mqtt.codec import encode_acknowledgement
from headrace.protocols.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, Publish
from headrace.protocols.mqtt.reasons import (
    FAILURE,
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_NOT_FOUND,
    RECEIVE_MAXIMUM_EXCEEDED,
    SUCCESS,
    code_of,
    code_of_publish,
)
from headrace.protocols.mqtt.receiver import Receiver
from headrace.wire.mqtt5 import UserProperties, user_properties

MESSAGE_ID: Final = "message-id"
GROUP_ID: Final = "group-id"
_OUTCOMES: Final[Mapping[str, int]] = {ACK: ACKED, NACK: NACKED, REJECT: REJECTED}


def settle(receiver: Receiver, address: Address, user: UserProperties) -> None:
    """Settle the delivery that the user properties name. Raises Refused if it is not pending."""
    given = dict(user)
    group = given.get(GROUP_ID) or given.get("x-group-id", "")
    broker = receiver.host.broker
    if address.verb == COMMIT and MESSAGE_ID not in given and "x-offset" in given:
        offset = _number(given["x-offset"])
        _check(group, GROUP_ID, address)
        broker.groups.commit(address.queue, group, offset)
        return
    message_id = given.get(MESSAGE_ID, "")
    _check(message_id, MESSAGE_ID, address)
    _check(group, GROUP_ID, address)
    queue, offset = parse_message_id(message_id)
    if queue and queue != address.queue:
        raise Refused(f"message {message_id!r} is not of queue {address.queue!r}")
    if address.verb == COMMIT:
        broker.groups.commit(address.queue, group, offset + 1)
    else:
        broker.groups.settle(address.queue, group, offset, _OUTCOMES[address.verb])


def _check(value: str, name: str, address: Address) -> None:
    if not value:
        raise Refused(f"${address.verb} of queue {address.queue!r} needs the user property {name!r} of the delivery")


def _nothing(error: HeadraceError | None) -> None:
    return


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise Refused(f"x-offset {text[:32]!r} is not an offset")
    return int(text)


_PUBACK: Final = PUBACK << 12 | 2
"""The first two bytes of a PUBACK without a reason."""


@final
class Publisher:
    """The publishes of one client."""

    __slots__ = (
        "_acked",
        "_client",
        "_confirm",
        "_due",
        "_expected",
        "_finishing",
        "_receiver",
        "_refusals",
    )

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._client = receiver.client
        self._expected: deque[tuple[int, int, int]] = deque()
        """Packet identifier, QoS and reason of each publish that core will confirm, in order."""
        self._refusals: dict[int, str] = {}
        """By packet identifier, the reason why a message was refused before core saw it."""
        self._due = 0
        """Messages of QoS 1 without an answer."""
        self._acked: list[int] = []
        self._finishing: list[tuple[int, list[int]]] = []
        """Released identifiers by the batch that stores them; PUBCOMP follows once that batch is durable."""
        self._confirm: Confirm = self._confirmed

    def publish(self, packet: Publish, now_us: int) -> None:
        """Publish a message. Raises ProtocolError to end the connection; other errors are answered."""
        receiver = self._receiver
        session = receiver.session
        assert session is not None
        qos = packet.qos
        if qos:
            if qos == 2 and packet.packet_id in session.taken:
                self._again(packet.packet_id)
                return
            most = receiver.limits.receive_maximum
            if self._due + len(session.taken) >= most and receiver.version == V5:  # MQTT 5 [MQTT-3.3.4-9]
                raise ProtocolError(RECEIVE_MAXIMUM_EXCEEDED, f"more than {most} messages are not acknowledged")
        client = self._client
        receiver.host.counters.received += 1
        try:
            if "/$" in packet.topic and is_read_address(packet.topic) and self._settles(packet):
                return
            properties = packet.properties
            count = client.publish_topic(
                packet.topic,
                packet.payload,
                now_us,
                properties.raw,
                properties.expiry_seconds,
                qos,
                packet.retain,
                self._confirm if qos else None,
                session,
            )
        except HeadraceError as error:
            self._answer(packet, code_of(error), str(error))
            return
        if qos:
            self._expect(packet, SUCCESS if count else NO_MATCHING_SUBSCRIBERS)

    def _settles(self, packet: Publish) -> bool:
        """Settle as the verb of the address says; False if it has none. Raises AccessRefused, Refused."""
        address = parse_address(packet.topic)
        if not address.verb:
            return False
        self._client.check_publish_topic(packet.topic, len(packet.payload))
        settle(self._receiver, address, user_properties(packet.properties.raw))
        self._answer_settled(packet, address.queue)
        return True

    def _expect(self, packet: Publish, reason: int) -> None:
        """Note that core will confirm this message, which is then answered."""
        session = self._receiver.session
        self._expected.append((packet.packet_id, packet.qos, reason))
        if packet.qos == 1:
            self._due += 1
        elif reason < FAILURE and session is not None:
            self._receiver.host.broker.sessions.take(session, packet.packet_id)

    def close(self) -> None:
        """Publish nothing more: no reference cycle is left."""
        self._confirm = _nothing

    # -- answers -----------------------------------------------------------------------------------------------------

    def _confirmed(self, error: HeadraceError | None) -> None:
        """Answer the next message, which is durable or refused. Core tells in the order of the publishes."""
        number, qos, reason = self._expected.popleft()
        receiver = self._receiver
        if qos == 1:
            self._due -= 1
        if error is not None and qos == 2 and receiver.session is not None:
            receiver.host.broker.sessions.finish_taken(
                receiver.session, number
            )  # it was not: the client sends it again
        if receiver.is_closed:
            return
        if error is not None:
            reason, why = code_of_publish(error), str(error)
        else:
            why = self._refusals.pop(number, "") if self._refusals else ""
        if qos == 1 and (not reason or (reason < FAILURE and receiver.version != V5)):
            if not self._acked:
                receiver.wire.before_flush(self._send_acks)
            self._acked.append(number)
            return
        self._send_acks()
        if reason >= FAILURE:
            self._tell_refusal(number, qos, reason, why)
        else:
            kind = PUBACK if qos == 1 else PUBREC
            receiver.wire.send(encode_acknowledgement(receiver.version, kind, number, reason))

    def _send_acks(self) -> None:
        """Send all plain PUBACKs so far in one piece: 0.1 us each."""
        if not self._acked:
            return
        numbers, self._acked = self._acked, []
        fields = [field for number in numbers for field in (_PUBACK, number)]
        self._receiver.wire.send(struct.pack(f">{len(fields)}H", *fields))

    def _answer_settled(self, packet: Publish, name: str) -> None:
        """Answer a settlement in its turn, once it is durable."""
        broker = self._receiver.host.broker
        queue = broker.topology.queues.get(name)
        if queue is None or not queue.durable:
            self._answer(packet, SUCCESS)
        elif packet.qos:
            self._expect(packet, SUCCESS)
            broker.when_safe(self._confirm)

    def _answer(self, packet: Publish, reason: int, why: str = "") -> None:
        """Answer a message in its turn that core does not store."""
        if packet.qos:
            self._expect(packet, reason)
            if why:
                self._refusals[packet.packet_id] = why
            self._receiver.host.broker.in_turn(self._confirm)

    def _tell_refusal(self, number: int, qos: int, reason: int, why: str) -> None:
        """Tell an MQTT 5 client why; close the connection of an MQTT 3 client, which has no word for it."""
        receiver = self._receiver
        if receiver.version != V5:
            receiver.refuse(ProtocolError(reason, why))
            return
        kind = PUBACK if qos == 1 else PUBREC
        receiver.wire.send(encode_acknowledgement(V5, kind, number, reason, receiver.reasons(why)))

    def _again(self, number: int) -> None:
        """Answer a QoS 2 message that came before, without publishing it twice."""
        if not any([number == expected for expected, _, _ in self._expected]):
            self._receiver.wire.send(encode_acknowledgement(self._receiver.version, PUBREC, number))

    def released(self, number: int) -> None:
        """PUBREL: the client will not send the message again; its packet identifier is free."""
        receiver = self._receiver
        session = receiver.session
        assert session is not None
        broker = receiver.host.broker
        if not broker.sessions.finish_taken(session, number):
            self._complete(number, PACKET_IDENTIFIER_NOT_FOUND)
        elif not session.is_stored:
            self._complete(number)
        elif self._finishing and self._finishing[-1][0] == broker.batch_number:
            self._finishing[-1][1].append(number)
        else:
            self._finishing.append((broker.batch_number, [number]))
            broker.when_safe(self._finished)

    def _finished(self, error: HeadraceError | None) -> None:
        """Send PUBCOMP for the oldest batch, which is durable. Batches are stored in order, also after a retry."""
        if error is not None:  # what could not be stored is tried again
            self._receiver.host.broker.when_safe(self._finished)
            return
        _, numbers = self._finishing.pop(0)
        for number in numbers:
            self._complete(number)

    def _complete(self, number: int, reason: int = SUCCESS) -> None:
        receiver = self._receiver
        receiver.wire.send(encode_acknowledgement(receiver.version, PUBCOMP, number, reason))

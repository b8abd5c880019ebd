"""PUBLISH to core's publish, answered when the message is safe, and settlements by topic. One per client."""

import struct
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, final

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Rights
from headrace.core.client import Client as CoreClient
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
from headrace.protocols.mqtt.encoding import encode_acknowledgement
from headrace.protocols.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, Publish, UserProperties
from headrace.protocols.mqtt.reasons import (
    FAILURE,
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_NOT_FOUND,
    RECEIVE_MAXIMUM_EXCEEDED,
    SUCCESS,
    code_of,
    code_of_publish,
)

if TYPE_CHECKING:
    from headrace.protocols.mqtt.client import Client

MESSAGE_ID: Final = "message-id"
GROUP_ID: Final = "group-id"
_OUTCOMES: Final[Mapping[str, int]] = {ACK: ACKED, NACK: NACKED, REJECT: REJECTED}


def settle(client: "Client", address: Address, user: UserProperties) -> None:
    """End the delivery that the user properties name. Raises Refused when they name none that is pending."""
    said = dict(user)
    group = said.get(GROUP_ID) or said.get("x-group-id", "")
    broker = client.host.broker
    if address.verb == COMMIT and MESSAGE_ID not in said and "x-offset" in said:
        offset = _number(said["x-offset"])
        _check(group, GROUP_ID, address)
        broker.groups.commit(address.queue, group, offset)
        return
    message_id = said.get(MESSAGE_ID, "")
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


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 19):
        raise Refused(f"x-offset {text[:32]!r} is not an offset")
    return int(text)


_PUBACK: Final = PUBACK << 12 | 2
"""The first two bytes of a PUBACK that says nothing but which."""


@final
class Inbox:
    """What one client publishes."""

    __slots__ = (
        "_account",
        "_acked",
        "_client",
        "_confirm",
        "_due",
        "_expected",
        "_finishing",
        "_is_known",
        "_publisher",
        "_said",
        "published",
        "rights",
    )

    def __init__(self, client: "Client", account: Account, rights: Rights, publisher: CoreClient) -> None:
        self._client = client
        self._account = account
        self._publisher = publisher
        self.rights = rights
        self.published = 0
        """How many messages came since this was last looked at; counted for users with limits only."""
        self._is_known = False
        """Whether it is known that this client publishes."""
        self._expected: deque[tuple[int, int, int]] = deque()
        """Packet identifier, QoS and reason of what core will confirm, in order."""
        self._said: dict[int, str] = {}
        """Why those were refused that core never saw."""
        self._due = 0
        """How many messages of QoS 1 are not answered."""
        self._acked: list[int] = []
        self._finishing: list[tuple[int, list[int]]] = []
        """Released identifiers by the turn that stores them; PUBCOMP follows when that turn is stored."""
        self._confirm = self._confirmed

    def publish(self, packet: Publish, now_us: int) -> None:
        """Raises ProtocolError for the connection's sake; what is wrong with the message alone is answered."""
        client = self._client
        session = client.session
        assert session is not None
        qos = packet.qos
        if qos:
            if qos == 2 and packet.packet_id in session.taken:
                self._again(packet.packet_id)
                return
            most = client.limits.receive_maximum
            if self._due + len(session.taken) >= most and client.version == V5:  # MQTT 5 [MQTT-3.3.4-9]
                raise ProtocolError(RECEIVE_MAXIMUM_EXCEEDED, f"more than {most} messages are not acknowledged")
        if not self._is_known:
            self._is_known = True
            client.begin_publishing()
        client.host.counters.received += 1
        try:
            if self._account.is_metered:
                self.published += 1
            if not ("/$" in packet.topic and is_read_address(packet.topic) and self._settles(packet)):
                self._publish(packet, now_us)
        except HeadraceError as error:
            self._refuse(packet, error)

    def _publish(self, packet: Publish, now_us: int) -> None:
        said = packet.properties
        qos = packet.qos
        count = self._publisher.publish_topic(
            packet.topic,
            packet.payload,
            now_us,
            said.raw,
            said.expiry_seconds,
            qos,
            packet.retain,
            self._confirm if qos else None,
            self._client.session,
        )
        if qos:
            self._expect(packet, SUCCESS if count else NO_MATCHING_SUBSCRIBERS)

    def _settles(self, packet: Publish) -> bool:
        """Do what an address with a verb asks for; False when it has none. Raises AccessRefused, Refused."""
        address = parse_address(packet.topic)
        if not address.verb:
            return False
        self.rights.check_topic_publish(packet.topic, self._client.client_id)
        settle(self._client, address, packet.properties.user)
        self._answer_settled(packet, address.queue)
        return True

    def _expect(self, packet: Publish, reason: int) -> None:
        """Core will confirm this one in its turn; then it is answered."""
        session = self._client.session
        self._expected.append((packet.packet_id, packet.qos, reason))
        if packet.qos == 1:
            self._due += 1
        elif reason < FAILURE and session is not None:
            self._client.host.broker.sessions.take(session, packet.packet_id)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _confirmed(self, error: HeadraceError | None) -> None:
        """The next one is safe, or is not: core tells in the order of the publishes."""
        number, qos, reason = self._expected.popleft()
        client = self._client
        if qos == 1:
            self._due -= 1
        if error is not None and qos == 2 and client.session is not None:
            client.host.broker.sessions.finish_taken(client.session, number)  # it was not: the client sends it again
        if client.is_closed:
            return
        if error is not None:
            reason, said = code_of_publish(error), str(error)
        else:
            said = self._said.pop(number, "") if self._said else ""
        if qos == 1 and (not reason or (reason < FAILURE and client.version != V5)):
            if not self._acked:
                client.wire.before_flush(self._send_acks)
            self._acked.append(number)
            return
        self._send_acks()
        if reason >= FAILURE:
            self._tell_refusal(number, qos, reason, said)
        else:
            kind = PUBACK if qos == 1 else PUBREC
            client.wire.send(encode_acknowledgement(client.version, kind, number, reason))

    def _send_acks(self) -> None:
        """All plain PUBACKs so far, in one piece: 0.1 us each."""
        if not self._acked:
            return
        numbers, self._acked = self._acked, []
        fields = [field for number in numbers for field in (_PUBACK, number)]
        self._client.wire.send(struct.pack(f">{len(fields)}H", *fields))

    def _answer_settled(self, packet: Publish, name: str) -> None:
        """Answer in its turn, once no crash brings back what was settled."""
        broker = self._client.host.broker
        queue = broker.topology.queues.get(name)
        if queue is None or not queue.durable:
            self._answer(packet, SUCCESS)
        elif packet.qos:
            self._expect(packet, SUCCESS)
            broker.when_safe(self._confirm)

    def _answer(self, packet: Publish, reason: int, said: str = "") -> None:
        """Answer in its turn a message that core does not keep."""
        if packet.qos:
            self._expect(packet, reason)
            if said:
                self._said[packet.packet_id] = said
            self._client.host.broker.in_turn(self._confirm)

    def _refuse(self, packet: Publish, error: HeadraceError) -> None:
        self._answer(packet, code_of(error), str(error))

    def _tell_refusal(self, number: int, qos: int, reason: int, said: str) -> None:
        """MQTT 3 has no word for it: to close the connection is all that is not a lie."""
        client = self._client
        if client.version != V5:
            client.refuse(ProtocolError(reason, said))
            return
        kind = PUBACK if qos == 1 else PUBREC
        client.wire.send(encode_acknowledgement(V5, kind, number, reason, client.reasons(said)))

    def _again(self, number: int) -> None:
        """The client sent a message again that it has sent already: it is not published twice."""
        if not any([number == expected for expected, _, _ in self._expected]):
            self._client.wire.send(encode_acknowledgement(self._client.version, PUBREC, number))

    def released(self, number: int) -> None:
        """PUBREL: the client will not send it again; its packet identifier may mean another one from now on."""
        client = self._client
        session = client.session
        assert session is not None
        broker = client.host.broker
        if not broker.sessions.finish_taken(session, number):
            self._complete(number, PACKET_IDENTIFIER_NOT_FOUND)
        elif not session.is_stored:
            self._complete(number)
        elif self._finishing and self._finishing[-1][0] == broker.turn_number:
            self._finishing[-1][1].append(number)
        else:
            self._finishing.append((broker.turn_number, [number]))
            broker.when_safe(self._finished)

    def _finished(self, error: HeadraceError | None) -> None:
        """No crash makes the broker take another message for one of the oldest batch.

        Turns are stored in order, so each call is about the oldest batch, also after a turn was tried again.
        """
        if error is not None:  # what could not be stored is tried again
            self._client.host.broker.when_safe(self._finished)
            return
        _, numbers = self._finishing.pop(0)
        for number in numbers:
            self._complete(number)

    def _complete(self, number: int, reason: int = SUCCESS) -> None:
        client = self._client
        client.wire.send(encode_acknowledgement(client.version, PUBCOMP, number, reason))

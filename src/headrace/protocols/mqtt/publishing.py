"""PUBLISH to core's publish: QoS 1 and 2 answered when the message is safe, settlements of queues. One per client."""

import struct
from collections import deque
from typing import TYPE_CHECKING, Final, final

from headrace.core.account import Account
from headrace.core.address import Address, is_address, parse_address
from headrace.core.rights import PLAIN_TOPICS, Rights
from headrace.core.topics import quoted
from headrace.errors import AccessRefused, HeadraceError, ProtocolError
from headrace.model import MQTT5, Message, Source
from headrace.protocols.mqtt.encoding import encode_acknowledgement
from headrace.protocols.mqtt.packets import PUBACK, PUBCOMP, PUBREC, V5, Publish
from headrace.protocols.mqtt.reasons import (
    FAILURE,
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_NOT_FOUND,
    RECEIVE_MAXIMUM_EXCEEDED,
    SUCCESS,
)
from headrace.protocols.mqtt.refusals import code_of, code_of_publish
from headrace.protocols.mqtt.settling import settle

if TYPE_CHECKING:
    from headrace.protocols.mqtt.client import Client

PROTOCOL: Final = "mqtt"
_MAX_WAYS: Final = 1024
_PUBACK: Final = PUBACK << 12 | 2
"""The first two bytes of a PUBACK that says nothing but which."""


@final
class Way:
    """Where a client publishes to: looked up for every message, so worked out once."""

    __slots__ = ("name", "source", "verb")

    def __init__(self, source: Source, name: str, verb: Address | None) -> None:
        self.source = source
        self.name = name
        """What the user must be allowed to write to."""
        self.verb = verb
        """Set when nothing is published there: messages to it settle others."""


@final
class Publisher:
    """The publishing side of a client."""

    __slots__ = (
        "_account",
        "_acked",
        "_client",
        "_confirm",
        "_due",
        "_expected",
        "_finishing",
        "_said",
        "_ways",
        "published",
        "rights",
    )

    def __init__(self, client: "Client", account: Account, rights: Rights) -> None:
        self._client = client
        self._account = account
        self.rights = rights
        self.published = 0
        """How many messages came since this was last looked at; counted for users with limits only."""
        self._ways: dict[str, Way] = {}
        self._expected: deque[tuple[int, int, int]] = deque()
        """Packet identifier, QoS and reason of what core will confirm, in order."""
        self._said: dict[int, str] = {}
        """Why those were refused that core never saw."""
        self._due = 0
        """How many messages of QoS 1 are not answered."""
        self._acked: list[int] = []
        self._finishing: list[int] | None = None
        """Released identifiers that are being stored: they are completed when that is done."""
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
        try:
            way = self._ways.get(packet.topic)
            if way is None or self.rights.topics or way.name not in self.rights.writable:
                way = self._way(packet.topic)
            client.host.counters.received += 1
            if self._account.is_metered:
                self.published += 1
                self._account.check_size(len(packet.payload))
            if way.verb is not None:
                settle(client, way.verb, packet.properties.user)
                self._answer(packet, SUCCESS)
            else:
                self._publish(packet, way.source, now_us)
        except HeadraceError as error:
            self._refuse(packet, error)

    def _publish(self, packet: Publish, source: Source, now_us: int) -> None:
        client = self._client
        said = packet.properties
        expires_us = 0
        if said.expiry_seconds is not None:
            expires_us = now_us + said.expiry_seconds * 1_000_000
        message = Message(source, packet.payload, now_us, said.raw, 0, expires_us)
        broker = client.host.broker
        qos = packet.qos
        if not qos:
            broker.publish_topic(message, None, 0, packet.retain, client.session)
            return
        count = broker.publish_topic(message, self._confirm, qos, packet.retain, client.session)
        self._expect(packet, SUCCESS if count else NO_MATCHING_SUBSCRIBERS)

    def _expect(self, packet: Publish, reason: int) -> None:
        """Core will confirm this one in its turn; then it is answered."""
        session = self._client.session
        self._expected.append((packet.packet_id, packet.qos, reason))
        if packet.qos == 1:
            self._due += 1
        elif reason < FAILURE and session is not None:
            self._client.host.broker.sessions.take(session, packet.packet_id)

    def _way(self, topic: str) -> Way:
        """Where this topic leads. Raises AccessRefused, Refused for an address that is none."""
        if topic[0] == "$" and not is_address(topic):
            raise AccessRefused(f"{quoted(topic)} cannot be published to: topics with '$' are the broker's own")
        self.rights.check_topic_publish(topic, self._client.client_id)
        way = self._ways.get(topic)
        if way is None:
            address = parse_address(topic) if is_address(topic) else None
            name = PLAIN_TOPICS if address is None else address.queue
            verb = address if address is not None and address.verb else None
            way = Way(Source(topic, "", self._client.client_id, PROTOCOL, MQTT5), name, verb)
            if len(self._ways) >= _MAX_WAYS:
                self._ways.clear()
            self._ways[topic] = way
        return way

    # -- answers -----------------------------------------------------------------------------------------------------

    def _confirmed(self, error: HeadraceError | None) -> None:
        """The next one is safe, or is not: core tells in the order of the publishes."""
        number, qos, reason = self._expected.popleft()
        client = self._client
        if qos == 1:
            self._due -= 1
        if client.is_closed:
            return
        if error is not None:
            reason, said = code_of_publish(error), str(error)
        else:
            said = self._said.pop(number, "") if self._said else ""
        if reason >= FAILURE:
            self._tell_refusal(number, qos, reason, said)
        elif qos == 1 and (not reason or client.version != V5):
            if not self._acked:
                client.wire.before_flush(self._send_acks)
            self._acked.append(number)
        else:
            kind = PUBACK if qos == 1 else PUBREC
            client.wire.send(encode_acknowledgement(client.version, kind, number, reason))

    def _send_acks(self) -> None:
        """All plain PUBACKs of this turn, in one piece: 0.1 us each."""
        numbers, self._acked = self._acked, []
        fields = [field for number in numbers for field in (_PUBACK, number)]
        self._client.wire.send(struct.pack(f">{len(fields)}H", *fields))

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
        assert client.session is not None
        if qos == 2:
            client.host.broker.sessions.finish_taken(client.session, number)
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
        elif self._finishing is not None:
            self._finishing.append(number)
        else:
            self._finishing = [number]
            broker.when_safe(self._finished)

    def _finished(self, error: HeadraceError | None) -> None:
        """From now on no crash makes us take another message for one of these."""
        if error is not None:  # what could not be stored is tried again
            self._client.host.broker.when_safe(self._finished)
            return
        numbers, self._finishing = self._finishing or [], None
        for number in numbers:
            self._complete(number)

    def _complete(self, number: int, reason: int = SUCCESS) -> None:
        client = self._client
        client.wire.send(encode_acknowledgement(client.version, PUBCOMP, number, reason))

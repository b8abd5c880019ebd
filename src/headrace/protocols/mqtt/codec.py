"""Bytes to packets. No sockets, no clock, no broker: see connection.py for those, encoding.py for the way back.

A packet:

    0               1                         1..4 bytes later
    +-------+-------+-------------------------+------------------- - - -
    | type  | flags | remaining length        | the rest of the packet
    | 4 bit | 4 bit | variable byte integer   |
    +-------+-------+-------------------------+------------------- - - -

PUBLISH and the acknowledgements are decoded here; all other packets in bodies.py.
"""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.mqtt.bodies import (
    decode_acknowledgement,
    decode_auth,
    decode_connect,
    decode_disconnect,
    decode_protocol,
    decode_subscribe,
    decode_unsubscribe,
    unsupported,
)
from headrace.protocols.mqtt.fields import Reader, decode_text, malformed, require_topic
from headrace.protocols.mqtt.packets import (
    AUTH,
    CONNECT,
    DISCONNECT,
    NAMES,
    NO_PROPERTIES,
    PINGREQ,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    V5,
    Acknowledgement,
    MessageProperties,
    Packet,
    PingRequest,
    Publish,
)
from headrace.protocols.mqtt.property_list import OF_PUBLISH, decode_message_list
from headrace.protocols.mqtt.reasons import PACKET_TOO_LARGE, PROTOCOL_ERROR, TOPIC_ALIAS_INVALID

# Publishers repeat themselves: what was read once is looked up, not read again. Per connection, so small.
_MAX_KEPT: Final = 256
_MAX_KEPT_BYTES: Final = 256

_PING: Final = PingRequest()


def _first_bytes() -> bytes:
    """For each value of a first byte the type of packet that a client may begin with it; 0 where there is none."""
    kinds = bytearray(256)
    for kind in (CONNECT, PUBACK, PUBREC, PUBCOMP, PINGREQ, DISCONNECT, AUTH):
        kinds[kind << 4] = kind
    for kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE):
        kinds[kind << 4 | 2] = kind
    for flags in range(16):
        qos = flags >> 1 & 3
        if qos < 3 and (qos or not flags & 8):  # MQTT 5 [MQTT-3.3.1-2], [MQTT-3.3.1-4]
            kinds[PUBLISH << 4 | flags] = PUBLISH
    return bytes(kinds)


_FIRST: Final = _first_bytes()


@final
class Decoder:
    """Takes bytes as they come, gives packets. Raises ProtocolError and nothing else; it is then of no more use.

    What is wrong is raised once the packets before it were given: `failure` says that the next call will raise it.
    Nothing larger than `max_packet_bytes` is kept, and of a packet that is not whole nothing twice.
    """

    __slots__ = (
        "_aliases",
        "_have",
        "_need",
        "_parts",
        "_said",
        "_topics",
        "failure",
        "max_packet_bytes",
        "topic_alias_maximum",
        "version",
    )

    def __init__(self, max_packet_bytes: int, topic_alias_maximum: int) -> None:
        self.max_packet_bytes = max_packet_bytes
        """How long a packet may be, all of it; may be changed at any time."""
        self.topic_alias_maximum = topic_alias_maximum
        self.version = 0
        """The protocol level that the client asks for, known once its CONNECT is here, good or bad."""
        self.failure: ProtocolError | None = None
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self._topics: dict[bytes, str] = {}
        self._aliases: dict[int, str] = {}
        self._said: dict[bytes, MessageProperties] = {}

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that end in these bytes; what is left over is kept for the next call."""
        packets: list[Packet] = []
        if self.failure is not None:
            raise self.failure
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return packets
            data = b"".join(self._parts)
            self._parts.clear()
        try:
            at = self._packets(data, packets)
        except ProtocolError as error:
            self.failure = error
            if not packets:
                raise
            return packets
        if at < len(data):
            rest = data[at:] if at else data
            self._parts.append(rest)
            self._have = len(rest)
        return packets

    def _packets(self, data: bytes, packets: list[Packet]) -> int:
        """Go through whole packets; returns where the first that is not whole begins, whose size is then needed."""
        size = len(data)
        at = 0
        while size - at >= 2:
            head = data[at]
            kind = _FIRST[head]
            if kind == 0 or (self.version == 0) != (kind == CONNECT):
                raise self._unexpected(head)
            length = data[at + 1]
            start = at + 2
            if length > 127:
                start, length = _remaining(data, at + 1, size)
                if not start:
                    break
            end = start + length
            if end - at > self.max_packet_bytes:
                raise ProtocolError(
                    PACKET_TOO_LARGE,
                    f"{NAMES[kind]}: a packet of {end - at} bytes is larger than the {self.max_packet_bytes} allowed",
                )
            if end > size:
                self._need = end - at
                return at
            if kind == PUBLISH:
                packets.append(self._publish(head, data, start, end))
            elif length == 2 and kind <= PUBCOMP and kind != CONNECT:
                packet_id = data[start] << 8 | data[start + 1]
                if not packet_id:
                    raise ProtocolError(PROTOCOL_ERROR, f"{NAMES[kind]}: the packet identifier is 0")
                packets.append(Acknowledgement(kind, packet_id))
            else:
                packets.append(self._other(kind, Reader(data, start, end, NAMES[kind])))
            at = end
        self._need = size - at + 1
        return at

    def _publish(self, head: int, data: bytes, start: int, end: int) -> Publish:
        at = start + 2
        if at > end:
            raise malformed("PUBLISH: there is no topic")
        topic_end = at + (data[start] << 8 | data[start + 1])
        qos = head >> 1 & 3
        packet_id = 0
        at = topic_end
        if qos:
            at += 2
        if at > end:
            raise malformed("PUBLISH: the topic, or the packet identifier behind it, does not fit into the packet")
        if qos:
            packet_id = data[topic_end] << 8 | data[topic_end + 1]
            if not packet_id:
                raise ProtocolError(PROTOCOL_ERROR, "PUBLISH: the packet identifier is 0")
        raw = data[start + 2 : topic_end]
        topic = self._topics.get(raw)
        if topic is None:
            topic = self._new_topic(raw)
        if self.version == V5:
            return self._publish_5(head, data, at, end, topic, packet_id)
        return Publish(topic, data[at:end], qos, head & 1 == 1, head & 8 == 8, packet_id, NO_PROPERTIES)

    def _publish_5(self, head: int, data: bytes, at: int, end: int, topic: str, packet_id: int) -> Publish:
        """The same in MQTT 5, from the properties on."""
        if at == end:
            raise malformed("PUBLISH: there is no length of its properties")
        properties = NO_PROPERTIES
        size = data[at]
        at += 1
        if size:
            if size > 127 or at + size > end:
                reader = Reader(data, at - 1, end, "PUBLISH")
                raw = reader.raw(reader.length())
                at = reader.at
            else:
                raw = data[at : at + size]
                at += size
            properties = self._said.get(raw) or self._properties(raw)
        if not topic or properties.topic_alias:
            topic = self._of_alias(topic, properties.topic_alias)
        return Publish(topic, data[at:end], head >> 1 & 3, head & 1 == 1, head & 8 == 8, packet_id, properties)

    def _new_topic(self, raw: bytes) -> str:
        topic = decode_text(raw, "PUBLISH")
        if topic or self.version != V5:
            require_topic(topic)
        if len(self._topics) < _MAX_KEPT and len(raw) <= _MAX_KEPT_BYTES:
            self._topics[raw] = topic
        return topic

    def _properties(self, raw: bytes) -> MessageProperties:
        said, _ = decode_message_list(raw, OF_PUBLISH, "PUBLISH")
        if len(self._said) < _MAX_KEPT and len(raw) <= _MAX_KEPT_BYTES:
            self._said[raw] = said
        return said

    def _of_alias(self, topic: str, alias: int) -> str:
        """The topic, which the alias stands for from now on; without a topic the one that it stands for."""
        if not alias:
            raise ProtocolError(PROTOCOL_ERROR, "PUBLISH: there is neither a topic nor a topic alias")
        if alias > self.topic_alias_maximum:
            raise ProtocolError(
                TOPIC_ALIAS_INVALID, f"PUBLISH: topic alias {alias} is above the maximum of {self.topic_alias_maximum}"
            )
        if topic:
            self._aliases[alias] = topic
            return topic
        known = self._aliases.get(alias)
        if known is None:  # MQTT 5 [3.3.2.3.4]
            raise ProtocolError(PROTOCOL_ERROR, f"PUBLISH: topic alias {alias} stands for no topic yet")
        return known

    def _other(self, kind: int, reader: Reader) -> Packet:
        version = self.version
        if kind == CONNECT:
            level, is_served = decode_protocol(reader)
            self.version = level
            if not is_served:
                raise unsupported(level)
            return decode_connect(reader, level)
        if kind == SUBSCRIBE:
            return decode_subscribe(reader, version)
        if kind == UNSUBSCRIBE:
            return decode_unsubscribe(reader, version)
        if kind == PINGREQ:
            reader.check_end()
            return _PING
        if kind == DISCONNECT:
            return decode_disconnect(reader, version)
        if version != V5:
            raise malformed(f"{NAMES[kind]}: this is none of MQTT 3: type or length is wrong")
        if kind == AUTH:
            return decode_auth(reader)
        return decode_acknowledgement(reader, kind)

    def _unexpected(self, head: int) -> ProtocolError:
        """What is wrong with a packet that begins like this."""
        kind = head >> 4
        name = NAMES[kind]
        if not self.version:
            return ProtocolError(PROTOCOL_ERROR, f"{name}: the first packet must be CONNECT")
        if kind == CONNECT:
            return ProtocolError(PROTOCOL_ERROR, "CONNECT: a client sends one only")
        if kind == 0 or (_FIRST[kind << 4] == 0 and _FIRST[kind << 4 | 2] == 0):
            return ProtocolError(PROTOCOL_ERROR, f"{name}: a client does not send this")
        return malformed(f"{name}: the flags 0x{head & 15:x} are not allowed")


def _remaining(data: bytes, at: int, size: int) -> tuple[int, int]:
    """Where the rest of the packet begins and how long it is; (0, 0) when not all of the length is here."""
    length = 0
    for shift in (0, 7, 14, 21):
        if at == size:
            return 0, 0
        octet = data[at]
        at += 1
        length |= (octet & 0x7F) << shift
        if octet < 0x80:
            if not octet:
                raise malformed("a remaining length is written in more bytes than it needs")
            return at, length
    raise malformed("a remaining length has more than four bytes")

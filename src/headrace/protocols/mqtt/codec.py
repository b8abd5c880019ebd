"""Bytes to packets, and a server's packets to bytes. No sockets, no clock, no broker.

A packet:

    0               1                         1..4 bytes later
    +-------+-------+-------------------------+------------------- - - -
    | type  | flags | remaining length        | the rest of the packet
    | 4 bit | 4 bit | variable byte integer   |
    +-------+-------+-------------------------+------------------- - - -
"""

from collections.abc import Sequence
from typing import Final, final

from headrace.errors import ProtocolError, Refused
from headrace.names import check_filter, check_topic
from headrace.protocols.mqtt.packets import (
    AUTH,
    CONNACK,
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
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    V5,
    V31,
    V311,
    Acknowledgement,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingRequest,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from headrace.protocols.mqtt.reasons import (
    CLIENT_IDENTIFIER_NOT_VALID,
    CONNACK_OF_MQTT_3,
    FAILURE,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    TOPIC_ALIAS_INVALID,
    TOPIC_FILTER_INVALID,
    TOPIC_NAME_INVALID,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from headrace.protocols.mqtt.reasons import OF_AUTH as REASONS_OF_AUTH
from headrace.protocols.mqtt.reasons import OF_DISCONNECT as REASONS_OF_DISCONNECT
from headrace.protocols.mqtt.reasons import OF_PUBACK as REASONS_OF_PUBACK
from headrace.protocols.mqtt.reasons import OF_PUBREL as REASONS_OF_PUBREL
from headrace.wire.mqtt5 import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    OF_ACKNOWLEDGEMENT,
    OF_AUTH,
    OF_CONNECT,
    OF_DISCONNECT,
    OF_PUBLISH,
    OF_SUBSCRIBE,
    OF_UNSUBSCRIBE,
    OF_WILL,
    REASON_STRING,
    RECEIVE_MAXIMUM,
    REQUEST_PROBLEM_INFORMATION,
    REQUEST_RESPONSE_INFORMATION,
    SESSION_EXPIRY,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS_MAXIMUM,
    MessageProperties,
    PropertyList,
    Reader,
    UserProperties,
    decode_list,
    decode_text,
    encode_binary,
    encode_length,
    malformed,
    scan_message,
)

_SHARED: Final = "$share/"
_PROTOCOLS: Final = {(b"MQIsdp", 3): V31, (b"MQTT", 4): V311, (b"MQTT", 5): V5}
_NAMES: Final = (b"MQTT", b"MQIsdp")

# The bits of the connect flags.
_RESERVED: Final = 0x01
_CLEAN_START: Final = 0x02
_WILL: Final = 0x04
_WILL_OPTIONS: Final = 0x38
_WILL_RETAIN: Final = 0x20
_PASSWORD: Final = 0x40
_USER_NAME: Final = 0x80


def require_topic(name: str) -> None:
    """Raises ProtocolError for an invalid topic."""
    try:
        check_topic(name)
    except Refused as error:
        raise ProtocolError(TOPIC_NAME_INVALID, str(error)) from error


def require_filter(pattern: str) -> None:
    """Raises ProtocolError for an invalid topic filter, shared or not."""
    part = pattern
    if pattern.startswith(_SHARED):
        name, slash, part = pattern[len(_SHARED) :].partition("/")
        if not name or not slash or "+" in name or "#" in name:  # MQTT 5 [MQTT-4.8.2-1], [MQTT-4.8.2-2]
            raise ProtocolError(
                TOPIC_FILTER_INVALID,
                f"topic filter {pattern[:80]!r} is no shared subscription: $share/<name>/<topic filter> is one",
            )
    try:
        check_filter(part)
    except Refused as error:
        raise ProtocolError(TOPIC_FILTER_INVALID, str(error)) from error


def _scanned(raw: bytes, allowed: frozenset[int], what: str) -> MessageProperties:
    """Read the properties of a message; its response topic must be a topic. Raises ProtocolError."""
    found = scan_message(raw, allowed, what)
    if found.response_topic is not None:
        require_topic(found.response_topic)
    return found


def decode_protocol(reader: Reader) -> tuple[int, bool]:
    """The version that a CONNECT asks for, 0 for a protocol of another name; and True if it is served."""
    name = reader.binary()
    level = reader.octet()
    if name not in _NAMES:
        return 0, False
    return max(level, 1), (name, level) in _PROTOCOLS  # 0, which nobody ever was, is kept for other names


def unsupported(version: int) -> ProtocolError:
    name = f"protocol level {version}" if version else "a protocol of another name"
    return ProtocolError(
        UNSUPPORTED_PROTOCOL_VERSION, f"CONNECT: {name} is not served: MQTT 3.1 (3), 3.1.1 (4) and 5.0 (5) are"
    )


def decode_connect(reader: Reader, version: int) -> Connect:
    """Decode the part of a CONNECT behind the protocol level. Raises ProtocolError."""
    flags = reader.octet()
    _check_flags(flags, version)
    keep_alive_seconds = reader.short()
    found = decode_list(reader, OF_CONNECT, "CONNECT") if version == V5 else None
    client_id = reader.text()
    clean_start = flags & _CLEAN_START != 0
    packet = Connect(version, client_id, clean_start, keep_alive_seconds)
    if flags & _WILL:
        packet.will = _decode_will(reader, version, flags)
    if flags & _USER_NAME:
        packet.user_name = reader.text()
    if flags & _PASSWORD:
        packet.password = reader.binary()
    reader.check_end()
    if not client_id and (version == V31 or (version == V311 and not clean_start)):
        # MQTT 3.1.1 [MQTT-3.1.3-8]; MQTT 3.1 has no empty client identifier at all.
        raise ProtocolError(CLIENT_IDENTIFIER_NOT_VALID, "CONNECT: the client identifier is empty: a session needs one")
    if found is not None:
        packet.session_expiry_seconds = found.numbers.get(SESSION_EXPIRY, 0)
        packet.receive_maximum = found.numbers.get(RECEIVE_MAXIMUM, packet.receive_maximum)
        packet.maximum_packet_bytes = found.numbers.get(MAXIMUM_PACKET_SIZE, 0)
        packet.topic_alias_maximum = found.numbers.get(TOPIC_ALIAS_MAXIMUM, 0)
        packet.wants_response_information = found.numbers.get(REQUEST_RESPONSE_INFORMATION, 0) == 1
        packet.wants_problem_information = found.numbers.get(REQUEST_PROBLEM_INFORMATION, 1) == 1
        packet.authentication_method = found.texts.get(AUTHENTICATION_METHOD)
        packet.authentication_data = found.binaries.get(AUTHENTICATION_DATA, b"")
        packet.user = found.user
        if AUTHENTICATION_DATA in found.binaries and packet.authentication_method is None:
            raise ProtocolError(PROTOCOL_ERROR, "CONNECT: there is authentication data without a method")
    return packet


def _check_flags(flags: int, version: int) -> None:
    if flags & _RESERVED and version != V31:  # MQTT 3.1 leaves the bit unused
        raise malformed("CONNECT: the reserved flag is set")
    if not flags & _WILL and flags & _WILL_OPTIONS:
        raise malformed("CONNECT: there is a will QoS or will retain without a will")
    if flags >> 3 & 3 == 3:
        raise malformed("CONNECT: the will's QoS is 3")
    if version != V5 and flags & _PASSWORD and not flags & _USER_NAME:
        raise malformed("CONNECT: there is a password without a user name")


def _decode_will(reader: Reader, version: int, flags: int) -> Will:
    properties = NO_PROPERTIES
    if version == V5:
        properties = _scanned(reader.raw(reader.length()), OF_WILL, "CONNECT (will)")
    topic = reader.text()
    require_topic(topic)
    return Will(topic, reader.binary(), flags >> 3 & 3, flags & _WILL_RETAIN != 0, properties)


def decode_acknowledgement(reader: Reader, kind: int) -> Acknowledgement:
    """One of MQTT 5 that is longer than its packet identifier. Raises ProtocolError."""
    packet = Acknowledgement(kind, reader.packet_id())
    if reader.has_more():
        packet.reason = reader.octet()
        allowed = REASONS_OF_PUBACK if kind < PUBREL else REASONS_OF_PUBREL
        _check_reason(packet.reason, allowed, NAMES[kind])
    if reader.has_more():
        found = decode_list(reader, OF_ACKNOWLEDGEMENT, NAMES[kind])
        packet.reason_string = found.texts.get(REASON_STRING, "")
        packet.user = found.user
    reader.check_end()
    return packet


def decode_subscribe(reader: Reader, version: int) -> Subscribe:
    """Raises ProtocolError."""
    packet_id = reader.packet_id()
    identifier = 0
    user: UserProperties = []
    if version == V5:
        found = decode_list(reader, OF_SUBSCRIBE, "SUBSCRIBE")
        identifier = found.numbers.get(SUBSCRIPTION_IDENTIFIER, 0)
        user = found.user
    if not reader.has_more():
        raise ProtocolError(PROTOCOL_ERROR, "SUBSCRIBE: there is no topic filter")
    subscriptions: list[Subscription] = []
    while reader.has_more():
        pattern = reader.text()
        options = reader.octet()
        _check_options(options, version, pattern)
        require_filter(pattern)
        subscriptions.append(Subscription(pattern, options))
    return Subscribe(packet_id, subscriptions, identifier, user)


def _check_options(options: int, version: int, pattern: str) -> None:
    if options & 3 == 3:
        raise malformed("SUBSCRIBE: QoS 3 is asked for")
    if options & (0xC0 if version == V5 else 0xFC):
        raise malformed("SUBSCRIBE: reserved bits of the subscription options are set")
    if options >> 4 & 3 == 3:
        raise ProtocolError(PROTOCOL_ERROR, "SUBSCRIBE: retain handling is 3")
    if options & 4 and pattern.startswith("$share/"):  # MQTT 5 [MQTT-3.8.3-4]
        raise ProtocolError(PROTOCOL_ERROR, "SUBSCRIBE: a shared subscription cannot be no-local")


def decode_unsubscribe(reader: Reader, version: int) -> Unsubscribe:
    """Raises ProtocolError."""
    packet_id = reader.packet_id()
    user = decode_list(reader, OF_UNSUBSCRIBE, "UNSUBSCRIBE").user if version == V5 else []
    if not reader.has_more():
        raise ProtocolError(PROTOCOL_ERROR, "UNSUBSCRIBE: there is no topic filter")
    patterns: list[str] = []
    while reader.has_more():
        pattern = reader.text()
        require_filter(pattern)
        patterns.append(pattern)
    return Unsubscribe(packet_id, patterns, user)


def decode_disconnect(reader: Reader, version: int) -> Disconnect:
    """Raises ProtocolError."""
    packet = Disconnect()
    if version == V5 and reader.has_more():
        packet.reason = reader.octet()
        _check_reason(packet.reason, REASONS_OF_DISCONNECT, "DISCONNECT")
        if reader.has_more():
            found = decode_list(reader, OF_DISCONNECT, "DISCONNECT")
            packet.session_expiry_seconds = found.numbers.get(SESSION_EXPIRY)
            packet.reason_string = found.texts.get(REASON_STRING, "")
            packet.user = found.user
    reader.check_end()
    return packet


def decode_auth(reader: Reader) -> Auth:
    """Raises ProtocolError."""
    if not reader.has_more():
        raise ProtocolError(PROTOCOL_ERROR, "AUTH: success is for the server to say")
    reason = reader.octet()
    _check_reason(reason, REASONS_OF_AUTH, "AUTH")
    found = decode_list(reader, OF_AUTH, "AUTH")
    reader.check_end()
    method = found.texts.get(AUTHENTICATION_METHOD)
    if method is None:
        raise ProtocolError(PROTOCOL_ERROR, "AUTH: there is no authentication method")
    packet = Auth(reason, method)
    packet.data = found.binaries.get(AUTHENTICATION_DATA, b"")
    packet.reason_string = found.texts.get(REASON_STRING, "")
    packet.user = found.user
    return packet


def _check_reason(reason: int, allowed: frozenset[int], what: str) -> None:
    if reason not in allowed:
        raise ProtocolError(PROTOCOL_ERROR, f"{what}: 0x{reason:02x} is no reason that a client may give in it")


# Publishers repeat themselves: topics and properties that were read once are looked up. Per connection, so small.
_MAX_KEPT: Final = 256
_MAX_KEPT_BYTES: Final = 256

_PART_BYTES: Final = 64
"""Memory of a part of a packet besides its bytes."""
_SMALL_REST_BYTES: Final = 4096

_PING: Final = PingRequest()


def _first_bytes() -> bytes:
    """By first byte, the type of packet that a client may begin with it; 0 for none."""
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


_LONG_TOPIC: Final = 1024


def _counted(topic: str) -> int:
    """The memory of a topic with an alias that counts as held: that of a long one."""
    return len(topic) if len(topic) > _LONG_TOPIC else 0


@final
class Decoder:
    """Turns bytes into packets, in any cut. Raises ProtocolError and nothing else; it is then of no more use.

    Packets before an error are returned first: `failure` says that the next call will raise the error. The decoder
    keeps nothing larger than `max_packet_bytes`, and no byte of an incomplete packet twice.
    """

    __slots__ = (
        "_alias_bytes",
        "_aliases",
        "_have",
        "_known",
        "_need",
        "_parts",
        "_topics",
        "failure",
        "max_packet_bytes",
        "topic_alias_maximum",
        "version",
    )

    def __init__(self, max_packet_bytes: int, topic_alias_maximum: int) -> None:
        self.max_packet_bytes = max_packet_bytes
        """The largest packet, with its header; may change at any time."""
        self.topic_alias_maximum = topic_alias_maximum
        self.version = 0
        """The protocol level of the CONNECT, also of a bad one; 0 before it came."""
        self.failure: ProtocolError | None = None
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self._topics: dict[bytes, str] = {}
        self._aliases: dict[int, str] = {}
        self._alias_bytes = 0
        """Bytes of the long topics among them."""
        self._known: dict[bytes, MessageProperties] = {}

    @property
    def held_bytes(self) -> int:
        """Memory of an incomplete packet and of long topics with an alias.

        A small rest, as every read may leave, and topics of an ordinary length do not count.
        """
        if not self._parts or self._have <= _SMALL_REST_BYTES:
            return self._alias_bytes
        return self._alias_bytes + self._have + _PART_BYTES * len(self._parts)

    def clear(self) -> None:
        """Drop everything: the connection is over."""
        self._parts.clear()
        self._have = 0
        self._aliases.clear()
        self._alias_bytes = 0

    def feed(self, data: bytes) -> list[Packet]:
        """The packets that end in these bytes; the rest is kept for the next call."""
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
        """Decode whole packets; returns where the first incomplete one begins, and notes how many bytes it needs."""
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
        """The same for MQTT 5, from the properties on."""
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
            properties = self._known.get(raw) or self._properties(raw)
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
        properties = _scanned(raw, OF_PUBLISH, "PUBLISH")
        if len(self._known) < _MAX_KEPT and len(raw) <= _MAX_KEPT_BYTES:
            self._known[raw] = properties
        return properties

    def _of_alias(self, topic: str, alias: int) -> str:
        """Set the topic of an alias or, without a topic, look it up."""
        if not alias:
            raise ProtocolError(PROTOCOL_ERROR, "PUBLISH: there is neither a topic nor a topic alias")
        if alias > self.topic_alias_maximum:
            raise ProtocolError(
                TOPIC_ALIAS_INVALID, f"PUBLISH: topic alias {alias} is above the maximum of {self.topic_alias_maximum}"
            )
        if topic:
            former = self._aliases.get(alias, "")
            self._alias_bytes += _counted(topic) - _counted(former)
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
        """The error of a packet with this first byte."""
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
    """The start and the length of the packet's rest; (0, 0) while the length itself is incomplete."""
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


# -- packets to bytes ------------------------------------------------------------------------------------------------

PING_RESPONSE: Final = b"\xd0\x00"
_PUBLISH: Final = PUBLISH << 4


def encode_connack(version: int, session_present: bool, reason: int, properties: PropertyList | None = None) -> bytes:
    """CONNACK; b"" if MQTT 3 has no return code for the reason, so the connection closes without an answer."""
    if version >= V5:
        listed = properties.encode() if properties is not None else b"\0"
        return _packet(CONNACK << 4, bytes((session_present, reason)) + listed)
    code = CONNACK_OF_MQTT_3.get(reason)
    return b"" if code is None else bytes((CONNACK << 4, 2, session_present, code))


def encode_acknowledgement(
    version: int, kind: int, packet_id: int, reason: int = 0, properties: PropertyList | None = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; MQTT 3 is told nothing but the packet identifier."""
    head = kind << 4 | 2 if kind == PUBREL else kind << 4
    if version != V5 or (not reason and properties is None):
        return bytes((head, 2, packet_id >> 8, packet_id & 0xFF))
    if properties is None:
        return bytes((head, 3, packet_id >> 8, packet_id & 0xFF, reason))
    return _packet(head, bytes((packet_id >> 8, packet_id & 0xFF, reason)) + properties.encode())


def encode_suback(
    version: int, packet_id: int, reasons: Sequence[int], properties: PropertyList | None = None
) -> bytes:
    """One reason per topic filter; MQTT 3 has one only for all that is not granted."""
    head = packet_id.to_bytes(2)
    if version != V5:
        return _packet(SUBACK << 4, head + bytes([reason if reason < FAILURE else FAILURE for reason in reasons]))
    listed = properties.encode() if properties is not None else b"\0"
    return _packet(SUBACK << 4, head + listed + bytes(reasons))


def encode_unsuback(version: int, packet_id: int, reasons: Sequence[int]) -> bytes:
    """One reason per topic filter, and no properties; MQTT 3 is told none."""
    head = packet_id.to_bytes(2)
    return _packet(UNSUBACK << 4, head if version != V5 else head + b"\0" + bytes(reasons))


def encode_disconnect(version: int, reason: int, properties: PropertyList | None = None) -> bytes:
    """b"" for MQTT 3, where a server only closes the connection."""
    if version != V5:
        return b""
    if properties is None:
        return bytes((DISCONNECT << 4, 1, reason)) if reason else bytes((DISCONNECT << 4, 0))
    return _packet(DISCONNECT << 4, bytes((reason,)) + properties.encode())


def encode_publish(
    version: int,
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool = False,
    dup: bool = False,
    packet_id: int = 0,
    properties: bytes = b"",
) -> bytes:
    """One message for one receiver. `properties` is a list without its length; MQTT 3 gets none."""
    name = encode_binary(topic.encode())
    identifier = packet_id.to_bytes(2) if qos else b""
    listed = encode_length(len(properties)) + properties if version == V5 else b""
    length = encode_length(len(name) + len(identifier) + len(listed) + len(payload))
    head = bytes((_PUBLISH | dup << 3 | qos << 1 | retain,))
    return b"".join((head, length, name, identifier, listed, payload))


def delivered_properties(
    passed_on: bytes, expiry_seconds: int | None = None, identifiers: Sequence[int] = (), topic_alias: int = 0
) -> bytes:
    """The property list of one delivery, without its length: the publisher's properties and those of the delivery."""
    parts = [passed_on]
    if expiry_seconds is not None:
        parts.append(b"\x02" + expiry_seconds.to_bytes(4))
    for identifier in identifiers:
        parts.append(b"\x0b" + encode_length(identifier))
    if topic_alias:
        parts.append(b"\x23" + topic_alias.to_bytes(2))
    return b"".join(parts)


@final
class PublishEncoder:
    """One message for many receivers of one version: common bytes are encoded once.

    At QoS 0 they get the very same bytes; above, only the packet identifier is put in. 0.07 us and 0.2 us a receiver
    instead of 0.7 us.
    """

    __slots__ = ("_before", "_flags", "_name", "_payload", "_size", "_start", "_wholes")

    def __init__(self, version: int, topic: str, payload: bytes, properties: bytes = b"") -> None:
        name = encode_binary(topic.encode())
        self._name = name
        self._before = encode_length(len(properties)) + properties if version == V5 else b""
        """The bytes between the packet identifier and the payload."""
        self._payload = payload
        self._size = len(name) + len(self._before) + len(payload)
        self._wholes: list[bytes] | None = None
        """The packets at QoS 0, without and with retain; b"" for one that nobody asked for."""
        self._flags = -1
        self._start = b""
        """The bytes up to the packet identifier, with these flags."""

    def encode(self, qos: int, retain: bool, packet_id: int = 0, dup: bool = False) -> bytes:
        if not qos:
            return self._whole(retain)
        flags = dup << 3 | qos << 1 | retain
        if flags != self._flags:
            self._start = bytes((_PUBLISH | flags,)) + encode_length(self._size + 2) + self._name
            self._flags = flags
        return b"".join((self._start, packet_id.to_bytes(2), self._before, self._payload))

    def _whole(self, retain: bool) -> bytes:
        if self._wholes is None:
            self._wholes = [b"", b""]
        whole = self._wholes[retain]
        if not whole:
            head = bytes((_PUBLISH | retain,)) + encode_length(self._size)
            whole = self._wholes[retain] = b"".join((head, self._name, self._before, self._payload))
        return whole


def _packet(head: int, body: bytes) -> bytes:
    return bytes((head,)) + encode_length(len(body)) + body

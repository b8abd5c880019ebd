"""Packets that are rare: their bodies to values, every rule checked. The hot path and the framing are codec.py's."""

from typing import Final

from headrace.errors import ProtocolError
from headrace.protocols.mqtt.fields import Reader, malformed, require_filter, require_topic
from headrace.protocols.mqtt.packets import (
    NAMES,
    NO_PROPERTIES,
    PUBREL,
    V5,
    V31,
    V311,
    Acknowledgement,
    Auth,
    Connect,
    Disconnect,
    Subscribe,
    Subscription,
    Unsubscribe,
    UserProperties,
    Will,
)
from headrace.protocols.mqtt.property_list import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    OF_ACKNOWLEDGEMENT,
    OF_AUTH,
    OF_CONNECT,
    OF_DISCONNECT,
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
    WILL_DELAY,
    decode_list,
    decode_message_list,
)
from headrace.protocols.mqtt.reasons import (
    CLIENT_IDENTIFIER_NOT_VALID,
    PROTOCOL_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from headrace.protocols.mqtt.reasons import OF_AUTH as REASONS_OF_AUTH
from headrace.protocols.mqtt.reasons import OF_DISCONNECT as REASONS_OF_DISCONNECT
from headrace.protocols.mqtt.reasons import OF_PUBACK as REASONS_OF_PUBACK
from headrace.protocols.mqtt.reasons import OF_PUBREL as REASONS_OF_PUBREL

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


def decode_protocol(reader: Reader) -> tuple[int, bool]:
    """The version that a CONNECT asks for, 0 where its protocol has another name, and whether it is served."""
    name = reader.binary()
    level = reader.octet()
    if name not in _NAMES:
        return 0, False
    return max(level, 1), (name, level) in _PROTOCOLS  # 0, which nobody ever was, is kept for other names


def unsupported(version: int) -> ProtocolError:
    said = f"protocol level {version}" if version else "a protocol of another name"
    return ProtocolError(
        UNSUPPORTED_PROTOCOL_VERSION, f"CONNECT: {said} is not served: MQTT 3.1 (3), 3.1.1 (4) and 5.0 (5) are"
    )


def decode_connect(reader: Reader, version: int) -> Connect:
    """What follows the protocol level. Raises ProtocolError."""
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
    delay_seconds = 0
    if version == V5:
        size = reader.length()
        properties, found = decode_message_list(reader.raw(size), OF_WILL, "CONNECT (will)")
        delay_seconds = found.numbers.get(WILL_DELAY, 0)
    topic = reader.text()
    require_topic(topic)
    return Will(topic, reader.binary(), flags >> 3 & 3, flags & _WILL_RETAIN != 0, properties, delay_seconds)


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

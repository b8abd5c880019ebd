"""The property lists of MQTT 5: read, checked, written, and translated to core's Properties and back.

A message from an MQTT client carries the property list of its PUBLISH without its length, topic alias and expiry: the
alias is the connection's, and core counts down the expiry. From MQTT to MQTT the bytes are passed on. This module
translates between such a list and the properties of other protocols.

+---------------------------+------------+----------- - - -+-- - - -
| length of the list        | identifier | value           | the next
| variable byte integer     | 1 byte     | as its type is  |
+---------------------------+------------+----------- - - -+-- - - -
"""

import json
from datetime import UTC, datetime
from typing import Final, final

from headrace.core.properties import Properties, PropertiesCodec
from headrace.core.routing.address import is_addressable, queue_topic
from headrace.errors import ProtocolError, Refused
from headrace.protocols.mqtt.fields import (
    MAX_TEXT_BYTES,
    Reader,
    encode_binary,
    encode_length,
    encode_text,
    malformed,
    require_topic,
)
from headrace.protocols.mqtt.packets import MessageProperties, UserProperties
from headrace.protocols.mqtt.reasons import PROTOCOL_ERROR, TOPIC_ALIAS_INVALID

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM_INFORMATION: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE_INFORMATION: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON_STRING: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARD_AVAILABLE: Final = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

# MQTT 5 [2.2.2.2]: the properties that a client may send in each packet. User properties go with every packet.
_OF_MESSAGE: Final = (PAYLOAD_FORMAT, MESSAGE_EXPIRY, CONTENT_TYPE, RESPONSE_TOPIC, CORRELATION_DATA)
OF_PUBLISH: Final = frozenset((*_OF_MESSAGE, TOPIC_ALIAS))
OF_WILL: Final = frozenset((*_OF_MESSAGE, WILL_DELAY))
OF_CONNECT: Final = frozenset(
    (
        SESSION_EXPIRY,
        AUTHENTICATION_METHOD,
        AUTHENTICATION_DATA,
        REQUEST_PROBLEM_INFORMATION,
        REQUEST_RESPONSE_INFORMATION,
        RECEIVE_MAXIMUM,
        TOPIC_ALIAS_MAXIMUM,
        MAXIMUM_PACKET_SIZE,
    )
)
OF_ACKNOWLEDGEMENT: Final = frozenset((REASON_STRING,))
OF_SUBSCRIBE: Final = frozenset((SUBSCRIPTION_IDENTIFIER,))
OF_UNSUBSCRIBE: Final[frozenset[int]] = frozenset()
OF_DISCONNECT: Final = frozenset((SESSION_EXPIRY, REASON_STRING))
OF_AUTH: Final = frozenset((AUTHENTICATION_METHOD, AUTHENTICATION_DATA, REASON_STRING))

_SHORTS: Final = frozenset((SERVER_KEEP_ALIVE, RECEIVE_MAXIMUM, TOPIC_ALIAS_MAXIMUM, TOPIC_ALIAS))
_LONGS: Final = frozenset((MESSAGE_EXPIRY, SESSION_EXPIRY, WILL_DELAY, MAXIMUM_PACKET_SIZE))
_TEXTS: Final = frozenset(
    (
        CONTENT_TYPE,
        RESPONSE_TOPIC,
        ASSIGNED_CLIENT_IDENTIFIER,
        AUTHENTICATION_METHOD,
        RESPONSE_INFORMATION,
        SERVER_REFERENCE,
        REASON_STRING,
    )
)
_BINARIES: Final = frozenset((CORRELATION_DATA, AUTHENTICATION_DATA))
_SWITCHES: Final = frozenset((PAYLOAD_FORMAT, REQUEST_PROBLEM_INFORMATION, REQUEST_RESPONSE_INFORMATION))
_NOT_ZERO: Final = frozenset((RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_IDENTIFIER))
# Each receiver gets its own: these hold for one connection, or count down.
_NOT_PASSED_ON: Final = frozenset((MESSAGE_EXPIRY, TOPIC_ALIAS, WILL_DELAY))


@final
class PropertyList:
    """Properties by identifier, one dictionary for each type of value."""

    __slots__ = ("binaries", "numbers", "texts", "user")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: UserProperties = []

    def encode(self) -> bytes:
        """The list as in a packet, with its length."""
        parts: list[bytes] = []
        for identifier, number in self.numbers.items():
            parts.append(bytes((identifier,)) + _encode_number(identifier, number))
        for identifier, text in self.texts.items():
            parts.append(bytes((identifier,)) + encode_text(text))
        for identifier, raw in self.binaries.items():
            parts.append(bytes((identifier,)) + encode_binary(raw))
        for name, value in self.user:
            parts.append(encode_user_property(name, value))
        body = b"".join(parts)
        return encode_length(len(body)) + body


def _encode_number(identifier: int, number: int) -> bytes:
    if identifier in _SHORTS:
        return number.to_bytes(2)
    if identifier in _LONGS:
        return number.to_bytes(4)
    if identifier == SUBSCRIPTION_IDENTIFIER:
        return encode_length(number)
    return number.to_bytes(1)


def encode_user_property(name: str, value: str) -> bytes:
    """One user property, as in a list."""
    return b"\x26" + encode_text(name) + encode_text(value)


def decode_list(reader: Reader, allowed: frozenset[int], what: str) -> PropertyList:
    """Decode a list. Raises ProtocolError for properties that the packet does not allow, or that come twice."""
    found = PropertyList()
    part = reader.part(reader.length())
    while part.has_more():
        _decode_one(part, allowed, what, found)
    return found


def _decode_one(part: Reader, allowed: frozenset[int], what: str, found: PropertyList) -> int:
    identifier = part.octet()
    if identifier == USER_PROPERTY:
        name = part.text()
        found.user.append((name, part.text()))
        return identifier
    if identifier not in allowed:
        raise _not_allowed(identifier, what)
    if identifier in _TEXTS:
        _check_first(identifier in found.texts, identifier, what)
        found.texts[identifier] = part.text()
    elif identifier in _BINARIES:
        _check_first(identifier in found.binaries, identifier, what)
        found.binaries[identifier] = part.binary()
    else:
        _check_first(identifier in found.numbers, identifier, what)
        found.numbers[identifier] = _decode_number(identifier, part, what)
    return identifier


def _decode_number(identifier: int, part: Reader, what: str) -> int:
    if identifier in _LONGS:
        number = part.long()
    elif identifier in _SHORTS:
        number = part.short()
    elif identifier == SUBSCRIPTION_IDENTIFIER:
        number = part.length()
    else:
        number = part.octet()
    if identifier in _SWITCHES and number > 1:
        raise ProtocolError(
            PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is {number}, only 0 and 1 are allowed"
        )
    if not number and identifier in _NOT_ZERO:
        raise ProtocolError(PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is 0, which is not allowed")
    return number


def _check_first(is_there: bool, identifier: int, what: str) -> None:
    if is_there:
        raise ProtocolError(PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is there twice")


def _not_allowed(identifier: int, what: str) -> ProtocolError:
    is_known = identifier in _TEXTS or identifier in _BINARIES or identifier in _LONGS or identifier in _SHORTS
    if is_known or identifier in _OCTETS:
        return ProtocolError(PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is not allowed from a client")
    return malformed(f"{what}: there is no property 0x{identifier:02x}")


_OCTETS: Final = frozenset(
    (
        PAYLOAD_FORMAT,
        SUBSCRIPTION_IDENTIFIER,
        REQUEST_PROBLEM_INFORMATION,
        REQUEST_RESPONSE_INFORMATION,
        MAXIMUM_QOS,
        RETAIN_AVAILABLE,
        WILDCARD_AVAILABLE,
        SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        SHARED_AVAILABLE,
    )
)


def decode_message_list(raw: bytes, allowed: frozenset[int], what: str) -> tuple[MessageProperties, PropertyList]:
    """Decode a list without its length: the message's properties, and the whole list. Raises ProtocolError."""
    found = PropertyList()
    part = Reader(raw, 0, len(raw), what)
    passed: list[bytes] = []
    while part.has_more():
        start = part.at
        if _decode_one(part, allowed, what, found) not in _NOT_PASSED_ON:
            passed.append(raw[start : part.at])
    properties = MessageProperties(b"".join(passed))
    properties.expiry_seconds = found.numbers.get(MESSAGE_EXPIRY)
    properties.topic_alias = _topic_alias(found, what)
    properties.is_text = found.numbers.get(PAYLOAD_FORMAT) == 1
    properties.content_type = found.texts.get(CONTENT_TYPE, "")
    properties.response_topic = found.texts.get(RESPONSE_TOPIC, "")
    if RESPONSE_TOPIC in found.texts:
        require_topic(properties.response_topic)
    properties.correlation_data = found.binaries.get(CORRELATION_DATA)
    properties.user = found.user
    return properties, found


def _topic_alias(found: PropertyList, what: str) -> int:
    alias = found.numbers.get(TOPIC_ALIAS)
    if alias == 0:
        raise ProtocolError(TOPIC_ALIAS_INVALID, f"{what}: the topic alias is 0")
    return alias or 0


_IS_TEXT: Final = "mqtt_payload_format"
_RESPONSE_TOPIC: Final = "mqtt_response_topic"
_USER: Final = "mqtt_user_properties"

# Fields of other protocols that MQTT does not have become user properties of these names.
_NAMED: Final = (
    ("content-encoding", "content_encoding"),
    ("type", "message_type"),
    ("app-id", "app_id"),
    ("user-id", "user_id"),
    ("x-message-id", "message_id"),  # `message-id` is the queue's: it settles the delivery
)


def decode_properties(raw: bytes) -> Properties:
    """Decode a list for other protocols. Raises ProtocolError."""
    properties = Properties()
    if not raw:
        return properties
    given, _ = decode_message_list(raw, OF_PUBLISH, "PUBLISH")
    properties.content_type = given.content_type
    properties.reply_to = given.response_topic
    if given.correlation_data is not None:
        properties.correlation_id = given.correlation_data.decode(errors="surrogateescape")
    properties.headers = dict(given.user)
    if given.is_text:
        properties.extra[_IS_TEXT] = True
    if given.response_topic:
        properties.extra[_RESPONSE_TOPIC] = given.response_topic
    if len(given.user) > len(properties.headers):
        properties.extra[_USER] = given.user
    return properties


def encode_properties(properties: Properties) -> bytes:
    """The list of these properties, as far as MQTT can carry them."""
    parts: list[bytes] = []
    if properties.extra.get(_IS_TEXT):
        parts.append(b"\x01\x01")
    if properties.content_type:
        parts.append(b"\x03" + encode_text(properties.content_type))
    user: UserProperties = []
    if properties.reply_to:
        topic = _response_topic(properties)
        if topic:
            parts.append(b"\x08" + encode_text(topic))
        else:
            user.append(("reply-to", properties.reply_to))
    if properties.correlation_id:
        raw = properties.correlation_id.encode(errors="surrogateescape")
        parts.append(b"\x09" + encode_binary(raw[:MAX_TEXT_BYTES]))
    for name, field in _NAMED:
        value = getattr(properties, field)
        if value:
            user.append((name, value))
    parts += [encode_user_property(name, value) for name, value in user + _user_properties(properties)]
    return b"".join(parts)


def _response_topic(properties: Properties) -> str:
    """The response topic for MQTT clients: a queue's name becomes its address. "" if they cannot answer."""
    reply_to = properties.reply_to
    if properties.extra.get(_RESPONSE_TOPIC) != reply_to and is_addressable(reply_to):
        reply_to = queue_topic(reply_to)
    try:
        require_topic(reply_to)
    except ProtocolError:
        return ""
    return reply_to


def _user_properties(properties: Properties) -> UserProperties:
    """The headers in order, with repeated names as the publisher gave them."""
    given = properties.extra.get(_USER)
    if not isinstance(given, list):
        return [(name, text_of(value)) for name, value in properties.headers.items()]
    last = dict(given)
    kept = [(name, value) for name, value in given if properties.headers.get(name) == last[name]]
    return kept + [
        (name, text_of(value)) for name, value in properties.headers.items() if name not in last or last[name] != value
    ]


def text_of(value: object) -> str:
    """A header's value as text, in JSON's form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool | dict | list | tuple):
        return "" if value is None else json.dumps(value, ensure_ascii=False, default=text_of)
    return str(value)


@final
class Mqtt5Codec(PropertiesCodec):
    """The codec of these properties for core."""

    def decode(self, raw: bytes) -> Properties:
        try:
            return decode_properties(raw)
        except ProtocolError as error:
            raise Refused(f"the properties are not those of MQTT 5: {error}") from error

    def encode(self, properties: Properties) -> bytes:
        return encode_properties(properties)

"""The property lists of MQTT 5 packets: read, checked against what their packet allows, written. Nothing is decided.

+---------------------------+------------+----------- - - -+-- - - -
| length of the list        | identifier | value           | the next
| variable byte integer     | 1 byte     | as its type is  |
+---------------------------+------------+----------- - - -+-- - - -
"""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.mqtt.fields import Reader, encode_binary, encode_length, encode_text, malformed, require_topic
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

# MQTT 5 [2.2.2.2]: what a client may say in each packet. User properties go with every one of them.
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
# These hold for one connection, or run down: a receiver gets its own.
_NOT_PASSED_ON: Final = frozenset((MESSAGE_EXPIRY, TOPIC_ALIAS, WILL_DELAY))


@final
class PropertyList:
    """Properties by identifier, by the kind of their value."""

    __slots__ = ("binaries", "numbers", "texts", "user")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: UserProperties = []

    def encode(self) -> bytes:
        """The list as it stands in a packet, its length before it."""
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
    """One user property, as it stands in a list."""
    return b"\x26" + encode_text(name) + encode_text(value)


def decode_list(reader: Reader, allowed: frozenset[int], what: str) -> PropertyList:
    """The list that begins here. Raises ProtocolError for what this packet does not allow or says twice."""
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
    """What a list without its length says about a message, and all of the list. Raises ProtocolError."""
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

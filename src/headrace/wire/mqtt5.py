"""The property lists of MQTT 5 and the data types in them: read, checked, written. No packets, no rules for topics.

A message from an MQTT client carries the property list of its PUBLISH without its length, topic alias and expiry: the
alias is the connection's, and core counts down the expiry. From MQTT to MQTT the bytes are passed on.

+---------------------------+------------+----------- - - -+-- - - -
| length of the list        | identifier | value           | the next
| variable byte integer     | 1 byte     | as its type is  |
+---------------------------+------------+----------- - - -+-- - - -
"""

import json
from datetime import UTC, datetime
from typing import Final, final

from mypy_extensions import i64

from headrace.errors import ProtocolError
from headrace.wire.properties import Properties
from headrace.wire.reader import ByteReader

# The reason codes of errors here.
MALFORMED_PACKET: Final = 0x81
PROTOCOL_ERROR: Final = 0x82
TOPIC_ALIAS_INVALID: Final = 0x94

MAX_TEXT_BYTES: Final = 65_535


def malformed(message: str) -> ProtocolError:
    return ProtocolError(MALFORMED_PACKET, message)


@final
class Reader(ByteReader):
    """Reads one value after the other from a part of a packet. Raises ProtocolError for bytes that do not fit."""

    __slots__ = ()

    def __init__(self, data: bytes, at: int, end: int, what: str) -> None:
        super().__init__(data, at, end, MALFORMED_PACKET, what)

    def has_more(self) -> bool:
        return self.at < self._end

    def length(self) -> int:
        """Read a variable byte integer, in as few bytes as it needs."""
        value = 0
        for shift in (0, 7, 14, 21):
            octet = self.octet()
            value |= (octet & 0x7F) << shift
            if octet < 0x80:
                if not octet and shift:
                    raise self.error("a length is written in more bytes than it needs")
                return value
        raise self.error("a length has more than four bytes")

    def binary(self) -> bytes:
        return self.raw(self.short())

    def text(self) -> str:
        return decode_text(self.binary(), self._what)

    def packet_id(self) -> int:
        value = self.short()
        if not value:
            raise ProtocolError(PROTOCOL_ERROR, f"{self._what}: the packet identifier is 0")
        return value

    def part(self, size: int) -> "Reader":
        """Return a reader for the next `size` bytes; this one goes on behind them."""
        at = self.step(size)
        return Reader(self._data, at, at + size, self._what)

    def check_end(self) -> None:
        if self.at != self._end:
            raise self.error(f"{self._end - self.at} bytes are left behind its last field")


def decode_text(raw: bytes, what: str) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise malformed(f"{what}: a string is not UTF-8: {error.reason} at byte {error.start}") from error
    if "\0" in text:
        raise malformed(f"{what}: a string has U+0000 in it")
    return text


def encode_length(value: int) -> bytes:
    """Encode a variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))


def encode_binary(raw: bytes) -> bytes:
    return len(raw).to_bytes(2) + raw


def encode_text(text: str) -> bytes:
    """Encode a string; characters that MQTT cannot carry are replaced, and a too long one is cut."""
    raw = text.replace("\0", "\ufffd").encode(errors="replace")
    if len(raw) > MAX_TEXT_BYTES:
        raw = raw[:MAX_TEXT_BYTES].decode(errors="ignore").encode()
    return encode_binary(raw)


# -- lists -------------------------------------------------------------------------------------------------------------

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
_OTHERS: Final = frozenset(
    (
        SUBSCRIPTION_IDENTIFIER,
        MAXIMUM_QOS,
        RETAIN_AVAILABLE,
        WILDCARD_AVAILABLE,
        SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        SHARED_AVAILABLE,
    )
)
_KNOWN: Final = _SHORTS | _LONGS | _TEXTS | _BINARIES | _SWITCHES | _OTHERS
# Properties of the packet that only a server may send: MQTT 5 [MQTT-3.3.4-6], [3.14.2.2.5].
_FROM_SERVER: Final = frozenset((("PUBLISH", SUBSCRIPTION_IDENTIFIER), ("DISCONNECT", SERVER_REFERENCE)))
# Each receiver gets its own: these hold for one connection, or count down.
_NOT_PASSED_ON: Final = frozenset((MESSAGE_EXPIRY, TOPIC_ALIAS, WILL_DELAY))

UserProperties = list[tuple[str, str]]


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
        """Encode the list as in a packet, with its length."""
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
    """Encode one user property, as in a list."""
    return b"\x26" + encode_text(name) + encode_text(value)


def decode_list(reader: Reader, allowed: frozenset[int], what: str) -> PropertyList:
    """Decode a list. Raises ProtocolError for properties that the packet does not allow, or that come twice."""
    found = PropertyList()
    part = reader.part(reader.length())
    while part.has_more():
        identifier = part.octet()
        if identifier == USER_PROPERTY:
            name = part.text()
            found.user.append((name, part.text()))
            continue
        if identifier not in allowed:
            raise _not_allowed(identifier, what)
        if identifier in found.texts or identifier in found.binaries or identifier in found.numbers:
            raise _twice(identifier, what)
        if identifier in _TEXTS:
            found.texts[identifier] = part.text()
        elif identifier in _BINARIES:
            found.binaries[identifier] = part.binary()
        else:
            found.numbers[identifier] = _decode_number(identifier, part, what)
    return found


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


def _twice(identifier: int, what: str) -> ProtocolError:
    return ProtocolError(PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is there twice")


def _not_allowed(identifier: int, what: str) -> ProtocolError:
    if (what, identifier) in _FROM_SERVER:
        return ProtocolError(PROTOCOL_ERROR, f"{what}: property 0x{identifier:02x} is not allowed from a client")
    if identifier in _KNOWN:
        return malformed(f"{what}: property 0x{identifier:02x} is none of this packet")
    return malformed(f"{what}: there is no property 0x{identifier:02x}")


# -- the list of a message ---------------------------------------------------------------------------------------------


@final
class MessageProperties:
    """The properties that publishing a message or a will depends on. Equal ones share a value: never to be changed."""

    __slots__ = ("delay_seconds", "expiry_seconds", "raw", "response_topic", "topic_alias")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        """The bytes for receivers: the list without topic alias, expiry and will delay."""
        self.expiry_seconds: int | None = None
        self.topic_alias = 0
        self.delay_seconds = 0
        self.response_topic: str | None = None


def scan_message(raw: bytes, allowed: frozenset[int], what: str) -> MessageProperties:
    """Read a list without its length; texts and data are checked and not kept. Raises ProtocolError."""
    found = MessageProperties(raw)
    if _passes_through(raw):
        return found
    part = Reader(raw, 0, len(raw), what)
    seen = 0
    passed: list[bytes] = []
    passed_to = 0
    while part.at < len(raw):
        start = part.at
        identifier = part.octet()
        if identifier == USER_PROPERTY:
            _check_text(raw, part)
            _check_text(raw, part)
            continue
        if identifier not in allowed:
            raise _not_allowed(identifier, what)
        if seen >> identifier & 1:
            raise _twice(identifier, what)
        seen |= 1 << identifier
        if identifier in _NOT_PASSED_ON:
            number = _decode_number(identifier, part, what)
            if identifier == MESSAGE_EXPIRY:
                found.expiry_seconds = number
            elif identifier == TOPIC_ALIAS:
                if not number:
                    raise ProtocolError(TOPIC_ALIAS_INVALID, f"{what}: the topic alias is 0")
                found.topic_alias = number
            else:
                found.delay_seconds = number
            passed.append(raw[passed_to:start])
            passed_to = part.at
        elif identifier == RESPONSE_TOPIC:
            found.response_topic = part.text()
        elif identifier == CONTENT_TYPE:
            _check_text(raw, part)
        elif identifier == CORRELATION_DATA:
            part.step(part.short())
        else:
            _decode_number(identifier, part, what)
    if passed_to:
        passed.append(raw[passed_to:] if passed_to < len(raw) else b"")
        found.raw = b"".join(passed)
    return found


def _passes_through(raw: bytes) -> bool:
    """True for a list that is right and decides nothing: a quarter of the instructions of reading it.

    Such a list has texts in ASCII alone, which are shorter than 128 bytes. A text with U+0000 in it shows in the number
    of zeros: all others belong to lengths, and to a payload format of 0.
    """
    size: i64 = len(raw)
    at: i64 = 0
    zeros: i64 = 0
    seen: i64 = 0
    while at < size:
        identifier = i64(raw[at])
        texts: i64 = 1
        at += 1
        if identifier == USER_PROPERTY:
            texts = 2
        elif identifier > CORRELATION_DATA or seen >> identifier & 1:
            return False
        else:
            seen |= i64(1) << identifier
            if identifier == PAYLOAD_FORMAT:
                if at >= size or raw[at] > 1:
                    return False
                zeros += 1 - i64(raw[at])
                at += 1
                continue
            if identifier != CONTENT_TYPE and identifier != CORRELATION_DATA:
                return False
        while texts > 0:
            if size - at < 2 or raw[at] != 0:
                return False
            length = i64(raw[at + 1])
            zeros += 1 if length else 2
            at += 2 + length
            texts -= 1
    return at == size and raw.isascii() and raw.count(b"\0") == zeros


def _check_text(raw: bytes, part: Reader) -> None:
    """Step over a text; only one that is not printable ASCII is decoded to check it. Raises ProtocolError."""
    at: i64 = part.at
    size: i64 = len(raw)
    if at + 2 <= size:
        end = at + 2 + (i64(raw[at]) << 8 | i64(raw[at + 1]))
        at += 2
        if end <= size:
            while at < end and 0x20 <= raw[at] < 0x7F:
                at += 1
            if at == end:
                part.at = int(end)
                return
    part.text()


def user_properties(raw: bytes) -> UserProperties:
    """Decode the user properties of a message. Raises ProtocolError."""
    return _whole_list(raw).user


def _whole_list(raw: bytes) -> PropertyList:
    whole = encode_length(len(raw)) + raw
    return decode_list(Reader(whole, 0, len(whole), "PUBLISH"), OF_PUBLISH, "PUBLISH")


# Names in `extra`.
_IS_TEXT: Final = "mqtt_payload_format"
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
    """Decode the list of a message. Raises ProtocolError."""
    properties = Properties()
    if not raw:
        return properties
    found = _whole_list(raw)
    properties.content_type = found.texts.get(CONTENT_TYPE, "")
    properties.reply_to = found.texts.get(RESPONSE_TOPIC, "")
    properties.correlation_id = found.binaries.get(CORRELATION_DATA, b"").decode(errors="surrogateescape")
    properties.headers = dict(found.user)
    if found.numbers.get(PAYLOAD_FORMAT):
        properties.extra[_IS_TEXT] = True
    if len(found.user) > len(properties.headers):
        properties.extra[_USER] = found.user
    return properties


def encode_properties(properties: Properties) -> bytes:
    """Encode the list of a message, as far as MQTT can carry these properties. `reply_to` must be a topic."""
    parts: list[bytes] = []
    if properties.extra.get(_IS_TEXT):
        parts.append(b"\x01\x01")
    if properties.content_type:
        parts.append(b"\x03" + encode_text(properties.content_type))
    if properties.reply_to:
        parts.append(b"\x08" + encode_text(properties.reply_to))
    if properties.correlation_id:
        raw = properties.correlation_id.encode(errors="surrogateescape")
        parts.append(b"\x09" + encode_binary(raw[:MAX_TEXT_BYTES]))
    user = [(name, value) for name, field in _NAMED if (value := getattr(properties, field))]
    parts += [encode_user_property(name, value) for name, value in user + _user_properties(properties)]
    return b"".join(parts)


def _user_properties(properties: Properties) -> UserProperties:
    """Return the headers in order, with repeated names as the publisher gave them."""
    given = properties.extra.get(_USER)
    if not isinstance(given, list):
        return [(name, text_of(value)) for name, value in properties.headers.items()]
    last = dict(given)
    kept = [(name, value) for name, value in given if properties.headers.get(name) == last[name]]
    return kept + [
        (name, text_of(value)) for name, value in properties.headers.items() if name not in last or last[name] != value
    ]


def text_of(value: object) -> str:
    """Return a header's value as text, in JSON's form."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.decode(errors="replace")
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if value is None or isinstance(value, bool | dict | list | tuple):
        return "" if value is None else json.dumps(value, ensure_ascii=False, default=text_of)
    return str(value)

"""The sections of an AMQP 1.0 message as stored properties, and their meaning in the common form. No links.

A message keeps all its bytes. Its payload is the content of the body if that is one piece (a data section, a string or
binary value), so that every protocol and Spark read it as it is. Of any other body it is the sections themselves.
`properties` of the stored message holds the rest:

    +--------+------------------+---------- - - - ---+-------- - - -+
    | form   | size of the head | head: header,      | footer       |     size and footer are there only when the
    | 1 byte | 4 bytes          | annotations, ...   |              |     highest bit of the form is set
    +--------+------------------+---------- - - - ---+-------- - - -+

A head keeps its typed values, so writing it again changes only the fields that were changed. In the common form, for
other protocols, selectors and dead letters, types that only AMQP 1.0 has are lost:

| AMQP 1.0                               | Properties                          |
|----------------------------------------|-------------------------------------|
| header: durable, priority, ttl         | delivery_mode, priority, expiration |
| message-id, correlation-id, reply-to   | the same, as text                   |
| content-type, content-encoding         | the same                            |
| subject, or annotation `x-basic-type`  | message_type                        |
| user-id, annotation `x-basic-app-id`   | user_id, app_id                     |
| creation-time                          | timestamp_s                         |
| user-id, group-id, group-sequence      | headers named as JMS does           |
| application properties                 | headers                             |
| annotations named `x-...`              | headers                             |
"""

import struct
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, final

from headrace.errors import ProtocolError
from headrace.model import Message
from headrace.wire import amqp10_values as codes
from headrace.wire.amqp10_values import DECODE_ERROR, FieldTypes, Reader, encode_described, encode_value
from headrace.wire.properties import Properties, frozen, plain_number
from headrace.wire.types import (
    Array,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Map,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
)

# Descriptors of the sections.
HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
VALUE: Final = 0x77
FOOTER: Final = 0x78

_U32: Final = struct.Struct(">I")

# Forms of the body around its content. Stored on disk: never renumber.
DATA_BODY: Final = 0
"""One data section, its length in the fewest bytes."""
DATA_BODY_LONG: Final = 1
"""One data section, its length in four bytes where one would do."""
STRING_BODY: Final = 2
STRING_BODY_LONG: Final = 3
BINARY_BODY: Final = 4
BINARY_BODY_LONG: Final = 5
WHOLE_BODY: Final = 6
"""Any other body: the content is its sections."""
_HAS_FOOTER: Final = 0x80

_SHORT: Final = {
    DATA_BODY: b"\x00\x53\x75\xa0",
    STRING_BODY: b"\x00\x53\x77\xa1",
    BINARY_BODY: b"\x00\x53\x77\xa0",
}
_LONG: Final = {
    DATA_BODY: b"\x00\x53\x75\xb0",
    STRING_BODY: b"\x00\x53\x77\xb1",
    BINARY_BODY: b"\x00\x53\x77\xb0",
}
_FORMS: Final = {start: form for starts in (_SHORT, _LONG) for form, start in starts.items()}


def split(message: bytes) -> tuple[bytes, bytes]:
    """Split a message into the properties to store and the payload. Raises ProtocolError.

    Some clients write the body before the properties, so sections out of order are put in order.
    """
    try:
        return _split(message)
    except ProtocolError:
        ordered = _in_order(message)
        if ordered == message:
            raise
        return _split(ordered)


def _in_order(message: bytes) -> bytes:
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(message):
        reader = Reader(message, at)
        kind = _kind(reader)
        reader.skip()
        found.append((kind, at, reader.at))
        at = reader.at
    return b"".join([message[start:end] for _, start, end in sorted(found)])


def _split(message: bytes) -> tuple[bytes, bytes]:
    size = len(message)
    at = _quick_steps(message, size)
    while at < size and (at + 2 >= size or message[at : at + 2] != b"\x00\x53" or message[at + 2] < DATA):
        reader = Reader(message, at)
        if DATA <= _kind(reader) <= VALUE:
            break
        reader.skip()
        at = reader.at
    found = _whole_body(message, at)
    if found is not None:
        form, start = found
        return bytes([form]) + message[:at], message[start:]
    body = _body_end(message, at)
    if body == size:
        return bytes([WHOLE_BODY]) + message[:at], message[at:]
    head, content = message[:at], message[at:body]
    single = _whole_body(content, 0)
    form = WHOLE_BODY if single is None else single[0]
    properties = b"".join((bytes([form | _HAS_FOOTER]), _U32.pack(at), head, message[body:]))
    return properties, content if single is None else content[single[1] :]


def _quick_steps(message: bytes, size: int) -> int:
    """Step over sections before the body in their usual forms. Return the start of the first other one.

    0.4 us for one section; a reader takes 2.
    """
    at = 0
    while size - at > 8 and message[at] == 0 and message[at + 1] == 0x53 and HEADER <= message[at + 2] < DATA:
        code = message[at + 3]
        if code == 0xC0 or code == 0xC1:
            after = at + 5 + message[at + 4]
        elif code == 0xD0 or code == 0xD1:
            after = at + 8 + _U32.unpack_from(message, at + 4)[0]
        else:
            break
        if after > size:
            break
        at = after
    return at


def joined(properties: bytes, payload: bytes) -> bytes:
    """Return the message again, byte for byte; a payload without properties as a data section."""
    form = properties[0] if properties else DATA_BODY
    if form == DATA_BODY and len(payload) < 256:
        return b"".join((properties[1:], b"\x00\x53\x75\xa0", bytes([len(payload)]), payload))
    if form & _HAS_FOOTER:
        head, footer = parts(properties)
        return b"".join((head, body_start(form & 0x7F, payload), payload, footer))
    return b"".join((properties[1:], body_start(form, payload), payload))


def parts(properties: bytes) -> tuple[bytes, bytes]:
    """Return the sections before the body, and the footer. Raises ProtocolError for other bytes."""
    if not properties[0] & _HAS_FOOTER:
        return properties[1:], b""
    end = 5 + int.from_bytes(properties[1:5])
    if end > len(properties):
        raise ProtocolError(DECODE_ERROR, "the sections before a body are cut short")
    return properties[5:end], properties[end:]


def stored(form: int, head: bytes, footer: bytes) -> bytes:
    """Return the properties of a message with these parts."""
    if not footer:
        return bytes([form & 0x7F]) + head
    return b"".join((bytes([form | _HAS_FOOTER]), _U32.pack(len(head)), head, footer))


def body_start(form: int, payload: bytes) -> bytes:
    """Return the bytes before the content of the body."""
    if form == WHOLE_BODY:
        return b""
    size = len(payload)
    kind = form & 0x06
    if form & 1 or size > 255:
        return _LONG[kind] + _U32.pack(size)
    return _SHORT[kind] + bytes([size])


def _whole_body(message: bytes, at: int) -> tuple[int, int] | None:
    """Return the form of a body that is one piece up to the end of the message, and the start of its content."""
    start = message[at : at + 4]
    form = _FORMS.get(start)
    if form is None:
        return None
    if start[3] < 0xB0:
        if at + 5 > len(message) or at + 5 + message[at + 4] != len(message):
            return None
        return form, at + 5
    if at + 8 > len(message):
        return None
    size = _U32.unpack_from(message, at + 4)[0]
    if at + 8 + size != len(message):
        return None
    return form | (1 if size < 256 else 0), at + 8


def _body_end(message: bytes, at: int) -> int:
    """Return the end of the body, behind its last section. Raises ProtocolError if it mixes kinds of sections."""
    size = len(message)
    body = 0
    while at < size:
        reader = Reader(message, at)
        kind = _kind(reader)
        if kind == FOOTER:
            reader.skip()
            if not reader.is_at_end:
                raise ProtocolError(DECODE_ERROR, "there is something behind the footer of a message")
            return at
        if kind < DATA or (body and (kind != body or kind == VALUE)):
            raise ProtocolError(DECODE_ERROR, f"a message has the section {kind:#x} where it cannot be")
        body = kind
        reader.skip()
        at = reader.at
    return at


def _kind(reader: Reader) -> int:
    """Return the number of the next section. Raises ProtocolError if there is none."""
    kind = reader.descriptor()
    if not HEADER <= kind <= FOOTER:
        raise ProtocolError(DECODE_ERROR, f"{kind:#x} is no section of a message")
    return kind


def sections(head: bytes) -> list[tuple[int, int, int]]:
    """Return number, start and end of each section before a body. Raises ProtocolError for others."""
    found: list[tuple[int, int, int]] = []
    at = 0
    while at < len(head):
        reader = Reader(head, at)
        kind = _kind(reader)
        if kind >= DATA or (found and kind <= found[-1][0]):
            raise ProtocolError(DECODE_ERROR, f"a message has the section {kind:#x} where it cannot be")
        reader.skip()
        found.append((kind, at, reader.at))
        at = reader.at
    return found


# Fields of the header.
DURABLE: Final = 0
PRIORITY: Final = 1
TTL: Final = 2
FIRST_ACQUIRER: Final = 3
DELIVERY_COUNT: Final = 4
_BOOLEANS: Final = (codes.TRUE, codes.FALSE, codes.BOOLEAN)
_UINTS: Final = (codes.UINT0, codes.SMALLUINT, codes.UINT)
_HEADER_TYPES: Final[FieldTypes] = (
    ("durable", _BOOLEANS),
    ("priority", (codes.UBYTE,)),
    ("ttl", _UINTS),
    ("first-acquirer", _BOOLEANS),
    ("delivery-count", _UINTS),
)

# Fields of the properties.
MESSAGE_ID: Final = 0
USER_ID: Final = 1
TO: Final = 2
SUBJECT: Final = 3
REPLY_TO: Final = 4
CORRELATION_ID: Final = 5
CONTENT_TYPE: Final = 6
CONTENT_ENCODING: Final = 7
ABSOLUTE_EXPIRY_TIME: Final = 8
CREATION_TIME: Final = 9
GROUP_ID: Final = 10
GROUP_SEQUENCE: Final = 11
_TEXTS: Final = (codes.STR8, codes.STR32, codes.SYM8, codes.SYM32)
_PROPERTY_TYPES: Final[FieldTypes] = (
    ("message-id", ()),
    ("user-id", (codes.VBIN8, codes.VBIN32)),
    ("to", _TEXTS),
    ("subject", _TEXTS),
    ("reply-to", _TEXTS),
    ("correlation-id", ()),
    ("content-type", _TEXTS),
    ("content-encoding", _TEXTS),
    ("absolute-expiry-time", (codes.TIMESTAMP,)),
    ("creation-time", (codes.TIMESTAMP,)),
    ("group-id", _TEXTS),
    ("group-sequence", _UINTS),
    ("reply-to-group-id", _TEXTS),
)
_ALL: Final = frozenset(range(len(_PROPERTY_TYPES)))
_HEADER_OF_PUBLISH: Final = frozenset((PRIORITY, TTL))
_PROPERTIES_OF_PUBLISH: Final = frozenset((USER_ID, TO, SUBJECT, ABSOLUTE_EXPIRY_TIME))
_NO_KEYS: Final[frozenset[bytes]] = frozenset()


@final
class Head:
    """The sections before the body; None for a missing one. Many messages share it, so nobody may change it."""

    __slots__ = ("annotations", "application", "delivery_annotations", "header", "properties")

    def __init__(self) -> None:
        self.header: list[object] | None = None
        self.delivery_annotations: Map | None = None
        self.annotations: Map | None = None
        self.properties: list[object] | None = None
        self.application: Map | None = None

    def header_field(self, index: int) -> object:
        header = self.header
        return header[index] if header is not None and index < len(header) else None

    def property_field(self, index: int) -> object:
        properties = self.properties
        return properties[index] if properties is not None and index < len(properties) else None

    @property
    def ttl_ms(self) -> int | None:
        value = self.header_field(TTL)
        return value if isinstance(value, int) else None

    @property
    def priority(self) -> int | None:
        value = self.header_field(PRIORITY)
        return value + 0 if isinstance(value, int) else None  # a plain int

    def encode(self) -> bytes:
        out: list[bytes] = []
        if self.header is not None:
            out.append(encode_described(HEADER, self.header))
        for number, table in (
            (DELIVERY_ANNOTATIONS, self.delivery_annotations),
            (MESSAGE_ANNOTATIONS, self.annotations),
        ):
            if table is not None:
                out.append(_encode_table(number, table))
        if self.properties is not None:
            out.append(encode_described(PROPERTIES, self.properties))
        if self.application is not None:
            out.append(_encode_table(APPLICATION_PROPERTIES, self.application))
        return b"".join(out)


def decode_head(raw: bytes) -> Head:
    """Decode the sections before a body, in their order. Raises ProtocolError for other bytes."""
    head = Head()
    for kind, start, end in sections(raw):
        reader = Reader(raw, start, end)
        reader.descriptor()
        if kind == HEADER:
            head.header = reader.typed_fields("header", _HEADER_TYPES, _ALL)
        elif kind == PROPERTIES:
            head.properties = reader.typed_fields("properties", _PROPERTY_TYPES, _ALL)
        else:
            table = reader.value()
            if not isinstance(table, Map):
                raise ProtocolError(DECODE_ERROR, f"the section {kind:#x} of a message is no map")
            if kind == DELIVERY_ANNOTATIONS:
                head.delivery_annotations = table
            elif kind == MESSAGE_ANNOTATIONS:
                head.annotations = table
            else:
                head.application = table
    return head


def annotation_keys(*names: str) -> frozenset[bytes]:
    """Return the encoded keys of annotations, for scan_head."""
    return frozenset([encode_value(key) for name in names for key in (Symbol(name), name)])


def scan_head(properties: bytes, annotations: frozenset[bytes]) -> Head:
    """Read of stored properties what a publish depends on; all the rest is checked and not made.

    These are priority, ttl, user-id, to, subject, absolute-expiry-time and the annotations with these keys. Raises
    ProtocolError for bytes that decode_head does not read.
    """
    head = Head()
    raw, _ = parts(properties)
    for kind, start, end in sections(raw):
        reader = Reader(raw, start, end)
        reader.descriptor()
        if kind == HEADER:
            head.header = reader.typed_fields("header", _HEADER_TYPES, _HEADER_OF_PUBLISH)
        elif kind == PROPERTIES:
            head.properties = reader.typed_fields("properties", _PROPERTY_TYPES, _PROPERTIES_OF_PUBLISH)
        elif kind == MESSAGE_ANNOTATIONS:
            head.annotations = reader.chosen(annotations)
        else:
            reader.chosen(_NO_KEYS)
    return head


def with_changes(raw: bytes, delivery_count: int | None, annotations: dict[str, object]) -> bytes:
    """Return a head with another delivery count and more annotations. Its other sections stay as they are.

    The bytes must be a head.
    """
    old: dict[int, bytes] = {kind: raw[start:end] for kind, start, end in sections(raw)}
    if delivery_count is not None:
        header = decode_head(old.get(HEADER, b"")).header or []
        header = [*header, *[None] * (DELIVERY_COUNT + 1 - len(header))]
        header[DELIVERY_COUNT] = UInt(delivery_count)
        old[HEADER] = encode_described(HEADER, header)
    if annotations:
        table = decode_head(old.get(MESSAGE_ANNOTATIONS, b"")).annotations or Map()
        old[MESSAGE_ANNOTATIONS] = _encode_table(MESSAGE_ANNOTATIONS, annotated(table, Map.of(annotations)))
    return b"".join([old[kind] for kind in sorted(old)])


def encode_annotations(annotations: dict[str, object]) -> bytes:
    """Return a section of message annotations with these alone."""
    return _encode_table(MESSAGE_ANNOTATIONS, Map.of(annotations))


def annotated(table: Map, more: Map) -> Map:
    """Return a map with further entries, which replace entries of the same name."""
    names = {str(key) for key, _ in more.pairs if isinstance(key, str)}
    kept = [pair for pair in table.pairs if not (isinstance(pair[0], str) and pair[0] in names)]
    return Map([*kept, *more.pairs])


def _encode_table(number: int, table: Map) -> bytes:
    return bytes((0x00, 0x53, number)) + encode_value(table)


# -- values in the common form -----------------------------------------------------------------------------------------

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_MS: Final = 253402300799999  # the last millisecond of datetime
_MIN_MS: Final = -62135596800000

# IEEE 754 decimals in binary integer form: bits of the exponent, bias, digits.
_DECIMALS: Final = {4: (8, 101, 7), 8: (10, 398, 16), 16: (14, 6176, 34)}


def to_neutral(value: object) -> object:
    """Return the value in Python's own types: text, numbers, bytes, times, lists, dicts with text keys."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return _EPOCH + timedelta(milliseconds=value) if _MIN_MS <= value <= _MAX_MS else plain_number(value)
    if isinstance(value, int):
        return plain_number(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Char) and 0xD800 <= ord(value) < 0xE000:
        return "\ufffd"  # half a surrogate pair, which no text can hold
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Decimal32 | Decimal64 | Decimal128):
        return _decimal(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, list):
        return [to_neutral(item) for item in value]
    if isinstance(value, Array):
        return [to_neutral(item) for item in value.items]
    if isinstance(value, Map):
        return {str(to_neutral(key)): to_neutral(item) for key, item in value.pairs}
    return to_neutral(value.value) if isinstance(value, Described) else None


def from_neutral(value: object) -> object:
    """Return the value in types of AMQP 1.0."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        number = plain_number(value)
        if -(1 << 63) <= number < 1 << 63:
            return number
        return ULong(number) if 0 <= number < 1 << 64 else str(number)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        since = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return Timestamp((since - _EPOCH) // timedelta(milliseconds=1))
    if isinstance(value, list | tuple):
        return [from_neutral(item) for item in value]
    if isinstance(value, Mapping):
        return Map([(str(key), from_neutral(item)) for key, item in value.items()])
    return str(value)


def annotations_from(values: Mapping[str, object]) -> Map:
    return Map([(Symbol(name), from_neutral(value)) for name, value in values.items()])


def _decimal(raw: bytes) -> Decimal:
    exponent_bits, bias, digits = _DECIMALS[len(raw)]
    bits = int.from_bytes(raw)
    width = len(raw) * 8
    sign = bits >> (width - 1)
    top = bits >> (width - 6) & 0x1F
    if top >> 1 == 0b1111:
        return Decimal("NaN") if top & 1 else Decimal("-Infinity" if sign else "Infinity")
    is_large = top >> 3 == 0b11  # the coefficient has three more bits, which are not written
    low = width - exponent_bits - (3 if is_large else 1)
    exponent = bits >> low & ((1 << exponent_bits) - 1)
    coefficient = bits & ((1 << low) - 1) | (0b100 << low if is_large else 0)
    if coefficient >= 10**digits:
        coefficient = 0  # IEEE 754: a coefficient with too many digits is zero
    return Decimal((sign, tuple([int(digit) for digit in str(coefficient)]), exponent - bias))


# -- properties in the common form -------------------------------------------------------------------------------------

# Names in `extra`.
_FORM: Final = "form"
_HEAD: Final = "head"
_FOOTER: Final = "footer"
_BASIC_TYPE: Final = "x-basic-type"
_APP_ID: Final = "x-basic-app-id"
_MAX_UINT: Final = (1 << 32) - 1
_SAME: Final = (
    (MESSAGE_ID, "message_id"),
    (CORRELATION_ID, "correlation_id"),
    (REPLY_TO, "reply_to"),
    (CONTENT_TYPE, "content_type"),
    (CONTENT_ENCODING, "content_encoding"),
    (USER_ID, "user_id"),
)
"""Fields with the same meaning in the common form."""
# Properties that JMS keeps among those of the application.
_JMS_USER: Final = "JMSXUserID"
_JMS_GROUP: Final = "JMSXGroupID"
_JMS_SEQUENCE: Final = "JMSXGroupSeq"


def decode_properties(raw: bytes) -> Properties:
    """Return the properties of a stored message. Raises ProtocolError for other bytes."""
    if not raw:
        return Properties()
    before, footer = parts(raw)
    head = decode_head(before)
    properties = properties_of(head)
    properties.extra = {_FORM: raw[0], _HEAD: head, _FOOTER: footer}
    return properties


def properties_of(head: Head) -> Properties:
    """Return the meaning of a head to core."""
    properties = Properties(headers_of(head))
    durable = head.header_field(DURABLE)
    if durable is not None:
        properties.delivery_mode = 2 if durable else 1
    if head.priority is not None:
        properties.priority = head.priority
    properties.expiration = "" if head.ttl_ms is None else str(head.ttl_ms)
    for index, name in _SAME:
        setattr(properties, name, text_of_id(head.property_field(index)))
    annotations = head.annotations or Map()
    properties.message_type = _text(annotations.get(_BASIC_TYPE)) or _text(head.property_field(SUBJECT))
    properties.app_id = _text(annotations.get(_APP_ID))
    created = head.property_field(CREATION_TIME)
    if isinstance(created, int) and created >= 0:
        properties.timestamp_s = created // 1000
    return properties


def headers_of(head: Head) -> dict[str, object]:
    """Return the headers that a head has for other protocols and for routing."""
    headers: dict[str, object] = {}
    for name, index in ((_JMS_USER, USER_ID), (_JMS_GROUP, GROUP_ID), (_JMS_SEQUENCE, GROUP_SEQUENCE)):
        value = head.property_field(index)
        if value is not None:
            headers[name] = value.decode(errors="replace") if isinstance(value, bytes) else to_neutral(value)
    for name, value in (head.annotations or Map()).texts().items():
        if name.startswith("x-") and name not in (_BASIC_TYPE, _APP_ID):
            headers[name] = to_neutral(value)
    for name, value in (head.application or Map()).texts().items():
        headers[name] = to_neutral(value)
    return headers


def encode_properties(properties: Properties) -> bytes:
    """Return the properties to store: the former bytes but for changes, or new ones for another protocol's."""
    extra = properties.extra
    old, form, footer = extra.get(_HEAD), extra.get(_FORM), extra.get(_FOOTER)
    head = head_of(properties, old if isinstance(old, Head) else Head())
    return stored(
        form if isinstance(form, int) else DATA_BODY,
        head.encode(),
        footer if isinstance(footer, bytes) else b"",
    )


def head_of(properties: Properties, old: Head) -> Head:
    """Return a head for these properties. Fields of the old head with the same meaning stay as they are."""
    was = properties_of(old)
    head = Head()
    head.delivery_annotations = old.delivery_annotations
    head.header = _header(properties, was, old)
    head.properties = _properties(properties, was, old)
    head.annotations, head.application = _tables(properties, was, old)
    return head


def _header(properties: Properties, was: Properties, old: Head) -> list[object] | None:
    fields = _padded(old.header, len(_HEADER_TYPES))
    if properties.delivery_mode != was.delivery_mode:
        fields[DURABLE] = properties.delivery_mode == 2
    if properties.expiration != was.expiration:
        text = properties.expiration
        is_time = text.isascii() and text.isdecimal() and len(text) <= 10
        fields[TTL] = UInt(min(int(text), _MAX_UINT)) if is_time else None
    if properties.priority >= 0 and fields[PRIORITY] is None:
        fields[PRIORITY] = UByte(min(properties.priority, 255))
    return _kept(fields)


def _properties(properties: Properties, was: Properties, old: Head) -> list[object] | None:
    fields = _padded(old.properties, len(_PROPERTY_TYPES))
    for index, name in _SAME:
        text = getattr(properties, name)
        if text != getattr(was, name):
            fields[index] = _field(index, text)
    if properties.message_type != was.message_type:
        fields[SUBJECT] = properties.message_type or None
    group, sequence = properties.headers.get(_JMS_GROUP), properties.headers.get(_JMS_SEQUENCE)
    if isinstance(group, str) and group != was.headers.get(_JMS_GROUP):
        fields[GROUP_ID] = group
    if isinstance(sequence, int) and 0 <= sequence <= _MAX_UINT and sequence != was.headers.get(_JMS_SEQUENCE):
        fields[GROUP_SEQUENCE] = UInt(sequence)
    if properties.timestamp_s >= 0 and fields[CREATION_TIME] is None:
        fields[CREATION_TIME] = Timestamp(min(properties.timestamp_s * 1000, (1 << 63) - 1))
    return _kept(fields)


def _field(index: int, text: str) -> object:
    if not text:
        return None
    if index == USER_ID:
        return text.encode(errors="surrogateescape")
    return Symbol(text) if index in (CONTENT_TYPE, CONTENT_ENCODING) else text


def _tables(properties: Properties, was: Properties, old: Head) -> tuple[Map | None, Map | None]:
    """Return the headers as annotations and application properties.

    Nested values and names that begin with `x-` are annotations: application properties are simple by the standard.
    """
    application = old.application or Map()
    own = application.texts()
    gone = [name for name in was.headers if name not in properties.headers]
    changed: dict[str, object] = {}
    added: dict[str, object] = {}
    for name, value in properties.headers.items():
        if name in was.headers and frozen(value) == frozen(was.headers[name]):
            continue
        if name in own or not (name.startswith("x-") or isinstance(value, list | dict)):
            changed[name] = from_neutral(value)
        else:
            added[name] = value
    if properties.app_id != was.app_id:
        added[_APP_ID] = properties.app_id
    annotations = _without(old.annotations, gone)
    application_now = _without(old.application, gone)
    if added:
        annotations = annotated(annotations or Map(), annotations_from(added))
    if changed:
        application_now = annotated(application_now or Map(), Map(list(changed.items())))
    return annotations, application_now


def _without(table: Map | None, names: list[str]) -> Map | None:
    if table is None or not names:
        return table
    return Map([pair for pair in table.pairs if not (isinstance(pair[0], str) and pair[0] in names)])


def translated(message: Message, properties: Properties) -> tuple[bytes, bytes]:
    """Return properties and payload of another protocol's message, annotated with the place it was published to."""
    if message.priority and properties.priority < 0:
        properties.priority = message.priority
    head = head_of(properties, Head())
    source = message.source
    head.annotations = annotated(
        head.annotations or Map(), Map.of({"x-exchange": source.exchange, "x-routing-key": source.topic})
    )
    return stored(DATA_BODY, head.encode(), b""), message.payload


def expires_us(head: Head, now_us: int) -> int:
    """Return the time at which a message that comes now expires; 0 for never."""
    ttl_ms = head.ttl_ms
    until = head.property_field(ABSOLUTE_EXPIRY_TIME)
    times = [now_us + ttl_ms * 1000] if ttl_ms is not None else []
    if isinstance(until, int) and until > 0:
        times.append(until * 1000)
    return min(times, default=0)


def user_id_of(head: Head) -> str:
    """Return the user that a message names; "" for none."""
    value = head.property_field(USER_ID)
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else ""


def _padded(values: list[object] | None, size: int) -> list[object]:
    known = values or []
    return [*known, *[None] * (size - len(known))]


def _kept(fields: list[object]) -> list[object] | None:
    return fields if any([field is not None for field in fields]) else None


def text_of_id(value: object) -> str:
    """Return an id of any type as text; "" for none."""
    if value is None:
        return ""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(to_neutral(value))


def _text(value: object) -> str:
    return str(value) if isinstance(value, str) else ""

"""Properties and values of AMQP 1.0 to core's and back. Types that only AMQP 1.0 has are lost on the way.

| AMQP 1.0                               | Properties                      |
|----------------------------------------|---------------------------------|
| header: durable, ttl                   | delivery_mode 2 or 1, expiration|
| message-id, correlation-id, reply-to   | the same, as text               |
| content-type, content-encoding         | the same                        |
| subject, or annotation `x-basic-type`  | message_type                    |
| user-id, annotation `x-basic-app-id`   | user_id, app_id                 |
| user-id, group-id, group-sequence      | headers named as JMS does       |
| header: priority, creation-time        | extra: priority, timestamp      |
| application properties                 | headers                         |
| annotations named `x-...`              | headers                         |

Consumers of other protocols, filters and dead letters need this. A message between AMQP 1.0 clients keeps its bytes.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, final

from headrace.core.properties import Properties, PropertiesCodec, frozen, plain_number
from headrace.errors import ProtocolError, Refused
from headrace.model import Message
from headrace.protocols.amqp10 import sections
from headrace.protocols.amqp10.sections import Head, annotated, decode_head, parts, stored
from headrace.protocols.amqp10.types import (
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


def id_text(value: object) -> str:
    """Return a message id or correlation id as text; "" for none."""
    if value is None:
        return ""
    return value.decode(errors="surrogateescape") if isinstance(value, bytes) else str(to_neutral(value))


def _decimal(raw: bytes) -> Decimal:
    exponent_bits, bias, digits = _DECIMALS[len(raw)]
    bits = int.from_bytes(raw)
    width = len(raw) * 8
    sign = bits >> (width - 1)
    top = bits >> (width - 6) & 0x1F
    if top >> 1 == 0b1111:
        return Decimal("NaN") if top & 1 else Decimal("-Infinity" if sign else "Infinity")
    if top >> 3 == 0b11:
        low = width - exponent_bits - 3
        exponent = bits >> low & ((1 << exponent_bits) - 1)
        coefficient = bits & ((1 << low) - 1) | 0b100 << low
    else:
        low = width - exponent_bits - 1
        exponent = bits >> low & ((1 << exponent_bits) - 1)
        coefficient = bits & ((1 << low) - 1)
    if coefficient >= 10**digits:
        coefficient = 0  # IEEE 754: a coefficient with too many digits is zero
    return Decimal((sign, tuple([int(digit) for digit in str(coefficient)]), exponent - bias))


# Names in `extra` that several protocols use.
_PRIORITY: Final = "priority"
_TIMESTAMP: Final = "timestamp"
"""Seconds since 1970."""
_FORM: Final = "form"
_HEAD: Final = "head"
_FOOTER: Final = "footer"
_BASIC_TYPE: Final = "x-basic-type"
_APP_ID: Final = "x-basic-app-id"
_MAX_UINT: Final = (1 << 32) - 1
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
    properties.extra.update({_FORM: raw[0], _HEAD: head, _FOOTER: footer})
    return properties


def properties_of(head: Head) -> Properties:
    """Return the meaning of a head to core."""
    properties = Properties(_headers(head))
    durable = head.header_field(sections.DURABLE)
    if durable is not None:
        properties.delivery_mode = 2 if durable else 1
    properties.expiration = "" if head.ttl_ms is None else str(head.ttl_ms)
    properties.message_id = id_text(head.property_field(sections.MESSAGE_ID))
    properties.correlation_id = id_text(head.property_field(sections.CORRELATION_ID))
    properties.reply_to = _text(head.property_field(sections.REPLY_TO))
    properties.content_type = _text(head.property_field(sections.CONTENT_TYPE))
    properties.content_encoding = _text(head.property_field(sections.CONTENT_ENCODING))
    properties.user_id = id_text(head.property_field(sections.USER_ID))
    annotations = head.annotations or Map()
    properties.message_type = _text(annotations.get(_BASIC_TYPE)) or _text(head.property_field(sections.SUBJECT))
    properties.app_id = _text(annotations.get(_APP_ID))
    if head.priority is not None:
        properties.extra[_PRIORITY] = head.priority
    created = head.property_field(sections.CREATION_TIME)
    if isinstance(created, int) and created >= 0:
        properties.extra[_TIMESTAMP] = created // 1000
    return properties


def _headers(head: Head) -> dict[str, object]:
    headers: dict[str, object] = {}
    for name, index in (
        (_JMS_USER, sections.USER_ID),
        (_JMS_GROUP, sections.GROUP_ID),
        (_JMS_SEQUENCE, sections.GROUP_SEQUENCE),
    ):
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
    old = properties.extra.get(_HEAD)
    form = properties.extra.get(_FORM)
    footer = properties.extra.get(_FOOTER)
    head = head_of(properties, old if isinstance(old, Head) else Head())
    return stored(
        form if isinstance(form, int) else sections.DATA_BODY,
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
    fields = _padded(old.header, 5)
    if properties.delivery_mode != was.delivery_mode:
        fields[sections.DURABLE] = properties.delivery_mode == 2
    if properties.expiration != was.expiration:
        text = properties.expiration
        is_time = text.isascii() and text.isdecimal() and len(text) <= 10
        fields[sections.TTL] = UInt(min(int(text), _MAX_UINT)) if is_time else None
    priority = properties.extra.get(_PRIORITY)
    if isinstance(priority, int) and fields[sections.PRIORITY] is None:
        fields[sections.PRIORITY] = UByte(min(max(priority, 0), 255))
    return _kept(fields)


def _properties(properties: Properties, was: Properties, old: Head) -> list[object] | None:
    fields = _padded(old.properties, 13)
    for index, name in (
        (sections.MESSAGE_ID, "message_id"),
        (sections.CORRELATION_ID, "correlation_id"),
        (sections.REPLY_TO, "reply_to"),
        (sections.CONTENT_TYPE, "content_type"),
        (sections.CONTENT_ENCODING, "content_encoding"),
        (sections.USER_ID, "user_id"),
    ):
        text = getattr(properties, name)
        if text != getattr(was, name):
            fields[index] = _field(index, text)
    if properties.message_type != was.message_type:
        fields[sections.SUBJECT] = properties.message_type or None
    group, sequence = properties.headers.get(_JMS_GROUP), properties.headers.get(_JMS_SEQUENCE)
    if isinstance(group, str) and group != was.headers.get(_JMS_GROUP):
        fields[sections.GROUP_ID] = group
    if isinstance(sequence, int) and 0 <= sequence <= _MAX_UINT and sequence != was.headers.get(_JMS_SEQUENCE):
        fields[sections.GROUP_SEQUENCE] = UInt(sequence)
    timestamp = properties.extra.get(_TIMESTAMP)
    if isinstance(timestamp, int) and fields[sections.CREATION_TIME] is None:
        fields[sections.CREATION_TIME] = Timestamp(min(timestamp * 1000, (1 << 63) - 1))
    return _kept(fields)


def _field(index: int, text: str) -> object:
    if not text:
        return None
    if index == sections.USER_ID:
        return text.encode(errors="surrogateescape")
    if index in (sections.CONTENT_TYPE, sections.CONTENT_ENCODING):
        return Symbol(text)
    return text


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
    if message.priority:
        properties.extra.setdefault(_PRIORITY, message.priority)
    head = head_of(properties, Head())
    source = message.source
    head.annotations = annotated(
        head.annotations or Map(), Map.of({"x-exchange": source.exchange, "x-routing-key": source.topic})
    )
    return stored(sections.DATA_BODY, head.encode(), b""), message.payload


def expires_us(head: Head, now_us: int) -> int:
    """Return the time at which a message that comes now expires; 0 for never."""
    ttl_ms = head.ttl_ms
    until = head.property_field(sections.ABSOLUTE_EXPIRY_TIME)
    times = [now_us + ttl_ms * 1000] if ttl_ms is not None else []
    if isinstance(until, int) and until > 0:
        times.append(until * 1000)
    return min(times, default=0)


def _padded(values: list[object] | None, size: int) -> list[object]:
    known = values or []
    return [*known, *[None] * (size - len(known))]


def _kept(fields: list[object]) -> list[object] | None:
    return fields if any([field is not None for field in fields]) else None


def _text(value: object) -> str:
    return str(value) if isinstance(value, str) else ""


@final
class Amqp10Codec(PropertiesCodec):
    """The encoding of these properties, for core."""

    def decode(self, raw: bytes) -> Properties:
        try:
            return decode_properties(raw)
        except ProtocolError as error:
            raise Refused(f"the properties are not those of AMQP 1.0: {error}") from error

    def encode(self, properties: Properties) -> bytes:
        return encode_properties(properties)

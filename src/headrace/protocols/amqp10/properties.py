"""The properties of messages of AMQP 1.0: to core's Properties and back, and messages of others as AMQP 1.0 has them.

| AMQP 1.0                               | Properties                      |
|----------------------------------------|---------------------------------|
| header: durable, ttl                   | delivery_mode 2 or 1, expiration|
| message-id, correlation-id, reply-to   | the same, as text               |
| content-type, content-encoding         | the same                        |
| subject, or annotation `x-basic-type`  | message_type                    |
| user-id, annotation `x-basic-app-id`   | user_id, app_id                 |
| header: priority, creation-time        | extra: priority, timestamp      |
| application properties                 | headers                         |
| annotations named `x-...`              | headers                         |

A message that is only passed on keeps its bytes; this is for consumers of other protocols, filters and dead letters.
"""

from typing import Final, final

from headrace.core.arguments import frozen
from headrace.core.properties import Properties, PropertiesCodec
from headrace.errors import ProtocolError, Refused
from headrace.model import Message
from headrace.protocols.amqp10.head import (
    ABSOLUTE_EXPIRY_TIME,
    CONTENT_ENCODING,
    CONTENT_TYPE,
    CORRELATION_ID,
    CREATION_TIME,
    DURABLE,
    MESSAGE_ID,
    PRIORITY,
    REPLY_TO,
    SUBJECT,
    TTL,
    USER_ID,
    Head,
    annotated,
    decode_head,
)
from headrace.protocols.amqp10.neutral import annotations_from, from_neutral, id_text, to_neutral
from headrace.protocols.amqp10.sections import DATA_BODY, parts, stored
from headrace.protocols.amqp10.types import Map, Symbol, Timestamp, UByte, UInt

# What several protocols know, under the names that they agree on.
_PRIORITY: Final = "priority"
_TIMESTAMP: Final = "timestamp"
"""Seconds since 1970."""
_FORM: Final = "form"
_HEAD: Final = "head"
_FOOTER: Final = "footer"
_BASIC_TYPE: Final = "x-basic-type"
_APP_ID: Final = "x-basic-app-id"
_MAX_TTL: Final = (1 << 32) - 1


def decode_properties(raw: bytes) -> Properties:
    """The properties of a stored message. Raises ProtocolError when the bytes are not such."""
    if not raw:
        return Properties()
    before, footer = parts(raw)
    head = decode_head(before)
    properties = properties_of(head)
    properties.extra.update({_FORM: raw[0], _HEAD: head, _FOOTER: footer})
    return properties


def properties_of(head: Head) -> Properties:
    """What a head says, apart from any protocol."""
    properties = Properties(_headers(head))
    durable = head.header_field(DURABLE)
    if durable is not None:
        properties.delivery_mode = 2 if durable else 1
    properties.expiration = "" if head.ttl_ms is None else str(head.ttl_ms)
    properties.message_id = id_text(head.property_field(MESSAGE_ID))
    properties.correlation_id = id_text(head.property_field(CORRELATION_ID))
    properties.reply_to = _text(head.property_field(REPLY_TO))
    properties.content_type = _text(head.property_field(CONTENT_TYPE))
    properties.content_encoding = _text(head.property_field(CONTENT_ENCODING))
    properties.user_id = id_text(head.property_field(USER_ID))
    annotations = head.annotations or Map()
    properties.message_type = _text(annotations.get(_BASIC_TYPE)) or _text(head.property_field(SUBJECT))
    properties.app_id = _text(annotations.get(_APP_ID))
    if head.priority is not None:
        properties.extra[_PRIORITY] = head.priority
    created = head.property_field(CREATION_TIME)
    if isinstance(created, int) and created >= 0:
        properties.extra[_TIMESTAMP] = created // 1000
    return properties


def _headers(head: Head) -> dict[str, object]:
    headers: dict[str, object] = {}
    for name, value in (head.annotations or Map()).texts().items():
        if name.startswith("x-") and name not in (_BASIC_TYPE, _APP_ID):
            headers[name] = to_neutral(value)
    for name, value in (head.application or Map()).texts().items():
        headers[name] = to_neutral(value)
    return headers


def encode_properties(properties: Properties) -> bytes:
    """The properties to store: as they came but for what was changed; those of another protocol anew."""
    old = properties.extra.get(_HEAD)
    form = properties.extra.get(_FORM)
    footer = properties.extra.get(_FOOTER)
    head = head_of(properties, old if isinstance(old, Head) else Head())
    return stored(
        form if isinstance(form, int) else DATA_BODY, head.encode(), footer if isinstance(footer, bytes) else b""
    )


def head_of(properties: Properties, old: Head) -> Head:
    """A head that says what the properties say; what says the same in the old one is kept as it is."""
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
        fields[DURABLE] = properties.delivery_mode == 2
    if properties.expiration != was.expiration:
        text = properties.expiration
        is_time = text.isascii() and text.isdecimal() and len(text) <= 10
        fields[TTL] = UInt(min(int(text), _MAX_TTL)) if is_time else None
    priority = properties.extra.get(_PRIORITY)
    if isinstance(priority, int) and fields[PRIORITY] is None:
        fields[PRIORITY] = UByte(min(max(priority, 0), 255))
    return _kept(fields)


def _properties(properties: Properties, was: Properties, old: Head) -> list[object] | None:
    fields = _padded(old.properties, 13)
    for index, name in (
        (MESSAGE_ID, "message_id"),
        (CORRELATION_ID, "correlation_id"),
        (REPLY_TO, "reply_to"),
        (CONTENT_TYPE, "content_type"),
        (CONTENT_ENCODING, "content_encoding"),
        (USER_ID, "user_id"),
    ):
        text = getattr(properties, name)
        if text != getattr(was, name):
            fields[index] = _field(index, text)
    if properties.message_type != was.message_type:
        fields[SUBJECT] = properties.message_type or None
    timestamp = properties.extra.get(_TIMESTAMP)
    if isinstance(timestamp, int) and fields[CREATION_TIME] is None:
        fields[CREATION_TIME] = Timestamp(min(timestamp * 1000, (1 << 63) - 1))
    return _kept(fields)


def _field(index: int, text: str) -> object:
    if not text:
        return None
    if index == USER_ID:
        return text.encode(errors="surrogateescape")
    if index in (CONTENT_TYPE, CONTENT_ENCODING):
        return Symbol(text)
    return text


def _tables(properties: Properties, was: Properties, old: Head) -> tuple[Map | None, Map | None]:
    """The headers as annotations and application properties: what is nested, or named `x-...`, is an annotation.

    Application properties are simple values by the standard.
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
    """A message of another protocol as this one stores it: properties and payload; with where it was published to."""
    if message.priority:
        properties.extra.setdefault(_PRIORITY, message.priority)
    head = head_of(properties, Head())
    source = message.source
    head.annotations = annotated(
        head.annotations or Map(), Map.of({"x-exchange": source.exchange, "x-routing-key": source.topic})
    )
    return stored(DATA_BODY, head.encode(), b""), message.payload


def expires_us(head: Head, now_us: int) -> int:
    """When a message that comes now runs out; 0 for never."""
    ttl_ms = head.ttl_ms
    until = head.property_field(ABSOLUTE_EXPIRY_TIME)
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
    """What core knows of these bytes."""

    def decode(self, raw: bytes) -> Properties:
        try:
            return decode_properties(raw)
        except ProtocolError as error:
            raise Refused(f"the properties are not those of AMQP 1.0: {error}") from error

    def encode(self, properties: Properties) -> bytes:
        return encode_properties(properties)

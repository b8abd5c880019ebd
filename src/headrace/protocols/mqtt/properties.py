"""The properties of a PUBLISH to core's Properties and back: what other protocols are told of them. No packets.

A message from an MQTT client carries the property list of its PUBLISH without its length, without what holds for one
connection only (topic alias) and without its expiry, which core counts down. MQTT to MQTT needs none of this: the bytes
are passed on. Here a message from another protocol becomes a list, or a list what another protocol can be told.
"""

import json
from datetime import UTC, datetime
from typing import Final, final

from headrace.core.address import is_addressable, queue_topic
from headrace.core.properties import Properties, PropertiesCodec
from headrace.errors import ProtocolError, Refused
from headrace.protocols.mqtt.fields import MAX_TEXT_BYTES, encode_binary, encode_text, require_topic
from headrace.protocols.mqtt.packets import UserProperties
from headrace.protocols.mqtt.property_list import OF_PUBLISH, decode_message_list, encode_user_property

_IS_TEXT: Final = "mqtt_payload_format"
_RESPONSE_TOPIC: Final = "mqtt_response_topic"
_USER: Final = "mqtt_user_properties"

# What other protocols say in fields of their own and MQTT has none for: a user property of this name.
_NAMED: Final = (
    ("content-encoding", "content_encoding"),
    ("type", "message_type"),
    ("app-id", "app_id"),
    ("user-id", "user_id"),
    ("x-message-id", "message_id"),  # `message-id` is the queue's: it settles the delivery
)


def decode_properties(raw: bytes) -> Properties:
    """What a list says, for other protocols. Raises ProtocolError."""
    properties = Properties()
    if not raw:
        return properties
    said, _ = decode_message_list(raw, OF_PUBLISH, "PUBLISH")
    properties.content_type = said.content_type
    properties.reply_to = said.response_topic
    if said.correlation_data is not None:
        properties.correlation_id = said.correlation_data.decode(errors="surrogateescape")
    properties.headers = dict(said.user)
    if said.is_text:
        properties.extra[_IS_TEXT] = True
    if said.response_topic:
        properties.extra[_RESPONSE_TOPIC] = said.response_topic
    if len(said.user) > len(properties.headers):
        properties.extra[_USER] = said.user
    return properties


def encode_properties(properties: Properties) -> bytes:
    """The list that says the same, as far as MQTT can."""
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
    """Where an MQTT client can answer to: a queue's bare name becomes its address. "" when it cannot."""
    reply_to = properties.reply_to
    if properties.extra.get(_RESPONSE_TOPIC) != reply_to and is_addressable(reply_to):
        reply_to = queue_topic(reply_to)
    try:
        require_topic(reply_to)
    except ProtocolError:
        return ""
    return reply_to


def _user_properties(properties: Properties) -> UserProperties:
    """The headers in order; those that a publisher gave several times, as it gave them."""
    given = properties.extra.get(_USER)
    if not isinstance(given, list):
        return [(name, text_of(value)) for name, value in properties.headers.items()]
    last = dict(given)
    kept = [(name, value) for name, value in given if properties.headers.get(name) == last[name]]
    return kept + [
        (name, text_of(value)) for name, value in properties.headers.items() if name not in last or last[name] != value
    ]


def text_of(value: object) -> str:
    """A header's value as text: as people and JSON write it."""
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
    """What core knows of these bytes."""

    def decode(self, raw: bytes) -> Properties:
        try:
            return decode_properties(raw)
        except ProtocolError as error:
            raise Refused(f"the properties are not those of MQTT 5: {error}") from error

    def encode(self, properties: Properties) -> bytes:
        return encode_properties(properties)

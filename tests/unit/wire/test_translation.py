"""Properties on the way between MQTT and other protocols."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from headrace.errors import Refused
from headrace.model import AMQP091, MQTT5, Message, Source
from headrace.protocols.mqtt.outlet import translated
from headrace.wire import amqp091
from headrace.wire.encodings import properties_of
from headrace.wire.mqtt5 import decode_properties, encode_properties, encode_user_property, user_properties
from headrace.wire.properties import Properties


def in_mqtt(properties: Properties) -> bytes:
    """The properties of a message from AMQP as an MQTT client gets them."""
    raw = amqp091.encode_properties(properties)
    return translated(Message(Source("t", encoding=AMQP091), b"", 0), raw)


def test_a_message_from_mqtt_in_amqp() -> None:
    raw = bytes.fromhex("01 01 03 0001 74 08 0003 722f31 09 0002 6331 26 0001 6b 0001 76")

    read = amqp091.decode_properties(amqp091.encode_properties(decode_properties(raw)))

    assert (read.content_type, read.reply_to, read.correlation_id) == ("t", "r/1", "c1")
    assert read.headers == {"k": "v"}


def test_a_message_from_amqp_in_mqtt() -> None:
    properties = Properties({"n": 7, "flag": True}, "application/json")
    properties.correlation_id = "c1"
    properties.reply_to = "replies"
    properties.message_id = "m1"
    properties.app_id = "shop"
    properties.message_type = "order"
    properties.content_encoding = "gzip"
    properties.user_id = "guest"

    raw = in_mqtt(properties)
    read = decode_properties(raw)

    assert (read.content_type, read.correlation_id) == ("application/json", "c1")
    assert read.reply_to == "$queue/replies"
    assert user_properties(raw) == [
        ("content-encoding", "gzip"),
        ("type", "order"),
        ("app-id", "shop"),
        ("user-id", "guest"),
        ("x-message-id", "m1"),
        ("n", "7"),
        ("flag", "true"),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes.fromhex("03 0001 74"),
        bytes.fromhex("01 01 03 0001 74 08 0001 72 09 0001 ff 26 0001 6b 0001 76 26 0001 61 0000"),
        encode_user_property("k", "1") + encode_user_property("x", "y") + encode_user_property("k", "2"),
        encode_user_property("k", "1") * 2,
    ],
)
def test_a_dead_letter_of_mqtt_is_what_it_was(raw: bytes) -> None:
    assert encode_properties(decode_properties(raw)) == raw


def test_correlation_data_that_is_no_text_survives_amqp() -> None:
    raw = bytes.fromhex("09 0003 ff00fe")

    assert in_mqtt(decode_properties(raw)) == raw


def test_headers_added_to_repeated_user_properties_come_behind_them() -> None:
    properties = decode_properties(encode_user_property("k", "1") + encode_user_property("k", "2"))
    properties.headers["_dlq_reason"] = "rejected"

    assert user_properties(encode_properties(properties)) == [("k", "1"), ("k", "2"), ("_dlq_reason", "rejected")]


def test_a_changed_header_replaces_all_of_its_name() -> None:
    properties = decode_properties(
        encode_user_property("k", "1") + encode_user_property("k", "2") + encode_user_property("a", "b")
    )
    properties.headers["k"] = "3"

    assert user_properties(encode_properties(properties)) == [("a", "b"), ("k", "3")]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7, "7"),
        (1.5, "1.5"),
        (True, "true"),
        (None, ""),
        (b"raw", "raw"),
        (b"\xff", "\ufffd"),
        (Decimal("1.10"), "1.10"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        ([{"queue": "q", "count": 2, "time": datetime(2026, 1, 2, tzinfo=UTC)}], None),
        ("nul\0", "nul\ufffd"),
        ("\udcff", "?"),
    ],
)
def test_headers_of_any_type_become_text(value: object, text: str | None) -> None:
    expected = text if text is not None else '[{"queue": "q", "count": 2, "time": "2026-01-02T00:00:00Z"}]'

    assert user_properties(encode_properties(Properties({"h": value}))) == [("h", expected)]


def test_a_text_too_long_for_mqtt_is_cut_between_characters() -> None:
    ((_, value),) = user_properties(encode_properties(Properties({"h": "ä" * 40_000})))

    assert value == "ä" * 32_767


@pytest.mark.parametrize(
    ("reply_to", "topic", "other"),
    [
        ("replies", "$queue/replies", []),
        ("$queue/replies/1", "$queue/replies/1", []),
        ("a/b", "a/b", []),
        ("a+b", "", [("reply-to", "a+b")]),
    ],
)
def test_a_reply_queue_is_where_an_mqtt_client_can_publish_to(
    reply_to: str, topic: str, other: list[tuple[str, str]]
) -> None:
    properties = Properties()
    properties.reply_to = reply_to

    raw = in_mqtt(properties)

    assert (decode_properties(raw).reply_to, user_properties(raw)) == (topic, other)


def test_bytes_that_are_no_properties_are_refused() -> None:
    with pytest.raises(Refused, match="MQTT 5"):
        properties_of(Message(Source("t", encoding=MQTT5), b"", 0, b"\x7f"))

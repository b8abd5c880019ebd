"""What is left of a message's properties on the way between MQTT and other protocols."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from headrace.core.properties import Properties
from headrace.errors import Refused
from headrace.protocols.amqp091.properties import Amqp091Codec
from headrace.protocols.mqtt.properties import OF_PUBLISH, Mqtt5Codec, decode_message_list, encode_user_property

MQTT = Mqtt5Codec()
AMQP = Amqp091Codec()


def user(raw: bytes) -> list[tuple[str, str]]:
    return decode_message_list(raw, OF_PUBLISH, "PUBLISH")[0].user


def test_a_message_from_mqtt_in_amqp() -> None:
    raw = bytes.fromhex("01 01 03 0001 74 08 0003 722f31 09 0002 6331 26 0001 6b 0001 76")

    told = AMQP.decode(AMQP.encode(MQTT.decode(raw)))

    assert (told.content_type, told.reply_to, told.correlation_id) == ("t", "r/1", "c1")
    assert told.headers == {"k": "v"}


def test_a_message_from_amqp_in_mqtt() -> None:
    said = Properties({"n": 7, "flag": True}, "application/json")
    said.correlation_id = "c1"
    said.reply_to = "replies"
    said.message_id = "m1"
    said.app_id = "shop"
    said.message_type = "order"
    said.content_encoding = "gzip"
    said.user_id = "guest"

    told, _ = decode_message_list(MQTT.encode(AMQP.decode(AMQP.encode(said))), OF_PUBLISH, "PUBLISH")

    assert (told.content_type, told.correlation_data) == ("application/json", b"c1")
    assert told.response_topic == "$queue/replies"
    assert told.user == [
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
    assert MQTT.encode(MQTT.decode(raw)) == raw


def test_correlation_data_that_is_no_text_survives_amqp() -> None:
    raw = bytes.fromhex("09 0003 ff00fe")

    assert MQTT.encode(AMQP.decode(AMQP.encode(MQTT.decode(raw)))) == raw


def test_headers_added_to_repeated_user_properties_come_behind_them() -> None:
    said = MQTT.decode(encode_user_property("k", "1") + encode_user_property("k", "2"))
    said.headers["_dlq_reason"] = "rejected"

    assert user(MQTT.encode(said)) == [("k", "1"), ("k", "2"), ("_dlq_reason", "rejected")]


def test_a_changed_header_replaces_all_of_its_name() -> None:
    said = MQTT.decode(encode_user_property("k", "1") + encode_user_property("k", "2") + encode_user_property("a", "b"))
    said.headers["k"] = "3"

    assert user(MQTT.encode(said)) == [("a", "b"), ("k", "3")]


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

    assert user(MQTT.encode(Properties({"h": value}))) == [("h", expected)]


def test_a_text_too_long_for_mqtt_is_cut_between_characters() -> None:
    ((_, value),) = user(MQTT.encode(Properties({"h": "ä" * 40_000})))

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
    said = Properties()
    said.reply_to = reply_to

    told, _ = decode_message_list(MQTT.encode(said), OF_PUBLISH, "PUBLISH")

    assert (told.response_topic, told.user) == (topic, other)


def test_bytes_that_are_no_properties_are_refused() -> None:
    with pytest.raises(Refused, match="MQTT 5"):
        MQTT.decode(b"\x7f")

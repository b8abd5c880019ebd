"""Properties in the common form: the embedded encoding, and the selector's view of a message."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.wire.encodings import MessageRow, properties_of
from headrace.wire.properties import Properties, decode_native, encode_native
from tests.contents import members


def everything() -> Properties:
    properties = Properties(
        {"number": 7, "table": {"a": [1, b"\0", Decimal("1.5")]}, "at": datetime(2026, 1, 1, tzinfo=UTC)}
    )
    properties.content_type = "text/plain"
    properties.correlation_id = "c"
    properties.reply_to = "r"
    properties.expiration = "5000"
    properties.message_id = "m"
    properties.message_type = "t"
    properties.app_id = "a"
    properties.user_id = "u"
    properties.content_encoding = "gzip"
    properties.delivery_mode = 2
    return properties


def test_native_properties_come_back_as_they_were_written() -> None:
    written = everything()

    read = decode_native(encode_native(written))

    assert members(read) == members(written)


def test_nothing_said_takes_no_bytes() -> None:
    assert encode_native(Properties()) == b""
    assert decode_native(b"").headers == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"\xff",
        b"[]",
        b"7",
        b'{"headers": []}',
        b'{"delivery_mode": "x"}',
        b'{"delivery_mode": null}',
        b"[" * 9999,
    ],
)
def test_bytes_that_are_no_native_properties_are_refused(raw: bytes) -> None:
    with pytest.raises(Refused):
        decode_native(raw)


def test_an_encoding_that_no_protocol_brought_is_refused() -> None:
    message = Message(Source("t", encoding=9), b"", 0, b"raw")

    with pytest.raises(Refused, match="encoding 9"):
        properties_of(message)


def row(message: Message) -> MessageRow:
    return MessageRow(message)


def test_a_selector_sees_the_fields_of_a_message() -> None:
    raw = encode_native(everything())
    seen = row(Message(Source("orders/eu", "events"), b"", 17, raw, 5, 99))

    names = ("topic", "routing_key", "exchange", "priority", "timestamp", "expires_at", "content_type", "delivery_mode")
    assert [seen.field(name) for name in names] == ["orders/eu", "orders/eu", "events", 5, 17, 99, "text/plain", 2]


def test_what_a_message_does_not_say_is_absent_for_a_selector() -> None:
    seen = row(Message(Source("t"), b"", 0))

    assert [seen.field(name) for name in ("content_type", "delivery_mode", "expires_at", "queue")] == [None] * 4
    assert seen.header("missing") is None


def test_a_selector_sees_plain_headers_and_no_tables() -> None:
    raw = encode_native(Properties({"n": 1, "d": Decimal("1.5"), "t": {"a": 1}, "l": [1]}))
    seen = row(Message(Source("t"), b"", 0, raw))

    assert [seen.header(name) for name in "ndtl"] == [1, Decimal("1.5"), None, None]

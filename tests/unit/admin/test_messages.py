"""Payloads and properties as JSON, and messages made from JSON."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.admin.messages import (
    Publication,
    draft,
    message_to_json,
    payload_from_json,
    payload_to_json,
    time_to_json,
)
from headrace.config.table import read_model
from headrace.errors import Refused
from headrace.model import Message, Source

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
_NAMES = st.sampled_from(
    ["topic", "exchange", "routing_key", "payload", "payload_encoding", "properties", "expires_in_ms", "deliver_in_ms"]
)
_PROPERTY_NAMES = st.sampled_from(["headers", "priority", "content_type", "delivery_mode", "expiration", "message_id"])


@given(st.binary(max_size=200), st.booleans())
def test_a_payload_comes_back_from_json_as_it_was(payload: bytes, as_base64: bool) -> None:
    text, encoding = payload_to_json(payload, as_base64)

    assert payload_from_json(text, encoding) == payload


@given(st.binary(max_size=60), st.integers(0, 60))
def test_a_cut_payload_is_a_beginning_of_the_whole(payload: bytes, most: int) -> None:
    text, encoding = payload_to_json(payload, False, most)

    shown = payload_from_json(text, encoding)
    assert payload.startswith(shown)
    assert min(most, len(payload)) - 3 <= len(shown) <= most


@given(st.dictionaries(_NAMES | st.text(max_size=5), _JSON, max_size=5), st.dictionaries(_PROPERTY_NAMES, _JSON))
def test_any_body_makes_a_message_or_is_refused(body: dict[str, object], properties: dict[str, object]) -> None:
    try:
        found = draft(read_model(Publication, {**body, "properties": properties}), "anna", 1)
    except Refused:
        return

    shown = message_to_json(0, found.message, False, 100)
    json.dumps(shown, allow_nan=False)
    assert "unreadable" not in json.dumps(shown["properties"])


def test_properties_that_nobody_can_read_are_said_to_be_so() -> None:
    message = Message(Source("t", encoding=77), b"x", 1)

    shown = message_to_json(5, message, False, 100)

    assert "encoding 77" in str(shown["properties"])


@pytest.mark.parametrize("time_us", [0, -(1 << 62), 1 << 62])
def test_a_time_that_no_calendar_has_is_none(time_us: int) -> None:
    assert time_to_json(time_us) is None


def test_control_characters_are_shown_in_base64() -> None:
    assert payload_to_json(b"a\tb\r\n", False) == ("a\tb\r\n", "text")
    assert payload_to_json(b"a\x1b[31m", False) == (base64.b64encode(b"a\x1b[31m").decode(), "base64")

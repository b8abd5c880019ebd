"""Single messages and marks as bytes: a pinned layout that round-trips any message."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.pubsub.session import Envelope, decode_envelope, encode_envelope, marked, read_mark
from headrace.errors import Corrupt
from headrace.model import Message, Source

GOLDEN = (
    "01 06 02 05 0000000000000001 0000000000000002 00000003 0003 0001 0002 0004"
    " 612f62 65 6331 6d717474 707270 7061796c6f6164"
)


def sample() -> Message:
    return Message(Source("a/b", "e", "c1", "mqtt", 2), b"payload", 1, b"prp", 5, 2)


def test_the_bytes_of_an_envelope_are_pinned() -> None:
    assert encode_envelope(Envelope(sample(), 2, True)) == bytes.fromhex(GOLDEN)


def test_the_bytes_of_a_mark_are_pinned() -> None:
    assert marked(sample(), 1, True).properties == b"\x05prp"
    assert marked(sample(), 2, False, (7, 300)).properties == bytes.fromhex("12 00000007 0000012c") + b"prp"
    assert marked(sample(), 1, False, tuple(range(31))).properties[:2] == b"\xf9\x1f"


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_number = st.integers(0, 2**63 - 1)


@given(_text, _text, _text, st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 255), _number, _number)
def test_any_message_comes_back(
    topic: str, client: str, protocol: str, payload: bytes, properties: bytes, priority: int, at: int, expires: int
) -> None:
    message = Message(Source(topic, "", client, protocol, 3), payload, at, properties, priority, expires)

    found = decode_envelope(encode_envelope(Envelope(message, 1, False)), "here")

    source = found.message.source
    assert (source.topic, source.client_id, source.protocol, source.encoding) == (topic, client, protocol, 3)
    assert (found.message.payload, found.message.properties) == (payload, properties)
    assert (found.message.priority, found.message.timestamp_us, found.message.expires_us) == (priority, at, expires)
    assert (found.assurance, found.retain) == (1, False)


@given(st.binary(max_size=80))
def test_other_bytes_are_damage_and_nothing_else(data: bytes) -> None:
    with contextlib.suppress(Corrupt):
        decode_envelope(data, "here")


@pytest.mark.parametrize("size", range(31))
def test_an_envelope_that_is_cut_is_damaged(size: int) -> None:
    with pytest.raises(Corrupt):
        decode_envelope(bytes.fromhex(GOLDEN)[:size], "here")


@given(st.integers(0, 2), st.booleans(), st.lists(st.integers(0, 2**32 - 1), max_size=300), st.binary(max_size=9))
def test_any_mark_comes_back(assurance: int, retain: bool, identifiers: list[int], properties: bytes) -> None:
    message = Message(Source("a"), b"x", 1, properties)
    found = read_mark(marked(message, assurance, retain, tuple(identifiers)))
    assert (found.assurance, found.retain) == (assurance, retain)
    assert found.identifiers == tuple(identifiers[:255])
    assert found.properties == properties


@given(st.binary(max_size=20))
def test_any_bytes_are_a_mark_or_damage(data: bytes) -> None:
    with contextlib.suppress(Corrupt):
        read_mark(Message(Source("a"), b"x", 1, data))

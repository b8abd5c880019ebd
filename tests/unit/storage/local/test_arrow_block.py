"""Rows of Arrow become the messages that they say, and what is no message is refused with its place."""

import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Refused
from headrace.model import AMQP091, MQTT5, NATIVE, Message
from headrace.storage.local.arrow import BLOCK_BYTES, Origin, cut_batch, encode_table
from headrace.wire.encodings import decode_properties

NOW_US = 1_767_225_600_000_000


ORIGIN = Origin("orders", "", "bulk:ann", "bulk", NOW_US)


def messages(table: pa.Table, origin: Origin = ORIGIN) -> list[Message]:
    return [message for rows in encode_table(table, origin) for message in rows.messages(0, rows.count)]


def test_payloads_alone_make_messages() -> None:
    for kind in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string()):
        found = messages(pa.table({"payload": pa.array(["a", "", "ccc"], kind)}))

        assert [message.payload for message in found] == [b"a", b"", b"ccc"]
        assert {message.timestamp_us for message in found} == {NOW_US}
        assert {(message.source.topic, message.source.client_id) for message in found} == {("orders", "bulk:ann")}


def test_every_column_is_taken() -> None:
    table = pa.table(
        {
            "payload": ["a", "b", "c"],
            "topic": ["x", None, "x"],
            "headers": pa.array([[("k", "v")], None, [("n", None)]], pa.map_(pa.string(), pa.string())),
            "content_type": ["text/plain", "text/plain", None],
            "priority": pa.array([None, 9, 0], pa.int32()),
            "expires_in_ms": pa.array([1000, None, 5], pa.int64()),
            "deliver_at": pa.array([None, datetime(2026, 1, 2, tzinfo=UTC), None], pa.timestamp("us", tz="UTC")),
        }
    )

    first, second, third = messages(table)

    assert [message.source.topic for message in (first, second, third)] == ["x", "orders", "x"]
    assert (first.properties, second.properties, third.properties) == (
        b'{"content_type":"text/plain","headers":{"k":"v"}}',
        b'{"content_type":"text/plain"}',
        b'{"headers":{}}',
    )
    assert [message.priority for message in (first, second, third)] == [0, 9, 0]
    assert [message.expires_us for message in (first, second, third)] == [NOW_US + 1_000_000, 0, NOW_US + 5_000]
    assert [message.not_before_us for message in (first, second, third)] == [0, NOW_US + 86_400_000_000, 0]


def test_slices_and_chunks_give_the_same_messages() -> None:
    payloads = [f"message {number}" for number in range(100)]
    topics = [f"t{number % 7}" for number in range(100)]
    whole = pa.table({"payload": payloads, "routing_key": topics})
    cut = pa.concat_tables([whole.slice(0, 13), whole.slice(13, 50), whole.slice(63)])

    for table in (whole, cut):
        found = messages(table.slice(5, 80))
        assert [message.payload.decode() for message in found] == payloads[5:85]
        assert [message.source.topic for message in found] == topics[5:85]


def test_blocks_are_of_moderate_size() -> None:
    length = BLOCK_BYTES // 40
    table = pa.table({"payload": ["x" * length] * 100})

    blocks = list(encode_table(table, ORIGIN))

    assert sum(rows.count for rows in blocks) == 100
    assert all(0 < rows.count <= 40 for rows in blocks)
    assert all(rows.largest_bytes == length for rows in blocks)


_TEXTS = st.text("ab:-1", max_size=3)
_HEADERS = st.none() | st.lists(st.tuples(_TEXTS, st.none() | _TEXTS), max_size=3, unique_by=lambda pair: pair[0])


@given(st.lists(st.tuples(st.none() | _TEXTS, _HEADERS), min_size=1, max_size=30), st.integers(0, 5))
def test_properties_are_those_of_their_row_however_many_rows_have_the_same(
    rows: list[tuple[str | None, list[tuple[str, str | None]] | None]], cut: int
) -> None:
    table = pa.table(
        {
            "payload": ["x"] * len(rows),
            "content_type": pa.array([kind for kind, _ in rows], pa.string()),
            "headers": pa.array([headers for _, headers in rows], pa.map_(pa.string(), pa.string())),
        }
    )

    found = [message.properties for message in messages(table.slice(min(cut, len(rows) - 1)))]

    assert found == [_reference(*row) for row in rows[min(cut, len(rows) - 1) :]]


def _reference(kind: str | None, headers: list[tuple[str, str | None]] | None) -> bytes:
    said: dict[str, object] = {"content_type": kind} if kind else {}
    if headers is not None:
        said["headers"] = {name: value for name, value in headers if value is not None}
    return json.dumps(said, separators=(",", ":")).encode() if said else b""


def test_properties_of_any_encoding_stay_as_they_are_and_what_is_said_beside_them_is_added() -> None:
    # A header n, a byte of 5, and a message id.
    kept = bytes.fromhex("2080") + (4).to_bytes(4) + b"\1nb\5" + b"\2id"
    user = bytes.fromhex("26 0001 6b 0001 76")
    table = pa.table(
        {
            "payload": ["a", "b", "c", "d"],
            "topic": ["x", "y", "x", "x"],
            "encoding": pa.array([AMQP091, MQTT5, None, AMQP091], pa.int32()),
            "properties": pa.array([kept, user, None, kept], pa.binary()),
            "content_type": [None, None, "text/plain", "text/html"],
            "headers": pa.array([None, None, None, [("k", "v")]], pa.map_(pa.string(), pa.string())),
        }
    )

    *found, added = messages(table)

    assert [(message.source.topic, message.source.encoding, message.properties) for message in found] == [
        ("x", AMQP091, kept),
        ("y", MQTT5, user),
        ("x", NATIVE, b'{"content_type":"text/plain"}'),
    ]
    properties = decode_properties(AMQP091, added.properties)
    assert (properties.content_type, properties.message_id) == ("text/html", "id")
    assert properties.headers == {"n": 5, "k": "v"}


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=60),
    st.integers(1, 5000),
    st.integers(1, 20),
    st.integers(0, 5),
)
def test_batches_are_cut_by_the_real_sizes_of_their_rows(sizes: list[int], most: int, rows: int, cut: int) -> None:
    batch = pa.RecordBatch.from_pydict({"payload": [b"x" * size for size in sizes]}).slice(min(cut, len(sizes) - 1))

    pieces = list(cut_batch(batch, most, rows))

    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([batch]))
    for piece in pieces:
        payloads = sum(len(payload) for payload in piece.column(0).to_pylist())
        assert piece.num_rows == 1 or (payloads <= most and piece.num_rows <= rows)


def test_the_first_expiry_is_known() -> None:
    table = pa.table({"payload": ["a", "b"], "expires_in_ms": pa.array([None, 7], pa.int64())})

    (rows,) = encode_table(table, ORIGIN)

    assert rows.first_expiry_us == NOW_US + 7_000


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"body": ["a"]}, "the column payload is missing; there are: body"),
        ({"payload": ["a"], "colour": ["red"]}, "no column 'colour'"),
        ({"payload": [1]}, "'payload' is int64; it must be binary or text"),
        ({"payload": ["a", None]}, "the payload of row 1 is null"),
        ({"payload": ["a"], "topic": ["x"], "routing_key": ["x"]}, "one of the columns topic and routing_key"),
        ({"payload": ["a"], "topic": [b"\xff"]}, "'topic' is not UTF-8"),
        ({"payload": ["a"], "topic": ["x" * 20_000]}, "more than 16383 characters"),
        ({"payload": ["a"], "priority": [256]}, "'priority' is not from 0 to 255"),
        ({"payload": ["a"], "priority": ["high"]}, "'priority' is string and cannot be stored"),
        ({"payload": ["a"], "expires_in_ms": [-1]}, "no time from now on"),
        ({"payload": ["a"], "deliver_at": [5]}, "'deliver_at' is int64; it must be a timestamp"),
        ({"payload": ["a"], "headers": ["x"]}, "it must be a map of text to text"),
        ({"payload": ["a"], "properties": [b"x"]}, "both of the columns encoding and properties"),
        ({"payload": ["a"], "properties": [b"x"], "encoding": [300]}, "'encoding' is not from 0 to 255"),
        ({"payload": ["a"], "properties": [b"x"], "encoding": [9]}, "no protocol here reads properties of encoding 9"),
    ],
)
def test_what_is_no_message_is_refused(columns: dict[str, list[object]], said: str) -> None:
    with pytest.raises(Refused, match=said):
        messages(pa.table(columns))

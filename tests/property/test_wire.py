"""Laws of property bytes: scans and columns tell what the whole properties tell, and any bytes are read or refused."""

import contextlib
import uuid

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ProtocolError, Refused
from headrace.model import AMQP091, AMQP10, MQTT5, NATIVE
from headrace.selector.fields import header_text
from headrace.storage.frame import FRAME, Frame
from headrace.wire import amqp091, amqp10, mqtt5
from headrace.wire.amqp10_scan import annotations_place, plain_priority
from headrace.wire.amqp10_values import Reader, encode_value
from headrace.wire.encodings import decode_headers, decode_properties, encode_properties
from headrace.wire.mqtt5 import OF_PUBLISH, PropertyList
from headrace.wire.properties import Properties, plain_value
from headrace.wire.types import Map, Symbol, Timestamp, UByte, UInt
from tests.amqp10_values import heads
from tests.amqp10_values import values as amqp10_values

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(width=64)
    | st.text(max_size=8)
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**5), max_value=10**5)
    | st.datetimes(timezones=st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
names = st.text(max_size=8) | st.sampled_from(["CC", "BCC"])
tables = st.dictionaries(names, values, max_size=4)
texts = st.text(st.characters(codec="utf-8"), max_size=20)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
mqtt_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@st.composite
def properties_of_0_9_1(draw: st.DrawFn) -> bytes:
    properties = Properties(draw(tables), draw(texts))
    properties.content_encoding, properties.correlation_id, properties.message_id = draw(st.tuples(texts, texts, texts))
    properties.reply_to, properties.expiration, properties.user_id = draw(st.tuples(texts, texts, texts))
    properties.message_type, properties.app_id = draw(st.tuples(texts, texts))
    properties.delivery_mode = draw(st.integers(0, 2))
    properties.priority = draw(st.integers(-1, 255))
    properties.timestamp_s = draw(st.integers(-1, 1 << 40))
    return amqp091.encode_properties(properties)


@st.composite
def property_lists(draw: st.DrawFn) -> bytes:
    """Stored properties of a PUBLISH: in any order, user properties of one name several times."""
    given_ = PropertyList()
    if draw(st.booleans()):
        given_.numbers[0x01] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        given_.texts[0x03] = draw(mqtt_texts)
    if draw(st.booleans()):
        given_.texts[0x08] = draw(topics)
    if draw(st.booleans()):
        given_.binaries[0x09] = draw(st.binary(max_size=300))
    given_.user = draw(st.lists(st.tuples(mqtt_texts, mqtt_texts), max_size=5))
    raw = given_.encode()
    return raw[1:] if raw[0] < 0x80 else raw[2:]


stored = st.one_of(
    st.tuples(st.just(NATIVE), st.builds(lambda table: encode_properties(NATIVE, Properties(table)), tables)),
    st.tuples(st.just(AMQP091), properties_of_0_9_1()),
    st.tuples(st.just(AMQP10), heads().map(lambda head: b"\0" + head)),
    st.tuples(st.just(MQTT5), property_lists()),
)


def read_columns(encoding: int, raw: bytes) -> tuple[str | None, dict[str, str] | None]:
    """The content type and the headers of a row, which has all columns that properties have."""
    batch = pa.RecordBatch.from_pydict({"encoding": pa.array([encoding], pa.uint8()), "properties": [raw]})
    names = [field.name for field in FRAME if field.nullable and field.name not in ("expires_at", "deliver_at")]
    (row,) = Frame("orders", names).of(batch).to_pylist()
    assert [each["key"] for each in row["typed_headers"] or []] == list(_headers(encoding, raw))
    return row["content_type"], None if row["headers"] is None else dict(row["headers"])


def _headers(encoding: int, raw: bytes) -> dict[str, object]:
    try:
        return decode_properties(encoding, raw).headers if raw else {}
    except Refused:
        return {}


@given(stored)
def test_columns_and_headers_are_those_of_the_properties(given_: tuple[int, bytes]) -> None:
    whole = decode_properties(*given_)
    content_type, headers = read_columns(*given_)

    assert (content_type or "") == whole.content_type.encode(errors="replace").decode()
    shown = {name: text for name, value in whole.headers.items() if (text := header_text(plain_value(value)))}
    assert {name: text for name, text in (headers or {}).items() if text} == shown
    assert repr(decode_headers(*given_)) == repr(whole.headers)


def test_every_encoding_of_the_model_is_read() -> None:
    for encoding in (NATIVE, AMQP091, AMQP10, MQTT5):
        raw = encode_properties(encoding, Properties({"name": "value"}, "text/plain"))
        assert read_columns(encoding, raw) == ("text/plain", {"name": "value"})


@given(st.integers(0, 5), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(encoding: int, raw: bytes) -> None:
    content_type, headers = read_columns(encoding, raw)
    with contextlib.suppress(Refused):
        decode_headers(encoding, raw)

    assert content_type is None or content_type
    assert headers is None or headers


# -- 1.0 ---------------------------------------------------------------------------------------------------------------

WANTED = amqp10.annotation_keys("x-basic-type", "a")


@given(heads())
def test_a_scan_of_1_0_finds_what_decoding_finds(raw: bytes) -> None:
    whole = amqp10.decode_head(raw)

    scan = amqp10.scan_head(b"\0" + raw, WANTED)

    assert (scan.priority, scan.ttl_ms) == (whole.priority, whole.ttl_ms)
    for index in (amqp10.USER_ID, amqp10.TO, amqp10.SUBJECT, amqp10.ABSOLUTE_EXPIRY_TIME):
        assert scan.property_field(index) == whole.property_field(index)
    assert amqp10.expires_us(scan, 7) == amqp10.expires_us(whole, 7)
    for name in ("x-basic-type", "a"):
        found, expected = [(head.annotations or Map()).get(name) for head in (scan, whole)]
        assert repr(found) == repr(expected)


@given(st.one_of(st.binary(max_size=60), heads()), st.data())
def test_a_scan_of_1_0_refuses_what_decoding_refuses(raw: bytes, data: st.DataObject) -> None:
    damaged = _damaged(raw, data)

    assert _is_read(lambda head: amqp10.scan_head(b"\0" + head, WANTED), damaged) == _is_read(
        amqp10.decode_head, damaged
    )


_DEFAULT_PRIORITY = 4
DELAYS = amqp10.annotation_keys("x-opt-delivery-time", "x-opt-delivery-delay")


@given(st.one_of(st.binary(max_size=60), heads()), st.data())
def test_a_head_of_1_0_is_plain_only_if_nothing_but_its_priority_decides(raw: bytes, data: st.DataObject) -> None:
    damaged = _damaged(raw, data)

    for head in (raw, damaged):
        priority = plain_priority(b"\0" + head)
        if priority >= 0:
            whole = amqp10.scan_head(b"\0" + head, DELAYS)
            assert priority == (_DEFAULT_PRIORITY if whole.priority is None else whole.priority)
            assert amqp10.expires_us(whole, 7) == 0
            assert whole.property_field(amqp10.USER_ID) is None
            assert not (whole.annotations or Map()).pairs


@given(st.integers(0, 255), st.text(alphabet="abc-123", max_size=300), st.integers(0, 1 << 40))
def test_the_heads_of_usual_messages_of_1_0_are_plain(priority: int, text: str, number: int) -> None:
    head = amqp10.Head()
    head.header = [True, UByte(priority)]
    head.annotations = Map([(Symbol("x-opt-jms-msg-type"), 5), (Symbol("x-opt-jms-dest"), 0)])
    head.properties = [text, None, text, text, text, uuid.UUID(int=number), Symbol(text)]
    head.properties += [None, None, Timestamp(number), text, UInt(number & 0xFFFFFFFF)]
    head.application = Map([(text, text), ("number", number), ("ratio", 0.5), ("is", True), ("none", None)])

    assert plain_priority(b"\0" + head.encode()) == priority


@given(heads(), st.sampled_from(["a", "a longer name"]))
def test_annotations_of_1_0_are_put_where_writing_the_head_again_puts_them(raw: bytes, name: str) -> None:
    more: dict[str, object] = {"x-exchange": name, "x-routing-key": "key"}
    place = annotations_place(b"\0" + raw)

    if amqp10.decode_head(raw).annotations is None:
        spliced = raw[: place - 1] + amqp10.encode_annotations(more) + raw[place - 1 :]
        assert spliced == amqp10.with_changes(raw, None, more)
    else:
        assert place < 0


@given(st.one_of(st.binary(max_size=60), amqp10_values.map(encode_value)), st.data())
def test_a_value_of_1_0_passes_its_check_exactly_if_it_can_be_read(raw: bytes, data: st.DataObject) -> None:
    damaged = _damaged(raw, data)
    read, checked = Reader(damaged), Reader(damaged)

    assert _is_read(lambda _: read.value(), damaged) == _is_read(lambda _: checked.check(), damaged)
    assert checked.at == read.at


# -- MQTT 5 ------------------------------------------------------------------------------------------------------------


@given(property_lists(), st.none() | st.integers(0, 1 << 31), st.none() | st.integers(1, 65535))
def test_a_scan_of_mqtt_passes_on_all_but_alias_and_expiry(raw: bytes, expiry: int | None, alias: int | None) -> None:
    extra = b"" if expiry is None else b"\x02" + expiry.to_bytes(4)
    extra += b"" if alias is None else b"\x23" + alias.to_bytes(2)

    for packed in (extra + raw, raw + extra):
        found = mqtt5.scan_message(packed, OF_PUBLISH, "PUBLISH")
        assert (found.raw, found.expiry_seconds, found.topic_alias) == (raw, expiry, alias or 0)
        assert (found.response_topic or "") == mqtt5.decode_properties(raw).reply_to


@given(st.one_of(st.binary(max_size=60), property_lists()), st.data())
def test_a_scan_of_mqtt_refuses_what_decoding_refuses(raw: bytes, data: st.DataObject) -> None:
    damaged = _damaged(raw, data)
    is_scanned = _is_read(lambda given_: mqtt5.scan_message(given_, OF_PUBLISH, "PUBLISH"), damaged)

    assert is_scanned <= _is_read(mqtt5.decode_properties, damaged)


def _damaged(raw: bytes, data: st.DataObject) -> bytes:
    if not raw:
        return raw
    at = data.draw(st.integers(0, len(raw) - 1))
    return raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + 1 :]


def _is_read(read: object, raw: bytes) -> bool:
    assert callable(read)
    try:
        read(raw)
    except ProtocolError:
        return False
    return True

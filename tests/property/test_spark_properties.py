"""What an executor reads in stored properties is what the broker reads in them."""

from hypothesis import given
from hypothesis import strategies as st

from headrace.core.properties import Codecs, Properties
from headrace.errors import Refused
from headrace.model import AMQP091, AMQP10, MQTT5, NATIVE, Message, Source
from headrace.protocols.amqp091.properties import Amqp091Codec
from headrace.protocols.amqp10.properties import Amqp10Codec
from headrace.protocols.mqtt.properties import Mqtt5Codec, PropertyList
from headrace.selector.fields import header_text
from headrace.spark.properties import read_properties
from tests.amqp10_values import heads

CODECS = Codecs()
CODECS.add(AMQP091, Amqp091Codec())
CODECS.add(AMQP10, Amqp10Codec())
CODECS.add(MQTT5, Mqtt5Codec())

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
tables = st.dictionaries(st.text(max_size=8), values, max_size=4)
texts = st.text(st.characters(codec="utf-8"), max_size=20)


def seen_by_the_broker(encoding: int, raw: bytes) -> tuple[str | None, dict[str, str] | None]:
    try:
        properties = CODECS.decode(Message(Source("t", encoding=encoding), b"", 0, raw))
    except Refused:
        return None, None
    found = {
        name: text for name, value in properties.headers.items() if (text := header_text(plain(value))) is not None
    }
    return properties.content_type or None, found or None


def plain(value: object) -> object:
    """The value without what only AMQP's codec remembers of it."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return bytes(value) if isinstance(value, bytes) else value


@given(tables, texts)
def test_native_properties_are_read_as_the_broker_reads_them(headers: dict[str, object], content_type: str) -> None:
    raw = CODECS.encode(NATIVE, Properties(headers, content_type))

    assert read_properties(NATIVE, raw) == seen_by_the_broker(NATIVE, raw)


@given(tables, texts)
def test_amqp_properties_are_read_as_the_broker_reads_them(headers: dict[str, object], content_type: str) -> None:
    raw = CODECS.encode(AMQP091, Properties(headers, content_type))

    assert read_properties(AMQP091, raw) == seen_by_the_broker(AMQP091, raw)


@given(heads(), st.sampled_from([b"\x00", b"\x06"]))
def test_properties_of_amqp_1_0_are_read_as_the_broker_reads_them(head: bytes, form: bytes) -> None:
    assert read_properties(AMQP10, form + head) == seen_by_the_broker(AMQP10, form + head)
    footed = bytes([form[0] | 0x80]) + len(head).to_bytes(4) + head + b"\x00\x53\x78\xc1\x01\x00"
    assert read_properties(AMQP10, footed) == seen_by_the_broker(AMQP10, footed)


topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
mqtt_texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)


@st.composite
def property_lists(draw: st.DrawFn) -> bytes:
    """What is stored of a PUBLISH: properties in any order, user properties of one name several times."""
    said = PropertyList()
    if draw(st.booleans()):
        said.numbers[0x01] = draw(st.integers(0, 1))
    if draw(st.booleans()):
        said.texts[0x03] = draw(mqtt_texts)
    if draw(st.booleans()):
        said.texts[0x08] = draw(topics)
    if draw(st.booleans()):
        said.binaries[0x09] = draw(st.binary(max_size=300))
    said.user = draw(st.lists(st.tuples(mqtt_texts, mqtt_texts), max_size=5))
    raw = said.encode()
    return raw[1:] if raw[0] < 0x80 else raw[2:]


@given(property_lists())
def test_properties_of_mqtt_are_read_as_the_broker_reads_them(raw: bytes) -> None:
    assert read_properties(MQTT5, raw) == seen_by_the_broker(MQTT5, raw)


def test_every_encoding_of_the_model_is_read() -> None:
    said = Properties({"name": "value"}, "text/plain")
    for encoding in (NATIVE, AMQP091, AMQP10, MQTT5):
        raw = CODECS.encode(encoding, said)
        assert read_properties(encoding, raw) == ("text/plain", {"name": "value"})


@given(st.integers(0, 5), st.binary(max_size=60))
def test_any_bytes_are_read_without_an_error(encoding: int, raw: bytes) -> None:
    content_type, headers = read_properties(encoding, raw)

    assert content_type is None or content_type
    assert headers is None or headers

"""Laws of the MQTT codec: any cut gives the same packets, garbage raises ProtocolError only, paho writes the same."""

import contextlib

from hypothesis import example, given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from headrace.errors import ProtocolError
from headrace.protocols.mqtt.codec import Decoder, delivered_properties, encode_publish
from headrace.protocols.mqtt.packets import Connect, Packet, Publish
from headrace.wire.mqtt5 import PropertyList, decode_properties, encode_properties, user_properties
from headrace.wire.properties import Properties
from tests.contents import members

_LIMIT = 1 << 16
_texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
_topics = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
_binaries = st.binary(max_size=20)
_pairs = st.lists(st.tuples(_texts, _texts), max_size=3)


def _shape(packet: object) -> object:
    """All that a packet says, for comparison."""
    if type(packet).__module__.startswith("headrace."):
        return type(packet).__name__, [(name, _shape(value)) for name, value in members(packet).items()]
    return [_shape(item) for item in packet] if isinstance(packet, list | tuple) else packet


def _connect(version: int) -> bytes:
    body = b"\0\4MQTT" + bytes((version, 2, 0, 60)) + (b"\0" if version == 5 else b"") + b"\0\1a"
    return bytes((0x10, len(body))) + body


@st.composite
def _paho_properties(draw: st.DrawFn) -> PahoProperties:
    made = PahoProperties(PacketTypes.PUBLISH)
    wanted: dict[str, st.SearchStrategy[object]] = {
        "PayloadFormatIndicator": st.integers(0, 1),
        "MessageExpiryInterval": st.integers(0, (1 << 32) - 1),
        "ContentType": _texts,
        "ResponseTopic": _topics,
        "CorrelationData": _binaries,
        "TopicAlias": st.integers(1, 20),
    }
    for name, values in wanted.items():
        if draw(st.booleans()):
            setattr(made, name, draw(values))
    for pair in draw(_pairs):
        made.UserProperty = pair
    return made


@st.composite
def _publishes(draw: st.DrawFn, version: int) -> bytes:
    qos = draw(st.integers(0, 2))
    said = b""
    if version == 5 and draw(st.booleans()):
        expiry = draw(st.none() | st.integers(0, (1 << 32) - 1))
        said = delivered_properties(b"", expiry, (), draw(st.integers(0, 20)))
    return encode_publish(
        version,
        draw(_topics),
        draw(st.binary(max_size=200)),
        qos,
        draw(st.booleans()),
        qos > 0 and draw(st.booleans()),
        draw(st.integers(1, 65535)),
        said,
    )


_others = st.sampled_from(
    [
        bytes.fromhex("c000"),
        bytes.fromhex("40021234"),
        bytes.fromhex("62020001"),
        bytes.fromhex("a205000a000161"),
        bytes.fromhex("8206000a00016100"),
        bytes.fromhex("e000"),
    ]
)


def _streams() -> st.SearchStrategy[bytes]:
    return st.sampled_from([4, 5]).flatmap(
        lambda version: st.lists(_publishes(version) | _others, max_size=8).map(
            lambda packets: _connect(version) + b"".join(packets)
        )
    )


def _read(pieces: list[bytes]) -> tuple[list[Packet], int]:
    decoder = Decoder(_LIMIT, 20)
    packets: list[Packet] = []
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            packets += decoder.feed(piece)
        decoder.feed(b"")
    return packets, decoder.failure.code if decoder.failure is not None else 0


@given(_streams() | st.binary(max_size=60).map(lambda tail: _connect(5) + tail), st.lists(st.integers(0, 2000)))
def test_any_cut_of_the_bytes_gives_the_same_packets(wire: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(wire)) for cut in cuts})
    pieces = [wire[start:end] for start, end in zip([0, *places], [*places, len(wire)], strict=True)]

    whole, failure = _read([wire])
    cut, cut_failure = _read(pieces)

    assert _shape(cut) == _shape(whole)
    assert cut_failure == failure


@given(_streams())
def test_a_byte_at_a_time_gives_the_same_packets(wire: bytes) -> None:
    assert _shape(_read([bytes((octet,)) for octet in wire])) == _shape(_read([wire]))


@given(st.binary(max_size=200), st.sampled_from([0, 4, 5]))
@example(b"\x10\x00", 0)
@example(b"\x10\xff\xff\xff\xff", 0)
def test_garbage_raises_a_protocol_error_and_nothing_else(data: bytes, version: int) -> None:
    decoder = Decoder(_LIMIT, 20)
    if version:
        decoder.feed(_connect(version))
    with contextlib.suppress(ProtocolError):
        decoder.feed(data)
        decoder.feed(data)


@given(_streams(), st.data())
def test_a_changed_byte_raises_a_protocol_error_and_nothing_else(wire: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(wire) - 1))
    damaged = wire[:place] + bytes((data.draw(st.integers(0, 255)),)) + wire[place + 1 :]

    _read([damaged])


@given(st.sampled_from([1, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15]), st.binary(max_size=80), st.sampled_from([4, 5]))
def test_a_body_of_any_bytes_raises_a_protocol_error_and_nothing_else(kind: int, body: bytes, version: int) -> None:
    head = kind << 4 | (2 if kind in (6, 8, 10) else 0)
    wire = bytes((head, len(body))) + body

    _read([wire] if kind == 1 else [_connect(version), wire])


@given(_paho_properties())
def test_what_paho_says_in_a_publish_is_what_is_read(said: PahoProperties) -> None:
    packed = said.pack()
    body = b"\0\1a" + packed + b"payload"
    decoder = Decoder(_LIMIT, 20)
    decoder.feed(_connect(5))

    (packet,) = decoder.feed(bytes((0x30,)) + _length(len(body)) + body)

    assert isinstance(packet, Publish)
    properties = packet.properties
    assert packet.payload == b"payload"
    assert properties.response_topic == getattr(said, "ResponseTopic", None)
    assert properties.expiry_seconds == getattr(said, "MessageExpiryInterval", None)
    assert properties.topic_alias == getattr(said, "TopicAlias", 0)
    assert user_properties(properties.raw) == list(getattr(said, "UserProperty", []))
    meaning = decode_properties(properties.raw)
    assert meaning.content_type == getattr(said, "ContentType", "")
    assert meaning.correlation_id.encode(errors="surrogateescape") == getattr(said, "CorrelationData", b"")
    assert (b"\x01\x01" in encode_properties(meaning)[:2]) == (getattr(said, "PayloadFormatIndicator", 0) == 1)


@given(_paho_properties())
def test_what_is_passed_on_paho_reads(said: PahoProperties) -> None:
    decoder = Decoder(_LIMIT, 20)
    decoder.feed(_connect(5))
    body = b"\0\1a" + said.pack()
    (packet,) = decoder.feed(bytes((0x30,)) + _length(len(body)) + body)
    assert isinstance(packet, Publish)

    passed = delivered_properties(packet.properties.raw, packet.properties.expiry_seconds, [1, 300])
    read = PahoProperties(PacketTypes.PUBLISH)
    read.unpack(_length(len(passed)) + passed)

    assert getattr(read, "ContentType", None) == getattr(said, "ContentType", None)
    assert getattr(read, "UserProperty", None) == getattr(said, "UserProperty", None)
    assert getattr(read, "CorrelationData", None) == getattr(said, "CorrelationData", None)
    assert getattr(read, "MessageExpiryInterval", None) == getattr(said, "MessageExpiryInterval", None)
    assert read.json()["SubscriptionIdentifier"] == [1, 300]
    assert not hasattr(read, "TopicAlias")


@given(
    st.dictionaries(st.sampled_from([0x1F, 0x1C, 0x12, 0x1A]), _texts),
    st.dictionaries(st.sampled_from([0x11, 0x27]), st.integers(1, 268_435_455)),
    st.dictionaries(st.sampled_from([0x13, 0x21, 0x22]), st.integers(1, 65535)),
    _pairs,
)
def test_what_the_server_says_in_a_connack_paho_reads(
    texts: dict[int, str], longs: dict[int, int], shorts: dict[int, int], user: list[tuple[str, str]]
) -> None:
    said = PropertyList()
    said.texts = texts
    said.numbers = {**longs, **shorts}
    said.user = user
    read = PahoProperties(PacketTypes.CONNACK)

    wire = said.encode()
    _, used = read.unpack(wire)

    assert used == len(wire)
    names: dict[int, str] = {
        0x1F: "ReasonString",
        0x1C: "ServerReference",
        0x12: "AssignedClientIdentifier",
        0x1A: "ResponseInformation",
        0x11: "SessionExpiryInterval",
        0x27: "MaximumPacketSize",
        0x13: "ServerKeepAlive",
        0x21: "ReceiveMaximum",
        0x22: "TopicAliasMaximum",
    }
    everything: dict[int, object] = {**texts, **longs, **shorts}
    assert {name: getattr(read, name) for name in names.values() if hasattr(read, name)} == {
        names[identifier]: value for identifier, value in everything.items()
    }
    assert list(getattr(read, "UserProperty", [])) == user


@given(st.binary(max_size=60))
def test_property_bytes_of_any_kind_are_read_or_refused(raw: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        encode_properties(decode_properties(raw))


@given(_paho_properties())
def test_a_dead_letter_of_mqtt_says_what_it_said(said: PahoProperties) -> None:
    raw = said.pack()
    decoder = Decoder(_LIMIT, 20)
    decoder.feed(_connect(5))
    (packet,) = decoder.feed(bytes((0x30,)) + _length(len(raw) + 3) + b"\0\1a" + raw)
    assert isinstance(packet, Publish)

    again = decode_properties(encode_properties(decode_properties(packet.properties.raw)))

    assert _shape_of(again) == _shape_of(decode_properties(packet.properties.raw))


def _shape_of(properties: Properties) -> list[object]:
    return list(members(properties).values())


def test_a_large_packet_in_small_pieces_is_whole_again() -> None:
    payload = bytes(range(256)) * 1024
    wire = encode_publish(5, "a", payload, 0)
    decoder = Decoder(1 << 20, 0)
    decoder.feed(_connect(5))

    packets = [packet for at in range(0, len(wire), 100) for packet in decoder.feed(wire[at : at + 100])]

    (packet,) = packets
    assert isinstance(packet, Publish)
    assert packet.payload == payload


@given(_texts.filter(bool), st.booleans(), st.integers(0, 65535))
def test_a_connect_says_what_was_put_in(client_id: str, clean: bool, keep_alive: int) -> None:
    raw = client_id.encode()
    body = b"\0\4MQTT" + bytes((4, 2 if clean else 0)) + keep_alive.to_bytes(2) + len(raw).to_bytes(2) + raw

    (packet,) = Decoder(_LIMIT, 0).feed(b"\x10" + _length(len(body)) + body)

    assert isinstance(packet, Connect)
    assert (packet.client_id, packet.clean_start, packet.keep_alive_seconds) == (client_id, clean, keep_alive)


def _length(value: int) -> bytes:
    out = bytearray()
    while True:
        value, digit = value >> 7, value & 0x7F
        out.append(digit | (0x80 if value else 0))
        if not value:
            return bytes(out)

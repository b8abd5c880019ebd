"""The bytes of MQTT as its specifications draw them, in hex."""

import pytest

from headrace.errors import ProtocolError
from headrace.protocols.mqtt.codec import Decoder
from headrace.protocols.mqtt.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    Acknowledgement,
    Auth,
    Connect,
    Disconnect,
    Packet,
    PingRequest,
    Publish,
    Subscribe,
    Unsubscribe,
)
from headrace.protocols.mqtt.reasons import (
    CLIENT_IDENTIFIER_NOT_VALID,
    MALFORMED_PACKET,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    TOPIC_ALIAS_INVALID,
    TOPIC_FILTER_INVALID,
    TOPIC_NAME_INVALID,
    UNSUPPORTED_PROTOCOL_VERSION,
)

CONNECT_3 = "10 0d 0004 4d515454 04 02 003c 0001 61"
CONNECT_5 = "10 0e 0004 4d515454 05 02 003c 00 0001 61"


def decoder() -> Decoder:
    return Decoder(1 << 20, 10)


def connected(version: int) -> Decoder:
    made = decoder()
    made.feed(bytes.fromhex(CONNECT_5 if version == 5 else CONNECT_3))
    return made


def one(version: int, wire: str) -> Packet:
    packets = connected(version).feed(bytes.fromhex(wire))
    assert len(packets) == 1
    return packets[0]


def first(wire: str) -> Connect:
    (packet,) = decoder().feed(bytes.fromhex(wire))
    assert isinstance(packet, Connect)
    return packet


def refusal(made: Decoder, wire: str) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        made.feed(bytes.fromhex(wire))
    return caught.value


# -- CONNECT -----------------------------------------------------------------------------------------------------------


def test_a_connect_with_a_will_and_a_login() -> None:
    # User name, password, will retain, will QoS 1, will, clean session; keep alive 10.
    packet = first("10 23 0004 4d515454 04 ee 000a 0002 6964 0004 77696c6c 0003 627965 0004 75736572 0002 7077")

    assert (packet.version, packet.client_id, packet.clean_start) == (4, "id", True)
    assert packet.keep_alive_seconds == 10
    assert packet.will is not None
    assert (packet.will.topic, packet.will.payload, packet.will.qos, packet.will.retain) == ("will", b"bye", 1, True)
    assert (packet.user_name, packet.password) == ("user", b"pw")
    assert packet.session_expiry_seconds == 0


def test_a_session_of_mqtt_3_that_is_not_clean_never_expires() -> None:
    assert first("10 0d 0004 4d515454 04 00 003c 0001 61").session_expiry_seconds == 0xFFFFFFFF


def test_mqtt_3_1_has_another_name() -> None:
    packet = first("10 0f 0006 4d5149736470 03 02 003c 0001 61")

    assert (packet.version, packet.client_id) == (3, "a")


def test_the_properties_of_a_connect() -> None:
    packet = first(
        "10 4e 0004 4d515454 05 06 0000"
        "24 11 0000000a 21 0014 27 00001000 22 0005 19 01 17 00 15 0001 6d 16 0002 0001 26 0001 6b 0001 76"
        "0000"
        "17 18 00000003 01 01 02 00000009 03 0001 74 26 0001 78 0001 79"
        "0001 77 0000"
    )

    assert (packet.session_expiry_seconds, packet.receive_maximum, packet.maximum_packet_bytes) == (10, 20, 4096)
    assert (packet.topic_alias_maximum, packet.wants_response_information) == (5, True)
    assert packet.wants_problem_information is False
    assert (packet.authentication_method, packet.authentication_data) == ("m", b"\0\1")
    assert packet.user == [("k", "v")]
    assert packet.client_id == ""
    will = packet.will
    assert will is not None
    assert (will.properties.delay_seconds, will.properties.expiry_seconds) == (3, 9)
    assert will.properties.raw == bytes.fromhex("01 01 03 0001 74 26 0001 78 0001 79")


def test_what_a_connect_does_not_say_has_the_default_of_the_specification() -> None:
    packet = first(CONNECT_5)

    assert (packet.session_expiry_seconds, packet.receive_maximum, packet.maximum_packet_bytes) == (0, 65535, 0)
    assert (packet.topic_alias_maximum, packet.wants_response_information) == (0, False)
    assert packet.wants_problem_information is True
    assert packet.authentication_method is None
    assert packet.will is None
    assert packet.user_name is None
    assert packet.password is None


@pytest.mark.parametrize(
    ("wire", "code", "version"),
    [
        ("10 0d 0004 4d515458 04 02 003c 0001 61", UNSUPPORTED_PROTOCOL_VERSION, 0),
        ("10 0d 0004 4d515454 06 02 003c 0001 61", UNSUPPORTED_PROTOCOL_VERSION, 6),
        ("10 0d 0004 4d515454 03 02 003c 0001 61", UNSUPPORTED_PROTOCOL_VERSION, 3),
        ("10 0d 0004 4d515454 00 02 003c 0001 61", UNSUPPORTED_PROTOCOL_VERSION, 1),
        ("10 0d 0004 4d515454 04 03 003c 0001 61", MALFORMED_PACKET, 4),  # the reserved flag
        ("10 0d 0004 4d515454 04 0a 003c 0001 61", MALFORMED_PACKET, 4),  # will QoS without will
        ("10 0d 0004 4d515454 04 22 003c 0001 61", MALFORMED_PACKET, 4),  # will retain without will
        ("10 13 0004 4d515454 04 1e 003c 0001 61 0001 77 0001 78", MALFORMED_PACKET, 4),  # will QoS 3
        ("10 10 0004 4d515454 04 42 003c 0001 61 0001 70", MALFORMED_PACKET, 4),  # password without user name
        ("10 0c 0004 4d515454 04 00 003c 0000", CLIENT_IDENTIFIER_NOT_VALID, 4),
        ("10 0e 0006 4d5149736470 03 02 003c 0000", CLIENT_IDENTIFIER_NOT_VALID, 3),
        ("10 0e 0004 4d515454 04 02 003c 0001 61 00", MALFORMED_PACKET, 4),  # bytes behind it
        ("10 0d 0004 4d515454 04 02 003c 0002 61", MALFORMED_PACKET, 4),  # a string too long for the packet
        ("10 0d 0004 4d515454 04 02 003c 0001 00", MALFORMED_PACKET, 4),  # U+0000
        ("10 0f 0004 4d515454 04 02 003c 0003 eda080", MALFORMED_PACKET, 4),  # a surrogate
        ("10 13 0004 4d515454 04 06 003c 0001 61 0001 23 0001 78", TOPIC_NAME_INVALID, 4),  # wildcard in will topic
        ("11 0d 0004 4d515454 04 02 003c 0001 61", PROTOCOL_ERROR, 0),
        ("10 11 0004 4d515454 05 02 003c 03 21 0000 0001 61", PROTOCOL_ERROR, 5),  # receive maximum 0
        ("10 13 0004 4d515454 05 02 003c 05 27 00000000 0001 61", PROTOCOL_ERROR, 5),  # maximum packet size 0
        ("10 10 0004 4d515454 05 02 003c 02 17 02 0001 61", PROTOCOL_ERROR, 5),  # neither 0 nor 1
        ("10 12 0004 4d515454 05 02 003c 04 17 01 17 01 0001 61", PROTOCOL_ERROR, 5),  # twice
        ("10 12 0004 4d515454 05 02 003c 04 16 0001 61 0001 61", PROTOCOL_ERROR, 5),  # data without a method
        ("10 11 0004 4d515454 05 02 003c 03 23 0001 0001 61", MALFORMED_PACKET, 5),  # not of a CONNECT
        ("10 10 0004 4d515454 05 02 003c 02 7f 01 0001 61", MALFORMED_PACKET, 5),  # no such property
        ("10 0f 0004 4d515454 05 02 003c 8000 0001 61", MALFORMED_PACKET, 5),  # a length in too many bytes
    ],
)
def test_a_connect_that_breaks_a_rule_is_refused(wire: str, code: int, version: int) -> None:
    made = decoder()

    assert refusal(made, wire).code == code
    assert made.version == version


def test_mqtt_5_knows_a_password_without_a_user_name() -> None:
    packet = first("10 11 0004 4d515454 05 42 003c 00 0001 61 0001 70")

    assert (packet.user_name, packet.password) == (None, b"p")


def test_the_first_packet_is_connect_and_no_other_is() -> None:
    assert refusal(decoder(), "c000").code == PROTOCOL_ERROR
    assert refusal(connected(5), CONNECT_5).code == PROTOCOL_ERROR


def test_what_is_no_mqtt_at_all_is_refused_at_once() -> None:
    assert refusal(decoder(), b"GET / HTTP/1.1".hex()).code == PROTOCOL_ERROR


# -- PUBLISH -----------------------------------------------------------------------------------------------------------


def test_a_publish_of_mqtt_3() -> None:
    packet = one(4, "3b 0a 0003 612f62 000a 68656c")

    assert isinstance(packet, Publish)
    assert (packet.topic, packet.payload, packet.qos, packet.packet_id) == ("a/b", b"hel", 1, 10)
    assert (packet.retain, packet.dup) == (True, True)
    assert packet.properties.raw == b""


def test_a_publish_at_qos_0_has_no_packet_identifier() -> None:
    packet = one(4, "30 07 0003 612f62 6869")

    assert isinstance(packet, Publish)
    assert (packet.payload, packet.qos, packet.packet_id) == (b"hi", 0, 0)


def test_the_properties_of_a_publish_are_passed_on_but_for_alias_and_expiry() -> None:
    packet = one(
        5, "32 23 0001 61 0007 1c 01 01 02 0000000a 23 0003 03 0001 74 08 0001 72 09 0001 ff 26 0001 6b 0000 70"
    )

    assert isinstance(packet, Publish)
    said = packet.properties
    assert (said.expiry_seconds, said.topic_alias, said.response_topic) == (10, 3, "r")
    assert said.raw == bytes.fromhex("01 01 03 0001 74 08 0001 72 09 0001 ff 26 0001 6b 0000")
    assert packet.payload == b"p"


def test_an_alias_stands_for_its_topic_until_it_is_given_another() -> None:
    made = connected(5)
    wire = "30 07 0001 61 03 23 000130 06 0000 03 23 000130 07 0001 62 03 23 000130 06 0000 03 23 0001"

    packets = made.feed(bytes.fromhex(wire))

    assert [packet.topic for packet in packets if isinstance(packet, Publish)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("version", "wire", "code"),
    [
        (4, "36 07 0001 61 0001 6869", MALFORMED_PACKET),  # QoS 3
        (4, "38 05 0001 61 6869", MALFORMED_PACKET),  # DUP at QoS 0
        (4, "32 05 0001 61 0000", PROTOCOL_ERROR),  # packet identifier 0
        (4, "32 04 0001 61 00", MALFORMED_PACKET),
        (4, "30 01 00", MALFORMED_PACKET),
        (4, "30 03 0002 61", MALFORMED_PACKET),
        (4, "30 02 0000", TOPIC_NAME_INVALID),
        (4, "30 03 0001 2b", TOPIC_NAME_INVALID),
        (4, "30 05 0003 612f23", TOPIC_NAME_INVALID),
        (4, "30 03 0001 ff", MALFORMED_PACKET),
        (4, "30 03 0001 00", MALFORMED_PACKET),
        (4, "30 05 0003 edbfbf", MALFORMED_PACKET),
        (5, "30 03 0000 00", PROTOCOL_ERROR),  # neither topic nor alias
        (5, "30 03 0001 61", MALFORMED_PACKET),  # no length of the properties
        (5, "30 04 0001 61 01", MALFORMED_PACKET),
        (5, "30 07 0001 61 03 23 0000", TOPIC_ALIAS_INVALID),
        (5, "30 07 0001 61 03 23 000b", TOPIC_ALIAS_INVALID),
        (5, "30 06 0000 03 23 0001", PROTOCOL_ERROR),  # an alias without a topic
        (5, "30 0a 0001 61 06 23 0001 23 0001", PROTOCOL_ERROR),
        (5, "30 06 0001 61 02 0b 01", PROTOCOL_ERROR),  # a subscription identifier from a client
        (5, "30 06 0001 61 02 01 02", PROTOCOL_ERROR),
        (5, "30 08 0001 61 04 08 0001 23", TOPIC_NAME_INVALID),
        (5, "30 07 0001 61 03 08 0000", TOPIC_NAME_INVALID),
        (5, "30 08 0001 61 04 03 0001 00", MALFORMED_PACKET),
        (5, "30 08 0001 61 04 7e 0001 00", MALFORMED_PACKET),
    ],
)
def test_a_publish_that_breaks_a_rule_is_refused(version: int, wire: str, code: int) -> None:
    assert refusal(connected(version), wire).code == code


# -- the others --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "kind"), [("40", PUBACK), ("50", PUBREC), ("62", PUBREL), ("70", PUBCOMP)])
@pytest.mark.parametrize("version", [4, 5])
def test_acknowledgements(head: str, kind: int, version: int) -> None:
    packet = one(version, f"{head} 02 1234")

    assert isinstance(packet, Acknowledgement)
    assert (packet.kind, packet.packet_id, packet.reason) == (kind, 0x1234, 0)


def test_an_acknowledgement_of_mqtt_5_may_have_a_reason_and_say_more() -> None:
    short = one(5, "40 03 0001 10")
    long = one(5, "62 0e 0001 92 0a 1f 0001 78 26 0001 6b 0000")

    assert isinstance(short, Acknowledgement)
    assert short.reason == 0x10
    assert isinstance(long, Acknowledgement)
    assert (long.reason, long.reason_string, long.user) == (0x92, "x", [("k", "")])


def test_a_subscribe() -> None:
    packet = one(4, "82 0d 000a 0003 612f62 01 0002 2f23 02")

    assert isinstance(packet, Subscribe)
    assert packet.packet_id == 10
    assert [(wanted.pattern, wanted.qos) for wanted in packet.subscriptions] == [("a/b", 1), ("/#", 2)]


def test_a_subscribe_of_mqtt_5() -> None:
    packet = one(5, "82 11 000a 0a 0b 8001 26 0001 6b 0001 76 0001 61 2e")

    assert isinstance(packet, Subscribe)
    assert packet.identifier == 128
    assert packet.user == [("k", "v")]
    (wanted,) = packet.subscriptions
    assert (wanted.qos, wanted.no_local, wanted.retain_as_published, wanted.retain_handling) == (2, True, True, 2)


def test_an_unsubscribe() -> None:
    packet = one(4, "a2 08 000a 0001 61 0001 62")
    packet_5 = one(5, "a2 06 000a 00 0001 61")

    assert isinstance(packet, Unsubscribe)
    assert (packet.packet_id, packet.patterns) == (10, ["a", "b"])
    assert isinstance(packet_5, Unsubscribe)
    assert packet_5.patterns == ["a"]


def test_ping_and_disconnect() -> None:
    assert isinstance(one(4, "c000"), PingRequest)
    plain = one(4, "e000")
    assert isinstance(plain, Disconnect)
    assert plain.reason == 0
    said = one(5, "e0 0b 04 09 11 00000005 1f 0001 78")
    assert isinstance(said, Disconnect)
    assert (said.reason, said.session_expiry_seconds, said.reason_string) == (4, 5, "x")
    assert isinstance(one(5, "e001 00"), Disconnect)


def test_auth() -> None:
    packet = one(5, "f0 0a 18 08 15 0001 6d 16 0001 64")

    assert isinstance(packet, Auth)
    assert (packet.reason, packet.method, packet.data) == (0x18, "m", b"d")


@pytest.mark.parametrize(
    ("version", "wire", "code"),
    [
        (4, "40 02 0000", PROTOCOL_ERROR),
        (4, "40 03 0001 00", MALFORMED_PACKET),  # a reason in MQTT 3
        (4, "40 01 00", MALFORMED_PACKET),
        (5, "40 01 00", MALFORMED_PACKET),
        (5, "40 03 0001 92", PROTOCOL_ERROR),  # no reason of PUBACK
        (5, "62 03 0001 10", PROTOCOL_ERROR),
        (5, "40 05 0001 00 00 00", MALFORMED_PACKET),
        (4, "41 02 0001", MALFORMED_PACKET),
        (4, "60 02 0001", MALFORMED_PACKET),  # PUBREL without its flag
        (4, "80 06 000a 0001 61 00", MALFORMED_PACKET),
        (4, "82 06 0000 0001 61 00", PROTOCOL_ERROR),
        (4, "82 02 000a", PROTOCOL_ERROR),  # no topic filter
        (4, "82 06 000a 0001 61 03", MALFORMED_PACKET),  # QoS 3
        (4, "82 06 000a 0001 61 04", MALFORMED_PACKET),  # an option of MQTT 5
        (4, "82 05 000a 0001 61", MALFORMED_PACKET),  # no options
        (4, "82 05 000a 0000 00", TOPIC_FILTER_INVALID),
        (4, "82 07 000a 0002 6123 00", TOPIC_FILTER_INVALID),
        (5, "82 07 000a 00 0001 61 40", MALFORMED_PACKET),
        (5, "82 07 000a 00 0001 61 30", PROTOCOL_ERROR),  # retain handling 3
        (5, "82 09 000a 02 0b 00 0001 61 00", PROTOCOL_ERROR),  # subscription identifier 0
        (5, "82 0b 000a 04 0b 01 0b 02 0001 61 00", PROTOCOL_ERROR),
        (5, "82 10 000a 00 000a 2473686172652f672f61 04", PROTOCOL_ERROR),  # no-local and shared
        (5, "82 0e 000a 00 0008 2473686172652f67 00", TOPIC_FILTER_INVALID),
        (5, "82 10 000a 00 000a 2473686172652f2b2f61 00", TOPIC_FILTER_INVALID),
        (5, "82 0f 000a 00 0009 2473686172652f2f61 00", TOPIC_FILTER_INVALID),
        (4, "a0 05 000a 0001 61", MALFORMED_PACKET),
        (4, "a2 02 000a", PROTOCOL_ERROR),
        (5, "a2 03 000a 00", PROTOCOL_ERROR),
        (4, "a2 05 0000 0001 61", PROTOCOL_ERROR),
        (4, "a2 06 000a 0002 2b2b", TOPIC_FILTER_INVALID),
        (4, "c1 00", MALFORMED_PACKET),
        (4, "c0 01 00", MALFORMED_PACKET),
        (4, "e0 01 00", MALFORMED_PACKET),
        (4, "e1 00", MALFORMED_PACKET),
        (5, "e0 01 8e", PROTOCOL_ERROR),  # taken over: the server says that
        (5, "e0 06 00 04 1c 0001 61", PROTOCOL_ERROR),  # so it does with a server reference
        (5, "e0 05 00 03 21 0001", MALFORMED_PACKET),  # a receive maximum is of CONNECT
        (4, "f0 00", MALFORMED_PACKET),
        (5, "f0 00", PROTOCOL_ERROR),
        (5, "f0 02 18 00", PROTOCOL_ERROR),  # no method
        (5, "f0 06 00 04 15 0001 6d", PROTOCOL_ERROR),
        (4, "00 00", PROTOCOL_ERROR),
        (4, "20 02 0000", PROTOCOL_ERROR),  # CONNACK
        (4, "90 03 0001 00", PROTOCOL_ERROR),  # SUBACK
        (4, "b0 02 0001", PROTOCOL_ERROR),  # UNSUBACK
        (4, "d0 00", PROTOCOL_ERROR),  # PINGRESP
        (4, "30 ffffffff 01", MALFORMED_PACKET),  # a remaining length of five bytes
        (4, "c0 80 00", MALFORMED_PACKET),
    ],
)
def test_a_packet_that_breaks_a_rule_is_refused(version: int, wire: str, code: int) -> None:
    assert refusal(connected(version), wire).code == code


# -- framing -----------------------------------------------------------------------------------------------------------


def test_a_packet_above_the_limit_is_refused_before_it_is_here() -> None:
    made = Decoder(100, 0)
    made.feed(bytes.fromhex(CONNECT_3))

    assert refusal(made, "30 63").code == PACKET_TOO_LARGE


def test_a_packet_at_the_limit_is_taken() -> None:
    made = Decoder(100, 0)
    made.feed(bytes.fromhex(CONNECT_3))

    (packet,) = made.feed(bytes.fromhex("30 62 0001 61") + b"x" * 95)

    assert isinstance(packet, Publish)
    assert len(packet.payload) == 95


def test_what_came_before_an_error_is_not_lost() -> None:
    made = connected(4)

    packets = made.feed(bytes.fromhex("c000 c100"))

    assert len(packets) == 1
    with pytest.raises(ProtocolError):
        made.feed(b"")


def test_long_topics_with_an_alias_count_as_held_until_they_are_replaced_or_the_end() -> None:
    made = connected(5)

    def publish(topic: str, alias: int) -> None:
        body = len(topic).to_bytes(2) + topic.encode() + b"\x03\x23" + alias.to_bytes(2) + b"x"
        low, high = len(body) & 127 | 128, len(body) >> 7
        size = bytes((low, high)) if high < 128 else bytes((low, high & 127 | 128, high >> 7))
        assert len(made.feed(b"\x30" + size + body)) == 1

    publish("short" * 40, 1)
    assert made.held_bytes == 0
    publish("a" * 50_000, 2)
    publish("b" * 60_000, 3)
    publish("c" * 40_000, 3)
    assert made.held_bytes == 90_000
    publish("short" * 40, 2)
    assert made.held_bytes == 40_000
    made.clear()
    assert made.held_bytes == 0

"""Packets of a server, in hex as the specifications draw them."""

import pytest

from headrace.protocols.mqtt.codec import (
    PING_RESPONSE,
    PublishEncoder,
    delivered_properties,
    encode_acknowledgement,
    encode_connack,
    encode_disconnect,
    encode_publish,
    encode_suback,
    encode_unsuback,
)
from headrace.protocols.mqtt.packets import PUBACK, PUBCOMP, PUBREC, PUBREL
from headrace.protocols.mqtt.reasons import (
    BAD_USER_NAME_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    MALFORMED_PACKET,
    NOT_AUTHORIZED,
    SERVER_UNAVAILABLE,
    SUCCESS,
    UNSUPPORTED_PROTOCOL_VERSION,
)
from headrace.wire.mqtt5 import (
    ASSIGNED_CLIENT_IDENTIFIER,
    MAXIMUM_PACKET_SIZE,
    MAXIMUM_QOS,
    REASON_STRING,
    SERVER_KEEP_ALIVE,
    PropertyList,
)


def said(text: str = "x") -> PropertyList:
    properties = PropertyList()
    properties.texts[REASON_STRING] = text
    properties.user.append(("k", "v"))
    return properties


SAID = "0b 1f 0001 78 26 0001 6b 0001 76"


def test_a_connack() -> None:
    properties = PropertyList()
    properties.numbers = {SERVER_KEEP_ALIVE: 60, MAXIMUM_PACKET_SIZE: 1 << 20, MAXIMUM_QOS: 1}
    properties.texts[ASSIGNED_CLIENT_IDENTIFIER] = "id"

    assert encode_connack(4, True, SUCCESS) == bytes.fromhex("20 02 01 00")
    assert encode_connack(5, True, SUCCESS) == bytes.fromhex("20 03 01 00 00")
    assert encode_connack(5, False, NOT_AUTHORIZED, properties) == bytes.fromhex(
        "20 12 00 87 0f 13 003c 27 00100000 24 01 12 0002 6964"
    )


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (UNSUPPORTED_PROTOCOL_VERSION, 1),
        (CLIENT_IDENTIFIER_NOT_VALID, 2),
        (SERVER_UNAVAILABLE, 3),
        (BAD_USER_NAME_OR_PASSWORD, 4),
        (NOT_AUTHORIZED, 5),
    ],
)
def test_a_refusal_has_a_return_code_of_mqtt_3(reason: int, code: int) -> None:
    assert encode_connack(4, False, reason) == bytes((0x20, 2, 0, code))


def test_a_refusal_that_mqtt_3_has_no_code_for_is_not_answered() -> None:
    assert encode_connack(4, False, MALFORMED_PACKET) == b""


@pytest.mark.parametrize(("kind", "head"), [(PUBACK, "40"), (PUBREC, "50"), (PUBREL, "62"), (PUBCOMP, "70")])
def test_acknowledgements(kind: int, head: str) -> None:
    assert encode_acknowledgement(4, kind, 0x1234, 0x92, said()) == bytes.fromhex(f"{head} 02 1234")
    assert encode_acknowledgement(5, kind, 0x1234) == bytes.fromhex(f"{head} 02 1234")
    assert encode_acknowledgement(5, kind, 0x1234, 0x92) == bytes.fromhex(f"{head} 03 1234 92")
    assert encode_acknowledgement(5, kind, 0x1234, 0x92, said()) == bytes.fromhex(f"{head} 0f 1234 92 {SAID}")


def test_a_suback() -> None:
    assert encode_suback(4, 10, [0, 1, 2, 0x87]) == bytes.fromhex("90 06 000a 00 01 02 80")
    assert encode_suback(5, 10, [2, 0x87]) == bytes.fromhex("90 05 000a 00 02 87")
    assert encode_suback(5, 10, [0], said()) == bytes.fromhex(f"90 0f 000a {SAID} 00")


def test_an_unsuback() -> None:
    assert encode_unsuback(4, 10, [0, 0x11]) == bytes.fromhex("b0 02 000a")
    assert encode_unsuback(5, 10, [0, 0x11]) == bytes.fromhex("b0 05 000a 00 00 11")


def test_a_disconnect() -> None:
    assert encode_disconnect(4, 0x8E) == b""
    assert encode_disconnect(5, 0) == bytes.fromhex("e0 00")
    assert encode_disconnect(5, 0x8E) == bytes.fromhex("e0 01 8e")
    assert encode_disconnect(5, 0x8E, said()) == bytes.fromhex(f"e0 0d 8e {SAID}")


def test_the_answer_to_a_ping() -> None:
    assert bytes.fromhex("d0 00") == PING_RESPONSE


def test_a_publish() -> None:
    assert encode_publish(4, "a/b", b"hi", 0) == bytes.fromhex("30 07 0003 612f62 6869")
    assert encode_publish(4, "a/b", b"hi", 2, True, True, 10, b"ignored") == bytes.fromhex(
        "3d 09 0003 612f62 000a 6869"
    )
    assert encode_publish(5, "a", b"", 1, packet_id=1, properties=b"\1\1") == bytes.fromhex(
        "32 08 0001 61 0001 02 0101"
    )


@pytest.mark.parametrize(("size", "length"), [(127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001")])
def test_a_remaining_length_has_as_many_bytes_as_it_needs(size: int, length: str) -> None:
    wire = encode_publish(4, "a", b"x" * (size - 3), 0)

    assert wire[1:].startswith(bytes.fromhex(length) + b"\0\1a")
    assert len(wire) == 1 + len(bytes.fromhex(length)) + size


def test_a_very_long_packet_has_four_bytes_of_length() -> None:
    assert encode_publish(4, "a", bytes((1 << 21) - 3), 0)[1:5] == bytes.fromhex("80808001")


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_message_for_many_is_encoded_as_for_each(version: int, qos: int, retain: bool) -> None:
    encoder = PublishEncoder(version, "a/b", b"payload", b"\1\1")

    for packet_id in (1, 0x1234):
        for dup in (False, qos > 0):
            alone = encode_publish(version, "a/b", b"payload", qos, retain, dup, packet_id, b"\1\1")
            assert encoder.encode(qos, retain, packet_id, dup) == alone


def test_a_message_for_many_at_qos_0_is_one_value() -> None:
    encoder = PublishEncoder(5, "a", b"payload")

    assert encoder.encode(0, False) is encoder.encode(0, False)


def test_a_delivery_adds_what_holds_for_it_alone() -> None:
    assert delivered_properties(b"\1\1") == b"\1\1"
    assert delivered_properties(b"\1\1", 10, [1, 128], 3) == bytes.fromhex("0101 02 0000000a 0b 01 0b 8001 23 0003")
    assert delivered_properties(b"", 0) == bytes.fromhex("02 00000000")

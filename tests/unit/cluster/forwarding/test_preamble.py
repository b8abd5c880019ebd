"""The preamble of two nodes: golden bytes, and the refusal of all others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cluster.forwarding.preamble import (
    AMQP,
    ANSWER_BYTES,
    CHALLENGE_BYTES,
    HTTP,
    MAX_INTRODUCTION_BYTES,
    MAX_TEXT_BYTES,
    MQTT,
    NOT_THE_OWNER,
    WELCOME,
    decode_answer,
    decode_challenge,
    decode_introduction,
    encode_answer,
    encode_challenge,
    encode_introduction,
    introduction_bytes,
    is_sealed,
)
from headrace.errors import Refused
from headrace.net.facts import Origin

SECRET = b"secret"
CHALLENGE = bytes(range(32))
NONCE = bytes(range(32, 64))
ORIGIN = Origin("192.0.2.7", 4711, "192.0.2.1:1883", "b", True, False, "alice")
GOLDEN = (
    "48524657 01 0029 02 01 1267"
    "0009 3139322e302e322e37 000e 3139322e302e322e313a31383833 0001 62 0005 616c696365"
    "202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f"
)
TEXTS = st.text(max_size=40)
ORIGINS = st.builds(
    Origin, TEXTS, st.integers(0, 65_535), TEXTS, TEXTS, st.booleans(), st.booleans(), certificate_name=TEXTS
)


def introduced(origin: Origin = ORIGIN, protocol: int = MQTT, binding: bytes = b"") -> bytes:
    return encode_introduction(protocol, origin, NONCE, CHALLENGE, SECRET, binding)


def test_golden_bytes() -> None:
    data = introduced()

    assert encode_challenge(CHALLENGE).hex() == "4852465701" + CHALLENGE.hex()
    assert data[:-32] == bytes.fromhex(GOLDEN)
    assert data[-32:].hex() == "31302470fbc8514d657e7272f786d4e00f9ec3783a80e10a31de59dfed685fa8"
    assert (
        encode_answer(WELCOME, decode_introduction(data), CHALLENGE, SECRET).hex()
        == "0066a3cc20d95be8480f92af4f33720564ea815998de364b6faf58bd6dcda1e5e1"
    )


@given(ORIGINS, st.sampled_from([AMQP, MQTT, HTTP]))
def test_what_was_said_is_understood(origin: Origin, protocol: int) -> None:
    data = introduced(origin, protocol)
    introduction = decode_introduction(data)

    assert introduction_bytes(data) == len(data) <= MAX_INTRODUCTION_BYTES
    assert introduction.protocol == protocol
    assert introduction.origin == origin
    assert is_sealed(introduction, CHALLENGE, SECRET)
    for status in (WELCOME, NOT_THE_OWNER):
        answer = encode_answer(status, introduction, CHALLENGE, SECRET)
        assert decode_answer(answer, NONCE, CHALLENGE, SECRET) == status


def test_a_seal_counts_for_its_secret_its_challenge_and_its_certificate_only() -> None:
    introduction = decode_introduction(introduced())
    answer = encode_answer(WELCOME, introduction, CHALLENGE, SECRET)

    assert not is_sealed(introduction, CHALLENGE, b"other")
    assert not is_sealed(introduction, NONCE, SECRET)
    assert not is_sealed(introduction, CHALLENGE, SECRET, b"certificate")
    for nonce, challenge, secret, binding in (
        (CHALLENGE, CHALLENGE, SECRET, b""),
        (NONCE, NONCE, SECRET, b""),
        (NONCE, CHALLENGE, b"other", b""),
        (NONCE, CHALLENGE, SECRET, b"certificate"),
    ):
        with pytest.raises(Refused):
            decode_answer(answer, nonce, challenge, secret, binding)


@given(st.data())
def test_a_bit_that_changed_on_the_way_is_noticed(data: st.DataObject) -> None:
    original = introduced()
    at = data.draw(st.integers(0, len(original) * 8 - 1))
    changed = bytearray(original)
    changed[at // 8] ^= 1 << at % 8

    try:
        introduction = decode_introduction(bytes(changed))
    except Refused:
        return
    assert not is_sealed(introduction, CHALLENGE, SECRET)


@given(st.binary(max_size=MAX_INTRODUCTION_BYTES), st.booleans())
def test_garbage_is_refused_and_nothing_else_happens(garbage: bytes, begins_well: bool) -> None:
    data = introduced()[:7] + garbage if begins_well else garbage
    for decode in (
        decode_introduction,
        decode_challenge,
        lambda said: decode_answer(said, NONCE, CHALLENGE, SECRET),
    ):
        if decode is decode_challenge and len(data) == CHALLENGE_BYTES and data[:5] == b"HRFW\x01":
            continue
        try:
            decode(data)
        except Refused:
            continue
        assert decode is decode_introduction
    with pytest.raises(Refused):
        decode_answer(garbage[:ANSWER_BYTES], NONCE, CHALLENGE, SECRET)


def test_what_is_cut_short_is_not_taken_for_whole() -> None:
    data = introduced()
    for length in range(len(data)):
        with pytest.raises(Refused):
            decode_introduction(data[:length])
        assert introduction_bytes(data[:length]) in (0, len(data))


def test_another_version_and_texts_without_bound_are_refused_with_a_reason() -> None:
    with pytest.raises(Refused, match="version 2"):
        decode_challenge(b"HRFW\x02" + CHALLENGE)
    with pytest.raises(Refused, match="more than 512 bytes"):
        introduced(Origin("x" * (MAX_TEXT_BYTES + 1), 1, "", ""))
    with pytest.raises(Refused, match="at most"):
        introduction_bytes(b"HRFW\x01\xff\xff")

"""Frames of STOMP as the specifications draw them, for each version."""

import pytest

from headrace.errors import ProtocolError
from headrace.protocols.stomp.codec import (
    CONNECTED,
    ERROR,
    MAX_HEAD_BYTES,
    V10,
    V11,
    V12,
    Decoder,
    Frame,
    encode_frame,
)

CONNECTS = {
    V10: b"CONNECT\nlogin:me\n\n\0",
    V11: b"CONNECT\naccept-version:1.0,1.1\nhost:/\n\n\0",
    V12: b"STOMP\naccept-version:1.1, 1.2\nhost:/\n\n\0",
}


def decoder_of(version: str, max_body_bytes: int = 1 << 20) -> Decoder:
    decoder = Decoder(max_body_bytes)
    decoder.feed(CONNECTS[version])
    assert decoder.version == version
    return decoder


def one(decoder: Decoder, data: bytes) -> Frame:
    frames = decoder.feed(data)
    assert decoder.failure is None
    assert len(frames) == 1
    return frames[0]


def failure(decoder: Decoder, data: bytes) -> ProtocolError:
    decoder.feed(data)
    assert decoder.failure is not None
    return decoder.failure


@pytest.mark.parametrize("version", [V10, V11, V12])
def test_a_body_with_a_length_may_contain_nul(version: str) -> None:
    frame = one(decoder_of(version), b"SEND\ndestination:/queue/a\ncontent-length:5\n\na\0b\0c\0")

    assert (frame.command, frame.get("destination"), frame.body) == ("SEND", "/queue/a", b"a\0b\0c")


def test_a_body_without_a_length_ends_at_the_first_nul() -> None:
    frames = decoder_of(V12).feed(b"SEND\ndestination:a\n\nbody\0\n\n\r\nSEND\ndestination:b\n\n\0")

    assert [(frame.get("destination"), frame.body) for frame in frames] == [("a", b"body"), ("b", b"")]


def test_lines_may_end_with_cr_lf() -> None:
    frame = one(decoder_of(V12), b"SEND\r\ndestination:a\r\ncontent-length:2\r\n\r\n\r\n\0")

    assert frame.headers == {"destination": "a", "content-length": "2"}
    assert frame.body == b"\r\n"


def test_the_first_of_a_repeated_header_counts() -> None:
    assert one(decoder_of(V12), b"SEND\nfoo:1\nfoo:2\n\n\0").get("foo") == "1"


@pytest.mark.parametrize(
    ("version", "raw", "value"),
    [
        (V10, b"a\\nb\\c", "a\\nb\\c"),
        (V10, b" padded ", "padded"),
        (V11, b"a\\nb\\cc\\\\d", "a\nb:c\\d"),
        (V11, b" padded ", " padded "),
        (V11, b"\\\\n", "\\n"),
        (V12, b"a\\rb\\n", "a\rb\n"),
        (V12, b"a:b:c", "a:b:c"),
        (V12, b"\\\\\\\\c", "\\\\c"),
        (V12, "é😀".encode(), "é😀"),
    ],
)
def test_escapes_are_those_of_the_version(version: str, raw: bytes, value: str) -> None:
    assert one(decoder_of(version), b"SEND\nh:" + raw + b"\n\n\0").get("h") == value


@pytest.mark.parametrize(("version", "raw"), [(V11, b"a\\rb"), (V11, b"\\t"), (V12, b"\\t"), (V12, b"a\\")])
def test_an_unknown_escape_is_refused(version: str, raw: bytes) -> None:
    assert "escape" in str(failure(decoder_of(version), b"SEND\nh:" + raw + b"\n\n\0"))


def test_connect_has_no_escapes() -> None:
    frame = one(Decoder(), b"CONNECT\naccept-version:1.2\npasscode:a\\nb:c\n\n\0")

    assert frame.get("passcode") == "a\\nb:c"


@pytest.mark.parametrize("version", [V11, V12])
@pytest.mark.parametrize("text", ["plain", "a:b", "a\\b\nc", "\\c\\n", "é😀"])
def test_what_is_encoded_is_decoded_again(version: str, text: str) -> None:
    data = encode_frame("MESSAGE", [("na:me", text)], version, b"x\0y")

    frame = one(decoder_of(version), data)

    assert frame.get("na:me") == text
    assert frame.body == b"x\0y"


def test_a_line_feed_never_ends_a_header_of_another() -> None:
    data = encode_frame(ERROR, [("message", "a\nmessage-id:b")], V10)

    assert data == b"ERROR\nmessage:a\\nmessage-id:b\n\n\0"


def test_connected_escapes_nothing() -> None:
    assert encode_frame(CONNECTED, [("session", "a:b")], V12) == b"CONNECTED\nsession:a:b\n\n\0"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SEND\nno colon\n\n\0", "no colon"),
        (b"SEND\ncontent-length:x\n\n\0", "not a number of bytes"),
        (b"SEND\ncontent-length:-1\n\n\0", "not a number of bytes"),
        (b"SEND\ncontent-length:1\n\nab\0", "longer than its content-length of 1"),
        (b"SEND\ndestination:a\0", "no empty line"),
        (b"SEND\nh:\xff\n\n\0", "not UTF-8"),
        (b"SEND\ncontent-length:1048577\n\n", "1048577 bytes is too large: 1048576 at most"),
        (b"x" * (MAX_HEAD_BYTES + 1), f"more than {MAX_HEAD_BYTES} bytes"),
    ],
)
def test_a_malformed_frame_is_refused_with_its_fault(data: bytes, said: str) -> None:
    assert said in str(failure(decoder_of(V12), data))


def test_a_body_without_a_length_is_bounded_too() -> None:
    decoder = decoder_of(V12, max_body_bytes=10)
    decoder.feed(b"SEND\n\n12345678")

    assert "too large" in str(failure(decoder, b"9012"))


def test_frames_before_a_fault_count() -> None:
    decoder = decoder_of(V12)

    frames = decoder.feed(b"SEND\ndestination:a\n\n\0SEND\nno colon\n\n\0SEND\ndestination:b\n\n\0")

    assert [frame.get("destination") for frame in frames] == ["a"]
    assert decoder.failure is not None
    assert decoder.feed(b"SEND\ndestination:c\n\n\0") == []


def test_an_incomplete_body_is_counted_until_it_is_whole() -> None:
    decoder = decoder_of(V12)
    decoder.feed(b"SEND\ncontent-length:1000\n\n" + b"x" * 400)
    decoder.feed(b"x" * 500)
    assert decoder.held_bytes == 900

    frame = one(decoder, b"x" * 100 + b"\0")

    assert len(frame.body) == 1000
    assert decoder.held_bytes == 0

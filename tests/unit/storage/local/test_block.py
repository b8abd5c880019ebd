"""Messages to columnar blocks and back."""

import pytest

from headrace.errors import Corrupt, Refused
from headrace.model import Message, Source
from headrace.storage.local.block import (
    EXPIRES,
    HEADER_BYTES,
    NOT_BEFORE,
    PRIORITY,
    PROPERTIES,
    SOURCE_INDEX,
    cut_block,
    decode_block,
    decode_header,
)
from headrace.storage.local.encoding import decode_messages, encode_block
from tests.workbench import FULL, PLAIN, all_values, full_message, many, plain

MESSAGES = [*plain(b"a", b"", b"ccc"), full_message(), *plain(b"after")]


def test_messages_come_back_as_they_were() -> None:
    block = encode_block(7, MESSAGES)

    decoded = decode_block(block.header, block.body, "file", 0)

    assert all_values(decode_messages(decoded, 0, 5)) == all_values(MESSAGES)


def test_any_slice_of_rows_is_that_slice_of_messages() -> None:
    block = encode_block(0, MESSAGES)

    for start in range(6):
        for stop in range(start, 6):
            assert all_values(decode_messages(block, start, stop)) == all_values(MESSAGES[start:stop])


def test_a_block_knows_its_offsets_and_largest_time() -> None:
    block = encode_block(7, plain(b"a", b"b", timestamp_us=50) + plain(b"c", timestamp_us=9))

    assert (block.base, block.next, block.count, block.max_time_us) == (7, 10, 3, 51)


@pytest.mark.parametrize(
    ("message", "columns"),
    [
        (Message(PLAIN, b"x", 1), 0),
        (Message(PLAIN, b"x", 1, expires_us=1), EXPIRES),
        (Message(PLAIN, b"x", 1, not_before_us=1), NOT_BEFORE),
        (Message(PLAIN, b"x", 1, priority=1), PRIORITY),
        (Message(PLAIN, b"x", 1, b"p"), PROPERTIES),
        (Message(FULL, b"x", 1), SOURCE_INDEX),
    ],
)
def test_a_column_is_present_only_when_a_message_needs_it(message: Message, columns: int) -> None:
    assert encode_block(0, [*plain(b"a"), message]).columns == columns


def test_a_source_is_kept_once_however_many_messages_have_it() -> None:
    few, lots = encode_block(0, many(1)), encode_block(0, many(100))

    assert few.source_bytes == lots.source_bytes
    assert lots.source_count == 1


@pytest.mark.parametrize("size", range(9))
def test_every_column_starts_at_a_multiple_of_eight(size: int) -> None:
    block = encode_block(0, [Message(FULL, bytes(size), 1, bytes(size + 1), 1, 1, 1), *plain(bytes(size))])

    starts = [
        block.at_expires,
        block.at_not_before,
        block.at_source_index,
        block.at_properties_at,
        block.at_payload_at,
        block.at_priority,
        block.at_source_table,
        block.at_properties,
        block.at_payloads,
        block.length,
    ]
    assert [start % 8 for start in starts] == [0] * 10


def test_rebasing_moves_the_offsets_and_keeps_the_body() -> None:
    block = encode_block(7, MESSAGES)

    moved = block.rebased(1000)

    again = decode_block(moved.header, moved.body, "file", 0)
    assert (again.base, again.next, again.max_time_us) == (1000, 1005, block.max_time_us)
    assert moved.body is block.body


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(PLAIN, b"", 0, priority=256), id="priority of 256"),
        pytest.param(Message(PLAIN, b"", 0, priority=-1), id="negative priority"),
        pytest.param(Message(PLAIN, b"", 1 << 63), id="timestamp of 64 bits"),
        pytest.param(Message(PLAIN, b"", 0, expires_us=1 << 63), id="expiry of 64 bits"),
        pytest.param(Message(PLAIN, b"", 0, not_before_us=-(1 << 63) - 1), id="not before of 64 bits"),
        pytest.param(Message(Source("x" * 65536), b"", 0), id="topic of 65536 bytes"),
        pytest.param(Message(Source("\ud800"), b"", 0), id="topic that is no Unicode"),
        pytest.param(Message(Source("x", encoding=256), b"", 0), id="encoding of 256"),
    ],
)
def test_a_message_that_has_no_place_in_its_column_is_refused(message: Message) -> None:
    for messages in ([*plain(b"a"), message], [message]):
        with pytest.raises(Refused, match="messages cannot be stored"):
            encode_block(0, messages)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(Message(PLAIN, b"a", 5), id="plain"),
        pytest.param(Message(PLAIN, b"", 5), id="empty"),
        pytest.param(Message(FULL, b"12345678", 5, b"properties", 255, 9, -9), id="full"),
        pytest.param(Message(FULL, b"a", 5, expires_us=9), id="expiry"),
        pytest.param(Message(FULL, b"a", 5, not_before_us=9), id="delay"),
        pytest.param(Message(FULL, b"a", 5, priority=3), id="priority"),
        pytest.param(Message(FULL, bytes(16 << 10), 5, b"properties"), id="16 KiB"),
        pytest.param(Message(FULL, bytes((16 << 10) + 1), 5, b"properties"), id="more than 16 KiB"),
    ],
)
def test_a_message_alone_has_the_bytes_that_it_has_when_it_is_cut_out_of_a_block(message: Message) -> None:
    alone, cut = encode_block(7, [message]), cut_block(encode_block(0, [message, message]), 0, 1, 7)

    assert (alone.header, alone.body) == (cut.header, cut.body)
    assert all_values(decode_messages(alone, 0, 1)) == all_values([message])


def test_payloads_of_two_gibibytes_are_refused_together() -> None:
    half = bytes(1 << 30)

    with pytest.raises(Refused, match="messages cannot be stored"):
        encode_block(0, plain(half, half))


def test_a_source_has_its_own_place_in_every_block() -> None:
    first, second, third = (Source(topic) for topic in ("first", "second", "third"))
    orders = [[first, second, first, third], [second, third, second], [third, first], [first], [third, second, first]]

    for sources in orders:
        block = encode_block(0, [Message(source, b"", 0) for source in sources])
        again = decode_block(block.header, block.body, "", 0)

        assert [message.source.topic for message in decode_messages(again, 0, len(sources))] == [
            each.topic for each in sources
        ]
        assert again.source_count == len(set(sources))


def test_the_largest_values_that_fit_are_kept() -> None:
    largest = Message(Source("x" * 65535, encoding=255), b"", (1 << 63) - 1, b"", 255, -(1 << 63), (1 << 63) - 1)

    assert all_values(decode_messages(encode_block(0, [largest]), 0, 1)) == all_values([largest])


def test_a_header_that_is_cut_is_corrupt_at_its_position() -> None:
    block = encode_block(0, MESSAGES)

    with pytest.raises(Corrupt, match="file is damaged at byte 96: a block header needs 64 bytes, 63 are left"):
        decode_header(block.header[:-1], "file", 96)


def test_a_body_that_is_cut_is_corrupt() -> None:
    block = encode_block(0, MESSAGES)

    with pytest.raises(Corrupt, match="are left"):
        decode_block(block.header, block.body[:-8], "file", 0)


def test_bytes_that_are_no_block_are_corrupt() -> None:
    with pytest.raises(Corrupt, match="no block starts here"):
        decode_header(bytes(HEADER_BYTES), "file", 0)


def test_a_changed_payload_is_corrupt() -> None:
    block = encode_block(0, MESSAGES)
    body = block.body.replace(b"ccc", b"ccd")

    with pytest.raises(Corrupt, match="checksum"):
        decode_block(block.header, body, "file", 0)


def test_large_payloads_stay_the_objects_that_they_were_until_somebody_wants_the_whole_block() -> None:
    messages = [Message(Source("t"), bytes([number]) * (40_000 + number), 5, b"id") for number in range(3)]
    block = encode_block(3, messages)

    assert all(any(piece is message.payload for piece in block.pieces) for message in messages)

    whole = decode_block(block.header, b"".join(block.pieces), "file", 0)
    assert all_values(decode_messages(whole, 0, 3)) == all_values(messages)
    assert block.body == whole.body
    assert block.length == HEADER_BYTES + len(block.body)
    assert all_values(decode_messages(block, 1, 3)) == all_values(messages[1:])

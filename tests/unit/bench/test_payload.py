"""Batches of messages: after filling, every message has its own number, its lane and the time."""

from collections.abc import Iterator

import pytest
from bench.compare.payload import FILLER, HEAD_BYTES, LANE_SHIFT, MAGIC, Batch, Piece, key_sum, make_body
from hypothesis import given
from hypothesis import strategies as some

SIZE = 40


def frames(count: int) -> list[bytes]:
    """A frame for each lane, with something before and behind the body."""
    return [b"<%05d>" % lane + make_body(SIZE, lane) + b"\r\n" for lane in range(count)]


def read(piece: Piece, stride: int) -> Iterator[tuple[int, int, int]]:
    """Lane, number and time of each message of a piece, byte by byte."""
    data = bytes(piece.view)
    for at in range(0, len(data), stride):
        body = data[at + 7 : at + 7 + SIZE]
        assert body[:4] == MAGIC
        assert body[HEAD_BYTES:] == bytes((FILLER,)) * (SIZE - HEAD_BYTES)
        key = int.from_bytes(body[4:12], "little")
        yield key >> LANE_SHIFT, key & ((1 << LANE_SHIFT) - 1), int.from_bytes(body[12:18], "little")


@given(some.integers(0, 2**40), some.integers(0, 2**48 - 1))
def test_messages_of_one_lane_are_numbered_one_after_the_other(start: int, time_us: int) -> None:
    batch = Batch(frames(1), 1, 64)
    piece = batch.pieces[0]
    first = start // 64 * 64

    batch.fill(piece, 5 * 64, 1)
    batch.fill(piece, first, time_us)

    assert list(read(piece, batch.stride)) == [(0, first + at, time_us) for at in range(64)]


@pytest.mark.parametrize(("lanes", "repeats"), [(2, 32), (10, 4), (100, 1), (1000, 1)])
def test_every_lane_has_numbers_of_its_own(lanes: int, repeats: int) -> None:
    batch = Batch(frames(lanes), lanes, 64)
    found: dict[int, list[int]] = {}

    for cycle in range(300):
        for piece in batch.pieces:
            batch.fill(piece, cycle * batch.repeats, 7)
            for lane, number, _ in read(piece, batch.stride):
                found.setdefault(lane, []).append(number)

    assert batch.repeats == repeats
    assert list(found) == list(range(lanes))
    assert all(numbers == list(range(300 * repeats)) for numbers in found.values())


@pytest.mark.parametrize(("lanes", "in_row"), [(2, 64), (10, 64), (10, 16), (3, 32)])
def test_a_lane_may_have_several_messages_in_a_row(lanes: int, in_row: int) -> None:
    batch = Batch(frames(lanes), lanes, 64, in_row)
    found: list[tuple[int, int]] = []

    for cycle in range(6):
        for piece in batch.pieces:
            batch.fill(piece, cycle * batch.repeats, 7)
            found += [(lane, number) for lane, number, _ in read(piece, batch.stride)]

    in_order = [(lane, number) for lane in range(lanes) for number in range(in_row)]
    assert found == [(lane, cycle * in_row + number) for cycle in range(6) for lane, number in in_order]


def test_a_number_of_the_protocol_goes_up_from_message_to_message() -> None:
    batch = Batch(frames(1), 1, 16)
    piece = batch.pieces[0]

    batch.count_up(piece, 1, 4, 0x01020340)

    data = bytes(piece.view)
    numbers = [int.from_bytes(data[at + 1 : at + 5], "big") for at in range(0, len(data), batch.stride)]
    assert numbers == list(range(0x01020340, 0x01020350))


@given(some.integers(0, 500), some.integers(0, 10**9), some.integers(0, 200))
def test_the_sum_of_keys_is_that_of_the_messages(lane: int, first: int, count: int) -> None:
    assert key_sum(lane, first, count) == sum((lane << LANE_SHIFT) + number for number in range(first, first + count))

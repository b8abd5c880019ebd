"""Messages as applications send them: no id comes twice, sizes and headers differ, a consumer knows which is which."""

import statistics

import pytest
from bench.compare.payload import HEAD_BYTES, LANE_SHIFT, MAGIC, Piece
from bench.compare.shape import DIGITS, MARK, Ring, Sample, samples

LANE = 3


def encode(sample: Sample) -> bytes:
    """Two ids, a number of the protocol, and the body, with something between them."""
    return f"<{sample.message_id}|{sample.correlation_id}>".encode() + b"\0\0\0\0" + sample.body(LANE) + b"\r\n"


def read(piece: Piece) -> list[tuple[int, int, str, str, int, bytes]]:
    """Lane and number, time, both ids, the number of the protocol and the tail, of each message."""
    found = []
    for part in bytes(piece.view).split(b"\r\n")[:-1]:
        ids, _, rest = part.partition(b">")
        body = rest[4:]
        assert body.startswith(MAGIC)
        first, second = ids[1:].decode().split("|")
        key, time_us = int.from_bytes(body[4:12], "little"), int.from_bytes(body[12:HEAD_BYTES], "little")
        found.append((key, time_us, first, second, int.from_bytes(rest[:4], "big"), body[HEAD_BYTES:]))
    return found


def test_every_message_has_its_own_ids_however_often_the_ring_is_used() -> None:
    ring_samples = samples("mixed", 0, 0, 1)[:64]
    ring = Ring([encode(sample) for sample in ring_samples], LANE, 16)
    seen: list[tuple[int, int, str, str, int, bytes]] = []

    for cycle in range(5):
        for place, piece in enumerate(ring.pieces):
            number = 1000 + cycle * 64 + place * 16
            ring.fill(piece, number, 7_000_000_000)
            ring.count_up(piece, len(encode(ring_samples[0]).split(b">")[0]) + 1, 4, number)
            seen += read(piece)

    assert [key for key, *_ in seen] == [(LANE << LANE_SHIFT) + 1000 + at for at in range(320)]
    assert {time_us for _, time_us, *_ in seen} == {7_000_000_000}
    assert len({first for _, _, first, *_ in seen} | {second for _, _, _, second, *_ in seen}) == 640
    assert all(first.endswith(f"{1000 + at:0{DIGITS}x}") for at, (_, _, first, *_) in enumerate(seen))
    assert [number for *_, number, _ in seen] == [1000 + at for at in range(320)]
    assert [tail for *_, tail in seen] == [sample.tail for sample in ring_samples] * 5


def test_a_last_piece_may_be_shorter() -> None:
    ring = Ring([encode(sample) for sample in samples("ids", 40, 0, 1)[:10]], LANE, 4)

    assert [piece.count for piece in ring.pieces] == [4, 4, 2]


def test_mixed_messages_differ_in_size_and_headers_as_those_of_applications_do() -> None:
    found = samples("mixed", 0, 0, 1)
    sizes = [sample.size for sample in found]

    assert min(sizes) >= 24
    assert max(sizes) <= 8192
    assert max(sizes) > 7000
    assert 150 < statistics.median(sizes) < 350
    assert 500 < statistics.mean(sizes) < 1200
    assert len({sample.trace for sample in found}) == len(found)
    assert all(MARK in sample.message_id and len(sample.message_id) == 36 for sample in found)
    assert all(len(sample.tail) == sample.size - HEAD_BYTES for sample in found)


@pytest.mark.parametrize("size", [200, 65536])
def test_messages_with_own_ids_alone_have_one_size(size: int) -> None:
    assert {sample.size for sample in samples("ids", size, 0, 1)} == {size}
    assert {len(sample.body(0)) for sample in samples("ids", size, 0, 1)} == {size}


def test_another_publisher_has_other_messages_and_each_is_the_same_again() -> None:
    first, second = samples("mixed", 0, 0, 4), samples("mixed", 0, 1, 4)
    samples.cache_clear()

    assert not {sample.trace for sample in first} & {sample.trace for sample in second}
    assert samples("mixed", 0, 0, 4) == first

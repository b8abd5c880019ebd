"""Bodies that come in parts: put together in order, within bounds, and given up in time."""

import pytest

from headrace.errors import ProtocolError
from headrace.protocols.coap.blocks import MAX_BODY_BYTES, Blocks
from headrace.protocols.coap.codec import BAD_REQUEST, ENTITY_INCOMPLETE, ENTITY_TOO_LARGE

PART = b"x" * 16
SECOND = 1_000_000


def code(blocks: Blocks, key: str, block: tuple[int, bool, int], part: bytes, now_us: int = 0) -> int:
    with pytest.raises(ProtocolError) as caught:
        blocks.add(key, block, part, now_us)
    return caught.value.code


def test_parts_in_order_are_a_body() -> None:
    blocks = Blocks()

    assert blocks.add("a", (0, True, 0), PART, 0) is None
    assert blocks.add("a", (1, True, 0), PART, 0) is None
    assert blocks.add("a", (2, False, 0), b"end", 0) == PART * 2 + b"end"


def test_a_body_of_one_part_is_whole_at_once() -> None:
    assert Blocks().add("a", (0, False, 6), b"all", 0) == b"all"


def test_a_part_that_is_missing_means_to_begin_again() -> None:
    blocks = Blocks()
    blocks.add("a", (0, True, 0), PART, 0)

    assert code(blocks, "a", (2, True, 0), PART) == ENTITY_INCOMPLETE
    assert code(blocks, "b", (1, True, 0), PART) == ENTITY_INCOMPLETE
    assert blocks.add("a", (0, True, 0), PART, 0) is None
    assert blocks.add("a", (1, False, 0), b"", 0) == PART


@pytest.mark.parametrize("block", [(0, True, 1), (0, True, 7), (0, False, 7)])
def test_a_part_of_another_size_is_refused(block: tuple[int, bool, int]) -> None:
    assert code(Blocks(), "a", block, PART) == BAD_REQUEST


def test_a_body_above_the_limit_is_refused() -> None:
    blocks = Blocks()
    part = bytes(1024)
    for number in range(MAX_BODY_BYTES // 1024):
        assert blocks.add("a", (number, True, 6), part, 0) is None

    assert code(blocks, "a", (MAX_BODY_BYTES // 1024, False, 6), b"x") == ENTITY_TOO_LARGE


def test_what_nobody_goes_on_with_is_given_up() -> None:
    blocks = Blocks()
    blocks.add("old", (0, True, 0), PART, 0)
    blocks.add("new", (0, True, 0), PART, 61 * SECOND)

    assert code(blocks, "old", (1, False, 0), b"", 61 * SECOND) == ENTITY_INCOMPLETE


def test_of_too_many_bodies_the_oldest_is_given_up() -> None:
    blocks = Blocks()
    for number in range(65):
        blocks.add(number, (0, True, 0), PART, number)

    assert code(blocks, "0", (1, False, 0), b"") == ENTITY_INCOMPLETE
    assert blocks.add(64, (1, False, 0), b"", 65) == PART

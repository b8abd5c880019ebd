"""Messages as applications send them: no two alike. Which bytes a protocol makes of them is in its module.

A publisher makes some thousand messages before the clock starts, each with its own ids, headers and size, and sends
them in a ring. Every time it overwrites the number in the body and the last twelve digits of the ids, so that no id
comes twice. Seeds are fixed: a consumer knows which message must have which number.
"""

import random
import struct
import uuid
from collections.abc import Sequence
from functools import cache
from typing import Final, Literal, NamedTuple, final

from bench.compare.payload import HEAD_BYTES, LANE_SHIFT, MAGIC, SEQUENCE_AT, Frames, Piece

Shape = Literal["", "ids", "mixed"]
"""Identical but for number and time; own ids, one size; own ids, headers and size."""

DIGITS: Final = 12
MARK: Final = "#" * DIGITS
"""Stands where the number goes in an id."""
STARTED: Final = 1_790_000_000
"""The first message's timestamp, in seconds; each has its own."""
APPLICATION: Final = "shop.checkout"
CONTENT_TYPE: Final = "application/json"
_RING: Final = 4096
_SMALL_RING: Final = 256
_MANY: Final = 16
_SIZES: Final = ((24, 128, 30), (128, 512, 40), (512, 2048, 20), (2048, 8192, 10))
"""From, to, and how many of a hundred: half are below 250 bytes, the mean is about 800."""
_TEXT: Final = (
    b'{"order":"7f3a","lines":[{"sku":"A-1047","count":2,"price":"19.90"}],"note":"leave at the door"},' * 700
)
_NUMBERS: Final = struct.Struct("<QIH")


class Sample(NamedTuple):
    """The parts that differ in each message, but for its number."""

    size: int
    tail: bytes
    """The body behind its head."""
    message_id: str
    correlation_id: str
    trace: str
    tenant: str
    attempt: int
    timestamp: int

    def body(self, lane: int) -> bytes:
        return MAGIC + bytes(6) + lane.to_bytes(2, "little") + bytes(6) + self.tail


@cache
def samples(shape: Shape, size: int, publisher: int, publishers: int) -> Sequence[Sample]:
    """The ring of one publisher, the same in every process."""
    chance = random.Random(f"{shape} {publisher}")
    count = _RING if publishers < _MANY else _SMALL_RING
    return [_sample(chance, slot, _size(chance) if shape == "mixed" else size) for slot in range(count)]


def _sample(chance: random.Random, slot: int, size: int) -> Sample:
    first, second = [str(uuid.UUID(int=chance.getrandbits(128)))[:-DIGITS] + MARK for _ in range(2)]
    trace = f"00-{chance.getrandbits(128):032x}-{chance.getrandbits(64):016x}-01"
    tenant = f"tenant-{chance.randrange(1000):03}"
    attempt = 1 + (chance.random() < 0.05)
    return Sample(size, _TEXT[: size - HEAD_BYTES], first, second, trace, tenant, attempt, STARTED + slot)


def _size(chance: random.Random) -> int:
    low, high, _ = chance.choices(_SIZES, [share for _, _, share in _SIZES])[0]
    return min(high, int(low * (high / low) ** chance.random()))


def digits(number: int) -> bytes:
    return b"%012x" % number


@final
class Ring(Frames):
    """Messages that differ, sent in pieces, over and over with new numbers in bodies and ids."""

    __slots__ = ("_bodies", "_buffer", "_firsts", "_ids", "_lane", "_starts", "pieces", "repeats")

    def __init__(self, frames: Sequence[bytes], lane: int, at_once: int) -> None:
        self.repeats = 1
        self._lane = lane << LANE_SHIFT
        self._buffer = bytearray(b"".join(frames))
        self._starts: list[int] = []
        self._bodies: list[int] = []
        self._ids: list[list[int]] = []
        start, mark = 0, MARK.encode()
        for frame in frames:
            body = frame.index(MAGIC)
            self._starts.append(start)
            self._bodies.append(start + body + SEQUENCE_AT)
            self._ids.append([start + at for at in _places(frame[:body], mark)])
            start += len(frame)
        self._firsts: dict[int, int] = {}
        self.pieces: list[Piece] = []
        view, bounds = memoryview(self._buffer), [*self._starts, start]
        for first in range(0, len(frames), at_once):
            last = min(first + at_once, len(frames))
            self._firsts[bounds[first]] = first
            self.pieces.append(Piece(view, bounds[first], bounds[last], bytes(range(last - first))))

    def fill(self, piece: Piece, number: int, time_us: int) -> None:
        first, buffer, pack = self._firsts[piece.start], self._buffer, _NUMBERS.pack_into
        low, high = time_us & 0xFFFFFFFF, time_us >> 32
        for place in range(first, first + piece.count):
            pack(buffer, self._bodies[place], self._lane | number, low, high)
            text = digits(number)
            for at in self._ids[place]:
                buffer[at : at + DIGITS] = text
            number += 1

    def count_up(self, piece: Piece, at: int, width: int, number: int) -> None:
        first = self._firsts[piece.start]
        for place in range(first, first + piece.count):
            start = self._starts[place] + at
            self._buffer[start : start + width] = number.to_bytes(width, "big")
            number += 1


def _places(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + len(mark))
    return found

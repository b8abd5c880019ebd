"""Payloads of measured messages, and batches of identical ones written column by column. Others: shape.py.

The body, little endian:

    0        4              10       12            18
    | magic  | sequence u48 | lane u16 | time us u48 | filler 'x' ...

A batch is encoded once. Before it is sent, only the bytes that differ are overwritten, each of them for all messages
at once with a strided slice: filling costs about 0.05 us a message, where encoding one takes several.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

MAGIC: Final = b"\xfeHB\xfd"
SEQUENCE_AT: Final = 4
TIME_AT: Final = 12
HEAD_BYTES: Final = 18
LANE_SHIFT: Final = 48
FILLER: Final = ord("x")

_LOWS: Final = bytes(range(256))


def make_body(size: int, lane: int) -> bytes:
    """A body of so many bytes, at least `HEAD_BYTES`; number and time are still 0."""
    return MAGIC + bytes(6) + lane.to_bytes(2, "little") + bytes(6) + bytes((FILLER,)) * (size - HEAD_BYTES)


def key_sum(lane: int, first: int, count: int) -> int:
    """The sum of the keys (lane and sequence number as one number) of so many messages of a lane."""
    return count * ((lane << LANE_SHIFT) + first) + count * (count - 1) // 2


@final
class Piece:
    """Neighbouring messages of a batch that are sent at once."""

    __slots__ = ("_steps", "count", "end", "high", "start", "view")

    def __init__(self, view: memoryview, start: int, end: int, steps: bytes) -> None:
        self.view = view[start:end]
        self.start = start
        self.end = end
        self.count = len(steps)
        self.high = -1
        self._steps = steps

    def lows(self, low: int) -> bytes:
        """The lowest bytes of the numbers of its messages, the first of which is given."""
        if self.count == self._steps[-1] + 1:
            return _LOWS[low : low + self.count]
        if not self._steps[-1]:
            return _LOWS[low : low + 1] * self.count
        return bytes([low + step for step in self._steps])


class Frames(ABC):
    """Encoded messages of one publisher, sent in pieces, over and over with new numbers."""

    __slots__ = ()

    pieces: list[Piece]
    repeats: int
    """Increase of a lane's numbers from one use of all pieces to the next, where there are several lanes."""

    @abstractmethod
    def fill(self, piece: Piece, number: int, time_us: int) -> None:
        """Give its messages their numbers, the lowest of which is this, and the time."""

    @abstractmethod
    def count_up(self, piece: Piece, at: int, width: int, number: int) -> None:
        """Write a number of the protocol, big endian, that goes up from message to message."""


@final
class Batch(Frames):
    """Messages that are identical but for their numbers, or for the queue or key they go to.

    With one lane, numbers go up from message to message; with several, each lane has its own frame, or some in a row,
    and they go up from one use of the batch to the next.
    """

    __slots__ = ("_buffer", "_sequence_at", "_time_at", "pieces", "repeats", "stride")

    def __init__(self, frames: Sequence[bytes], lanes: int, at_once: int, in_row: int = 1) -> None:
        self.stride = len(frames[0])
        if any(len(frame) != self.stride for frame in frames):
            raise ValueError("the messages of a batch must have the same size")
        if in_row > 1:
            self.repeats = in_row
            all_frames = [frame for frame in frames for _ in range(in_row)]
            steps = [at % in_row for at in range(len(all_frames))]
        else:
            self.repeats = 1 << (max(1, at_once // len(frames)).bit_length() - 1)
            all_frames = list(frames) * self.repeats
            steps = [at // lanes for at in range(len(all_frames))]
        self._buffer = bytearray(b"".join(all_frames))
        body = frames[0].index(MAGIC)
        self._sequence_at = body + SEQUENCE_AT
        self._time_at = body + TIME_AT
        self.pieces = self._cut(steps, lanes, at_once)

    def _cut(self, all_steps: list[int], lanes: int, at_once: int) -> list[Piece]:
        total = len(all_steps)
        cuts = max(1, total // at_once)
        bounds = [number * total // cuts for number in range(cuts + 1)]
        view = memoryview(self._buffer)
        pieces: list[Piece] = []
        for first, last in pairwise(bounds):
            steps = all_steps[first:last] if lanes > 1 else list(range(last - first))
            pieces.append(Piece(view, first * self.stride, last * self.stride, bytes(steps)))
        return pieces

    def fill(self, piece: Piece, number: int, time_us: int) -> None:
        start = piece.start + self._sequence_at
        self._buffer[start : piece.end : self.stride] = piece.lows(number & 0xFF)
        if piece.high != number >> 8:
            piece.high = number >> 8
            for byte, value in enumerate(piece.high.to_bytes(5, "little"), 1):
                self._buffer[start + byte : piece.end : self.stride] = _LOWS[value : value + 1] * piece.count
        for byte, value in enumerate(time_us.to_bytes(6, "little"), piece.start + self._time_at):
            self._buffer[byte : piece.end : self.stride] = _LOWS[value : value + 1] * piece.count

    def count_up(self, piece: Piece, at: int, width: int, number: int) -> None:
        """The low byte of the number does not overflow within a piece."""
        start = piece.start + at
        raw = number.to_bytes(width, "big")
        for byte in range(width - 1):
            column = _LOWS[raw[byte] : raw[byte] + 1] * piece.count
            self._buffer[start + byte : piece.end : self.stride] = column
        self._buffer[start + width - 1 : piece.end : self.stride] = _LOWS[raw[-1] : raw[-1] + piece.count]

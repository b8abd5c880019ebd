"""Pieces of a queue put together into partitions, and how far a trigger goes. Decisions only, no I/O."""

from collections.abc import Sequence

from headrace.spark.place import Piece


def partition_bytes(pieces: Sequence[Piece], most_bytes: int, least_partitions: int) -> int:
    """How large partitions may be so that there are enough of them."""
    total = sum(piece.size_bytes for piece in pieces)
    return max(1, min(most_bytes, -(-total // least_partitions)))


def grouped(pieces: Sequence[Piece], most_bytes: int) -> list[tuple[Piece, ...]]:
    """Neighbouring pieces together up to a size; a piece that is larger stays alone and whole."""
    groups: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = 0
    for piece in pieces:
        if current and size + piece.size_bytes > most_bytes:
            groups.append(tuple(current))
            current, size = [], 0
        current.append(piece)
        size += piece.size_bytes
    if current:
        groups.append(tuple(current))
    return groups


def within_rows(starts: dict[str, int], ends: dict[str, int], most: int) -> dict[str, int]:
    """Ends moved back so that at most so many messages lie before them, the same part of each queue."""
    waiting = {queue: max(0, end - starts[queue]) for queue, end in ends.items()}
    total = sum(waiting.values())
    if total <= most:
        return ends
    moved = {queue: starts[queue] + waiting[queue] * most // total for queue in ends}
    left = most - sum(moved[queue] - starts[queue] for queue in ends if waiting[queue])
    for queue in sorted(ends):  # what rounding left over
        if left and moved[queue] < ends[queue] and waiting[queue]:
            moved[queue] += 1
            left -= 1
    return {queue: moved[queue] if waiting[queue] else ends[queue] for queue in ends}


def within_bytes(pieces: Sequence[Piece], start: int, end: int, most_bytes: int) -> int:
    """The end moved back so that the pieces before it have at most so many bytes; at least one piece is taken."""
    size = 0
    reached = start
    for piece in pieces:
        if reached > start and size + piece.size_bytes > most_bytes:
            return reached
        size += piece.size_bytes
        reached = piece.stop
    return max(reached, end) if not pieces else min(end, reached)

"""Pieces of a queue put together into partitions, how far a trigger goes, and what follows lost messages. No I/O."""

from collections.abc import Sequence

from headrace.errors import Truncated
from headrace.spark.place import Piece


def check_loss(is_loss: bool, queue: str, wanted: int, first: int) -> int:
    """Where to read on when `wanted` was to be read next and the queue begins at `first`.

    Raises Truncated when messages in between are gone and that is a loss to whoever reads.
    """
    if wanted >= first:
        return wanted
    if is_loss:
        raise Truncated(
            f"offsets {wanted} to {first - 1} of queue {queue!r} are gone: retention, consumers or a purge took them. "
            f"Start anew from earliest, or set option failOnDataLoss=false to read on at {first}"
        )
    return first


def grouped(pieces: Sequence[Piece], most_bytes: int, least_groups: int = 1) -> list[tuple[Piece, ...]]:
    """Neighbouring pieces together: as few groups as may be and about the same in each, at most that large.

    A piece that is larger stays alone and whole. There are at least as many groups as are asked for, or pieces.
    """
    groups: list[tuple[Piece, ...]] = []
    current: list[Piece] = []
    size = share = 0
    left = sum(piece.size_bytes for piece in pieces)
    for number, piece in enumerate(pieces):
        wanted = least_groups - len(groups)
        is_full = size + piece.size_bytes > most_bytes or 2 * size + piece.size_bytes > 2 * share
        if current and (is_full or len(pieces) - number < wanted):
            groups.append(tuple(current))
            current, size = [], 0
            wanted -= 1
        if not current:
            share = left // max(1, wanted, -(-left // most_bytes))
        current.append(piece)
        size += piece.size_bytes
        left -= piece.size_bytes
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

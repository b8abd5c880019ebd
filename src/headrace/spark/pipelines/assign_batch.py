"""One batch of `assign`: staged by the tasks, committed by the driver, in pieces when it is too much for one commit.

Only the broker knows how much that is: what it finds too large is cut in two. Pieces are ranges of offsets. They are
written down before any of them is committed, and each has a number of its own, so a batch that comes again goes on with
the very piece it had come to.
"""

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from pyspark.sql import DataFrame

from headrace.errors import HeadraceError, Refused, TooLarge
from headrace.spark.client import Client
from headrace.spark.options import Server
from headrace.spark.pipelines.state import State, read_json, write_json

_PIECES: Final = 1 << 20
"""The most pieces of a batch, so that numbers go up from batch to batch."""
_ABORT_PATIENCE_SECONDS: Final = 5.0

Range = tuple[str, int, int]
"""Of one queue that is read, from one offset up to but not including another."""


@dataclass(frozen=True)
class Part:
    """What a task staged: copies of messages of one queue, from the offset `first` to `last`."""

    name: str
    queue: str
    first: int
    last: int


Stage = Callable[[DataFrame, str], Sequence[Part]]
"""Stages all that a frame's messages match, as an attempt of this name."""


@final
class Batches:
    """Assigns batch after batch; called with a frame and its number, as Spark does."""

    def __init__(self, server: Server, transaction: str, state: State, filters: object, stage: Stage) -> None:
        self._server = server
        self._transaction = transaction
        self._note = state.directory / "pieces.json"
        self._filters = hashlib.sha256(json.dumps(filters).encode()).hexdigest()
        self._stage = stage

    def __call__(self, frame: DataFrame, batch: int) -> None:
        pieces = self._noted(batch)
        at = 0
        while at < len(pieces):
            if at + 1 >= _PIECES:
                raise Refused(f"batch {batch} has more than {_PIECES} pieces: read less at once with max_bytes")
            attempt = uuid.uuid4().hex
            parts = self._staged(_rows(frame, pieces[at]), attempt)
            names = [part.name for part in parts]
            try:
                self._call(
                    "POST", "/commit", {}, {"parts": names, "sequence": batch * _PIECES + at, "attempt": attempt}
                )
            except TooLarge:
                self._call("DELETE", "", {"attempt": attempt})
                halves = halved(parts)
                if not halves:
                    raise
                pieces[at : at + 1] = halves  # no other piece has changed, and this one was not committed
                write_json(self._note, {"batch": batch, "filters": self._filters, "pieces": pieces})
                continue
            at += 1

    def _staged(self, frame: DataFrame, attempt: str) -> Sequence[Part]:
        try:
            return self._stage(frame, attempt)
        except Exception:
            self._give_up(attempt)
            raise

    def _give_up(self, attempt: str) -> None:
        """Best effort: what is not forgotten now is given up by the broker later."""
        try:
            self._call("DELETE", "", {"attempt": attempt}, patience_seconds=_ABORT_PATIENCE_SECONDS)
        except HeadraceError:
            return

    def _noted(self, batch: int) -> list[list[Range]]:
        """The pieces of a batch that was begun before, or the whole of it as the only one.

        Raises Refused when it was begun with other filters: what is done of it is not what these would do.
        """
        said = read_json(self._note)
        if said.get("batch") != batch:
            return [[]]
        if said["filters"] != self._filters:
            raise Refused("the last run ended within a batch of several pieces: finish that with the filters it had")
        return [[(queue, start, stop) for queue, start, stop in piece] for piece in said["pieces"]]

    def _call(
        self, method: str, path: str, query: Mapping[str, str], body: object = None, patience_seconds: float = 0.0
    ) -> None:
        client = Client(self._server, patience_seconds) if patience_seconds else Client(self._server)
        try:
            client.json(method, f"/bulk/transactions/{self._transaction}{path}", query, body)
        finally:
            client.close()


def halved(parts: Sequence[Part]) -> list[list[Range]]:
    """Two pieces that have all messages of the parts; none when they are of a single message."""
    extents: dict[str, tuple[int, int]] = {}
    for part in parts:
        first, last = extents.get(part.queue, (part.first, part.last))
        extents[part.queue] = min(first, part.first), max(last, part.last)
    ranges = [(queue, first, last + 1) for queue, (first, last) in sorted(extents.items())]
    if len(ranges) > 1:
        return [ranges[: len(ranges) // 2], ranges[len(ranges) // 2 :]]
    if not ranges or ranges[0][2] - ranges[0][1] < 2:
        return []
    ((queue, start, stop),) = ranges
    middle = (start + stop) // 2
    return [[(queue, start, middle)], [(queue, middle, stop)]]


def _rows(frame: DataFrame, piece: Sequence[Range]) -> DataFrame:
    """The messages of a piece; all of them where it has no ranges."""
    if not piece:
        return frame
    queue, offset = frame["queue"], frame["offset"]
    condition = (queue == piece[0][0]) & (offset >= piece[0][1]) & (offset < piece[0][2])
    for name, start, stop in piece[1:]:
        condition = condition | ((queue == name) & (offset >= start) & (offset < stop))
    return frame.where(condition)

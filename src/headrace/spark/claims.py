"""Messages claimed from a work queue: what a claim has, how it is kept, how it ends. Who does so is in work*.py.

A claim lasts for its lease. Whoever works on it renews it; when they die, the broker gives the messages to others.
"""

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, final

from headrace.errors import HeadraceError, Refused
from headrace.spark.client import Client
from headrace.spark.options import ReadOptions

MOST: Final = 100_000
"""What a group lets be claimed at a time, and so the most messages of a batch."""
_RENEWALS: Final = 3
"""How often a claim is renewed within its lease."""

Ranges = tuple[tuple[int, int], ...]
_log: Final = logging.getLogger("headrace.spark")


@dataclass(frozen=True)
class Claim:
    """Ranges of offsets by queue, under the name that holds them; `number` tells one batch from the next."""

    by: str
    number: int
    taken: Mapping[str, Ranges]

    @property
    def messages(self) -> int:
        return sum(stop - start for ranges in self.taken.values() for start, stop in ranges)

    def to_offset(self) -> dict[str, object]:
        """As a streaming query writes it down: always the same text for the same claim."""
        return {"by": self.by, "number": self.number, "taken": {name: self.taken[name] for name in sorted(self.taken)}}


def claim_of(offset: Mapping[str, object]) -> Claim:
    """Raises Refused when this is not what `to_offset` gives: the checkpoint is of another query."""
    by, number, taken = offset.get("by"), offset.get("number"), offset.get("taken")
    if not isinstance(by, str) or not isinstance(number, int) or not isinstance(taken, Mapping):
        raise Refused(f"{json.dumps(offset)[:200]} is no claim: the checkpoint is of a query without mode=work")
    return Claim(by, number, {name: tuple((start, stop) for start, stop in ranges) for name, ranges in taken.items()})


@final
class Claims:
    """The calls that claim and settle. May be made again: what is held stays held, what is done stays done."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.server is not None
        self._client = Client(options.server)
        self._group = options.consumer_group
        self._lease_ms = options.lease_seconds * 1000

    def take(self, by: str, queue: str, most: int, before: int | None = None) -> Ranges:
        """Claim up to so many messages that wait, below an offset if one is given."""
        body: dict[str, object] = {"most": min(most, MOST), "lease_ms": self._lease_ms}
        if before is not None:
            body["before"] = before
        return self._ranges(by, "take", queue, body)

    def hold(self, claim: Claim) -> Claim:
        """Renew a claim; returns what of it is held now. The rest has run out and is with others, or done."""
        body: dict[str, object] = {"lease_ms": self._lease_ms}
        held = {
            queue: self._ranges(claim.by, "hold", queue, {**body, "ranges": ranges})
            for queue, ranges in claim.taken.items()
        }
        return Claim(claim.by, claim.number, held)

    def finish(self, claim: Claim) -> None:
        """All of it is done, and will not be seen again."""
        for queue, ranges in claim.taken.items():
            self._call(claim.by, "finish", queue, {"ranges": ranges})

    def release(self, claim: Claim) -> None:
        """All of it goes back in line, untried."""
        for queue in claim.taken:
            self._call(claim.by, "release", queue, {})

    def close(self) -> None:
        self._client.close()

    def _ranges(self, by: str, verb: str, queue: str, body: Mapping[str, object]) -> Ranges:
        found = self._call(by, verb, queue, body)["ranges"]
        assert isinstance(found, list)
        return tuple((start, stop) for start, stop in found)

    def _call(self, by: str, verb: str, queue: str, body: Mapping[str, object]) -> dict[str, object]:
        return self._client.json(
            "POST", f"/bulk/claims/{by}/{verb}", {}, {"queue": queue, "group": self._group, **body}
        )


@final
class ClaimKeeper:
    """Renews a claim in the background for as long as this process lives and it is not let go."""

    def __init__(self, options: ReadOptions) -> None:
        self._claims = Claims(options)
        self._pause_seconds = options.lease_seconds / _RENEWALS
        self._claim: Claim | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-claims", daemon=True)
        self._thread.start()

    def keep(self, claim: Claim | None) -> None:
        """Renew this from now on, and nothing else."""
        with self._lock:
            self._claim = claim

    def close(self) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._pause_seconds):
            with self._lock:  # so that nothing is renewed that was let go
                if self._claim is not None:
                    self._renew(self._claim)
        self._claims.close()

    def _renew(self, claim: Claim) -> None:
        try:
            lost = claim.messages - self._claims.hold(claim).messages
        except HeadraceError as error:
            _log.warning("a claim of %d messages could not be renewed: %s", claim.messages, error)
            return
        if lost:
            _log.warning("%d of %d claimed messages went to others: raise option leaseSeconds", lost, claim.messages)


def runs_of(ranges: Sequence[tuple[int, int]], widest_gap: int) -> list[Ranges]:
    """Ranges in groups that are read in one go: the gaps within a group are at most so wide."""
    if not ranges:
        return []
    cuts = [at + 1 for at, (one, other) in enumerate(pairwise(ranges)) if other[0] - one[1] > widest_gap]
    return [tuple(ranges[start:stop]) for start, stop in pairwise([0, *cuts, len(ranges)])]


def portions_of(ranges: Sequence[tuple[int, int]], rows: int) -> list[Ranges]:
    """Ranges cut into portions of so many offsets; the last one may have fewer."""
    portions: list[Ranges] = []
    current: list[tuple[int, int]] = []
    room = rows
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + room)
            current.append((start, end))
            room -= end - start
            start = end
            if not room:
                portions.append(tuple(current))
                current, room = [], rows
    return [*portions, tuple(current)] if current else portions

"""Where the messages of a log stand in its segments, as far as a checkpoint names them. No messages, no journal."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import final

from headrace.storage.local.disk import Disk, opened_to_read
from headrace.storage.local.followed_log import FollowedLog
from headrace.storage.local.names import encode_name
from headrace.storage.local.outline import Outline
from headrace.storage.local.segment import segment_files, segment_path
from headrace.storage.local.spans import SEGMENT, Span


@final
class FollowedSegments:
    """What is known of the segments of all logs so far. FileNotFoundError says that some were removed meanwhile."""

    def __init__(self, root: Path, disk: Disk) -> None:
        self._root = root
        self._disk = disk
        self._outlines: dict[str, Outline] = {}

    def directory(self, log: FollowedLog) -> Path:
        return self._root / "queues" / encode_name(log.name) / "segments"

    def spans(self, log: FollowedLog, start: int, stop: int) -> list[Span]:
        """The blocks that hold these offsets, in order. Raises FileNotFoundError, Corrupt."""
        spans: list[Span] = []
        for outline in self._of(log, start, stop):
            for number in range(max(0, outline.block_of(start)), len(outline.bases)):
                base, behind = outline.bases[number], outline.stops[number]
                if base >= stop:
                    break
                if behind > start:
                    spans.append(_span(outline, number, max(base, start), min(behind, stop)))
        return spans

    def spans_reaching(self, log: FollowedLog, timestamp_us: int) -> Iterator[Span]:
        """The blocks in which a message may be that old or younger. Raises FileNotFoundError, Corrupt."""
        stored = log.stored_next
        if log.first < stored:
            for outline in self._of(log, log.first, stored):
                for number in range(outline.block_at_time(timestamp_us), len(outline.bases)):
                    base, stop = outline.bases[number], outline.stops[number]
                    if stop > log.first and base < stored:
                        yield _span(outline, number, max(base, log.first), min(stop, stored))

    def _of(self, log: FollowedLog, start: int, stop: int) -> list[Outline]:
        """What is known of the segments with offsets of this range, as far as the checkpoint names them."""
        entry = log.entry
        assert entry is not None
        directory = self.directory(log)
        found = [(base, path) for base, path in segment_files(directory) if base <= entry.segment]
        if entry.segment >= 0 and (not found or found[-1][0] != entry.segment):
            raise FileNotFoundError(errno.ENOENT, "no such segment", str(segment_path(directory, entry.segment)))
        outlines: list[Outline] = []
        for at, (base, path) in enumerate(found):
            behind = found[at + 1][0] if at + 1 < len(found) else entry.next
            if base < stop and behind > start:
                length = entry.segment_length if base == entry.segment else -1
                outlines.append(self._outline(path, log.id, length))
        return outlines

    def _outline(self, path: Path, log_id: int, length: int) -> Outline:
        outline = self._outlines.get(str(path))
        if outline is None or outline.log_id != log_id:
            outline = self._outlines[str(path)] = Outline(path, log_id)
        with opened_to_read(self._disk, path) as fd:
            outline.learn(self._disk, fd, length)
        return outline


def _span(outline: Outline, number: int, start: int, stop: int) -> Span:
    position, end = outline.extent(number)
    return SEGMENT, outline.path, position, end, start, stop, outline.log_id

"""A data directory seen from outside, while a broker may have it open and write to it. Changes nothing, takes no lock.

What counts is what the checkpoint names, and every whole record of the journal behind it: never a segment's end that no
checkpoint names yet. So whatever is seen here is what recovery would find, and offsets never stand for other messages
later. Records that a power failure could still take away are synced before they are shown.
"""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from headrace.errors import Corrupt, NotFound, Unavailable
from headrace.storage.local.checkpoint import Checkpoint, checkpoint_path, decode_checkpoint
from headrace.storage.local.disk import Disk, ReadOnlyDisk, opened_to_read
from headrace.storage.local.followed_journal import FollowedJournal
from headrace.storage.local.followed_log import FollowedLog
from headrace.storage.local.followed_segments import FollowedSegments
from headrace.storage.local.journal import Position
from headrace.storage.local.record import CREATE_LOG, DROP_LOG, TRUNCATE, Record, decode_operations
from headrace.storage.local.spans import Span, span_blocks
from headrace.storage.local.tails import decode_tails, tails_path

_LOOKS: Final = 5
"""How often a range is looked for whose segments are removed meanwhile."""


@final
class Follower:
    """The logs of a directory as they are; `refresh` looks for what was added, at the cost of a few small reads."""

    def __init__(self, root: Path, disk: Disk | None = None) -> None:
        """Raises Unavailable when there is no data directory, and Corrupt when its checkpoint is damaged."""
        self._root = root
        self.disk = self._disk = disk or ReadOnlyDisk(Disk())
        self._journal = FollowedJournal(root / "journal", self._disk)
        self._segments = FollowedSegments(root, self._disk)
        self._signature: tuple[int, int, int] = (0, 0, 0)
        self._logs: dict[str, FollowedLog] = {}
        self._by_id: dict[int, FollowedLog] = {}
        self._checkpoint_seq = 0
        self.refresh()

    def close(self) -> None:
        self._journal.close()

    def refresh(self) -> None:
        """Take in what was added since the last look. Raises Unavailable and Corrupt."""
        signature = self._stat_checkpoint()
        if signature != self._signature:
            self._load_checkpoint()
            self._signature = signature
        while (found := self._journal.find_next()) is not None:
            self._apply(found.record, found.path, found.position.at)
            self._journal.take(found)
        self._journal.sync()

    @property
    def position(self) -> Position:
        """Behind the last whole record."""
        return self._journal.position

    def is_at(self, checkpoint: Position) -> bool:
        """Whether what was taken in last began at this checkpoint."""
        return self._checkpoint_seq == checkpoint.seq

    def names(self) -> list[str]:
        """All logs that exist."""
        return sorted(self._logs)

    def bounds(self, name: str) -> tuple[int, int]:
        """The first offset and the one behind the last. Raises NotFound."""
        log = self._log(name)
        return log.first, log.next

    def log_id(self, name: str) -> int:
        """What tells this log from another of its name. Raises NotFound."""
        return self._log(name).id

    def spans(self, name: str, start: int, stop: int) -> list[Span]:
        """Where the messages of this range stand, in order, a block or a stretch of the journal each.

        Messages that were truncated are in none. Raises NotFound, and Corrupt when a segment cannot be read.
        """
        for _ in range(_LOOKS):
            try:
                return self._spans(self._log(name), start, stop)
            except FileNotFoundError as error:  # segments were removed since the last look
                missing = error
                self.refresh()
        raise Corrupt(str(missing.filename), 0, str(missing.strerror)) from missing

    def _spans(self, log: FollowedLog, start: int, stop: int) -> list[Span]:
        start, stop = max(start, log.first), min(stop, log.next)
        spans: list[Span] = []
        if start < log.stored_next:
            spans += self._segments.spans(log, start, min(stop, log.stored_next))
        for stretch in log.stretches:
            if stretch.base < stop and stretch.next > start:
                spans.append(stretch.span(start, stop))
        for span in spans:
            if span[4] != start:
                break
            start = span[5]
        if start < stop:
            directory = str(self._segments.directory(log))
            raise FileNotFoundError(errno.ENOENT, f"no segment has offset {start}", directory)
        return spans

    def find(self, name: str, timestamp_us: int) -> int:
        """The offset of the first message with at least this timestamp, or the one behind the last."""
        for _ in range(_LOOKS):
            try:
                return self._find(self._log(name), timestamp_us)
            except (FileNotFoundError, Unavailable) as error:  # something was removed since the last look
                moved = error
                self.refresh()
        raise Unavailable(f"queue {name!r} changes faster than it can be searched; try again") from moved

    def _find(self, log: FollowedLog, timestamp_us: int) -> int:
        for span in self._spans_reaching(log, timestamp_us):
            for base, block, first, last in span_blocks(span, log.id, self._disk):
                times = block.timestamps()
                for row in range(first, last):
                    if times[row] >= timestamp_us:
                        return base + row - first
        return log.next

    def _spans_reaching(self, log: FollowedLog, timestamp_us: int) -> Iterator[Span]:
        """The spans in which a message may be that old or younger."""
        yield from self._segments.spans_reaching(log, timestamp_us)
        for stretch in log.stretches:
            if stretch.max_time_us >= timestamp_us and stretch.next > log.first:
                yield stretch.span(log.first, stretch.next)

    def _log(self, name: str) -> FollowedLog:
        log = self._logs.get(name)
        if log is None:
            raise NotFound(f"the data directory {self._root} has no queue {name!r}")
        return log

    # -- the checkpoint ----------------------------------------------------------------------------------------------

    def _stat_checkpoint(self) -> tuple[int, int, int]:
        path = checkpoint_path(self._root)
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError as error:
            raise Unavailable(
                f"{self._root} is no data directory that can be read here: {path} {error.strerror}; "
                f"name the directory that `headrace serve --data` was given"
            ) from error
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load_checkpoint(self) -> None:
        """Begin anew with what the checkpoint says; the journal behind it is read on from there."""
        checkpoint, tails = self._read_checkpoint()
        self._logs = {}
        self._by_id = {}
        for entry in checkpoint.logs:
            self._add(FollowedLog(entry.id, entry.name, entry))
        self._journal.begin(checkpoint.position)
        self._checkpoint_seq = checkpoint.position.seq
        path = str(tails_path(self._root, checkpoint.tails[0]))
        for at, record in tails:
            for log_id, _, base in record.runs:
                log = self._by_id.get(log_id)
                if log is not None and not log.stretches:
                    log.stored_next = base
            self._apply(record, path, at)

    def _read_checkpoint(self) -> tuple[Checkpoint, list[tuple[int, Record]]]:
        """The checkpoint, and the records of the tails that it names, with their positions."""
        path = checkpoint_path(self._root)
        for _ in range(_LOOKS):
            checkpoint = decode_checkpoint(path.read_bytes(), path)
            generation, length = checkpoint.tails
            if not length:
                return checkpoint, []
            tails = tails_path(self._root, generation)
            try:
                with opened_to_read(self._disk, tails) as fd:
                    data = self._disk.read(fd, 0, self._disk.size(fd))
            except FileNotFoundError as error:  # there is another checkpoint since
                missing = error
            else:
                return checkpoint, list(decode_tails(data, length, tails))
        raise Corrupt(str(missing.filename), 0, "the file is missing") from missing

    def _add(self, log: FollowedLog) -> None:
        self._logs[log.name] = log
        self._by_id[log.id] = log

    # -- the journal -------------------------------------------------------------------------------------------------

    def _apply(self, record: Record, path: str, at: int) -> None:
        """Have the logs as they are behind the record that stands at this position."""
        operations = decode_operations(record.operations) if record.operations else []
        for operation in operations:
            if operation.kind == CREATE_LOG:
                self._by_id[operation.log_id] = FollowedLog(operation.log_id, operation.name, None)
        self._append(record, path, at)
        for operation in operations:
            if operation.kind == DROP_LOG:
                dropped = self._by_id.pop(operation.log_id, None)
                if dropped is not None and self._logs.get(dropped.name) is dropped:
                    del self._logs[dropped.name]
        for operation in operations:
            log = self._by_id.get(operation.log_id)
            if log is None:
                continue
            if operation.kind == CREATE_LOG:
                self._logs[log.name] = log
            elif operation.kind == TRUNCATE:
                log.truncate(operation.offset)

    def _append(self, record: Record, path: str, at: int) -> None:
        heads = record.heads
        block_at = at + record.length - sum([head.length for head in heads])
        for number, (log_id, count, base) in enumerate(record.runs):
            log = self._by_id.get(log_id)
            head = heads[0] if len(heads) == 1 else heads[number]
            if log is not None and len(heads) == 1:
                log.add_record(path, at, record, base, base + count)
            elif log is not None:
                log.add_block(path, block_at, head, base, base + count)
            block_at += head.length

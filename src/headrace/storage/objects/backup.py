"""A consistent copy of a store, taken while a broker writes to it or not. Changes nothing there but checkpoints.

A copy is one scan of the whole database: everything that was durable when it began, and nothing younger. Checkpoints
before and after that moment keep its tables from being removed meanwhile. The instance record, which makes a database
a store of ours, is written last, so nobody takes an unfinished copy for a store.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from headrace.clock import Clock, SystemClock
from headrace.config.replication import MAIN
from headrace.errors import Refused, Unavailable
from headrace.storage.objects import keys
from headrace.storage.objects.database import Database, Row, Tuning
from headrace.storage.objects.location import Location
from headrace.storage.objects.records import decode_log
from headrace.storage.objects.view import Admin, View, check_store

_TIMEOUT_MS: Final = 60_000
_CHECKPOINT: Final = "headrace-backup"
_LIFETIME_MS: Final = 24 * 3_600_000
"""The time for which a crashed copy keeps tables from being removed; a finished one frees them at once."""
_AT_ONCE_BYTES: Final = 4 << 20
_ROWS: Final = 500

Progress = Callable[[int], None]
"""Called with the number of bytes copied so far."""


@final
class Copied:
    """The size of a copy."""

    def __init__(self) -> None:
        self.messages = 0
        self.queues = 0
        self.size_bytes = 0

    def count(self, key: bytes, value: bytes) -> None:
        """Count one record."""
        self.size_bytes += len(key) + len(value)
        if key.startswith(keys.LOG):
            state = decode_log(value, keys.describe(key))
            self.queues += 1
            self.messages += state.next_offset - state.first_offset


def back_up_store(
    source: str,
    target: str,
    clock: Clock | None = None,
    progress: Progress = lambda _: None,
    group: str = MAIN,
) -> Copied:
    """Copy one group of a store to another URL under the same name; the copy is whole on return.

    Raises Refused when a URL is wrong, Unavailable when the source lacks the group, the target has it, or one of them
    cannot be used, and Corrupt when the source is damaged.
    """
    clock = clock or SystemClock()
    origin = Location(source, create=False)
    if source.rstrip("/") == target.rstrip("/"):
        raise Refused(f"{target} is the store that is to be copied; name another place")
    with _kept(origin, group, clock) as view:
        place = Location(target)
        admin = Admin(place, group, _TIMEOUT_MS, clock)
        if admin.exists():
            raise Unavailable(f"{admin.place} exists already; a copy is made where nothing is")
        copied = _copy(view, place, group, clock, progress)
    if place.directory:
        _sync(Path(place.directory))
    return copied


@contextmanager
def _kept(location: Location, group: str, clock: Clock) -> Iterator[View]:
    """A view whose tables are kept for the duration of the block."""
    check_store(location, group, _TIMEOUT_MS, clock)
    admin = Admin(location, group, _TIMEOUT_MS, clock)
    checkpoints: list[str] = []
    try:
        checkpoints.append(admin.create_checkpoint(_CHECKPOINT, _LIFETIME_MS))
        view = View(location, group, _TIMEOUT_MS, clock)
        try:
            # Tables newer than the first checkpoint are too young to be removed before the second one holds them.
            checkpoints.append(admin.create_checkpoint(_CHECKPOINT, _LIFETIME_MS))
            yield view
        finally:
            view.close()
    finally:
        for checkpoint in checkpoints:
            admin.delete_checkpoint(checkpoint)


def _copy(view: View, place: Location, group: str, clock: Clock, progress: Progress) -> Copied:
    database = Database(place, group, Tuning(timeout_ms=_TIMEOUT_MS), clock)
    copied = Copied()
    instance: Row | None = None
    try:
        changes: list[tuple[bytes, bytes | None]] = []
        written = 0
        for rows in view.scan(b"", None, at_once=_ROWS):
            for key, value in rows:
                copied.count(key, value)
                if key == keys.INSTANCE:
                    instance = (key, value)
                else:
                    changes.append((key, value))
            if copied.size_bytes - written >= _AT_ONCE_BYTES:
                database.store(changes)
                changes, written = [], copied.size_bytes
                progress(written)
        if changes:
            database.store(changes)
        if instance is None:
            raise Unavailable(f"{view.place} was deleted while it was copied")
        database.store([instance])
    finally:
        database.close()
    return copied


def _sync(directory: Path) -> None:
    """Make a directory and everything below it durable."""
    for path in (*sorted(directory.rglob("*")), directory, directory.parent):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

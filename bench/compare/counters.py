"""Numbers that the processes of a measurement share: how far each is, and whether to go or to stop."""

import mmap
from pathlib import Path
from typing import Final, final

_GO: Final = 0
_STOP: Final = 1
_PUBLISHED: Final = 2
_RECEIVED: Final = 3
_LEAST: Final = 4
_SLOTS: Final = 5

_STOP_NOW: Final = 2


@final
class Counters:
    """A page of memory; every number has one writer."""

    __slots__ = ("_numbers",)

    def __init__(self, path: Path, is_new: bool = False) -> None:
        if is_new:
            path.write_bytes(bytes(mmap.PAGESIZE))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), mmap.PAGESIZE)).cast("Q")

    def go(self) -> None:
        self._numbers[_GO] = 1

    def stop(self, is_failure: bool) -> None:
        """Have everybody finish; after a failure, without waiting for what is still to come."""
        self._numbers[_STOP] = _STOP_NOW if is_failure else 1

    @property
    def has_started(self) -> bool:
        return bool(self._numbers[_GO])

    @property
    def is_stopped(self) -> bool:
        return bool(self._numbers[_STOP])

    @property
    def is_failed(self) -> bool:
        return self._numbers[_STOP] == _STOP_NOW

    @property
    def published(self) -> int:
        return self._numbers[_PUBLISHED]

    def add_published(self, count: int) -> None:
        self._numbers[_PUBLISHED] += count

    @property
    def received(self) -> int:
        """By all consumers together."""
        return self._numbers[_RECEIVED]

    @property
    def received_by_least(self) -> int:
        """By the consumer that is furthest behind."""
        return self._numbers[_LEAST]

    def set_received(self, total: int, least: int) -> None:
        self._numbers[_RECEIVED] = total
        self._numbers[_LEAST] = least

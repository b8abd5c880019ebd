"""The process itself: exit codes, commands of child processes, open files, the garbage collector. No broker."""

import contextlib
import ctypes
import gc
import os
import resource
import sys
from pathlib import Path
from typing import Final, final

from headrace.clock import Clock

EXIT_PROBLEMS: Final = 1
EXIT_USAGE: Final = 2
EXIT_DISK_FAILED: Final = os.EX_IOERR  # 74
EXIT_STOP_TOO_LONG: Final = os.EX_TEMPFAIL  # 75

_COLLECT_EVERY: Final = (10_000, 1, 0)
"""Thresholds of the collector. Collecting every 700 objects took 5 to 10 % of the time of filling or reading a queue.

10,000 objects take 2 ms. So do those that became no garbage since, and the largest collection looks at some 60,000.
"""
_MOST: Final = 20_000
"""More objects than these that survive a full collection are frozen."""
_FEW: Final = 500_000
_LOOK_AGAIN_US: Final = 3600 * 1_000_000
"""Frozen objects are looked at again if there are twice as many as the last time, and `_FEW` more, an hour later."""
_OLDEST: Final = 2


# Options of glibc's mallopt.
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
_HEAP: Final = ((_ARENA_MAX, 2), (_MMAP_THRESHOLD, 512 << 10), (_TRIM_THRESHOLD, 1 << 20))


def python(*words: str) -> list[str]:
    """Return the command that runs this Python with these arguments.

    Python gets `-P`, so that it imports nothing from the current directory, such as somebody else's `queue.py`. The
    option is left out where this package itself lies in the current directory.
    """
    return [sys.executable, *([] if _is_package_here() else ["-P"]), *words]


def _is_package_here() -> bool:
    try:
        return Path(__file__).resolve().parent.parent == Path.cwd().resolve()
    except FileNotFoundError:  # the current directory was removed
        return False


def raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: each connection and each journal file is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bound_heap() -> None:
    """Have the C library give large blocks back at once, and keep few heaps; to be called before threads start.

    Otherwise glibc keeps blocks of up to 32 MiB in its heap once it has seen some, where small ones pin them: a broker
    with a backlog of a million messages of 800 bytes on average took 94 MiB instead of 75.
    """
    change = getattr(ctypes.CDLL(None), "mallopt", None)
    if change is not None:
        for option, value in _HEAP:
            change(option, value)


@final
class _Freezer:
    """Freezes objects that survived a full collection; the collector calls it before and after each collection.

    Messages, and most of what a client or a queue had, are freed without the collector. 20,000 queues are a million
    objects, and a full collection of them stops the broker for 250 to 320 ms. So frozen objects are looked at only when
    there are so many more of them that many may be garbage.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since_us = clock.monotonic_us()
        self._kept = 0
        """The number of frozen objects after they were looked at."""
        self._is_everything = True
        """Whether the present collection looks at everything."""

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            if self._is_due():
                self._is_everything = True
                gc.unfreeze()
        elif self._is_everything:
            self._is_everything = False
            self._since_us = self._clock.monotonic_us()
            gc.freeze()
            self._kept = gc.get_freeze_count()
        elif len(gc.get_objects(_OLDEST)) > _MOST:
            gc.freeze()

    def _is_due(self) -> bool:
        is_early = self._clock.monotonic_us() < self._since_us + _LOOK_AGAIN_US
        return not is_early and gc.get_freeze_count() > 2 * self._kept + _FEW


def settle_memory(clock: Clock) -> None:
    """Give back what only the start needed. Freeze all objects that exist now, and later those that survive long."""
    if not any(isinstance(each, _Freezer) for each in gc.callbacks):
        gc.callbacks.append(_Freezer(clock))
    gc.collect()
    gc.set_threshold(*_COLLECT_EVERY)
    _trim()


def _trim() -> None:
    """Have the C library return free memory to the system: a start that replayed a journal kept 16 MB of it."""
    with contextlib.suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)

"""What the operating system knows of this process: memory, open files. Nothing where it does not say."""

import os
import resource
from pathlib import Path


def memory_bytes() -> int:
    """Memory in use now; the most there was where that is all that is known."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")


def open_files() -> int:
    """How many files and sockets are open; 0 where nobody says."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    except OSError:
        return 0


def file_limit() -> int:
    """How many may be."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def cpu_seconds() -> float:
    """Processor time used so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

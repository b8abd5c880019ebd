"""Conditions of the figures: the machine, the system, the Python, the file system. Nothing is measured here."""

import os
import platform
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from headrace.version import IS_COMPILED, __version__


def describe() -> dict[str, object]:
    """Facts for the record, as JSON takes them."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "headrace": __version__,
        "compiled": IS_COMPILED,
        "file_system": _file_system(Path(tempfile.gettempdir()).resolve()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    """The kind of file system that a directory is on; where brokers keep their data decides what a sync costs."""
    kinds = {}
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind = line.split()[:3]
        kinds[where] = kind
    return next((kinds[str(parent)] for parent in (directory, *directory.parents) if str(parent) in kinds), "?")

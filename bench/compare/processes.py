"""Processor time and memory of a process and all below it, from /proc."""

import os
import resource
from pathlib import Path
from typing import Final, NamedTuple

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_PARENT: Final = 1
_TIMES: Final = slice(11, 15)
_RESIDENT: Final = 21
"""Fields of /proc/PID/stat, counted from the one behind the name."""
_ROOT: Final = Path(__file__).parents[2]


class Usage(NamedTuple):
    """Processor time since the start, user and system, of reaped children too; resident memory now."""

    cpu_seconds: float
    resident_bytes: int
    pids: tuple[int, ...]


def usage_of_tree(root: int) -> Usage:
    """Of a process and all its descendants that live. Raises ProcessLookupError when there is no such process."""
    fields: dict[int, list[str]] = {}
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        pid = int(path.parent.name)
        fields[pid] = words
        children.setdefault(int(words[_PARENT]), []).append(pid)
    if root not in fields:
        raise ProcessLookupError(f"there is no process {root}")
    tree, ahead = [], [root]
    while ahead:
        pid = ahead.pop()
        tree.append(pid)
        ahead += children.get(pid, [])
    ticks = sum(sum(map(int, fields[pid][_TIMES])) for pid in tree)
    pages = sum(int(fields[pid][_RESIDENT]) for pid in tree)
    return Usage(ticks / _TICKS, pages * _PAGE_BYTES, tuple(tree))


def resident_bytes(pids: tuple[int, ...]) -> int:
    """The memory of these processes, as far as they live."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except OSError:
            continue
    return total


def machine_busy_seconds() -> float:
    """Processor time that everything on the machine has used since it started."""
    user, nice, system, _, _, interrupts, soft, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + interrupts + soft) / _TICKS


def own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def child_environment() -> dict[str, str]:
    """The environment in which a child finds this package, whatever its working directory is."""
    paths = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def allow_many_files() -> None:
    """Raise this process's limit of open files, and so that of those it starts, as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

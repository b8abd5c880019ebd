"""Data directories for the tests of the doctor: sound ones, crashed ones, and ways to damage them. No tests here."""

import json
import shutil
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, RETAINED, Commit
from headrace.storage.group_state import STREAM, WORK
from headrace.storage.local.doctor import Problem, QueueRow, Report
from headrace.storage.local.engine import LocalEngine, LocalSettings

SETTINGS = LocalSettings(
    journal_file_bytes=1 << 16, checkpoint_bytes=1 << 20, tail_bytes=1 << 12, segment_bytes=1 << 12, cache_bytes=1 << 16
)
_SOURCE = Source("orders")


def commit(engine: LocalEngine, changes: Commit) -> None:
    results: list[HeadraceError | None] = []
    engine.commit(changes, results.append)
    engine.sync()
    assert results == [None]


def append(engine: LocalEngine, log: str, count: int = 20) -> None:
    changes = Commit()
    changes.append(log, [Message(_SOURCE, bytes(200), 1_000_000 + index) for index in range(count)])
    commit(engine, changes)


def filled_directory(root: Path) -> Path:
    """Two queues of several segments, two groups and two tables, closed properly."""
    for _ in range(4):  # each closing flushes, so the blocks and segments are the same every time
        engine = LocalEngine(root, settings=SETTINGS)
        for log in ("orders", "other"):
            append(engine, log)
        engine.close()
    engine = LocalEngine(root, settings=SETTINGS)
    changes = Commit()
    changes.create_group("orders", "work", WORK)
    changes.claim("orders", "work", 0, 10, "ann", 5)
    changes.ack("orders", "work", 0, 2)
    changes.ack("orders", "work", 4, 5)
    changes.create_group("other", "audit", STREAM, start=7)
    changes.put(QUEUES, b"orders", b'{"type":"classic"}')
    changes.put(RETAINED, b"topic", b"value")
    commit(engine, changes)
    engine.close()
    return root


def crashed_directory(root: Path) -> Path:
    """The same as a kill -9 leaves it: three more commits of five messages, which only the journal has."""
    live = filled_directory(root.with_name("live"))
    engine = LocalEngine(live, settings=LocalSettings(journal_file_bytes=1 << 16))
    for _ in range(3):
        append(engine, "orders", 5)
    shutil.copytree(live, root)
    engine.close()
    return root


def segments(root: Path, queue: str = "orders") -> list[Path]:
    return sorted((root / "queues" / queue / "segments").glob("*.seg"))


def journal_in_use(root: Path) -> tuple[Path, int, int]:
    """The journal file the checkpoint points into, where its last record starts, and where the checkpoint's ended."""
    index, at = json.loads((root / "journal" / "checkpoint.json").read_bytes())["journal"]
    for path in (root / "journal").glob("*.jnl"):
        data = path.read_bytes()
        if int.from_bytes(data[16:24], "little") == index:
            return path, data.rfind(b"HRJR"), at
    raise AssertionError(f"no journal file has index {index}")


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0xFF]))


def snapshot(root: Path) -> dict[str, tuple[bytes, int]]:
    """Contents and time of change of every file."""
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()}


def contents(root: Path) -> dict[str, bytes]:
    """Contents of every file but the lock, which says who was here last."""
    return {path: data for path, (data, _) in snapshot(root).items() if path != str(root / "LOCK")}


def row_of(report: Report, name: str) -> QueueRow:
    (row,) = [row for row in report.queues if row.name == name]
    return row


def only(problems: list[Problem]) -> Problem:
    (problem,) = problems
    return problem


def where(problem: Problem) -> tuple[str, int]:
    return problem.file, problem.position

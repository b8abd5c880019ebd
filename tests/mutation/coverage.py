"""Which test reaches which lines, and how long it takes: measured once, then only for test files that changed."""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any, Final, final

import pytest

ROOT: Final = Path(__file__).parents[2]
RUNS: Final = ROOT / "build" / "mutation"
_PACKAGE: Final = ROOT / "src" / "headrace"
_COVERED: Final = (_PACKAGE / "core", _PACKAGE / "protocols")
_SAVED_EACH_SECONDS: Final = 60
_FILE: Final = RUNS / "coverage.json"


@final
class Coverage:
    """The tests that reach a line. Tests that fail without a mutant are left out."""

    def __init__(self) -> None:
        self._sources = _digest(sorted(_PACKAGE.rglob("*.py")))
        self._tests: dict[str, dict[str, Any]] = {}
        self._digests: dict[Path, str] = {}
        if _FILE.exists() and (stored := json.loads(_FILE.read_text()))["sources"] == self._sources:
            self._tests = stored["tests"]

    def missing(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """The tests that are not measured yet, failed, or were measured before their file changed."""
        return [item for item in items if self._tests.get(item.nodeid, {}).get("file") != self._digest(item.path)]

    def _digest(self, path: Path) -> str:
        if path not in self._digests:
            self._digests[path] = _digest([path])
        return self._digests[path]

    def measure(self, items: list[pytest.Item], run: Callable[[pytest.Item], bool], say: Callable[[str], None]) -> int:
        """Run tests and store which lines they reach."""
        saved = time.monotonic()
        for number, item in enumerate(items, 1):
            trace = _Trace()
            sys.settrace(trace.enter)
            threading.settrace(trace.enter)
            began = time.perf_counter()
            passed = run(item)
            seconds = time.perf_counter() - began
            sys.settrace(None)
            threading.settrace(None)
            if not passed:
                say(f"fails without a mutant: {item.nodeid}")
            self._tests[item.nodeid] = {
                "file": self._digest(item.path) if passed else "",
                "seconds": round(seconds, 4),
                "lines": {path: sorted(lines) for path, lines in sorted(trace.lines.items())} if passed else {},
            }
            if number == len(items) or time.monotonic() > saved + _SAVED_EACH_SECONDS:
                saved = time.monotonic()
                self._save()
                say(f"measured {number} of {len(items)} tests")
        return 0

    def _save(self) -> None:
        RUNS.mkdir(parents=True, exist_ok=True)
        _FILE.write_text(json.dumps({"sources": self._sources, "tests": self._tests}))

    def seconds(self, test: str) -> float:
        return float(self._tests[test]["seconds"])

    def reaching(self, path: Path, items: list[pytest.Item]) -> dict[int, list[pytest.Item]]:
        """The tests that reach each line of a file, the nearest first.

        Near are tests in files named after the module, then the fastest of each file.
        """
        name = str(path.relative_to(ROOT))
        found: dict[int, list[tuple[tuple[int, float], pytest.Item]]] = {}
        ranks: dict[Path, int] = {}
        for item in sorted(items, key=lambda item: self.seconds(item.nodeid)):
            lines = self._tests[item.nodeid]["lines"].get(name, ())
            if not lines:
                continue
            rank = ranks[item.path] = ranks.get(item.path, -1) + 1
            rank = 0 if path.stem in item.path.stem else rank
            for line in lines:
                found.setdefault(line, []).append(((rank, self.seconds(item.nodeid)), item))
        return {line: [item for _, item in sorted(tests, key=lambda each: each[0])] for line, tests in found.items()}


@final
class _Trace:
    """The lines of the package that were reached."""

    def __init__(self) -> None:
        self.lines: dict[str, set[int]] = {}
        self._files: dict[str, Callable[..., Any] | None] = {}

    def enter(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename
        if name not in self._files:
            self._files[name] = self._recorder(Path(name))
        return self._files[name]

    def _recorder(self, path: Path) -> Callable[..., Any] | None:
        if not any([path.is_relative_to(folder) for folder in _COVERED]):
            return None
        lines = self.lines.setdefault(str(path.relative_to(ROOT)), set())

        def record(frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
            lines.add(frame.f_lineno)
            return record

        return record


def _digest(paths: Iterable[Path]) -> str:
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]

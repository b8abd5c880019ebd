"""Runs tests against mutants: one process has loaded all modules and tests, and forks for each mutant."""

import contextlib
import gc
import os
import resource
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TextIO, final

import pytest
from _pytest.runner import runtestprotocol

from tests.mutation.coverage import ROOT, Coverage
from tests.mutation.mutants import Mutant, Source
from tests.mutation.results import Results

_MEMORY_BYTES: Final = 6 << 30
"""A mutant may loop and grow."""
_KILLED: Final = 1
_LEFT: Final = 0
_Functions = dict[tuple[str, int], list[FunctionType]]
"""The functions of a module that are in memory, by name and first line."""


@final
class Runner:
    """A plugin of pytest that has each mutant of some files killed, in place of the tests' own run."""

    def __init__(self, paths: list[Path], again: bool, seconds: float, scratch: Path, out: TextIO) -> None:
        self._paths = paths
        self._again = again
        self._seconds = seconds
        self._scratch = scratch
        self._out = out
        self._coverage = Coverage()
        self._sound: dict[str, bool] = {}
        """Whether a test that killed a mutant passes by itself without one."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        from hypothesis import Phase, settings  # not before pytest, which rewrites its assertions

        # The same examples each time, and nothing kept of them; a mutant needs no smallest example.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile(
            "mutation", settings.default, derandomize=True, database=None, phases=phases, max_examples=30
        )
        settings.load_profile("mutation")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        items = session.items
        if missing := self._coverage.missing(items):
            self._say(f"measuring {len(missing)} tests")
            self._fork(lambda: self._coverage.measure(missing, _passes, self._say))
            self._coverage = Coverage()
        functions = [_functions(path) for path in self._paths]
        gc.collect()
        gc.freeze()  # memory stays shared with the forks
        for path, of_file in zip(self._paths, functions, strict=True):
            self._run_file(path, of_file, items)
        return True

    def _run_file(self, path: Path, functions: _Functions, items: list[pytest.Item]) -> None:
        source = Source(path)
        results = Results(source)
        reaching = self._coverage.reaching(path, items)
        killers: dict[str, Counter[str]] = {}
        for mutant in source.mutants:
            known = results.find(mutant)
            kills = killers.setdefault(mutant.function, Counter())
            if known is None or (self._again and known["outcome"] == "left" and not results.is_explained(mutant)):
                near = sorted(reaching.get(mutant.statement, []), key=lambda item: -kills[item.nodeid])
                known = self._run(partial(_change, mutant, source, functions), near)
                results.add(mutant, known)
            if known["outcome"] == "killed":
                kills[known["by"]] += 1
            elif not results.is_explained(mutant):
                count = f"{known['ran']} of {known['reach']} tests"
                self._say(f"{path.relative_to(ROOT)}:{mutant.line}: {mutant.operator}: {mutant.text} ({count})")
        self._say(results.summary(source.mutants))

    def _run(self, change: Callable[[], bool], tests: list[pytest.Item]) -> dict[str, Any]:
        """Run tests against a mutant until one fails or the time is over."""
        log = self._scratch / "log"

        def attempt() -> int:
            if not change():
                return _KILLED
            began = time.process_time()
            for item in tests:
                if time.process_time() - began > self._seconds:
                    break
                with log.open("a") as file:
                    file.write(f"{item.nodeid}\n")
                if not self._passes_in_time(item):
                    return _KILLED
            return _LEFT

        while True:
            log.write_text("")
            status = self._fork(attempt)
            ran = log.read_text().splitlines()
            if status == _LEFT:
                return {"outcome": "left", "ran": len(ran), "reach": len(tests)}
            if not ran:
                return {"outcome": "killed", "by": "compile"}
            last = next(item for item in tests if item.nodeid == ran[-1])
            if self._is_sound(last):
                outcome = {"outcome": "killed", "by": ran[-1]}
                return outcome if os.WIFEXITED(status) else outcome | {"signal": os.WTERMSIG(status)}
            tests = [item for item in tests if item is not last]

    def _is_sound(self, item: pytest.Item) -> bool:
        if item.nodeid not in self._sound:
            self._sound[item.nodeid] = self._fork(lambda: _LEFT if self._passes_in_time(item) else _KILLED) == _LEFT
        return self._sound[item.nodeid]

    def _passes_in_time(self, item: pytest.Item) -> bool:
        """Run one test in this fork, which is killed if the test takes far longer than without a mutant."""
        seconds = self._coverage.seconds(item.nodeid)
        signal.setitimer(signal.ITIMER_PROF, 2 + 5 * seconds)
        signal.setitimer(signal.ITIMER_REAL, 20 + 20 * seconds)  # the machine may be busy
        return _passes(item)

    def _fork(self, work: Callable[[], int]) -> int:
        """Do something in a fork of this process, and end all processes that it started; returns its wait status."""
        child = os.fork()
        if child == 0:
            status = _KILLED
            try:
                os.setpgid(0, 0)
                resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                status = work()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        shutil.rmtree(self._scratch / "tests", ignore_errors=True)
        return status

    def _say(self, text: str) -> None:
        print(text, file=self._out, flush=True)


def _passes(item: pytest.Item) -> bool:
    return not any([report.failed for report in runtestprotocol(item, log=False)])


def _functions(path: Path) -> _Functions:
    found: _Functions = {}
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == str(path):
            found.setdefault((each.__code__.co_qualname, each.__code__.co_firstlineno), []).append(each)
    return found


def _change(mutant: Mutant, source: Source, functions: _Functions) -> bool:
    """Give the functions of this process the mutant's code; False if there is no such code."""
    mutant.apply()
    try:
        for place, code in source.codes().items():
            for function in functions.get(place, ()):
                function.__code__ = code
    except (SyntaxError, ValueError):
        return False
    return True

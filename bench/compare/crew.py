"""The processes of the load generator, seen from the one that starts them: ready, go, how far, and what they say."""

import contextlib
import json
import pickle
import selectors
import subprocess
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Literal, final

from bench.compare.counters import Counters
from bench.compare.load import Job, Unsupported, Wrong
from bench.compare.processes import child_environment
from headrace.process import python

Role = Literal["publish", "consume"]

_ROLES: Final[dict[str, tuple[Role, ...]]] = {
    "publish": ("publish",),
    "drain": ("consume",),
    "flow": ("consume", "publish"),
}
_READY_SECONDS: Final = 180.0
_END_SECONDS: Final = 60.0


@final
class Crew:
    """One process for each role of a job."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._folder = folder
        path = folder / "counters"
        self.counters = Counters(path, is_new=True)
        self._job = replace(job, counters=str(path))
        self._processes: dict[Role, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Crew":
        try:
            for role in _ROLES[self._job.step.mode]:
                self._start(role)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _start(self, role: Role) -> None:
        """Start it and wait until it is connected. Raises Unsupported and Wrong with what it says instead."""
        with (self._folder / f"{role}.log").open("wb") as log:
            process = subprocess.Popen(
                python("-m", "bench.compare.worker", role),
                env=child_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # or a line could hide in a buffer from `_has_line`
                start_new_session=True,
            )
        self._processes[role] = process
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it says why on its way out
            process.stdin.write(pickle.dumps(self._job))
            process.stdin.close()
        self._hear(role, _READY_SECONDS)

    @property
    def roles(self) -> list[Role]:
        return list(self._processes)

    def is_over(self, role: Role) -> bool:
        """True if it has said its last."""
        return _has_line(self._output(role), 0.0)

    def last_words(self, role: Role) -> dict[str, Any]:
        """Return its report. Raises Unsupported and Wrong with what went wrong."""
        return self._hear(role, _END_SECONDS)

    def _hear(self, role: Role, patience_seconds: float) -> dict[str, Any]:
        output = self._output(role)
        if not _has_line(output, patience_seconds):
            raise Wrong(f"the generator that is to {role} says nothing for {patience_seconds:.0f} s")
        line = output.readline()
        if not line:
            said = (self._folder / f"{role}.log").read_text(errors="replace").strip().splitlines()
            raise Wrong(f"the generator that is to {role} ended: {said[-1] if said else 'it said nothing'}")
        words: dict[str, Any] = json.loads(line)
        if "unsupported" in words:
            raise Unsupported(words["unsupported"])
        if "failed" in words:
            raise Wrong(words["failed"])
        return words

    def _output(self, role: Role) -> IO[bytes]:
        output = self._processes[role].stdout
        assert output is not None
        return output

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _has_line(output: IO[bytes], wait_seconds: float) -> bool:
    """True if a line, or the end, can be read; lines are written whole."""
    with selectors.DefaultSelector() as selector:
        selector.register(output, selectors.EVENT_READ)
        return bool(selector.select(wait_seconds))

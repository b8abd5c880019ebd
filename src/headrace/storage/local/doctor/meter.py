"""How far an examination is, in bytes. Counts only; whoever shows it is elsewhere."""

from pathlib import Path
from typing import Final, final

from headrace.storage.local.doctor.findings import Progress

_STEP_BYTES: Final = 1 << 20


@final
class Meter:
    """Adds up what was read of each file and tells, about once a mebibyte."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._done = 0
        self._path: Path | None = None
        self._position = 0
        self._told = 0

    def reached(self, path: Path, position: int) -> None:
        """The reading of this file has got here."""
        if path != self._path:
            self._path = path
            self._position = 0
        self._done += max(0, position - self._position)
        self._position = max(position, self._position)
        if self._progress is not None and self._done - self._told >= _STEP_BYTES:
            self._told = self._done
            self._progress(min(self._done, self._total), self._total)

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total)

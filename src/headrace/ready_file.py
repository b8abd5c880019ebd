"""The ready file: says to other programs that the broker serves, where, and from what. Nothing else reads it here."""

import contextlib
import json
import os
from pathlib import Path
from typing import final

from headrace.errors import Unavailable
from headrace.storage.local.disk import open_privately


@final
class ReadyFile:
    """A file that is there while this process serves; with no path, nothing is written."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, data: str | None, ports: dict[str, int]) -> None:
        """Say this process, where its data is and on which ports it listens. Raises Unavailable."""
        path = self._path
        if path is None:
            return
        text = json.dumps({"pid": os.getpid(), "data": data, "ports": ports})
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            with open(draft, "w", opener=open_privately) as file:
                file.write(text + "\n")
            draft.replace(path)
        except OSError as error:
            raise Unavailable(
                f"the ready file {path} cannot be written: {error.strerror or error}; choose another with --ready-file"
            ) from error

    def remove(self) -> None:
        """Remove it unless it has become another process's."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(self._path.read_text())["pid"] == os.getpid():
                self._path.unlink()

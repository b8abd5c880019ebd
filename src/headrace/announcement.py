"""The announcement that the broker serves: lines for people, the log, and the ready file for programs."""

import contextlib
import json
import logging
import os
from pathlib import Path
from typing import Final, final

from headrace.config.configuration import Configuration
from headrace.config.replication import MAIN
from headrace.config.settings import JSON_FORMAT, Settings
from headrace.core.pubsub.pubsub import is_inner
from headrace.engines import name_of
from headrace.errors import Unavailable
from headrace.storage.api import QUEUES, Engine
from headrace.storage.local.disk import open_privately
from headrace.version import __version__


@final
class ReadyFile:
    """A file that exists while this process serves; without a path, no file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def write(self, data: str | None, ports: dict[str, int]) -> None:
        """Write process id, place of the data and ports. Raises Unavailable."""
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
        """Remove the file unless another process has written it since."""
        if self._path is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(self._path.read_text())["pid"] == os.getpid():
                self._path.unlink()


_WITH_DASHBOARD: Final = ("http", "https")
_EVERYWHERE: Final = ("", "0.0.0.0", "::")  # addresses that a browser cannot visit
_log: Final = logging.getLogger("headrace")


def announce(engine: Engine | None, configuration: Configuration, ports: dict[str, int], took_us: int) -> None:
    """Announce on stdout, or in the log where that is JSON. Without an engine, this node waits for its turn."""
    lines = _lines(engine, configuration, ports, took_us)
    if configuration.settings.log.format == JSON_FORMAT:
        for text in lines:
            _log.info("%s", text.strip())
    else:
        print("\n".join(lines), flush=True)


def _lines(engine: Engine | None, configuration: Configuration, ports: dict[str, int], took_us: int) -> list[str]:
    settings, file = configuration.settings, configuration.document.file
    return [
        f"headrace {__version__} {_doing(engine, settings)}",
        *([] if engine is None else [f"  {_contents(engine)}; opened in {took_us / 1_000_000:.3f} s"]),
        *([f"  configured by {file.resolve()}"] if file is not None else []),
        *[_line(settings.listeners.host, name, port) for name, port in ports.items()],
    ]


def _doing(engine: Engine | None, settings: Settings) -> str:
    kept, node, group = name_of(settings.storage), settings.cluster.node, settings.cluster.group
    where = f"{'store' if settings.storage.store else 'data directory'} {kept}" if kept else "memory (nothing is kept)"
    if group != MAIN:
        where = f"replication group {group!r} of {where}"
    if engine is None:
        return f"waits for its turn as node {node!r} of {where}"
    return f"serves {where}" + (f" as node {node!r}" if node else "")


def _contents(engine: Engine) -> str:
    """Count queues, messages and bytes. A queue that never had a message is declared but has no log."""
    declared = {key.decode() for key, _ in engine.items(QUEUES)}
    queues = len(declared | {name for name in engine.logs() if not is_inner(name)})
    found = [engine.log(name) for name in engine.logs()]
    messages = sum(log.next_offset - log.first_offset for log in found)
    return f"queues {queues:,}, messages {messages:,}, {_size(sum(log.size_bytes for log in found))}"


def _size(count: int) -> str:
    size, unit = float(count), "bytes"
    for larger in ("kB", "MB", "GB", "TB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} bytes" if unit == "bytes" else f"{size:,.1f} {unit}"


def _line(host: str, name: str, port: int) -> str:
    where = f"[{host}]" if ":" in host else host
    text = f"  {name} on {where}:{port}"
    near = "localhost" if host in _EVERYWHERE else where
    return f"{text}, with the dashboard at {name}://{near}:{port}/" if name in _WITH_DASHBOARD else text

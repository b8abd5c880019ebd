"""Builds the program: the only module that knows every room. Opens, serves, stops; decides nothing about messages."""

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from rich.console import Console
from rich.filesize import decimal
from rich.logging import RichHandler

from headrace.clock import Clock, SystemClock
from headrace.errors import Fatal, Unavailable
from headrace.storage.api import Engine, Wake
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine

DEFAULT_DATA: Final = Path("data")
_POLL_SECONDS: Final = 1.0
_log: Final = logging.getLogger("headrace")

OpenEngine = Callable[[Path | None, Wake], Engine]


@final
@dataclass(frozen=True)
class ServeSettings:
    """What `headrace serve` was asked for; without a data directory everything is kept in memory."""

    data: Path | None = DEFAULT_DATA
    ready_file: Path | None = None


def open_engine(data: Path | None, wake: Wake) -> Engine:
    """The engine over a data directory, or in memory without one."""
    if data is None:
        return MemoryEngine(wake)
    try:
        return LocalEngine(data, wake)
    except OSError as error:
        raise Unavailable(
            f"the data directory {data} cannot be opened: {error.strerror or error}; "
            f"make it writable, or choose another with --data"
        ) from error


def serve(
    settings: ServeSettings, console: Console, clock: Clock | None = None, opener: OpenEngine = open_engine
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises Unavailable when the directory is in use and Corrupt when it is damaged, before anything is served; Fatal,
    at once and without tidying up, when the disk fails: nothing that is in memory can be promised any more.
    """
    log_to_stderr()
    raise_file_limit()
    program = _Program(settings, console, clock or SystemClock(), opener)
    asyncio.run(program.run())


def log_to_stderr() -> None:
    """Send the log to stderr: in colour for people, a line each for files and pipes."""
    handler: logging.Handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    if sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False)
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler], force=True)


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each connection and journal file is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@final
class _Program:
    def __init__(self, settings: ServeSettings, console: Console, clock: Clock, opener: OpenEngine) -> None:
        self._settings = settings
        self._console = console
        self._clock = clock
        self._opener = opener
        self._engine: Engine | None = None
        self._stop = asyncio.Event()
        self._failure: Fatal | None = None
        self._poll_is_due = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        started_us = self._clock.monotonic_us()
        engine = self._engine = self._opener(self._settings.data, lambda: self._wake(loop))
        try:
            self._announce(engine, self._clock.monotonic_us() - started_us)
            self._write_ready_file()
            await self._serve()
            if self._failure is not None:
                raise self._failure
            _log.info("stopping: what was taken is being written down")
            engine.close()
        finally:
            self._remove_ready_file()

    async def _serve(self) -> None:
        while not self._stop.is_set():
            self._poll()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _POLL_SECONDS)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the engine's threads: have its results taken in soon, once for all that arrive until then."""
        if not self._poll_is_due:
            self._poll_is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits for results
                loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        self._poll_is_due = False
        if self._engine is None or self._failure is not None:
            return
        try:
            self._engine.poll()
        except Fatal as failure:
            self._failure = failure
            self._stop.set()

    def _announce(self, engine: Engine, took_us: int) -> None:
        logs = [engine.log(name) for name in engine.logs()]
        messages = sum(log.next_offset - log.first_offset for log in logs)
        size = decimal(sum(log.size_bytes for log in logs))
        where = f"data directory {self._settings.data.resolve()}" if self._settings.data else "memory (nothing is kept)"
        lines = (
            f"headrace serves {where}",
            f"  queues {len(logs):,}, messages {messages:,}, {size}; opened in {took_us / 1_000_000:.3f} s",
            "  no listeners yet: this release serves the storage engine",
        )
        self._console.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)

    # -- the ready file ----------------------------------------------------------------------------------------------

    def _write_ready_file(self) -> None:
        path = self._settings.ready_file
        if path is None:
            return
        data = str(self._settings.data.resolve()) if self._settings.data else None
        text = json.dumps({"pid": os.getpid(), "data": data, "ports": {}})
        draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            draft.write_text(text + "\n")
            draft.replace(path)
        except OSError as error:
            raise Unavailable(
                f"the ready file {path} cannot be written: {error.strerror or error}; choose another with --ready-file"
            ) from error

    def _remove_ready_file(self) -> None:
        """Remove it unless it has become another process's."""
        path = self._settings.ready_file
        if path is None:
            return
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            if json.loads(path.read_text())["pid"] == os.getpid():
                path.unlink()

"""One run of a pipeline: its state directory, its streaming query, its progress, its end. No messages, no display.

<state>/pipeline.json    the identity of the pipeline
<state>/checkpoint/      Spark's own
"""

import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final, final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.errors import Refused

DEFAULT_STATES: Final = Path("pipelines")
"""Default directory of all states, below the current directory."""
POLL_SECONDS: Final = 0.2
_NOT_INSTALLED: Final = "No module named 'headrace'"


# -- state -------------------------------------------------------------------------------------------------------------


@final
class State:
    """The state directory of one pipeline; see `open_state`."""

    def __init__(self, directory: Path, id_: str, kept: Mapping[str, object]) -> None:
        self.directory = directory
        self.id = id_
        """The same in all runs."""
        self.kept = kept
        """Facts that the first run found and later runs use again."""

    @property
    def checkpoint(self) -> str:
        return str(self.directory / "checkpoint")

    def keep(self, **found: object) -> None:
        """Keep facts that must not change between runs."""
        self.kept = {**self.kept, **found}
        stored = json.loads(_file(self.directory).read_text())
        write_json(_file(self.directory), {**stored, "kept": self.kept})

    def remove(self) -> None:
        """Remove the state; an interruption leaves all of it or nothing of it under its name."""
        over = self.directory.with_name(f"{self.directory.name}.over")
        shutil.rmtree(over, ignore_errors=True)
        self.directory.rename(over)
        shutil.rmtree(over)


def open_state(directory: Path, name: str, identity: Mapping[str, object]) -> State:
    """Create or open the state of a pipeline. Raises Refused when the directory is another pipeline's."""
    directory = directory.absolute()
    file = _file(directory)
    wanted = json.loads(json.dumps(identity))
    if not file.exists():
        if directory.exists() and any(directory.iterdir()):
            raise Refused(f"{directory} is not empty and is no pipeline's state; name another directory with --state")
        directory.mkdir(parents=True, exist_ok=True)
        write_json(file, {"name": name, "id": uuid.uuid4().hex, "pipeline": wanted, "kept": {}})
    try:
        stored = json.loads(file.read_text())
        found, id_, kept = dict(stored["pipeline"]), str(stored["id"]), dict(stored["kept"])
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{file} cannot be read ({error}); remove {directory} to start anew") from error
    for key, value in wanted.items():
        if found.get(key) != value:
            raise Refused(
                f"{directory} belongs to a pipeline whose {key} is {found.get(key)!r}, not {value!r}. Go on with that "
                f"one, give this one a name of its own with --name, or remove the directory to start anew"
            )
    return State(directory, id_, kept)


def read_json(file: Path) -> dict[str, Any]:
    """Read a file of `write_json`; return nothing without the file. Raises Refused when it cannot be read."""
    try:
        return dict(json.loads(file.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"{file} cannot be read ({error}); remove its directory to start anew") from error


def write_json(file: Path, value: object) -> None:
    """Replace the file's content durably, or leave the file unchanged."""
    fresh = file.with_name(f"{file.name}.tmp")
    with fresh.open("w") as out:
        json.dump(value, out, indent=1, sort_keys=True)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)


def _file(directory: Path) -> Path:
    return directory / "pipeline.json"


# -- progress ----------------------------------------------------------------------------------------------------------


WAITING: Final = "waiting for messages"
_PHASES: Final = (("Waiting for", WAITING), ("Processing", "processing"), ("Getting offsets", "looking for messages"))
"""The beginnings of what Spark says of a query, and its phases; others are of the start."""


@dataclass(frozen=True)
class Progress:
    """The work of one pipeline since its start."""

    name: str
    messages: int
    """Messages read."""
    batches: int
    seconds: float
    behind: int | None = None
    """Messages that wait to be read, where that is known."""
    reached: Mapping[str, int] = field(default_factory=dict)
    """The next offset of each queue that a stream reads."""
    note: str = ""
    """The reason why it waits or failed; "" while it works."""
    phase: str = ""
    """What it does now, such as reading; "" where that is over or not known."""

    @property
    def is_idle(self) -> bool:
        """Return whether it waits, for messages or for its time."""
        return bool(self.note) or self.phase == WAITING

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0


Tell = Callable[[Progress], None]


def say_nothing(progress: Progress) -> None:
    """Ignore the progress."""


@final
class Watch:
    """The observer of one streaming query; `close` runs when the query has ended."""

    def __init__(
        self,
        name: str,
        query: StreamingQuery,
        close: Callable[[], None] = lambda: None,
        phase: Callable[[], str] = lambda: "",
    ) -> None:
        self.name = name
        self.query = query
        self.close = close
        self._phase = phase
        """Says more than Spark about what a batch does; "" to leave it to Spark."""
        self._started = time.monotonic()
        self._counted: set[int] = set()
        self._messages = 0
        self._behind: int | None = None
        self._reached: dict[str, int] = {}

    def update(self) -> Progress:
        """Count the batches since the last call."""
        for each in self.query.recentProgress:
            if each.numInputRows and each.batchId not in self._counted:
                self._counted.add(each.batchId)
                self._messages += each.numInputRows
        last = self.query.lastProgress
        if last is not None:
            self._behind = sum(_distance(source.endOffset, source.latestOffset) for source in last.sources)
            self._reached = _reached([source.endOffset for source in last.sources])
        seconds = time.monotonic() - self._started
        phase = (self._phase() or _phase(str(self.query.status["message"]))) if self.query.isActive else ""
        return Progress(
            self.name, self._messages, len(self._counted), seconds, self._behind, self._reached, phase=phase
        )


def _phase(said: str) -> str:
    """Return the phase of a streaming query."""
    return next((phase for beginning, phase in _PHASES if said.startswith(beginning)), "starting")


def _distance(end: str, latest: str) -> int:
    """Return the messages between two offsets of the data source, over all queues; 0 where Spark lacks one of them."""
    try:
        reached, there = json.loads(end), json.loads(latest)
    except ValueError:  # None, as text
        return 0
    if not isinstance(reached, dict) or not isinstance(there, dict):
        return 0
    return sum(max(0, _next(there[queue]) - _next(reached.get(queue, 0))) for queue in there)


def _reached(ends: Sequence[str]) -> dict[str, int]:
    """Return the next offset of each queue in the offsets of sources; the lowest where several read one queue."""
    found: dict[str, int] = {}
    for end in ends:
        try:
            offsets = json.loads(end)
        except ValueError:
            continue
        for queue, value in offsets.items() if isinstance(offsets, dict) else ():
            found[queue] = min(found.get(queue, _next(value)), _next(value))
    return found


def _next(value: object) -> int:
    """Return the offset of the next message of a queue in an offset of the data source; 0 in a claim's."""
    offset = value.get("next", 0) if isinstance(value, Mapping) else value
    return offset if isinstance(offset, int) else 0


# -- start and end -----------------------------------------------------------------------------------------------------


def start_query(
    writer: DataStreamWriter, name: str, state: State, once: bool, every: str, path: str | None = None
) -> StreamingQuery:
    """Start a streaming query: once over the existing messages, or continuously at the interval `every`."""
    writer = writer.queryName(name).option("checkpointLocation", state.checkpoint)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=every or "0 seconds")
    return writer.start(path)


def wait(watches: Sequence[Watch], tell: Tell) -> list[Progress]:
    """Wait until every query has ended. If one fails, stop the others and raise Refused."""
    waiting = list(watches)
    try:
        with interrupts_held() as let_through:
            while waiting:
                for watch in list(waiting):
                    with refusals(f"pipeline {watch.name!r} failed"):
                        ended = watch.query.awaitTermination(POLL_SECONDS / len(waiting))  # type: ignore[arg-type]
                    tell(watch.update())
                    if ended:
                        waiting.remove(watch)
                    let_through()
        return [watch.update() for watch in watches]
    finally:
        for watch in waiting:
            watch.query.stop()
        for watch in watches:
            watch.close()


@contextmanager
def interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold the first Ctrl-C or SIGTERM back until the body lets it through; a second one passes at once.

    An interrupt within a call to Java closes the connection to it, and the queries could not end in order.
    """
    came: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        if len(came) > 1:
            let_through()

    def let_through() -> None:
        handler = before.get(came[0]) if came else None
        if callable(handler):
            handler(came[0], None)

    before = {int(number): signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    is_main = threading.current_thread() is threading.main_thread()  # only there signals can be handled
    held = [number for number, handler in before.items() if callable(handler) and is_main]
    for number in held:
        signal.signal(number, hold)
    try:
        yield let_through
    finally:
        for number in held:
            signal.signal(number, before[number])


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn an error of Spark into Refused, with a text before its reason."""
    try:
        yield
    except PySparkException as error:
        raise Refused(f"{what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return the line of a long error text that says what happened."""
    if _NOT_INSTALLED in str(error):
        return (
            "the Spark server has no Headrace of its own, which streams need (sql, run, archive, assign): install "
            "'headrace[spark]' there, in the Python that it runs"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if line.startswith("headrace.errors.")]
    if own:
        return own[-1].partition(": ")[2]
    told = [line for line in lines if not line.startswith(("at ", "File ", "Traceback", "==", "JVM stacktrace"))]
    return told[0] if told else type(error).__name__

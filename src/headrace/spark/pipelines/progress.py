"""How far running pipelines are: counts and rates, told to whoever asked. How they are shown is the caller's."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final, final

from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from headrace.errors import HeadraceError, Refused

POLL_SECONDS: Final = 0.2
_NOT_INSTALLED: Final = "No module named 'headrace'"


@dataclass(frozen=True)
class Progress:
    """What one pipeline has done since it was started."""

    name: str
    messages: int
    """Messages read."""
    batches: int
    seconds: float
    behind: int | None = None
    """How many messages wait to be read, where that is known."""

    @property
    def rate(self) -> float:
        return self.messages / self.seconds if self.seconds > 0 else 0.0


Tell = Callable[[Progress], None]


def say_nothing(progress: Progress) -> None:
    """For callers who do not want to know."""


@final
class Watch:
    """One streaming query, observed until it ends; `close` is called then."""

    def __init__(self, name: str, query: StreamingQuery, close: Callable[[], None] = lambda: None) -> None:
        self.name = name
        self.query = query
        self.close = close
        self._started = time.monotonic()
        self._counted: set[int] = set()
        self._messages = 0
        self._behind: int | None = None

    def look(self) -> Progress:
        """What is known now."""
        for each in self.query.recentProgress:
            if each.numInputRows and each.batchId not in self._counted:
                self._counted.add(each.batchId)
                self._messages += each.numInputRows
        last = self.query.lastProgress
        if last is not None:
            self._behind = sum(_distance(source.endOffset, source.latestOffset) for source in last.sources)
        seconds = time.monotonic() - self._started
        return Progress(self.name, self._messages, len(self._counted), seconds, self._behind)


def wait(watches: Sequence[Watch], tell: Tell) -> list[Progress]:
    """Until every query has ended, or one has failed: then the others are stopped, and the failure is raised."""
    waiting = list(watches)
    try:
        with _interrupts_held() as let_through:
            while waiting:
                for watch in list(waiting):
                    try:
                        ended = watch.query.awaitTermination(POLL_SECONDS / len(waiting))  # type: ignore[arg-type]
                    except PySparkException as error:
                        raise failed(watch.name, error) from error
                    tell(watch.look())
                    if ended:
                        waiting.remove(watch)
                    let_through()
        return [watch.look() for watch in watches]
    finally:
        for watch in waiting:
            watch.query.stop()
        for watch in watches:
            watch.close()


@contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Have Ctrl-C and SIGTERM wait until they are let through, and a second one not.

    In the middle of a call to Java they would cut the line to it, and with it the orderly end of the queries.
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
    held = [number for number, handler in before.items() if callable(handler) and _is_main_thread()]
    for number in held:
        signal.signal(number, hold)
    try:
        yield let_through
    finally:
        for number in held:
            signal.signal(number, before[number])


def _is_main_thread() -> bool:
    """Whether signals can be handled here."""
    return threading.current_thread() is threading.main_thread()


def failed(name: str, error: Exception) -> HeadraceError:
    """What Spark said, without the traces around it."""
    return Refused(f"pipeline {name!r} failed: {reason_of(error)}")


def reason_of(error: Exception) -> str:
    """The line of a long story that says what happened."""
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


def _distance(end: str, latest: str) -> int:
    """How far apart two offsets of the data source are, over all queues; no distance where Spark has not both."""
    try:
        reached, there = json.loads(end), json.loads(latest)
    except ValueError:  # None, as text
        return 0
    if not isinstance(reached, dict) or not isinstance(there, dict):
        return 0
    return sum(max(0, int(offset) - int(reached.get(queue, 0))) for queue, offset in there.items())

"""Running a pipeline from the command line: the session, how far it is, how it ends. No pipeline."""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from headrace.cli.words import EXIT_PROBLEMS, count, fail
from headrace.clock import SystemClock
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.spark.pipelines.endpoint import Endpoint
    from headrace.spark.pipelines.progress import Progress

DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
DEFAULT_MASTER: Final = "local[*]"
EXIT_INTERRUPTED: Final = 130
_SPOKEN_SECONDS: Final = 10.0
"""How often it is said how far a pipeline is where there is no terminal."""

Url = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_URL",
        help="The broker's HTTP address with the login in it, or a data directory or a store to read.",
    ),
]
Vhost = Annotated[str, typer.Option(help="The virtual host of the queues.")]
ReplicationGroup = Annotated[
    str, typer.Option(metavar="NAME", help="Where --url is a store: which of its groups is read.", show_default=False)
]
Master = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_MASTER", help="Where Spark runs: local\\[*], spark://HOST:7077 or sc://HOST:15002 (Connect)."
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="A setting of Spark's, such as spark.executor.memory=4g; repeatable."),
]
Once = Annotated[bool, typer.Option("--once", help="End when everything that is there now is done.")]
Name = Annotated[str, typer.Option(help="What the pipeline is called; its state is kept under this name.")]
State = Annotated[
    str, typer.Option(help="The directory of the pipeline's state (default: pipelines/NAME).", show_default=False)
]


def endpoint(url: str, vhost: str, replication_group: str = "") -> "Endpoint":
    from headrace.spark.pipelines.endpoint import Endpoint

    return Endpoint(url, vhost, replication_group=replication_group)


@contextmanager
def spark_session(master: str, conf: list[str] | None, *urls: str) -> "Iterator[SparkSession]":
    """Spark for as long as a command runs; executors find the stores at these URLs as this process does."""
    settings = dict(_setting(each) for each in conf or [])
    try:
        with problems_told(), _termination_interrupts():
            from headrace.spark.pipelines.session import open_session, store_settings

            spark = open_session(master, "headrace", {**store_settings(urls), **settings})
            try:
                yield spark
            finally:
                _stop(spark)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where it ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _stop(spark: "SparkSession") -> None:
    """End Spark. An interrupt in the middle of a call to Java has cut the line to it already."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    with suppress(Py4JNetworkError):
        spark.stop()


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM ends a pipeline as Ctrl-C does: in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def problems_told() -> Iterator[None]:
    """What goes wrong becomes a line on stderr and exit code 1; without Spark, what to install."""
    try:
        yield
    except ImportError as error:
        fail(f"pipelines need Spark ({error}): pip install 'headrace[spark,java]'", EXIT_PROBLEMS)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        fail(f"--conf takes KEY=VALUE; {text!r} is no such setting", EXIT_PROBLEMS)
    return key, value


@final
class Board:
    """How far pipelines are: a table that moves on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        self._clock = SystemClock()
        self._told: dict[str, Progress] = {}
        self._said_us = self._clock.now_us()
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._moves = sys.stderr.isatty()

    def __enter__(self) -> "Callable[[Progress], None]":
        if self._moves:
            self._live.start()
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._moves:
            self._live.stop()
        for progress in self._told.values():
            typer.echo(_sentence(progress), err=True)

    def _tell(self, progress: "Progress") -> None:
        self._told[progress.name] = progress
        if self._moves:
            self._live.update(_table(list(self._told.values())))
        elif self._clock.now_us() - self._said_us > _SPOKEN_SECONDS * 1_000_000:
            self._said_us = self._clock.now_us()
            typer.echo(_sentence(progress), err=True)


def _sentence(progress: "Progress") -> str:
    behind = "" if progress.behind is None else f", {progress.behind:,} behind"
    done = f"{count(progress.messages, 'message')} in {progress.seconds:.1f} s"
    return f"{progress.name}: {done}, {progress.rate:,.0f}/s{behind}"


def _table(told: "list[Progress]") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("pipeline")
    for name in ("messages", "per second", "batches", "behind", "seconds"):
        table.add_column(name, justify="right")
    for each in told:
        behind = "-" if each.behind is None else f"{each.behind:,}"
        table.add_row(
            each.name, f"{each.messages:,}", f"{each.rate:,.0f}", f"{each.batches:,}", behind, f"{each.seconds:.0f}"
        )
    return table

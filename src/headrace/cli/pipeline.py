"""`headrace pipeline`: runs pipelines on Spark and shows their progress. The pipelines are in spark/pipelines.

Spark is loaded when a pipeline runs.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final, final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import Column, command, command_group, confirm, count, fail, print_facts, print_rows
from headrace.clock import Clock, SystemClock
from headrace.errors import HeadraceError, missing_extra
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.table import Table

    from headrace.spark.pipelines.endpoint import Endpoint
    from headrace.spark.pipelines.run import Progress

app: Final = command_group(
    "Run data pipelines over queues, on Spark.",
    'headrace pipeline sql --from telemetry --to alerts "SELECT device FROM telemetry WHERE temperature > 90"',
    "headrace pipeline run pipelines.yaml",
    "headrace pipeline archive --from 'orders,returns' --to archive",
)

DEFAULT_URL: Final = "http://guest:guest@127.0.0.1:15672"
DEFAULT_MASTER: Final = "local[*]"
EXIT_INTERRUPTED: Final = 130
REPORT_SECONDS: Final = 1.5
"""Time between two lines of progress where there is no terminal."""
IDLE_SECONDS: Final = 60.0
"""The same while all pipelines wait for messages or for their time."""
_TICK_SECONDS: Final = 0.25

Url = Annotated[
    str,
    typer.Option(
        envvar="HEADRACE_URL",
        help="The broker's HTTP address with the login in it, or a data directory or a store to read.",
    ),
]
Vhost = Annotated[str, typer.Option(help="The virtual host of the queues.")]
ReplicationGroup = Annotated[
    str, typer.Option(metavar="NAME", help="Where --url is a store: which of its groups to read.", show_default=False)
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
Once = Annotated[bool, typer.Option("--once", help="Process the messages that exist now, then end.")]
Name = Annotated[str, typer.Option(help="The pipeline's name; its state is kept under it.")]
State = Annotated[
    str, typer.Option(help="The directory of the pipeline's state (default: pipelines/NAME).", show_default=False)
]
Starting = Annotated[str, typer.Option(help="Where to begin the first time: earliest, latest, an offset or a time.")]
Every = Annotated[str, typer.Option(help="How often to look for messages, such as '10 seconds'.")]


# -- commands ----------------------------------------------------------------------------------------------------------


@command(
    app,
    'headrace pipeline sql --from telemetry --to alerts "SELECT device FROM telemetry WHERE temperature > 90"',
    'headrace pipeline sql --from telemetry --console --once "SELECT count(*) FROM telemetry" --mode complete',
    'headrace pipeline sql --from telemetry --parquet out --watermark "10 minutes" "SELECT window.start, '
    "device, avg(temperature) AS mean FROM telemetry GROUP BY window(timestamp, '1 hour'), device\"",
)
def sql(
    query: Annotated[str, typer.Argument(help="The query; its tables are the queues that it reads.")],
    source: Annotated[
        list[str], typer.Option("--from", help="A queue to read, queues with commas between, or a pattern; repeatable.")
    ],
    to: Annotated[str, typer.Option(metavar="QUEUE", help="Write the rows to this queue.")] = "",
    parquet: Annotated[str, typer.Option(metavar="DIRECTORY", help="Write the rows to Parquet files here.")] = "",
    console: Annotated[bool, typer.Option("--console", help="Print the rows.")] = False,
    schema: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELDS",
            help="The fields of JSON payloads, such as 'device STRING, value DOUBLE', or none; without, from a sample.",
        ),
    ] = None,
    watermark: Annotated[
        list[str] | None,
        typer.Option(metavar="DELAY", help="The longest delay of messages, such as '10 minutes'."),
    ] = None,
    starting: Starting = "earliest",
    mode: Annotated[str, typer.Option(help="The rows to write: append, update or complete.")] = "append",
    every: Every = "",
    max_messages: Annotated[int, typer.Option(help="The most messages in one batch; 0 for no limit.")] = 0,
    once: Once = False,
    name: Name = "sql",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run a query over queues, continuously or once. Started again, it goes on where it ended."""
    schemas, watermarks = _by_queue("--schema", schema, source), _by_queue("--watermark", watermark, source)
    with _spark_session(master, conf, url, queries=[query]) as (spark, tell):
        from headrace.spark.pipelines.sql import SqlSettings, SqlSource, run_sql

        settings = SqlSettings(
            name,
            _endpoint(url, vhost, replication_group),
            tuple(SqlSource(each, "", schemas[each], watermarks[each], starting) for each in source),
            query,
            _state_directory(state, name),
            to,
            parquet,
            console,
            mode,
            once,
            every,
            max_messages,
        )
        run_sql(spark, settings, tell)


def _by_queue(option: str, given: list[str] | None, sources: list[str]) -> dict[str, str]:
    """Return a setting for each queue: a value alone is for the only queue, others begin with a queue's name."""
    found = dict.fromkeys(sources, "")
    for each in given or []:
        queue = next((source for source in sources if each.startswith(f"{source}=")), "")
        if queue:
            found[queue] = each[len(queue) + 1 :]
        elif len(sources) == 1:
            found[sources[0]] = each
        else:
            fail(f"{option} needs a queue in front, such as {sources[0]}=...; {each!r} has none", EXIT_USAGE)
    return found


@command(app, "headrace pipeline run pipelines.yaml", "headrace pipeline run pipelines.yaml --only hot --once")
def run(
    file: Annotated[Path, typer.Argument(help="A YAML file with pipelines.")],
    only: Annotated[list[str] | None, typer.Option(help="Run only the pipeline of this name; repeatable.")] = None,
    once: Once = False,
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Run the job of a file: its pipelines together, by their schedules, and again when they fail.

    It ends when all of them have ended, or when one fails that is not to be started again.
    """
    with _failures():
        from headrace.spark.pipelines.assign import AssignSettings
        from headrace.spark.pipelines.file import Defaults, read_job
        from headrace.spark.pipelines.job import run_job
        from headrace.spark.pipelines.sql import SqlSettings

        job = read_job(file, Defaults(_endpoint(url, vhost, replication_group), once))
    names = [each.name for each in job.pipelines]
    for each in only or []:
        if each not in names:
            fail(f"{file} has no pipeline {each!r}; it has {', '.join(names)}", EXIT_USAGE)
    chosen = [each for each in job.pipelines if not only or each.name in only]
    queries = [each.settings.query for each in chosen if isinstance(each.settings, SqlSettings)]
    urls = [each.settings.endpoint.url for each in chosen]
    assigned = [each.settings.source for each in chosen if isinstance(each.settings, AssignSettings)]
    urls += [source.url for source in assigned if source is not None]
    with _spark_session(master, conf, *urls, queries=queries) as (spark, tell):
        run_job(spark, replace(job, pipelines=tuple(chosen)), tell, once)


_STATUS: Final[tuple[Column, ...]] = (
    "job", ("pipeline", "name"), "state", "messages", "behind", "restarts",
    ("next", lambda each: each["due"] or each["reason"]),
)  # fmt: skip


@connected(app, "headrace pipeline status", "headrace pipeline status --json")
def status(client: Client, as_json: bool) -> None:
    """Show what the pipelines of jobs do, as `headrace pipeline run` tells the broker."""
    query = {"vhost": client.host}
    print_rows(_STATUS, client.pages("pipelines", **query, limit=1000), as_json)


@connected(app, "headrace pipeline forget plant")
def forget(client: Client, as_json: bool, job: Annotated[str, typer.Argument(help="The job's name.")]) -> None:
    """Drop the status of a job that runs no more from the broker."""
    done = client.delete("pipelines", client.host, job)
    print_facts({"forgotten": f"{job}, {count(done['pipelines'], 'pipeline')}"}, as_json, done)


@command(
    app,
    "headrace pipeline archive --from orders --to archive",
    "headrace pipeline archive --from 'sensor-*' --to archive --once",
)
def archive(
    source: Annotated[str, typer.Option("--from", help="Queues to archive: names with commas between, or a pattern.")],
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="The archive.")],
    format: Annotated[str, typer.Option(help="Of the archive: parquet, delta or iceberg.")] = "parquet",  # noqa: A002
    group: Annotated[str, typer.Option(help="The consumer group that tells the broker its progress.")] = "archive",
    every: Annotated[str, typer.Option(help="How often to archive messages.")] = "1 minute",
    once: Once = False,
    name: Name = "archive",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Archive queues as files by queue and date, each message once. Started again, it goes on."""
    if format not in (known := ("parquet", "delta", "iceberg")):
        fail(f"--format is {format!r}; it may be {', '.join(known)}", EXIT_USAGE)
    with _failures():  # a package that is missing is missed before Spark starts
        from headrace.spark.pipelines.tables import require_format

        require_format(format)
    with _spark_session(master, conf, url) as (spark, tell):
        from headrace.spark.pipelines.archive import ArchiveSettings, run_archive

        place = _endpoint(url, vhost, replication_group)
        run_archive(spark, ArchiveSettings(name, place, source, to, group, once, every, "", format), tell)


@command(
    app,
    "headrace pipeline replay --archive archive --from orders --to orders-again --rate 500",
    "headrace pipeline replay --from orders --to test --starting 2026-01-31T12:00Z --ending 2026-01-31T13:00Z",
    "headrace pipeline replay --from orders --to eu --filter \"region = 'eu' AND priority > 3\"",
    "headrace pipeline replay --from orders --to orders-of-january --starting 2026-01-01 --ending 2026-02-01 "
    "--create stream",
)
def replay(
    to: Annotated[str, typer.Option(metavar="QUEUE", help="The queue that gets the messages.")],
    source: Annotated[str, typer.Option("--from", help="The queues that they were in.")] = "",
    archive: Annotated[str, typer.Option(metavar="DIRECTORY", help="Take them from this archive.")] = "",
    starting: Annotated[str, typer.Option(help="The start: earliest, an offset or a time.")] = "earliest",
    ending: Annotated[str, typer.Option(help="The end: latest, an offset or a time.")] = "latest",
    filter: Annotated[str, typer.Option(help="A filter expression: only messages that match it.")] = "",  # noqa: A002
    rate: Annotated[int, typer.Option(min=0, help="The most messages a second; 0 for no limit.")] = 0,
    mark: Annotated[bool, typer.Option("--mark", help="Add headers with the original queue, offset and time.")] = False,
    create: Annotated[
        str, typer.Option(metavar="TYPE", help="Declare the queue if there is none: classic, quorum or stream.")
    ] = "",
    name: Name = "replay",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Store messages of an archive or of a queue's log again. After an interruption it goes on and repeats none."""
    if create not in ("", *(known := ("classic", "quorum", "stream"))):
        fail(f"--create is {create!r}; it may be {', '.join(known)}", EXIT_USAGE)
    if not archive and not source:
        fail("say which messages: --from QUEUE, --archive DIRECTORY, or both", EXIT_USAGE)
    with _spark_session(master, conf) as (spark, tell):
        from headrace.spark.pipelines.replay import ReplaySettings, run_replay

        place = _state_directory(state, name)
        settings = ReplaySettings(
            name, _endpoint(url, vhost), source, to, place, archive, starting, ending, filter, rate, mark, create
        )
        run_replay(spark, settings, tell)


@command(
    app,
    "headrace pipeline assign --from events --filters filters.yaml",
    "headrace pipeline assign --from events --filters filters.yaml --once",
    "headrace pipeline assign --from events --filters filters.yaml --read /var/lib/headrace",
    "filters.yaml:  filters: {eu-orders: \"topic LIKE 'orders/%' AND region = 'eu'\", urgent: priority > 7}",
)
def assign(
    source: Annotated[str, typer.Option("--from", help="The log to read: a queue, usually a stream.")],
    filters: Annotated[Path, typer.Option(help="A YAML file with a filter expression for each queue under filters:.")],
    starting: Starting = "earliest",
    every: Every = "",
    max_bytes: Annotated[
        str, typer.Option(help="The most bytes to read at once; their copies, at most 256 MiB, are one commit.")
    ] = "64m",
    once: Once = False,
    name: Name = "assign",
    state: State = "",
    read: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="The data directory or the store of the broker, to read the log there.",
            show_default=False,
        ),
    ] = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: Annotated[
        str,
        typer.Option(metavar="NAME", help="Where --read is a store: which of its groups to read.", show_default=False),
    ] = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Assign every message of a log to each queue whose filter it matches, exactly once; for thousands of filters."""
    with _failures():
        from headrace.spark.pipelines.assign import AssignSettings, run_assign
        from headrace.spark.pipelines.file import read_filter_file

        chosen, place = read_filter_file(filters), _state_directory(state, name)
        log = _endpoint(read, vhost, replication_group) if read else None
        settings = AssignSettings(
            name, _endpoint(url, vhost), source, chosen, place, starting, once, every, max_bytes, log
        )
    with _spark_session(master, conf, read) as (spark, tell):
        run_assign(spark, settings, tell)


@command(
    app,
    "headrace pipeline report --from '*' --to report",
    "headrace pipeline report --from orders --to report --starting 2026-01-31 --ending 2026-02-01",
    "headrace pipeline report --from '*' --to report --url /var/lib/headrace",
)
def report(
    source: Annotated[str, typer.Option("--from", help="Queues: names with commas between, or a pattern.")],
    to: Annotated[Path, typer.Option(metavar="DIRECTORY", help="The directory for page, tables and plots.")],
    starting: Annotated[str, typer.Option(help="The start: earliest, or a time.")] = "earliest",
    ending: Annotated[str, typer.Option(help="The end: latest, or a time.")] = "latest",
    topics: Annotated[int, typer.Option(min=1, help="The number of hot topics to show.")] = 20,
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    replication_group: ReplicationGroup = "",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
) -> None:
    """Report throughput, lag, time in queue, retries, dead letters, hot topics and sizes: tables, plots, one page."""
    with _failures():  # a package that is missing is missed before Spark starts
        from headrace.spark.pipelines.report import ReportSettings, run_report
    with _spark_session(master, conf, url) as (spark, tell):
        place = _endpoint(url, vhost, replication_group)
        done = run_report(spark, ReportSettings(place, source, to, starting, ending, topics), tell)
        typer.echo(f"{done.page}: {count(done.messages, 'message')}")


@command(
    app,
    "headrace pipeline compact --from prices --yes",
    "headrace pipeline compact --from prices --to prices-now",
    "headrace pipeline compact --from telemetry --to latest --key header:device",
    "headrace pipeline compact --from telemetry --to latest --key json:$.device.id",
)
def compact(
    source: Annotated[str, typer.Option("--from", help="The queue to read, usually a stream.")],
    to: Annotated[
        str,
        typer.Option(metavar="QUEUE", help="A stream for the last messages, made if it does not exist; else in place."),
    ] = "",
    key: Annotated[str, typer.Option(help="The key of a message: routing_key, header:NAME or json:PATH.")] = (
        "routing_key"
    ),
    name: Name = "compact",
    state: State = "",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="In place: do not ask.")] = False,
) -> None:
    """Keep only the last message of every key, in place or in another stream; all in one commit."""
    if to in ("", source) and not yes and url.startswith("http"):
        messages = Client(url, "guest", "guest", vhost).get("queues", vhost, source)["messages"]
        confirm(f"drop all but the last of every key of the {count(messages, 'message')} of {source!r}?", yes)
    with _spark_session(master, conf) as (spark, tell):
        from headrace.spark.pipelines.compact import CompactSettings, run_compact

        place = _state_directory(state, name)
        done = run_compact(spark, CompactSettings(_endpoint(url, vhost), source, to or source, place, key, name), tell)
        typer.echo(f"{to or source}: {count(done.kept, 'message')} of {done.messages:,}")


# -- one run -----------------------------------------------------------------------------------------------------------


def _endpoint(url: str, vhost: str, replication_group: str = "") -> "Endpoint":
    from headrace.spark.pipelines.endpoint import Endpoint

    return Endpoint(url, vhost, replication_group=replication_group)


def _state_directory(given: str, name: str) -> Path:
    from headrace.spark.pipelines.run import DEFAULT_STATES

    return Path(given) if given else DEFAULT_STATES / name


@contextmanager
def _spark_session(
    master: str, conf: list[str] | None, *urls: str, queries: Sequence[str] = ()
) -> "Iterator[tuple[SparkSession, Callable[[Progress], None]]]":
    """Open Spark for one command, and show its progress. Executors find the stores at these URLs as this process does.

    A query that cannot be read ends the command before Spark starts.
    """
    settings = dict(_setting(each) for each in conf or [])
    try:
        with _failures(), _termination_interrupts(), _shown(Board(SystemClock(), _say)) as board:
            from headrace.spark.pipelines.session import open_session, store_settings

            spark = open_session(master, "headrace", {**store_settings(urls), **settings}, queries)
            board.watch(_task_counter(spark))
            try:
                yield spark, board.tell
            finally:
                board.watch(lambda: "")  # asks no Spark that has ended
                _stop(spark)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where it ended", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        fail(f"--conf takes KEY=VALUE; {text!r} is no such setting", EXIT_PROBLEMS)
    return key, value


def _stop(spark: "SparkSession") -> None:
    """Stop Spark. An interrupt within a call to Java may have closed the connection to it already."""
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    with suppress(Py4JNetworkError):
        spark.stop()


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """Treat SIGTERM as Ctrl-C, so that pipelines end in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _failures() -> Iterator[None]:
    """Turn an error into a line on stderr and exit code 1. Without Spark, the line says what to install."""
    try:
        yield
    except ImportError as error:
        fail(str(missing_extra("a pipeline", "spark,java", error)), EXIT_PROBLEMS)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)


# -- progress ----------------------------------------------------------------------------------------------------------


@final
class Board:
    """The progress of pipelines, as lines or as a table. Two threads use it."""

    def __init__(self, clock: Clock, say: Callable[[str], None]) -> None:
        self._clock = clock
        self._say = say
        self._lock = threading.Lock()
        self._progress: dict[str, Progress] = {}
        self._told_us: dict[str, int] = {}
        """When each pipeline told its progress."""
        self._begun_us = self._said_us = clock.monotonic_us()
        self._beginning = "starting Spark"
        self._tasks: Callable[[], str] = lambda: ""

    def watch(self, tasks: Callable[[], str]) -> None:
        """Show from now on what this function says of Spark's tasks."""
        with self._lock:
            self._beginning = "preparing"
            self._tasks = tasks

    def tell(self, progress: "Progress") -> None:
        """Show from now on this progress of a pipeline."""
        with self._lock:
            self._progress[progress.name] = progress
            self._told_us[progress.name] = self._clock.monotonic_us()

    def tick(self) -> None:
        """Say a line for each pipeline if it is time."""
        with self._lock:
            now_us = self._clock.monotonic_us()
            is_idle = bool(self._progress) and all(each.is_idle for each in self._progress.values())
            if now_us - self._said_us < (IDLE_SECONDS if is_idle else REPORT_SECONDS) * 1_000_000:
                return
            self._said_us = now_us
            for line in [_sentence(each) for each in self._current()] or [self._start()]:
                self._say(line)

    def close(self) -> None:
        """Say the end of each pipeline."""
        for progress in self._progress.values():
            self._say(_sentence(replace(progress, phase="")))

    def table(self) -> "Table | str":
        """Return the pipelines as a table."""
        with self._lock:
            return _table(self._current()) if self._progress else self._start()

    def _start(self) -> str:
        return "; ".join(
            filter(None, (f"{self._beginning}: {self._seconds_since(self._begun_us):.1f} s", self._tasks()))
        )

    def _current(self) -> "list[Progress]":
        """Return the progress of each pipeline, with the time since it was told and with Spark's tasks."""
        tasks = self._tasks()
        return [
            replace(
                each,
                seconds=each.seconds + self._seconds_since(self._told_us[name]),
                phase=", ".join(filter(None, (each.phase, tasks))) if not each.is_idle else each.phase,
            )
            for name, each in self._progress.items()
        ]

    def _seconds_since(self, time_us: int) -> float:
        return (self._clock.monotonic_us() - time_us) / 1_000_000


@contextmanager
def _shown(board: Board) -> Iterator[Board]:
    """Show a board: as a live table on a terminal, as lines elsewhere. Its end is lines."""
    try:
        with _live_table(board) if sys.stderr.isatty() else _lines(board):
            yield board
    finally:
        board.close()


@contextmanager
def _live_table(board: Board) -> Iterator[None]:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4, transient=True, get_renderable=board.table):
        yield


@contextmanager
def _lines(board: Board) -> Iterator[None]:
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_TICK_SECONDS):
            board.tick()

    thread = threading.Thread(target=tick, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _task_counter(spark: "SparkSession") -> Callable[[], str]:
    """Return a function that says how many tasks of the active stages are done. Spark Connect does not tell."""
    from py4j.protocol import Py4JError

    from headrace.spark.pipelines.session import is_connect

    if is_connect(spark):
        return lambda: ""
    tracker = spark.sparkContext.statusTracker()

    def count_tasks() -> str:
        with suppress(Py4JError, OSError):  # an interrupt may have closed the connection to Java
            stages = [stage for each in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(each))]
            if stages:
                done, tasks = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
                return f"{done:,} of {count(tasks, 'task')}"
        return ""

    return count_tasks


def _sentence(progress: "Progress") -> str:
    behind = "" if progress.behind is None else f", {progress.behind:,} behind"
    done = f"{count(progress.messages, 'message')} in {progress.seconds:.1f} s"
    note = "".join(f"; {text}" for text in (progress.phase, progress.note) if text)
    return f"{progress.name}: {done}, {progress.rate:,.0f}/s{behind}{note}"


def _table(pipelines: "list[Progress]") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("pipeline")
    for name in ("messages", "per second", "batches", "behind", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("")
    for each in pipelines:
        behind = "-" if each.behind is None else f"{each.behind:,}"
        numbers = (f"{each.messages:,}", f"{each.rate:,.0f}", f"{each.batches:,}", behind, f"{each.seconds:.0f}")
        table.add_row(each.name, *numbers, escape("; ".join(filter(None, (each.phase, each.note)))))
    return table

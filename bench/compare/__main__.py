"""`python -m bench.compare`: this broker beside its peers. What is measured and how is in bench/."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn, final
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench.compare import plot
from bench.compare.brokers import Broker, Contestant, RunningBroker
from bench.compare.catalog import choose, scenarios
from bench.compare.course import Pace
from bench.compare.load import Endpoint, Family, Scenario
from bench.compare.markdown import page, write_page
from bench.compare.peers import FLUXMQ, PEERS, found_peers
from bench.compare.processes import allow_many_files
from bench.compare.record import make_record, write_record
from bench.compare.result import Result
from bench.compare.runner import Audience, Runner
from bench.compare.scaling import points
from bench.compare.table import comparison_table, remarks, scale_table
from headrace.cli.output import count, examples, fail, line
from headrace.errors import Refused
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)

_SCHEMES: Final[dict[str, tuple[tuple[Family, ...], int]]] = {
    "amqp": (("amqp", "amqp10"), 5672),
    "mqtt": (("mqtt", "mqtt5"), 1883),
    "nats": (("nats",), 4222),
}
_FILE_COLUMNS: Final = 110
_NONE: Final = "none"


@app.command(
    epilog=examples(
        "python -m bench.compare                            the first table, every broker that is installed",
        "python -m bench.compare --list                     what there is to measure, and on which brokers",
        "python -m bench.compare --scenario 'amqp-*' --peer rabbitmq --rounds 5 --seconds 4",
        "python -m bench.compare --rounds 2 --seconds 5 --markdown first-table.md",
        "python -m bench.compare --all --out results        everything; takes an hour or so",
        "python -m bench.compare --scale                    what a message costs as queues and backlogs grow",
        "python -m bench.compare --scale --scenario 'scale-queues-*' --peer rabbitmq",
        "python -m bench.compare --url amqp://guest:guest@127.0.0.1:5672 --url mqtt://127.0.0.1 --pid 4242",
    )
)
def bench(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Measure this one, by name or with *; can be given several times.")
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(
            help="Measure this broker beside ours: rabbitmq, mosquitto, nats or fluxmq; none for none of them."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often; brokers alternate within each round.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long each load lasts.")] = 1.5,
    out: Annotated[Path, typer.Option(help="The directory for results.json and the plots.")] = Path("headrace-bench"),
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown to this file too.")] = None,
    fluxmq: Annotated[Path | None, typer.Option(envvar=FLUXMQ, help="FluxMQ's binary, which makes it a peer.")] = None,
    are_all: Annotated[bool, typer.Option("--all", help="Measure every scenario.")] = False,
    scale: Annotated[bool, typer.Option("--scale", help="Measure what a message costs as things grow.")] = False,
    url: Annotated[
        list[str] | None,
        typer.Option(help="Measure a broker that runs: amqp://user:password@host:port, mqtt://..., nats://..."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(min=1, help="With --url: its process here, for its CPU and memory.")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="Show scenarios and brokers, and measure nothing.")] = False,
) -> None:
    """Measure this broker and its peers under the same loads, in turn, and show the ratios.

    Every broker is started in a temporary directory on free ports and ended afterwards. What comes back is checked:
    count, order and content; a wrong result is a failed row. Exit code 0: all rows are right. 1: some failed.
    """
    if fluxmq is not None:
        os.environ[FLUXMQ] = str(fluxmq.resolve())
    if as_list:
        _print_list()
        return
    try:
        chosen = _scenarios(scenario, are_all, scale)
        brokers = _contestants(peer, url or [], pid, scale)
    except Refused as error:
        fail(str(error), EXIT_USAGE)
    allow_many_files()
    signal.signal(signal.SIGTERM, _terminated)
    console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_COLUMNS)
    runner = Runner(brokers, chosen, rounds, Pace(seconds))
    with _progress() as progress:
        results = runner.run(_Watcher(progress))
    settings = {"rounds": rounds, "seconds": seconds, "scenarios": [each.name for each in chosen], "scale": scale}
    console.print(scale_table(results) if scale else comparison_table(results))
    for note in remarks(results):
        console.print(note, soft_wrap=True)
    record = make_record(results, runner.versions, settings)
    _write(console, out, record, results, scale)
    if markdown is not None:
        write_page(page(results, record, f"python -m bench.compare {shlex.join(sys.argv[1:])}"), markdown)
    raise typer.Exit(EXIT_PROBLEMS if any(result.verdict == "failed" for result in results) else 0)


def _terminated(number: int, frame: object) -> NoReturn:
    """End like Ctrl-C does, so that the brokers are stopped."""
    raise SystemExit(128 + number)


# -- what to measure ---------------------------------------------------------------------------------------------------


def _scenarios(named: list[str] | None, are_all: bool, is_scale: bool) -> list[Scenario]:
    """Raises Refused for a name that there is not."""
    known = points() if is_scale else scenarios()
    if named:
        return choose(known, named)
    return [scenario for scenario in known if is_scale or are_all or scenario.is_main]


def _contestants(peers: list[str] | None, urls: list[str], pid: int | None, is_scale: bool) -> list[Contestant]:
    """Ours or the given one first. Raises Refused for a broker that is not known or not installed."""
    if pid is not None and not urls:
        raise Refused("--pid says which process the broker at --url is; give both")
    first: Contestant = _running_at(urls, pid) if urls else Broker(PEERS[0])
    if peers is None:
        wanted = [] if urls or is_scale else [each.name for each in found_peers()]
    else:
        wanted = [name for name in peers if name != _NONE]
    known = {each.name: each for each in PEERS}
    found: list[Contestant] = [first]
    for name in wanted:
        if name not in known:
            raise Refused(f"there is no peer {name!r}; there are {', '.join(list(known)[1:])} and {_NONE}")
        if known[name].find() is None:
            raise Refused(f"{name} is not installed here; `python -m bench.compare --list` says what is")
        if name != first.name:
            found.append(Broker(known[name]))
    return found


def _running_at(urls: list[str], pid: int | None) -> RunningBroker:
    endpoints: dict[Family, Endpoint] = {}
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in _SCHEMES or not parts.hostname:
            raise Refused(f"--url takes amqp://host:port, mqtt://... or nats://...; {url!r} is none of them")
        families, default = _SCHEMES[parts.scheme]
        login = unquote(parts.username or ""), unquote(parts.password or "")
        vhost = unquote(parts.path[1:]) or "/"
        for family in families:
            endpoints[family] = Endpoint(parts.hostname, parts.port or default, *login, vhost)
    return RunningBroker("given", endpoints, pid)


def _print_list() -> None:
    """A line for each scenario: its name, what it asks, and who can answer; * for those that are run by default."""
    width = max(len(each.name) for each in scenarios())
    for each in scenarios():
        can = ", ".join(peer.name for peer in PEERS if _can(each, peer.families))
        what = " and ".join(step.title for step in each.rows())
        typer.echo(f"{'*' if each.is_main else ' '} {each.name:<{width}}  {what} ({can})")
    typer.echo(f"with --scale: {', '.join(each.name for each in points())}")
    installed = {peer.name for peer in found_peers()}
    for peer in PEERS:
        typer.echo(f"{peer.name}: {'installed' if peer.name in installed else 'not installed'}")


def _can(scenario: Scenario, families: tuple[Family, ...]) -> bool:
    return scenario.load_for(frozenset(families)) is not None


# -- while it runs, and afterwards -------------------------------------------------------------------------------------


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


@final
class _Watcher(Audience):
    """Shows how far it is, and every row as it comes."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def doing(self, what: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=what, completed=done, total=total)

    def has(self, result: Result) -> None:
        figures = [f"{result.rate:,.0f}/s" if result.rate else ""]
        figures += [f"{result.server_us:.2f} us CPU/message" if result.server_us is not None else ""]
        said = ", ".join(figure for figure in [*figures, result.verified, result.why] if figure)
        line(self._progress.console, f"{result.broker} {result.row}: {result.verdict} {said}")


def _write(console: Console, out: Path, record: dict[str, Any], results: list[Result], is_scale: bool) -> None:
    """The record and the plots, and where they are."""
    stem = out / ("scale" if is_scale else "results")
    try:
        out.mkdir(parents=True, exist_ok=True)
        files = [stem.with_suffix(".json")]
        write_record(record, files[0])
        if plot.is_possible():
            files += (plot.draw_scale if is_scale else plot.draw_comparison)(results, stem)
        else:
            line(console, "no plot: pip install matplotlib")
    except OSError as error:
        fail(f"{error.filename or out} cannot be written: {error.strerror or error}", EXIT_PROBLEMS)
    machine = record["machine"]
    form = "compiled" if machine["compiled"] else "interpreted"
    versions = ", ".join(f"{name} {version}" for name, version in record["brokers"].items())
    cores = count(machine["cores"], "core")
    line(console, f"{cores}, Linux {machine['kernel']}, Python {machine['python']} ({form}), {machine['file_system']}")
    line(console, f"{versions}; written: {', '.join(map(str, files))}")


if __name__ == "__main__":
    app(prog_name="python -m bench.compare")

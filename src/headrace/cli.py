"""The `headrace` command: words in, words out. What it does is in app.py and in storage's doctor."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from headrace import __version__
from headrace.app import DEFAULT_DATA, ServeSettings
from headrace.app import serve as serve_app
from headrace.errors import Corrupt, Fatal, HeadraceError
from headrace.storage.local import doctor as storage_doctor
from headrace.storage.local.doctor import GroupRow, Problem, QueueRow, Report

EXIT_PROBLEMS: Final = 1
EXIT_USAGE: Final = 2
EXIT_DISK_FAILED: Final = os.EX_IOERR  # 74


def _examples(*lines: str) -> str:
    """An epilog: every example a paragraph of its own, or the help would run them together."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


cli: Final = typer.Typer(
    name="headrace",
    help="A durable message broker whose log is ready for Spark.",
    epilog=_examples(
        "headrace serve                       keep everything in ./data",
        "headrace serve --memory              keep nothing, for trying things out",
        "headrace doctor data                 verify a data directory",
    ),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command that the arguments name."""
    cli(prog_name="headrace")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@cli.callback()
def _headrace(
    version: Annotated[
        bool, typer.Option("--version", help="Say which release this is.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@cli.command(
    epilog=_examples(
        "headrace serve",
        "headrace serve --data /var/lib/headrace",
        "headrace serve --memory --ready-file /tmp/headrace.ready",
    )
)
def serve(
    data: Annotated[
        Path | None, typer.Option(help=f"Where everything is kept (default: {DEFAULT_DATA}).", show_default=False)
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; it is gone at the end.")] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write pid, data directory and ports here, as JSON, once it serves.")
    ] = None,
) -> None:
    """Start the broker; Ctrl-C or SIGTERM stops it."""
    if memory and data is not None:
        _fail("--memory keeps nothing in a directory; give either --data or --memory", EXIT_USAGE)
    settings = ServeSettings(None if memory else data or DEFAULT_DATA, ready_file)
    try:
        serve_app(settings, Console())
    except Fatal as error:
        _fail(str(error), EXIT_DISK_FAILED)
    except Corrupt as error:
        _fail(f"{error}; `headrace doctor {settings.data}` examines the whole directory", EXIT_PROBLEMS)
    except HeadraceError as error:
        _fail(str(error), EXIT_PROBLEMS)


@cli.command(
    epilog=_examples(
        "headrace doctor data                 verify everything, change nothing",
        "headrace doctor data --repair        say what can be repaired, ask, and do it",
        "headrace doctor data --json          the same report for programs",
    )
)
def doctor(
    directory: Annotated[Path, typer.Argument(help="The data directory of a broker that is not running.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild indexes, cut a torn journal, remove left-overs; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Verify every file of a data directory.

    Exit code 0: no problems. 1: problems are left. 2: it could not be examined.
    """
    if yes and not repair:
        _fail("--yes answers the question that --repair asks; give both or none", EXIT_USAGE)
    if repair and not yes and (as_json or not sys.stdin.isatty()):
        _fail("--repair asks before it changes anything, and cannot ask here; add --yes", EXIT_USAGE)
    console = Console()
    try:
        report = _examine(directory, as_json)
        if not as_json:
            _print_report(report, console)
        done: list[str] = []
        if repair and _confirm(report, console, yes, as_json):
            done = storage_doctor.repair(directory, report)
            report = _examine(directory, as_json)
            if not as_json:
                console.print("done; examined again:")
                _print_report(report, console)
    except HeadraceError as error:
        _fail(str(error), EXIT_USAGE)
    except OSError as error:
        _fail(f"{error.filename or directory} cannot be used: {error.strerror or error}", EXIT_USAGE)
    if as_json:
        typer.echo(json.dumps({**report.as_dict(), "repaired": done}, ensure_ascii=False, indent=1))
    raise typer.Exit(0 if report.is_clean else EXIT_PROBLEMS)


def _examine(directory: Path, quiet: bool) -> Report:
    """Examine with a bar on the terminal, if there is one."""
    bar = Progress(
        TextColumn("examining"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("examining", total=None)
        return storage_doctor.examine(
            directory, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _confirm(report: Report, console: Console, yes: bool, quiet: bool) -> bool:
    """Say what a repair would do; whether to do it."""
    plan = storage_doctor.plan(report)
    if quiet:
        return bool(plan)
    if not plan:
        if not report.is_clean:
            console.print("nothing of what was found can be repaired without losing messages")
        return False
    console.print("a repair will:")
    for line in plan:
        console.print(f"  - {line}", markup=False, highlight=False, soft_wrap=True)
    return yes or typer.confirm("repair now?")


def _fail(message: str, code: int) -> NoReturn:
    """Say in one line what happened and what to do, and end."""
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


# -- how a report looks ------------------------------------------------------------------------------------------------


def _print_report(report: Report, console: Console) -> None:
    """The queues, the journal, and every problem with file, position and what to do."""
    if report.queues:
        console.print(_queue_table(report.queues))
    if any(queue.groups for queue in report.queues):
        console.print(_group_table(report.queues))
    _line(console, _journal(report))
    problems = report.all_problems()
    for number, problem in enumerate(problems, start=1):
        _print_problem(number, problem, console)
    _line(console, _verdict(report, problems), style="green" if report.is_clean else "red")


def _queue_table(queues: list[QueueRow]) -> Table:
    table = Table(header_style="bold")
    table.add_column("queue", overflow="fold")
    for name in ("first", "next", "messages", "bytes", "groups", "problems"):
        table.add_column(name, justify="right", overflow="fold")
    for queue in queues:
        table.add_row(
            Text(queue.name),
            str(queue.first_offset),
            str(queue.next_offset),
            f"{queue.messages:,}",
            decimal(queue.size_bytes),
            str(len(queue.groups)),
            Text(str(len(queue.problems)), style="red" if queue.problems else ""),
        )
    return table


def _group_table(queues: list[QueueRow]) -> Table:
    table = Table(header_style="bold")
    for name in ("queue", "group"):
        table.add_column(name, overflow="fold")
    table.add_column("mode")
    for name in ("committed", "cursor", "pending"):
        table.add_column(name, justify="right", overflow="fold")
    for queue in queues:
        for group in queue.groups:
            table.add_row(Text(queue.name), Text(group.name), *_progress(group))
    return table


def _progress(group: GroupRow) -> tuple[str, str, str, str]:
    if group.mode == "unreadable":
        return group.mode, "", "", ""
    return group.mode, str(group.committed), str(group.cursor), f"{group.pending:,}"


def _journal(report: Report) -> str:
    journal = report.journal
    return (
        f"journal: {_count(journal.files, 'file')}, {decimal(journal.size_bytes)}; the next start replays "
        f"{_count(journal.replayed_commits, 'commit')} with {_count(journal.replayed_messages, 'message')}"
    )


def _print_problem(number: int, problem: Problem, console: Console) -> None:
    _line(console, f"{number}. {problem.file} at byte {problem.position}", style="bold")
    _line(console, f"   {problem.what}")
    _line(console, f"   to do: {problem.remedy}")


def _verdict(report: Report, problems: list[Problem]) -> str:
    messages = sum(queue.messages for queue in report.queues)
    if not problems:
        return f"no problems in {_count(len(report.queues), 'queue')} with {_count(messages, 'message')}"
    repairable = sum(problem.repairable for problem in problems)
    return f"{_count(len(problems), 'problem')}, {repairable} of which --repair can mend"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _line(console: Console, text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

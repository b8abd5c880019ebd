"""`headrace doctor`: the problems of a data directory or a store. Storage's doctors find and repair them."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from headrace.cli.output import (
    command,
    count,
    fail,
    group_of_store,
    group_option,
    line,
    print_json,
    progress,
    table_console,
)
from headrace.errors import HeadraceError, missing_extra
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE
from headrace.storage.group_row import GroupRow
from headrace.storage.local import doctor as storage_doctor
from headrace.storage.local.doctor import Problem, QueueRow, Report
from headrace.storage.local.doctor.findings import RESTORE

if TYPE_CHECKING:
    from headrace.storage.objects.doctor import StoreReport

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@command(
    app,
    "headrace doctor data                 verify everything, change nothing",
    "headrace doctor data --repair        say what can be repaired, ask, and do it",
    "headrace doctor data --json          the same report for programs",
    "headrace doctor --store s3://bucket/prefix",
    "headrace doctor --store s3://bucket/prefix --group hot",
)
def doctor(
    directory: Annotated[
        Path | None, typer.Argument(help="The data directory of a broker that is not running.", show_default=False)
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild indexes, cut a torn journal, remove left-overs; asks first.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --repair: do not ask.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    store: Annotated[str, typer.Option(metavar="URL", help="Verify this store instead; its broker may run.")] = "",
    group: Annotated[str, group_option()] = "",
) -> None:
    """Verify every file of a data directory, or every message and group of a store.

    Exit code 0: no problems. 1: problems are left. 2: it could not be examined.
    """
    if (directory is None) is not bool(store):
        fail("name what to examine: a data directory, or a store with --store", EXIT_USAGE)
    if store and repair:
        fail("a store is only examined: what is damaged there comes back from a copy of it", EXIT_USAGE)
    database = group_of_store(store, group)
    if store or directory is None:
        _of_store(store, database, as_json)
    if yes and not repair:
        fail("--yes answers the question that --repair asks; give both or none", EXIT_USAGE)
    if repair and not yes and (as_json or not sys.stdin.isatty()):
        fail("--repair asks before it changes anything, and cannot ask here; add --yes", EXIT_USAGE)
    console = table_console()
    try:
        report = _examine(directory, as_json)
        if not as_json:
            _print_report(report, console)
        done: list[str] = []
        if repair and _confirm(report, console, yes, as_json):
            with progress("repairing", as_json):
                done = storage_doctor.repair(directory, report)
            report = _examine(directory, as_json)
            if not as_json:
                console.print("done; examined again:")
                _print_report(report, console)
    except HeadraceError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename or directory} cannot be used: {error.strerror or error}", EXIT_USAGE)
    if as_json:
        print_json({**report.as_dict(), "repaired": done})
    raise typer.Exit(0 if report.is_clean else EXIT_PROBLEMS)


def _examine(directory: Path, quiet: bool) -> Report:
    """Examine a data directory, with a progress bar on a terminal."""
    bar = _bar(quiet, DownloadColumn())
    with bar:
        task = bar.add_task("examining", total=None)
        return storage_doctor.examine(
            directory, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )


def _bar(quiet: bool, amount: ProgressColumn) -> Progress:
    return Progress(
        TextColumn("examining"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=quiet or not sys.stderr.isatty(),
    )


def _confirm(report: Report, console: Console, yes: bool, quiet: bool) -> bool:
    """Print the steps of a repair. Return whether to take them."""
    plan = storage_doctor.plan(report)
    if quiet:
        return bool(plan)
    if not plan:
        if not report.is_clean:
            console.print("nothing of what was found can be repaired without losing messages")
        return False
    console.print("a repair will:")
    for step in plan:
        line(console, f"  - {step}")
    return yes or typer.confirm("repair now?")


# -- a store -----------------------------------------------------------------------------------------------------------


def _of_store(store: str, group: str, as_json: bool) -> NoReturn:
    try:
        from headrace.storage.objects.doctor import examine_store
    except ImportError as error:
        fail(str(missing_extra("--store", "objects,arrow", error)), EXIT_USAGE)
    bar = _bar(as_json, MofNCompleteColumn())
    try:
        with bar:
            task = bar.add_task("examining", total=None)
            report = examine_store(
                store, progress=lambda done, total: bar.update(task, completed=done, total=total), group=group
            )
    except HeadraceError as error:
        fail(str(error), EXIT_USAGE)
    if as_json:
        print_json(report.as_dict())
    else:
        _print_store(report, table_console())
    raise typer.Exit(EXIT_PROBLEMS if report.problems else 0)


def _print_store(report: "StoreReport", console: Console) -> None:
    queues = [
        QueueRow(
            log.name,
            log.first_offset,
            log.next_offset,
            log.size_bytes,
            groups=log.groups,
            problems=[Problem(report.store, 0, log.problem, RESTORE)] if log.problem else [],
        )
        for log in report.logs
    ]
    _print_queues(queues, console)
    for number, problem in enumerate(report.problems, start=1):
        line(console, f"{number}. {problem}")
    messages = sum(queue.messages for queue in queues)
    where = f"{count(len(queues), 'log')} with {count(messages, 'message')}"
    is_clean = not report.problems
    found = "no" if is_clean else len(report.problems)
    line(console, f"{found} problems in {where}", style="green" if is_clean else "red")


# -- reports -----------------------------------------------------------------------------------------------------------


def _print_report(report: Report, console: Console) -> None:
    """Print the queues, the journal, and every problem with file, position and remedy."""
    _print_queues(report.queues, console)
    line(console, _journal(report))
    problems = report.all_problems()
    for number, problem in enumerate(problems, start=1):
        line(console, f"{number}. {problem.file} at byte {problem.position}", style="bold")
        line(console, f"   {problem.what}")
        line(console, f"   to do: {problem.remedy}")
    line(console, _verdict(report, problems), style="green" if report.is_clean else "red")


def _print_queues(queues: list[QueueRow], console: Console) -> None:
    if queues:
        console.print(_queue_table(queues))
    if any(queue.groups for queue in queues):
        console.print(_group_table(queues))


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
        f"journal: {count(journal.files, 'file')}, {decimal(journal.size_bytes)}; the next start replays "
        f"{count(journal.replayed_commits, 'commit')} with {count(journal.replayed_messages, 'message')}"
    )


def _verdict(report: Report, problems: list[Problem]) -> str:
    messages = sum(queue.messages for queue in report.queues)
    if not problems:
        return f"no problems in {count(len(report.queues), 'queue')} with {count(messages, 'message')}"
    repairable = sum(problem.repairable for problem in problems)
    return f"{count(len(problems), 'problem')}, {repairable} of which --repair can mend"

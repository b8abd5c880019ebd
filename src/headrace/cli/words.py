"""What all commands share: exit codes, and how they read and say things. No command."""

from typing import TYPE_CHECKING, Any, NoReturn

import typer

from headrace.config.replication import is_name, meant
from headrace.process import EXIT_PROBLEMS as EXIT_PROBLEMS
from headrace.process import EXIT_USAGE as EXIT_USAGE

if TYPE_CHECKING:
    from rich.console import Console


def examples(*lines: str) -> str:
    """An epilog: every example a paragraph of its own, or the help would run them together."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def fail(message: str, code: int) -> NoReturn:
    """Say in one line what happened and what to do, and end."""
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


def group_option() -> Any:
    """The option that names a replication group of a store."""
    return typer.Option(
        "--group",
        metavar="NAME",
        help="With --store: which replication group of it (default: main).",
        show_default=False,
    )


def group_of_store(store: str, group: str) -> str:
    """The group that is meant; ends the command where there can be none."""
    if group and not store:
        fail("--group is one of a store: name that with --store", EXIT_USAGE)
    if not is_name(group):
        fail(f"--group cannot be {group!r}: a group's name has letters, digits, - and _ only", EXIT_USAGE)
    return meant(group)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def line(console: "Console", text: str, style: str | None = None) -> None:
    """Print a line as it is, however long."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

"""What all commands share: exit codes, and how they read and say things. No command."""

import json
import sys
from typing import TYPE_CHECKING, NoReturn

import typer

from headrace.exits import EXIT_PROBLEMS as EXIT_PROBLEMS
from headrace.exits import EXIT_USAGE as EXIT_USAGE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console


def examples(*lines: str) -> str:
    """An epilog: every example a paragraph of its own, or the help would run them together."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def fail(message: str, code: int) -> NoReturn:
    """Say in one line what happened and what to do, and end."""
    typer.echo(f"headrace: {message}", err=True)
    raise typer.Exit(code)


def port(option: str, text: str) -> int | None:
    """A port as people write it; None where there is to be no listener."""
    if text == "off":
        return None
    if not (text.isascii() and text.isdecimal() and int(text) <= 65535):
        fail(f"{option} takes a port from 0 to 65535, or off; {text!r} is neither", EXIT_USAGE)
    return int(text)


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def line(console: "Console", text: str, style: str | None = None) -> None:
    """Print a line as it is, however long."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_rows(rows: "Sequence[Mapping[str, object]]", columns: tuple[str, ...], as_json: bool) -> None:
    """A table for people, or JSON for programs."""
    if as_json:
        typer.echo(json.dumps(list(rows), ensure_ascii=False, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(header_style="bold")
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[Text(_shown(row.get(name))) for name in columns])
    Console().print(table)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={number}" for name, number in value.items())
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def is_sure(question: str) -> bool:
    """Whether the answer at the terminal is yes; without a terminal nobody can say so."""
    if not sys.stdin.isatty():
        fail(f"{question} That is asked first, and cannot be asked here; add --yes", EXIT_USAGE)
    return typer.confirm(question)

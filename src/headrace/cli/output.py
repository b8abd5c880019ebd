"""How commands print: tables for people, JSON for scripts; asking before something is lost."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from headrace.cli.words import EXIT_USAGE, fail

if TYPE_CHECKING:
    from rich.console import Console

_FILE_COLUMNS: Final = 1000
Column = tuple[str, Callable[[dict[str, Any]], object]]


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def print_rows(columns: Sequence[Column], items: Iterable[dict[str, Any]], as_json: bool) -> None:
    """A table, numbers to the right, or all that is known of each item as JSON."""
    found = list(items)
    if as_json:
        print_json(found)
        return
    from rich.table import Table  # `--json` needs none of it
    from rich.text import Text

    cells = [[_cell(show(item)) for _, show in columns] for item in found]
    table = Table(header_style="bold")
    for at, (title, _) in enumerate(columns):
        is_number = bool(cells) and all(row[at].replace(",", "").replace(".", "").isdigit() for row in cells)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*[Text(cell) for cell in row])
    table_console().print(table)


def table_console() -> "Console":
    """Where tables go. In a pipe or a file they are as wide as what is in them, so that a search finds names whole."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_COLUMNS)


def print_facts(facts: dict[str, object], as_json: bool, whole: object = None) -> None:
    """One thing, a line for each of its facts; as JSON all that is known."""
    if as_json:
        print_json(facts if whole is None else whole)
        return
    width = max([len(name) for name in facts], default=0)
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {_cell(value)}")


def _cell(value: object) -> str:
    if value is None or value == "":
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def confirm(question: str, yes: bool) -> None:
    """Go on only when the answer is yes; where nobody can be asked, it must have been given with --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} this asks first, and cannot ask here; add --yes", EXIT_USAGE)
    typer.confirm(question, abort=True)


def announce(text: str) -> None:
    """Say what is about to happen, apart from what scripts read."""
    typer.echo(f"headrace: {text}", err=True)

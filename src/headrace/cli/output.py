"""The words of all commands: help, errors, tables for people, JSON for scripts, questions. No command, no client."""

import base64
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn

import typer

from headrace.config.replication import is_name, meant
from headrace.process import EXIT_USAGE

if TYPE_CHECKING:
    from rich.console import Console

FORMATS: Final = ("text", "json", "hex")
_FILE_COLUMNS: Final = 1000

Column = str | tuple[str, str | Callable[[dict[str, Any]], object]]
"""A title, with the key of its values or a function of an item where they are not under the title."""
Command = Callable[..., None]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Form = Annotated[str, typer.Option("--format", help="text, json or hex.")]


# -- help and errors ---------------------------------------------------------------------------------------------------


def command_group(text: str, *lines: str) -> typer.Typer:
    """Return an app of several commands, with its help and its examples."""
    return typer.Typer(
        help=text,
        epilog=examples(*lines) if lines else None,
        no_args_is_help=True,
        rich_markup_mode="rich",
        add_completion=False,
    )


def command(app: typer.Typer, *lines: str, name: str | None = None) -> Callable[[Command], Command]:
    """Add a command to an app, with its examples; without a name, under that of the function."""
    return app.command(name, epilog=examples(*lines))


def examples(*lines: str) -> str:
    """Return an epilog. Every example is a paragraph, because the help joins the lines of a paragraph."""
    return "\n\n".join(["[bold]Examples[/bold]", *lines])


def fail(message: str, code: int) -> NoReturn:
    """End the command with a line that says what happened and what to do."""
    announce(message)
    raise typer.Exit(code)


def announce(text: str) -> None:
    """Print a line to stderr, apart from the output that scripts read."""
    typer.echo(f"headrace: {text}", err=True)


def confirm(question: str, yes: bool) -> None:
    """Ask, and end the command unless the answer is yes. Without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        fail(f"{question} this asks first, and cannot ask here; add --yes", EXIT_USAGE)
    typer.confirm(question, abort=True)


def group_option() -> Any:
    """Return the option that names a replication group of a store."""
    return typer.Option(
        "--group",
        metavar="NAME",
        help="With --store: which replication group of it (default: main).",
        show_default=False,
    )


def group_of_store(store: str, group: str) -> str:
    """Return the replication group that the options name; end the command where they cannot name one."""
    if group and not store:
        fail("--group is one of a store: name that with --store", EXIT_USAGE)
    if not is_name(group):
        fail(f"--group cannot be {group!r}: a group's name has letters, digits, - and _ only", EXIT_USAGE)
    return meant(group)


def limit_of(text: str) -> tuple[str, int]:
    """Return the limit that an option names; end the command where it names none."""
    name, _, number = text.partition("=")
    digits = number.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        fail(f"--limit takes NAME=NUMBER, as max-connections=20; {text!r} is none", EXIT_USAGE)
    return name, int(number)


# -- results -----------------------------------------------------------------------------------------------------------


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def line(console: "Console", text: str, style: str | None = None) -> None:
    """Print a line without markup, highlighting or wrapping."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress(doing: str, is_quiet: bool = False) -> "Iterator[Callable[[str], None]]":
    """Show a spinner while the body runs, on a terminal only; the body gets a function that changes its text."""
    if is_quiet or not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bar:
        task = bar.add_task(doing, total=None)
        yield lambda text: bar.update(task, description=text)


def print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False))


def print_rows(columns: Sequence[Column], items: Iterable[dict[str, Any]], as_json: bool) -> None:
    """Print a table with numbers to the right, or the whole items as JSON."""
    found = list(items)
    if as_json:
        print_json(found)
        return
    from rich.table import Table  # `--json` does without
    from rich.text import Text

    pairs = [(each, each) if isinstance(each, str) else each for each in columns]
    cells = [[_cell(item[show] if isinstance(show, str) else show(item)) for _, show in pairs] for item in found]
    table = Table(header_style="bold")
    for at, (title, _) in enumerate(pairs):
        is_number = bool(cells) and all(row[at].replace(",", "").replace(".", "").isdigit() for row in cells)
        table.add_column(title, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*[Text(cell) for cell in row])
    table_console().print(table)


def table_console() -> "Console":
    """Return the console for tables. In a pipe or a file it is wide, so that a search finds names whole."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else _FILE_COLUMNS)


def print_facts(facts: dict[str, object], as_json: bool, whole: object = None) -> None:
    """Print a line for each fact, or the whole answer as JSON: give it where the names of facts are for people only."""
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


# -- messages ----------------------------------------------------------------------------------------------------------


def check_format(form: str) -> None:
    """End the command unless messages can be printed in this format."""
    if form not in FORMATS:
        fail(f"--format takes {', '.join(FORMATS)}; {form!r} is none of them", EXIT_USAGE)


def print_message(message: dict[str, Any], form: str, with_headers: bool = False) -> None:
    """Print a message: `text` is the payload alone, `json` everything on one line, `hex` a dump."""
    if form == "json":
        typer.echo(json.dumps(message, ensure_ascii=True))
        return
    text: str = message["payload"]
    is_encoded = message["payload_encoding"] == "base64"
    payload = base64.b64decode(text) if is_encoded else text.encode(errors="surrogatepass")
    if with_headers or form == "hex":
        reason = message["properties"].get("headers", {}).get("_dlq_reason", "")
        typer.echo(f"# {message['offset']}  {message['timestamp']}  {message['topic']}  {reason}".rstrip())
    if form == "hex":
        typer.echo(_dump(payload))
        return
    sys.stdout.buffer.write(payload + b"\n")
    sys.stdout.flush()


def _dump(payload: bytes) -> str:
    lines: list[str] = []
    for at in range(0, len(payload), 16):
        part = payload[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  {letters}")
    return "\n".join(lines)

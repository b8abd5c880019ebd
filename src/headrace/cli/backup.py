"""`headrace backup`: a consistent copy of a data directory, in words. What copies is storage's."""

import json
import sys
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn

from headrace.cli.words import EXIT_PROBLEMS, count, examples, fail
from headrace.errors import HeadraceError
from headrace.storage.local.backup import Copied, back_up

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(
    epilog=examples(
        "headrace backup /var/lib/headrace /backup/headrace-monday",
        "headrace backup /backup/headrace-monday /var/lib/headrace     restore it, with the broker stopped",
    )
)
def backup(
    directory: Annotated[Path, typer.Argument(help="The data directory, of a broker that runs or not.")],
    target: Annotated[Path, typer.Argument(help="Where to copy it; nothing may be there yet.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print what was copied as JSON.")] = False,
) -> None:
    """Copy a data directory so that the copy can be served: everything confirmed before the command began is in it.

    Exit code 0: the copy is whole and on the disk. 1: there is none.
    """
    try:
        copied = _copy(directory, target)
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
    if as_json:
        found = {"logs": copied.queues, "messages": copied.messages, "bytes": copied.size_bytes}
        typer.echo(json.dumps({"target": str(target), **found}, ensure_ascii=False))
        return
    typer.echo(
        f"{target} has {count(copied.queues, 'log')} with {count(copied.messages, 'message')}, "
        f"{decimal(copied.size_bytes)} copied"
    )


def _copy(directory: Path, target: Path) -> Copied:
    bar = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("copying", total=None)
        return back_up(directory, target, progress=lambda done: bar.update(task, description=f"copied {decimal(done)}"))

"""`headrace backup`: a consistent copy of a data directory or a store. Storage makes the copy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.filesize import decimal

from headrace.cli.output import command, count, fail, group_of_store, group_option, progress
from headrace.errors import HeadraceError, missing_extra
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE
from headrace.storage.local.backup import back_up

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)

_Done = tuple[int, int, int]
"""Logs, messages and bytes."""


@command(
    app,
    "headrace backup /var/lib/headrace /backup/headrace-monday",
    "headrace backup /backup/headrace-monday /var/lib/headrace     restore it, with the broker stopped",
    "headrace backup --store s3://bucket/prefix s3://bucket/monday        a store",
    "headrace backup --store s3://bucket/prefix --group hot s3://bucket/monday",
)
def backup(
    places: Annotated[
        list[str],
        typer.Argument(
            metavar="[DIRECTORY] TARGET",
            help="The data directory, of a broker that runs or not, and the target, which must not exist yet. "
            "With --store, the URL to copy that store to.",
            show_default=False,
        ),
    ],
    store: Annotated[str, typer.Option(metavar="URL", help="Copy this store instead of a data directory.")] = "",
    group: Annotated[str, group_option()] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Copy a data directory or a store. The copy can be served, and has every message confirmed before the start.

    A store is copied to another store, which `headrace serve --store` serves, or to a directory as file:///dir, one
    replication group at a time. Exit code 0: the copy is whole. 1: there is none.
    """
    database = group_of_store(store, group)
    if len(places) != (1 if store else 2):
        wanted = "one place: where to copy the store to" if store else "two: the data directory, and where to copy it"
        fail(f"backup takes {wanted}", EXIT_USAGE)
    try:
        with progress("copying") as show:
            logs, messages, size = _copy(store, database, places, lambda done: show(f"copied {decimal(done)}"))
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
    if as_json:
        found = {"target": places[-1], "logs": logs, "messages": messages, "bytes": size}
        typer.echo(json.dumps(found, ensure_ascii=False))
        return
    typer.echo(f"{places[-1]} has {count(logs, 'log')} with {count(messages, 'message')}, {decimal(size)} copied")


def _copy(store: str, group: str, places: list[str], tell: Callable[[int], None]) -> _Done:
    if not store:
        copied = back_up(Path(places[0]), Path(places[1]), progress=tell)
        return copied.queues, copied.messages, copied.size_bytes
    try:
        from headrace.storage.objects.backup import back_up_store
    except ImportError as error:
        fail(str(missing_extra("--store", "objects", error)), EXIT_USAGE)
    of_store = back_up_store(store, places[0], progress=tell, group=group)
    return of_store.queues, of_store.messages, of_store.size_bytes

"""`headrace migrate`: moves a RabbitMQ broker's definitions and messages to a running broker of ours."""

import asyncio
import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli.output import command, count, fail, print_rows, progress
from headrace.cli.shovel import heed_signals
from headrace.errors import HeadraceError
from headrace.process import EXIT_PROBLEMS
from headrace.shovel.ends import Place, read_place
from headrace.shovel.migration import Definitions, Management, Migration, Moved, bring, queues_of, read_definitions

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@command(
    app,
    "headrace migrate amqp://guest:guest@rabbit:5672 --management http://guest:guest@rabbit:15672",
    "headrace migrate amqp://guest:guest@rabbit:5672 --definitions rabbit.json --drain",
    "headrace migrate amqp://rabbit --management http://rabbit:15672 --queues '^orders' --report report.json",
)
def migrate(
    source: Annotated[str, typer.Argument(help="The RabbitMQ broker, amqp:// or amqps://, with a login.")],
    management: Annotated[str, typer.Option(help="Its management API, http:// or https://, with a login.")] = "",
    definitions: Annotated[Path | None, typer.Option(help="A file with its definitions instead.")] = None,
    to: Annotated[str, typer.Option(help="The broker here.")] = "amqp://guest:guest@localhost:5672",
    url: Annotated[
        str, typer.Option(help="Its HTTP address, with the login of an administrator.")
    ] = "http://guest:guest@localhost:15672",
    queues: Annotated[str, typer.Option(help="A regular expression; messages of matching queues come.")] = "",
    drain: Annotated[
        bool, typer.Option("--drain", help="Take the messages out of the queues there; without it they are copied.")
    ] = False,
    state: Annotated[Path, typer.Option(help="The file that says how far it is.")] = Path("headrace-migration.json"),
    report: Annotated[Path | None, typer.Option(help="A file for the report, as JSON.")] = None,
) -> None:
    """Bring virtual hosts, users, permissions, policies, queues, exchanges, bindings and messages from RabbitMQ.

    A run that is stopped goes on where it was. Streams are always copied.
    """
    try:
        there = read_place(source)
        here = read_place(to)
        if there.has_topics or here.has_topics:
            fail("a migration is between brokers of AMQP 0-9-1: amqp:// or amqps://", EXIT_PROBLEMS)
        found = _definitions(management, definitions)
        moves = queues_of(found, queues)
        left_out = bring(found, Management(url))
        migration = asyncio.run(_run(there, here, moves, drain, state))
    except HeadraceError as error:
        fail(str(error), EXIT_PROBLEMS)
    rows = [queue.to_json() for queue in migration.queues]
    if report is not None:
        report.write_text(json.dumps({"queues": rows, "without_effect": left_out}, indent=1))
    _show(rows, left_out)
    if not all(queue.is_done for queue in migration.queues):
        fail("not everything is here; the same command goes on", EXIT_PROBLEMS)


def _definitions(management: str, file: Path | None) -> Definitions:
    if bool(management) == (file is not None):
        fail("definitions come from --management or from --definitions: give one of them", EXIT_PROBLEMS)
    if file is not None:
        return read_definitions(file)
    found: Definitions = Management(management).get("definitions")
    return found


async def _run(there: Place, here: Place, moves: list[Moved], drain: bool, state: Path) -> Migration:
    migration = Migration(there, here, moves, drain, state)
    heed_signals(migration.stop)
    with progress("connecting") as show:
        await migration.run(show)
    return migration


def _show(rows: list[dict[str, Any]], left_out: list[dict[str, Any]]) -> None:
    print_rows(["vhost", "queue", "type", "messages", "bytes", "done", "reason"], rows, False)
    typer.echo(f"{count(sum([row['messages'] for row in rows]), 'message')} of {count(len(rows), 'queue')}")
    if left_out:
        typer.echo("\nWithout effect here:")
        print_rows(["kind", "vhost", "name", "setting", "reason"], left_out, False)

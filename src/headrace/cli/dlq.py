"""`headrace dlq`: dead letters: list, show, redrive, move, purge."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected, queue_argument
from headrace.cli.output import confirm, print_facts, print_rows
from headrace.cli.payloads import FORMATS, print_message
from headrace.cli.words import EXIT_USAGE, count, examples, fail

app: Final = typer.Typer(
    help="Look at dead letters and send them back.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)
QueueName = Annotated[str, queue_argument("The queue whose dead letters these are, or the queue that holds them.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")]
Offset = Annotated[int, typer.Option(min=0, help="The first that is looked at.")]
_MOST: Final = 10_000


@app.command("list", epilog=examples("headrace dlq list", "headrace dlq list --json"))
@connected
def list_graves(client: Client, as_json: bool) -> None:
    """List the queues of dead letters."""
    columns = [
        ("queue", lambda grave: grave["queue"]),
        ("of", lambda grave: grave["origin"]),
        ("messages", lambda grave: grave["messages"]),
    ]
    print_rows(columns, client.pages("dead-letters", client.host, limit=1000), as_json)


@app.command(epilog=examples("headrace dlq show orders", "headrace dlq show orders --limit 5 --format json"))
@connected
def show(
    client: Client,
    as_json: bool,
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")] = 20,
    offset: Offset = 0,
    form: Annotated[str, typer.Option("--format", help="text, json or hex.")] = "text",
) -> None:
    """Show dead letters without taking them."""
    if form not in FORMATS:
        fail(f"--format takes {', '.join(FORMATS)}; {form!r} is none of them", EXIT_USAGE)
    found = client.get(*client.queue(queue, "dead-letters"), limit=limit, offset=offset)
    for message in found["items"]:
        print_message(message, "json" if as_json else form, with_headers=True)


@app.command(epilog=examples("headrace dlq redrive orders", "headrace dlq redrive orders --limit 1 --offset 0"))
@connected
def redrive(client: Client, as_json: bool, queue: QueueName, limit: Limit = _MOST, offset: Offset = 0) -> None:
    """Send dead letters back to the queues they died in, in one commit."""
    body = {"limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "redrive"), body=body)
    print_facts({"sent back": count(done["messages"], "message")}, as_json, done)


@app.command(epilog=examples("headrace dlq move orders parking"))
@connected
def move(
    client: Client,
    as_json: bool,
    queue: QueueName,
    to: Annotated[str, queue_argument("The queue they go to.")],
    limit: Limit = _MOST,
    offset: Offset = 0,
) -> None:
    """Move dead letters to another queue, as they are."""
    body = {"to": to, "limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "move"), body=body)
    print_facts({"moved": count(done["messages"], "message")}, as_json, done)


@app.command(epilog=examples("headrace dlq purge orders --yes"))
@connected
def purge(
    client: Client,
    as_json: bool,
    queue: QueueName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Drop the dead letters of a queue."""
    confirm(f"drop the dead letters of {queue!r}?", yes)
    done = client.post(*client.queue(queue, "dead-letters", "purge"))
    print_facts({"purged": count(done["messages"], "message")}, as_json, done)

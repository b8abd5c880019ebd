"""`headrace dlq`: dead letters: list, show, redrive, move, purge."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Answer, Client, connected, queue_argument
from headrace.cli.output import announce, confirm, print_facts, print_rows
from headrace.cli.payloads import FORMATS, print_message
from headrace.cli.words import EXIT_USAGE, count, examples, fail

app: Final = typer.Typer(
    help="Look at dead letters and send them back.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)
QueueName = Annotated[str, queue_argument("The queue whose dead letters these are, or the queue that holds them.")]
Exact = Annotated[bool, typer.Option("--exact", help="QUEUE holds them itself, whatever died in it.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
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
    exact: Exact = False,
) -> None:
    """Show dead letters without taking them."""
    if form not in FORMATS:
        fail(f"--format takes {', '.join(FORMATS)}; {form!r} is none of them", EXIT_USAGE)
    following: int | None = offset
    while following is not None and limit > 0:
        path = client.queue(queue, "dead-letters")
        found = client.get(*path, limit=limit, offset=following, exact=exact)
        for message in found["items"]:
            print_message(message, "json" if as_json else form, with_headers=True)
        limit -= len(found["items"])
        following = found["next"]


@app.command(epilog=examples("headrace dlq redrive orders", "headrace dlq redrive orders --limit 1 --offset 0"))
@connected
def redrive(
    client: Client,
    as_json: bool,
    queue: QueueName,
    limit: Limit = _MOST,
    offset: Offset = 0,
    exact: Exact = False,
) -> None:
    """Send dead letters back to the queues they died in, in one commit."""
    grave = _grave(client, queue, exact)
    announce(f"sending {_meant(grave, limit)} back to where they died")
    body = {"limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "redrive"), body=body, exact=exact)
    print_facts({"sent back": _gone(done)}, as_json, done)


@app.command(epilog=examples("headrace dlq move orders parking"))
@connected
def move(
    client: Client,
    as_json: bool,
    queue: QueueName,
    to: Annotated[str, queue_argument("The queue they go to.")],
    limit: Limit = _MOST,
    offset: Offset = 0,
    exact: Exact = False,
) -> None:
    """Move dead letters to another queue, as they are."""
    grave = _grave(client, queue, exact)
    announce(f"moving {_meant(grave, limit)} to {to!r}")
    body = {"to": to, "limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "move"), body=body, exact=exact)
    print_facts({"moved": _gone(done)}, as_json, done)


@app.command(epilog=examples("headrace dlq purge orders --yes"))
@connected
def purge(client: Client, as_json: bool, queue: QueueName, exact: Exact = False, yes: Yes = False) -> None:
    """Drop the dead letters of a queue."""
    confirm(f"drop {_meant(_grave(client, queue, exact))}?", yes)
    dropped = 0
    following: int | None = 0
    done: Answer = {}
    while following is not None:
        path = client.queue(queue, "dead-letters", "purge")
        done = client.post(*path, body={"offset": following}, exact=exact)
        dropped += done["messages"]
        following = done["next"]
    done = {**done, "messages": dropped}
    print_facts({"purged": _gone(done)}, as_json, done)


def _grave(client: Client, queue: str, exact: bool) -> Answer:
    return client.get("dead-letters", client.host, queue, exact=exact)


def _meant(grave: Answer, limit: int = _MOST) -> str:
    """What is about to go: how many messages of which queue."""
    if not grave["queue"]:
        return "0 dead letters"
    waiting = count(grave["messages"], "message")
    most = f"up to {limit:,} of " if limit < grave["messages"] else ""
    if not grave["has_others"]:
        return f"{most}the {waiting} of {grave['queue']!r}"
    origin = f" that died in {grave['origin']!r}" if grave["origin"] else ""
    return f"{most}the dead letters{origin} among the {waiting} of {grave['queue']!r}"


def _gone(done: Answer) -> str:
    where = f" of {done['queue']}" if done["queue"] else ": it has no dead letters"
    return count(done["messages"], "message") + where

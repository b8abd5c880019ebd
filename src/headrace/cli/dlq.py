"""`headrace dlq`: dead letters: list, show, redrive, move, purge."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Answer, Client, connected, queue_argument
from headrace.cli.output import (
    Column,
    Form,
    Yes,
    announce,
    check_format,
    command_group,
    confirm,
    count,
    print_facts,
    print_message,
    print_rows,
    progress,
)

app: Final = command_group("Look at dead letters and send them back.")
QueueName = Annotated[str, queue_argument("The queue whose dead letters these are, or the queue that holds them.")]
Exact = Annotated[bool, typer.Option("--exact", help="QUEUE is the queue that holds the dead letters.")]
Limit = Annotated[int, typer.Option(min=1, max=10_000, help="The most messages.")]
Offset = Annotated[int, typer.Option(min=0, help="The offset to begin at.")]
_MOST: Final = 10_000


@connected(app, "headrace dlq list", "headrace dlq list --json", name="list")
def list_dead_letters(client: Client, as_json: bool) -> None:
    """List the queues of dead letters."""
    columns: list[Column] = ["queue", ("of", "origin"), "messages"]
    print_rows(columns, client.pages("dead-letters", client.host, limit=1000), as_json)


@connected(app, "headrace dlq show orders", "headrace dlq show orders --limit 5 --format json")
def show(
    client: Client,
    as_json: bool,
    queue: QueueName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most messages.")] = 20,
    offset: Offset = 0,
    form: Form = "text",
    exact: Exact = False,
) -> None:
    """Show dead letters without taking them."""
    check_format(form)
    following: int | None = offset
    while following is not None and limit > 0:
        path = client.queue(queue, "dead-letters")
        found = client.get(*path, limit=limit, offset=following, exact=exact)
        for message in found["items"]:
            print_message(message, "json" if as_json else form, with_headers=True)
        limit -= len(found["items"])
        following = found["next"]


@connected(app, "headrace dlq redrive orders", "headrace dlq redrive orders --limit 1 --offset 0")
def redrive(
    client: Client,
    as_json: bool,
    queue: QueueName,
    limit: Limit = _MOST,
    offset: Offset = 0,
    exact: Exact = False,
) -> None:
    """Send dead letters back to the queues they died in, in steps of 250."""
    letters = _letters(client, queue, exact)
    announce(f"sending {_meant(letters, limit)} back to where they died")
    body = {"limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "redrive"), body=body, exact=exact)
    print_facts({"sent back": _gone(done)}, as_json, done)


@connected(app, "headrace dlq move orders parking")
def move(
    client: Client,
    as_json: bool,
    queue: QueueName,
    to: Annotated[str, queue_argument("The queue that gets them.")],
    limit: Limit = _MOST,
    offset: Offset = 0,
    exact: Exact = False,
) -> None:
    """Move dead letters to another queue without changing them."""
    letters = _letters(client, queue, exact)
    announce(f"moving {_meant(letters, limit)} to {to!r}")
    body = {"to": to, "limit": limit, "offset": offset}
    done = client.post(*client.queue(queue, "dead-letters", "move"), body=body, exact=exact)
    print_facts({"moved": _gone(done)}, as_json, done)


@connected(app, "headrace dlq purge orders --yes")
def purge(client: Client, as_json: bool, queue: QueueName, exact: Exact = False, yes: Yes = False) -> None:
    """Drop the dead letters of a queue."""
    confirm(f"drop {_meant(_letters(client, queue, exact))}?", yes)
    dropped = 0
    following: int | None = 0
    done: Answer = {}
    with progress("dropping") as show:
        while following is not None:
            path = client.queue(queue, "dead-letters", "purge")
            done = client.post(*path, body={"offset": following}, exact=exact)
            dropped += done["messages"]
            following = done["next"]
            show(f"dropped {dropped:,}")
    done = {**done, "messages": dropped}
    print_facts({"purged": _gone(done)}, as_json, done)


def _letters(client: Client, queue: str, exact: bool) -> Answer:
    return client.get("dead-letters", client.host, queue, exact=exact)


def _meant(letters: Answer, limit: int = _MOST) -> str:
    """Describe the messages that a command is about to take: how many of which queue."""
    if not letters["queue"]:
        return "0 dead letters"
    waiting = count(letters["messages"], "message")
    most = f"up to {limit:,} of " if limit < letters["messages"] else ""
    if not letters["has_others"]:
        return f"{most}the {waiting} of {letters['queue']!r}"
    origin = f" that died in {letters['origin']!r}" if letters["origin"] else ""
    return f"{most}the dead letters{origin} among the {waiting} of {letters['queue']!r}"


def _gone(done: Answer) -> str:
    where = f" of {done['queue']}" if done["queue"] else ": it has no dead letters"
    return count(done["messages"], "message") + where

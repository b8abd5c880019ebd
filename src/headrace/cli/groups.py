"""`headrace groups`: list, show, seek, pause, resume, delete."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected, queue_argument
from headrace.cli.output import confirm, print_facts, print_json, print_rows
from headrace.cli.words import count, examples

app: Final = typer.Typer(
    help="Look at consumer groups and move them.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)
QueueName = Annotated[str, queue_argument("The queue's name.")]
GroupName = Annotated[str, typer.Argument(help="The group's name.")]
_SHOWN: Final = 20


@app.command("list", epilog=examples("headrace groups list orders", "headrace groups list events --json"))
@connected
def list_groups(client: Client, as_json: bool, queue: QueueName) -> None:
    """List the groups of a queue and how far they are."""
    print_rows(
        [
            ("group", lambda group: group["name"]),
            ("mode", lambda group: group["mode"]),
            ("paused", lambda group: group["is_paused"]),
            ("cursor", lambda group: group["cursor"]),
            ("committed", lambda group: group["committed"]),
            ("lag", lambda group: group["lag"]),
            ("delayed", lambda group: group["delayed"]),
            ("pending", lambda group: group["pending"]),
            ("consumers", lambda group: group["consumers"]),
        ],
        client.pages(*client.queue(queue, "groups"), limit=1000),
        as_json,
    )


@app.command(epilog=examples("headrace groups show orders default"))
@connected
def show(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Show a group with what it has delivered and not settled."""
    found = client.get(*client.queue(queue, "groups", group))
    pending = client.get(*client.queue(queue, "groups", group, "pending"), limit=_SHOWN)["items"]
    if as_json:
        print_json({**found, "pending_entries": pending})
        return
    print_facts(found, False)
    if pending:
        columns = [(name, lambda entry, name=name: entry[name]) for name in ("offset", "consumer", "attempts", "due")]
        print_rows(columns, pending, False)


@app.command(
    epilog=examples(
        "headrace groups seek events readers first",
        "headrace groups seek events readers 100",
        "headrace groups seek events readers timestamp=1767225600",
    )
)
@connected
def seek(
    client: Client,
    as_json: bool,
    queue: QueueName,
    group: GroupName,
    position: Annotated[str, typer.Argument(help="first, next, an offset, or timestamp=<unix time>.")],
) -> None:
    """Have a stream group go on reading elsewhere."""
    found = client.post(*client.queue(queue, "groups", group, "seek"), body={"position": position})
    print_facts({"group": found["name"], "cursor": found["cursor"], "lag": found["lag"]}, as_json, found)


@app.command(epilog=examples("headrace groups pause orders default"))
@connected
def pause(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Deliver nothing to a group until it is resumed, over restarts too."""
    found = client.post(*client.queue(queue, "groups", group, "pause"))
    print_facts({"group": found["name"], "paused": found["is_paused"]}, as_json, found)


@app.command(epilog=examples("headrace groups resume orders default"))
@connected
def resume(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Deliver to a paused group again."""
    found = client.post(*client.queue(queue, "groups", group, "resume"))
    print_facts({"group": found["name"], "paused": found["is_paused"]}, as_json, found)


@app.command(epilog=examples("headrace groups delete events readers --yes"))
@connected
def delete(
    client: Client,
    as_json: bool,
    queue: QueueName,
    group: GroupName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Forget a group that nobody reads in, with its progress."""
    lag = client.get(*client.queue(queue, "groups", group))["lag"]
    confirm(f"forget the group {group!r} of {queue!r}, which has not finished {count(lag, 'message')}?", yes)
    done = client.delete(*client.queue(queue, "groups", group))
    unfinished = count(done["messages"], "message")
    print_facts({"deleted": f"{group} of {queue}, which had not finished {unfinished}"}, as_json, done)

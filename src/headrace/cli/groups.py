"""`headrace groups`: list, show, seek, pause, resume, delete."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, QueueName, connected
from headrace.cli.output import (
    Column,
    Yes,
    command_group,
    confirm,
    count,
    print_facts,
    print_json,
    print_rows,
)

app: Final = command_group("Look at consumer groups and move them.")
GroupName = Annotated[str, typer.Argument(help="The group's name.")]
_SHOWN: Final = 20


@connected(app, "headrace groups list orders", "headrace groups list events --json", name="list")
def list_groups(client: Client, as_json: bool, queue: QueueName) -> None:
    """List the groups of a queue with their progress."""
    columns: list[Column] = [("group", "name"), "mode", ("paused", "is_paused")]
    columns += ["cursor", "committed", "lag", "delayed", "pending", "consumers"]
    print_rows(columns, client.pages(*client.queue(queue, "groups"), limit=1000), as_json)


@connected(app, "headrace groups show orders default")
def show(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Show a group and its unsettled messages."""
    found = client.get(*client.queue(queue, "groups", group))
    pending = client.get(*client.queue(queue, "groups", group, "pending"), limit=_SHOWN)["items"]
    if as_json:
        print_json({**found, "pending_entries": pending})
        return
    print_facts(found, False)
    if pending:
        print_rows(("offset", "consumer", "attempts", "due"), pending, False)


@connected(
    app,
    "headrace groups seek events readers first",
    "headrace groups seek events readers 100",
    "headrace groups seek events readers timestamp=1767225600",
)
def seek(
    client: Client,
    as_json: bool,
    queue: QueueName,
    group: GroupName,
    position: Annotated[str, typer.Argument(help="first, next, an offset, or timestamp=<unix time>.")],
) -> None:
    """Move the cursor of a stream group."""
    found = client.post(*client.queue(queue, "groups", group, "seek"), body={"position": position})
    print_facts({"group": found["name"], "cursor": found["cursor"], "lag": found["lag"]}, as_json, found)


@connected(app, "headrace groups pause orders default")
def pause(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Deliver nothing to a group until it is resumed, over restarts too."""
    _change(client, as_json, queue, group, "pause")


@connected(app, "headrace groups resume orders default")
def resume(client: Client, as_json: bool, queue: QueueName, group: GroupName) -> None:
    """Deliver to a paused group again."""
    _change(client, as_json, queue, group, "resume")


def _change(client: Client, as_json: bool, queue: str, group: str, verb: str) -> None:
    found = client.post(*client.queue(queue, "groups", group, verb))
    print_facts({"group": found["name"], "paused": found["is_paused"]}, as_json, found)


@connected(app, "headrace groups delete events readers --yes")
def delete(client: Client, as_json: bool, queue: QueueName, group: GroupName, yes: Yes = False) -> None:
    """Delete a group without consumers, and its progress."""
    lag = client.get(*client.queue(queue, "groups", group))["lag"]
    confirm(f"forget the group {group!r} of {queue!r}, which has not finished {count(lag, 'message')}?", yes)
    done = client.delete(*client.queue(queue, "groups", group))
    unfinished = count(done["messages"], "message")
    print_facts({"deleted": f"{group} of {queue}, which had not finished {unfinished}"}, as_json, done)

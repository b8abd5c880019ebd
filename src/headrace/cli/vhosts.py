"""`headrace vhosts`: the virtual hosts of a running broker: list, add, remove."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import Column, Yes, command_group, confirm, count, limit_of, print_facts, print_rows

app: Final = command_group(
    "Virtual hosts: separate sets of queues and exchanges.",
    "headrace vhosts list",
    "headrace vhosts add eu",
    "headrace vhosts remove eu --yes",
)

Name = Annotated[str, typer.Argument(help="The virtual host's name.")]


@connected(app, "headrace vhosts list", "headrace vhosts list --json", name="list", has_host=False)
def list_hosts(client: Client, as_json: bool) -> None:
    """List all virtual hosts."""
    columns: list[Column] = [
        "name",
        "queues",
        ("limits", lambda host: ", ".join(f"{name}={number}" for name, number in host["limits"].items())),
    ]
    print_rows(columns, client.pages("vhosts", limit=1000), as_json)


@connected(app, "headrace vhosts add eu", "headrace vhosts add eu --limit max-queues=500", has_host=False)
def add(
    client: Client,
    as_json: bool,
    name: Name,
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=NUMBER", help="max-connections or max-queues; -1 lifts it; may be repeated."),
    ] = None,
) -> None:
    """Add a virtual host, or change its limits."""
    host = client.put("vhosts", name, body={"limits": dict(limit_of(text) for text in limit or ())})
    print_facts({"virtual host": name, "to let users in": "headrace permissions set"}, as_json, host)


@connected(app, "headrace vhosts remove eu --yes", has_host=False)
def remove(client: Client, as_json: bool, name: Name, yes: Yes = False) -> None:
    """Remove a virtual host with all its queues and messages; asks first."""
    if not yes:
        held = [queue["messages"] for queue in client.pages("queues", vhost=name, limit=1000)]
        inside = f"{count(len(held), 'queue')} and {count(sum(held), 'message')}"
        confirm(f"remove the virtual host {name!r} with {inside}?", yes)
    done = client.delete("vhosts", name)
    inside = f"{count(done['queues'], 'queue')} and {count(done['messages'], 'message')}"
    print_facts({"removed": f"{name} with {inside}"}, as_json, done)

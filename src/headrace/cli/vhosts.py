"""`headrace vhosts`: virtual hosts: list, add, delete."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import confirm, print_facts, print_rows
from headrace.cli.words import examples

app: Final = typer.Typer(
    help="Virtual hosts: worlds of queues of their own.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)
HostName = Annotated[str, typer.Argument(help="The virtual host's name.")]


@app.command("list", epilog=examples("headrace vhosts list"))
@connected
def list_hosts(client: Client, as_json: bool) -> None:
    """List virtual hosts."""
    columns = [("vhost", lambda host: host["name"]), ("queues", lambda host: host["queues"])]
    print_rows(columns, client.pages("vhosts", limit=1000), as_json)


@app.command(epilog=examples("headrace vhosts add staging"))
@connected
def add(client: Client, as_json: bool, name: HostName) -> None:
    """Have a virtual host."""
    host = client.put("vhosts", name)
    print_facts(host, as_json)


@app.command(epilog=examples("headrace vhosts delete staging --yes"))
@connected
def delete(
    client: Client,
    as_json: bool,
    name: HostName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a virtual host with everything in it."""
    confirm(f"remove the virtual host {name!r} with all its queues?", yes)
    client.delete("vhosts", name)
    print_facts({"deleted": name}, as_json)

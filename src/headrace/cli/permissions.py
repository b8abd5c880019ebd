"""`headrace permissions`: what users may do in virtual hosts: list, set, clear."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import print_facts, print_rows
from headrace.cli.words import examples

app: Final = typer.Typer(
    help="What users may do, by patterns over names of queues and exchanges.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
)
UserName = Annotated[str, typer.Argument(help="The user's name.")]


@app.command("list", epilog=examples("headrace permissions list"))
@connected
def list_permissions(client: Client, as_json: bool) -> None:
    """List all permissions."""
    names = ("user", "vhost", "configure", "write", "read")
    columns = [(name, lambda entry, name=name: entry[name]) for name in names]
    print_rows(columns, client.pages("permissions", limit=1000), as_json)


@app.command(
    "set",
    epilog=examples(
        "headrace permissions set anna --configure '^anna' --write '.*' --read '.*'",
        "headrace permissions set anna --read '^reports$'",
    ),
)
@connected
def set_permission(
    client: Client,
    as_json: bool,
    name: UserName,
    configure: Annotated[str, typer.Option(help="Which names may be declared and deleted.")] = "",
    write: Annotated[str, typer.Option(help="Which may be published to.")] = "",
    read: Annotated[str, typer.Option(help="Which may be consumed from.")] = "",
) -> None:
    """Let a user into the virtual host, to do this much; a pattern that is not given allows nothing."""
    body = {"configure": configure, "write": write, "read": read}
    entry = client.put("permissions", client.host, name, body=body)
    print_facts(entry, as_json)


@app.command(epilog=examples("headrace permissions clear anna"))
@connected
def clear(client: Client, as_json: bool, name: UserName) -> None:
    """Let a user into the virtual host no more."""
    client.delete("permissions", client.host, name)
    print_facts({"cleared": name}, as_json)

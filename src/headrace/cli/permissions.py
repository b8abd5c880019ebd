"""`headrace permissions`: what users of a running broker may do in a virtual host. The rules are core's."""

from typing import Annotated, Final

import typer

from headrace.cli.remote import DEFAULT_URL, AsJson, Remote, Url
from headrace.cli.words import examples, print_rows

app: Final = typer.Typer(
    help="What users may do in a virtual host.",
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    epilog=examples(
        "headrace permissions list",
        "headrace permissions set ann                     everything in the virtual host /",
        "headrace permissions set ann --read '^orders' --write '' --configure ''",
        "headrace permissions clear ann --vhost eu",
    ),
)

User = Annotated[str, typer.Argument(help="The user's name.")]
Host = Annotated[str, typer.Option(metavar="NAME", help="The virtual host.")]
_PATTERN: Final = "a regular expression over the names of queues and exchanges; '' for none"


@app.command("list", epilog=examples("headrace permissions list", "headrace permissions list --json"))
def list_permissions(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show who may do what where."""
    found = Remote(url).list("permissions")
    print_rows(found, ("vhost", "user", "configure", "write", "read"), as_json)


@app.command(
    "set",
    epilog=examples(
        "headrace permissions set ann",
        "headrace permissions set worker --configure '' --write '^results$' --read '^jobs$'",
    ),
)
def set_permission(
    user: User,
    vhost: Host = "/",
    configure: Annotated[str, typer.Option(help=f"To declare and delete: {_PATTERN}.")] = ".*",
    write: Annotated[str, typer.Option(help=f"To publish and bind to: {_PATTERN}.")] = ".*",
    read: Annotated[str, typer.Option(help=f"To consume and bind from: {_PATTERN}.")] = ".*",
    url: Url = DEFAULT_URL,
) -> None:
    """Let a user into a virtual host, to do this much there."""
    body = {"configure": configure, "write": write, "read": read}
    Remote(url).call("PUT", "permissions", vhost, user, body=body)
    typer.echo(f"user {user!r} may use virtual host {vhost!r}")


@app.command(epilog=examples("headrace permissions clear ann", "headrace permissions clear ann --vhost eu"))
def clear(user: User, vhost: Host = "/", url: Url = DEFAULT_URL) -> None:
    """Let a user into a virtual host no more."""
    Remote(url).call("DELETE", "permissions", vhost, user)
    typer.echo(f"user {user!r} may not use virtual host {vhost!r} any more")

"""`headrace users`: the users of a running broker. Core has the rules."""

import sys
from typing import Annotated, Final

import typer

from headrace.cli.client import Answer, Client, connected
from headrace.cli.output import Column, command_group, fail, limit_of, print_facts, print_rows
from headrace.process import EXIT_USAGE

app: Final = command_group(
    "The users of a broker.",
    "headrace users list",
    "headrace users add ann --tag monitoring",
    "headrace users add worker --limit max-connections=20 < password.txt",
    "headrace users password ann",
    "headrace users remove worker",
)

Name = Annotated[str, typer.Argument(help="The user's name.")]


@connected(app, "headrace users list", "headrace users list --json", name="list", has_host=False)
def list_users(client: Client, as_json: bool) -> None:
    """List all users."""
    columns: list[Column] = [
        "name",
        ("tags", lambda user: ", ".join(user["tags"])),
        ("limits", lambda user: ", ".join(f"{name}={number}" for name, number in user["limits"].items())),
    ]
    print_rows(columns, client.pages("users", limit=1000), as_json)


@connected(
    app,
    "headrace users add ann",
    "headrace users add ops --tag administrator",
    "headrace users add device-17 --no-password      comes in with a certificate or a token only",
    "headrace users add worker --limit max-message-rate=1000 < password.txt",
    has_host=False,
)
def add(
    client: Client,
    as_json: bool,
    name: Name,
    tag: Annotated[
        list[str] | None, typer.Option(help="administrator, monitoring, management or impersonator; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=NUMBER",
            help="max-connections, max-channels, max-message-rate or max-message-bytes; may be repeated.",
        ),
    ] = None,
    no_password: Annotated[
        bool,
        typer.Option("--no-password", help="Refuse every password: only a certificate or a token lets the user in."),
    ] = False,
) -> None:
    """Add or change a user. The command asks for the password, or reads it from a pipe."""
    body: Answer = {"tags": tag or []}
    if limit:
        body["limits"] = dict(limit_of(text) for text in limit)
    if not no_password:
        body["password"] = _password(name)
    user = client.put("users", name, body=body)
    print_facts({"user": name, "to let it into a virtual host": "headrace permissions set"}, as_json, user)


@connected(app, "headrace users password ann", "headrace users password ann < password.txt", has_host=False)
def password(client: Client, as_json: bool, name: Name) -> None:
    """Change a user's password. The command asks for it, or reads it from a pipe."""
    tags = client.get("users", name)["tags"]
    user = client.put("users", name, body={"tags": tags, "password": _password(name)})
    print_facts({"another password": name}, as_json, user)


@connected(app, "headrace users remove worker", has_host=False)
def remove(client: Client, as_json: bool, name: Name) -> None:
    """Remove a user and close its connections."""
    client.delete("users", name)
    print_facts({"removed": name}, as_json)


def _password(name: str) -> str:
    """Return a password that is typed twice unseen, or the first line of a pipe."""
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True)
        return typed
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        fail("there is no password: type it at a terminal, or pipe one line in", EXIT_USAGE)
    return line

"""`headrace users`: who may log in to a running broker. What a user is, is core's."""

import sys
from typing import Annotated, Final

import typer

from headrace.cli.remote import DEFAULT_URL, AsJson, Remote, Row, Url
from headrace.cli.words import EXIT_USAGE, examples, fail, print_rows

app: Final = typer.Typer(
    help="Who may log in.",
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    epilog=examples(
        "headrace users list",
        "headrace users add ann --tag monitoring",
        "headrace users add worker --limit max-connections=20 < password.txt",
        "headrace users password ann",
        "headrace users remove guest",
    ),
)

Name = Annotated[str, typer.Argument(help="The user's name.")]


@app.command("list", epilog=examples("headrace users list", "headrace users list --json"))
def list_users(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all users."""
    users = Remote(url).list("users")
    print_rows(users, ("name", "tags", "limits"), as_json)


@app.command(
    epilog=examples(
        "headrace users add ann",
        "headrace users add ops --tag administrator",
        "headrace users add device-17 --no-password      comes in with a certificate only",
        "headrace users add worker --limit max-message-rate=1000 < password.txt",
    )
)
def add(
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
        bool, typer.Option("--no-password", help="No password is right: only a certificate lets the user in.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Add a user, or change the one there is. The password is asked for, or read from a pipe."""
    body: Row = {"tags": tag or []}
    if limit:
        body["limits"] = dict(_limit(text) for text in limit)
    if not no_password:
        body["password"] = _password(name)
    Remote(url).call("PUT", "users", name, body=body)
    typer.echo(f"user {name!r} may log in; `headrace permissions set` lets it into a virtual host")


@app.command(epilog=examples("headrace users password ann", "headrace users password ann < password.txt"))
def password(name: Name, url: Url = DEFAULT_URL) -> None:
    """Change a user's password. It is asked for, or read from a pipe."""
    remote = Remote(url)
    user = remote.call("GET", "users", name)
    remote.call("PUT", "users", name, body={"tags": user["tags"], "password": _password(name)})
    typer.echo(f"user {name!r} has another password")


@app.command(epilog=examples("headrace users remove guest"))
def remove(name: Name, url: Url = DEFAULT_URL) -> None:
    """Remove a user; its connections are ended."""
    Remote(url).call("DELETE", "users", name)
    typer.echo(f"there is no user {name!r} any more")


def _password(name: str) -> str:
    """Typed twice without being shown, or the first line of what is piped in."""
    if sys.stdin.isatty():
        typed: str = typer.prompt(f"password of {name}", hide_input=True, confirmation_prompt=True)
        return typed
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        fail("there is no password: type it at a terminal, or pipe one line in", EXIT_USAGE)
    return line


def _limit(text: str) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if not (number.isascii() and number.isdecimal()):
        fail(f"--limit takes NAME=NUMBER, as max-connections=20; {text!r} is none", EXIT_USAGE)
    return name, int(number)

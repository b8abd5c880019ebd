"""`headrace users`: list, add, delete; tags and passwords."""

import sys
from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import confirm, print_facts, print_rows
from headrace.cli.words import EXIT_USAGE, examples, fail

app: Final = typer.Typer(
    help="Who may log in, and with which tags.", no_args_is_help=True, rich_markup_mode="rich", add_completion=False
)
UserName = Annotated[str, typer.Argument(help="The user's name.")]


@app.command("list", epilog=examples("headrace users list", "headrace users list --json"))
@connected
def list_users(client: Client, as_json: bool) -> None:
    """List users with their tags."""
    columns = [
        ("user", lambda user: user["name"]),
        ("tags", lambda user: ", ".join(user["tags"])),
        ("limits", lambda user: user["limits"] or ""),
    ]
    print_rows(columns, client.pages("users", limit=1000), as_json)


@app.command(
    epilog=examples(
        "headrace users put anna --new-password secret --tag management",
        "echo secret | headrace users put anna --new-password -",
        "headrace users put anna --tag administrator       other tags, the same password",
    )
)
@connected
def put(
    client: Client,
    as_json: bool,
    name: UserName,
    new_password: Annotated[str, typer.Option(help="The user's password; - to read it from standard input.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", "-t", help="administrator, monitoring or management.")
    ] = None,
) -> None:
    """Have a user with these tags; without a password a user that exists keeps the one there is."""
    if new_password == "-":
        new_password = sys.stdin.readline().rstrip("\r\n")
        if not new_password:
            fail("there is no password on standard input", EXIT_USAGE)
    body: dict[str, object] = {"tags": tag or []}
    if new_password:
        body["password"] = new_password
    user = client.put("users", name, body=body)
    print_facts({"user": user["name"], "tags": ", ".join(user["tags"])}, as_json, user)


@app.command(epilog=examples("headrace users delete anna --yes"))
@connected
def delete(
    client: Client,
    as_json: bool,
    name: UserName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a user; the user's connections are ended."""
    confirm(f"remove the user {name!r}?", yes)
    client.delete("users", name)
    print_facts({"deleted": name}, as_json)

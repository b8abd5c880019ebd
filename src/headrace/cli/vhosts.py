"""`headrace vhosts`: the virtual hosts of a running broker."""

from typing import Annotated, Final

import typer

from headrace.cli.remote import DEFAULT_URL, AsJson, Remote, Url
from headrace.cli.words import EXIT_USAGE, examples, fail, is_sure, print_rows

app: Final = typer.Typer(
    help="Virtual hosts: worlds of queues and exchanges that do not see each other.",
    rich_markup_mode="rich",
    add_completion=False,
    no_args_is_help=True,
    epilog=examples("headrace vhosts list", "headrace vhosts add eu", "headrace vhosts remove eu --yes"),
)

Name = Annotated[str, typer.Argument(help="The virtual host's name.")]


@app.command("list", epilog=examples("headrace vhosts list", "headrace vhosts list --json"))
def list_hosts(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show all virtual hosts."""
    print_rows(Remote(url).list("vhosts"), ("name", "queues"), as_json)


@app.command(epilog=examples("headrace vhosts add eu"))
def add(name: Name, url: Url = DEFAULT_URL) -> None:
    """Have a virtual host."""
    Remote(url).call("PUT", "vhosts", name)
    typer.echo(f"there is a virtual host {name!r}; `headrace permissions set` lets users in")


@app.command(epilog=examples("headrace vhosts remove eu", "headrace vhosts remove eu --yes"))
def remove(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove a virtual host with all its queues and messages; asks first."""
    if not yes and not is_sure(f"remove the virtual host {name!r} with everything in it?"):
        fail("nothing was removed", EXIT_USAGE)
    Remote(url).call("DELETE", "vhosts", name)
    typer.echo(f"there is no virtual host {name!r} any more")

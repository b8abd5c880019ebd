"""`headrace permissions`: the rights of users in virtual hosts. Core has the rules."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import command_group, print_facts, print_rows

app: Final = command_group(
    "The rights of users in a virtual host.",
    "headrace permissions list",
    "headrace permissions set ann                     everything in the virtual host /",
    "headrace permissions set ann --read '^orders' --write '' --configure ''",
    "headrace permissions set-topic ann --write '^plant[.]' --read '^plant[.]'",
    "headrace permissions clear ann --vhost eu",
)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Exchange = Annotated[
    str,
    typer.Option(help="The exchange: amq.topic for plain MQTT topics, $queue for addresses below $queue/."),
]
_PATTERN: Final = "a regular expression over the names of queues and exchanges; '' for none"
_KEYS: Final = "a regular expression over its keys; '' for none"


@connected(app, "headrace permissions list", "headrace permissions list --json", name="list", has_host=False)
def list_permissions(client: Client, as_json: bool) -> None:
    """List the rights of all users in all virtual hosts."""
    columns = ("vhost", "user", "configure", "write", "read")
    print_rows(columns, client.pages("permissions", limit=1000), as_json)


@connected(
    app,
    "headrace permissions set ann",
    "headrace permissions set worker --configure '' --write '^results$' --read '^jobs$'",
    name="set",
)
def set_permission(
    client: Client,
    as_json: bool,
    name: Name,
    configure: Annotated[str, typer.Option(help=f"To declare and delete: {_PATTERN}.")] = ".*",
    write: Annotated[str, typer.Option(help=f"To publish and bind to: {_PATTERN}.")] = ".*",
    read: Annotated[str, typer.Option(help=f"To consume and bind from: {_PATTERN}.")] = ".*",
) -> None:
    """Give a user access to a virtual host, with these rights."""
    body = {"configure": configure, "write": write, "read": read}
    print_facts(client.put("permissions", client.host, name, body=body), as_json)


@connected(app, "headrace permissions clear ann", "headrace permissions clear ann --vhost eu")
def clear(client: Client, as_json: bool, name: Name) -> None:
    """Take a user's access to a virtual host away."""
    client.delete("permissions", client.host, name)
    print_facts({"user": name, "may no more use": client.host}, as_json, {"user": name, "vhost": client.host})


# -- topics ------------------------------------------------------------------------------------------------------------


@connected(
    app,
    "headrace permissions list-topic",
    "headrace permissions list-topic --json",
    name="list-topic",
    has_host=False,
)
def list_topic_permissions(client: Client, as_json: bool) -> None:
    """List the users that are limited to some topics."""
    columns = ("vhost", "user", "exchange", "write", "read")
    print_rows(columns, client.pages("topic-permissions", limit=1000), as_json)


@connected(
    app,
    "headrace permissions set-topic ann --write '^plant[.]' --read '^plant[.]'",
    "headrace permissions set-topic device --write '^sensors[.]{client_id}[.]' --read ''",
    "headrace permissions set-topic worker --exchange '$queue' --read '^jobs/eu'",
    name="set-topic",
)
def set_topic_permission(
    client: Client,
    as_json: bool,
    name: Name,
    exchange: Exchange = "amq.topic",
    write: Annotated[str, typer.Option(help=f"To publish: {_KEYS}.")] = ".*",
    read: Annotated[str, typer.Option(help=f"To subscribe and bind: {_KEYS}.")] = ".*",
) -> None:
    """Limit a user to some topics of an exchange; {username}, {vhost} and {client_id} are filled in."""
    body = {"write": write, "read": read}
    print_facts(client.put("topic-permissions", client.host, name, exchange, body=body), as_json)


@connected(
    app,
    "headrace permissions clear-topic ann",
    "headrace permissions clear-topic worker --exchange '$queue'",
    name="clear-topic",
)
def clear_topic_permission(client: Client, as_json: bool, name: Name, exchange: Exchange = "amq.topic") -> None:
    """Remove the limits of a user in an exchange."""
    client.delete("topic-permissions", client.host, name, exchange)
    print_facts({"user": name, "is no more bound in": exchange}, as_json, {"user": name, "exchange": exchange})

"""`headrace policies`: settings for queues and exchanges by a pattern of their names. Core has the rules."""

import json
from typing import Annotated, Any, Final

import typer

from headrace.cli.client import Client, connected
from headrace.cli.output import command_group, fail, print_facts, print_rows
from headrace.process import EXIT_USAGE

app: Final = command_group(
    "Policies: settings for queues and exchanges by a pattern of their names.",
    "headrace policies list",
    "headrace policies set short '^tmp[.]' message-ttl=60000 expires=3600000",
    "headrace policies set roof '.*' max-length=100000 --operator",
    "headrace policies remove short",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The policy's name.")]
Operator = Annotated[bool, typer.Option("--operator", help="An operator policy: the stricter limit counts.")]


@connected(app, "headrace policies list", "headrace policies list --operator --json", name="list")
def list_policies(client: Client, as_json: bool, operator: Operator = False) -> None:
    """List the policies of a virtual host."""
    print_rows(
        [
            "name",
            "pattern",
            ("for", "apply_to"),
            "priority",
            ("settings", lambda policy: ", ".join(f"{key}={value}" for key, value in policy["definition"].items())),
            ("without effect", lambda policy: ", ".join(policy["without_effect"])),
        ],
        client.pages(_path(operator), vhost=client.host, limit=1000),
        as_json,
    )


@connected(
    app,
    "headrace policies set letters '^orders' dead-letter-exchange=failed --apply-to queues",
    "headrace policies set archive '^log[.]' max-age=7D --apply-to streams --priority 5",
    "headrace policies set strays '^app[.]' alternate-exchange=strays --apply-to exchanges",
    name="set",
)
def set_policy(
    client: Client,
    as_json: bool,
    name: Name,
    pattern: Annotated[str, typer.Argument(help="A regular expression that names must match anywhere.")],
    setting: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings, by RabbitMQ's names.")],
    apply_to: Annotated[
        str,
        typer.Option(help="queues, classic_queues, quorum_queues, streams, exchanges or all."),
    ] = "all",
    priority: Annotated[int, typer.Option(help="Of the policies that match, the highest one counts.")] = 0,
    operator: Operator = False,
) -> None:
    """Create or replace a policy. It counts at once, for queues that are there and for new ones."""
    body = {
        "pattern": pattern,
        "definition": dict(_setting(text) for text in setting),
        "apply_to": apply_to,
        "priority": priority,
    }
    policy = client.put(_path(operator), client.host, name, body=body)
    facts: dict[str, object] = {"policy": name, "settings": policy["definition"]}
    if policy["without_effect"]:
        facts["without effect here"] = ", ".join(policy["without_effect"])
    print_facts(facts, as_json, policy)


@connected(app, "headrace policies remove short", "headrace policies remove roof --operator")
def remove(client: Client, as_json: bool, name: Name, operator: Operator = False) -> None:
    """Remove a policy; its settings count no more at once."""
    client.delete(_path(operator), client.host, name)
    print_facts({"removed": name}, as_json)


def _path(operator: bool) -> str:
    return "operator-policies" if operator else "policies"


def _setting(text: str) -> tuple[str, Any]:
    """Return a setting; a value that is JSON is no text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        fail(f"a setting is KEY=VALUE, as message-ttl=60000; {text!r} is none", EXIT_USAGE)
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value

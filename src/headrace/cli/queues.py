"""`headrace queues`: list, show, history, declare, delete, purge."""

import json
from typing import Annotated, Any, Final

import typer

from headrace.cli.client import Client, QueueName, connected
from headrace.cli.output import Yes, announce, command_group, confirm, count, fail, print_facts, print_rows
from headrace.process import EXIT_USAGE

app: Final = command_group("Look at queues, make and remove them.")


@connected(app, "headrace queues list", "headrace queues list --search ord --json", name="list")
def list_queues(
    client: Client,
    as_json: bool,
    search: Annotated[str, typer.Option(help="List only queues with this text in their name.")] = "",
) -> None:
    """List queues with their counts and rates."""
    print_rows(
        [
            ("queue", "name"),
            "type",
            ("waiting", lambda queue: "" if queue["type"] == "stream" else queue["counters"]["ready"]),
            ("delayed", lambda queue: queue["counters"]["delayed"]),
            ("held", lambda queue: queue["counters"]["unsettled"]),
            ("in/s", lambda queue: queue["rates"]["published"]),
            ("out/s", lambda queue: queue["rates"]["delivered"]),
            "groups",
            "consumers",
            "bytes",
        ],
        client.pages("queues", vhost=client.host, search=search, limit=1000),
        as_json,
    )


@connected(app, "headrace queues show orders", "headrace queues show orders --json")
def show(client: Client, as_json: bool, name: QueueName) -> None:
    """Show everything about a queue."""
    queue = client.get(*client.queue(name))
    facts: dict[str, object] = {
        "queue": queue["name"],
        "type": queue["type"],
        "durable": queue["durable"],
        "state": queue["state"],
        "offsets": f"{queue['first_offset']:,} to {queue['next_offset']:,}",
        "messages": queue["messages"],
        "waiting": "" if queue["type"] == "stream" else queue["counters"]["ready"],
        "delayed": queue["counters"]["delayed"],
        "held": queue["counters"]["unsettled"],
        "oldest": "" if queue["oldest_age_ms"] is None else f"{queue['oldest_age_ms'] / 1000:.1f} s",
        "bytes": queue["bytes"],
        "groups": queue["groups"],
        "consumers": queue["consumers"],
        "bindings": queue["bindings"],
        "arguments": queue["arguments"],
    }
    for said in ("description", "filter", "topics", "capture"):
        if queue["definition"][said]:
            facts[said] = queue["definition"][said]
    for said, title in (("policy", "policy"), ("operator_policy", "operator policy"), ("policy_settings", "by policy")):
        if queue[said]:
            facts[title] = queue[said]
    if queue["warnings"]:
        facts["note"] = "; ".join(queue["warnings"])
    if queue["source"] is not None:
        facts |= _source(queue["source"])
    print_facts(facts, as_json, queue)


@connected(app, "headrace queues history orders", "headrace queues history orders --limit 1000 --json")
def history(
    client: Client,
    as_json: bool,
    name: QueueName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The most entries.")] = 100,
    offset: Annotated[int, typer.Option(min=0, help="The place in the history to begin at.")] = 0,
) -> None:
    """Show the outcome and the consumers of past messages, oldest first. The queue needs the setting `history`."""
    found = client.get(*client.queue(name, "history"), limit=limit, offset=offset)
    print_rows(
        [
            "at",
            "offset",
            "group",
            "outcome",
            "deliveries",
            ("claimed by", lambda entry: ", ".join(attempt["consumer"] for attempt in entry["attempts"])),
            ("ended", "ended_at"),
        ],
        found["items"],
        as_json,
    )


def _source(source: dict[str, Any]) -> dict[str, object]:
    """Describe the progress of a queue in the stream that fills it."""
    facts: dict[str, object] = {
        "source": f"{source['queue']} ({source['state']})",
        "source offset": source["offset"],
        "source lag": source["lag"],
    }
    if source["missed"]:
        facts["missed"] = f"{count(source['missed'], 'message')} that retention took first"
    if source["oversized"]:
        facts["too large"] = count(source["oversized"], "message")
    return facts


@connected(
    app,
    "headrace queues declare orders",
    "headrace queues declare events --type stream --max-age 7d",
    "headrace queues declare jobs -a x-max-length=1000 -a x-dead-letter-exchange=dead",
    "headrace queues declare readings --type stream --topic 'sensors/#' --capture",
    """headrace queues declare invoices --topic '$queue/papers/#' --filter "type = 'invoice' AND amount > 100\"""",
    """headrace queues declare large --source events --filter "amount > 100" --from earliest""",
)
def declare(
    client: Client,
    as_json: bool,
    name: QueueName,
    kind: Annotated[str, typer.Option("--type", help="classic, quorum, stream or ephemeral.")] = "classic",
    max_depth: Annotated[int, typer.Option(help="The most messages in the queue; 0 for the default.")] = 0,
    max_age: Annotated[str, typer.Option(help="The age at which a stream drops messages: 7d, 12h.")] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option(
            help="Messages to addresses of this pattern enter, as $queue/papers/#; of plain topics only with "
            "--capture. May be repeated."
        ),
    ] = None,
    capture: Annotated[
        bool, typer.Option("--capture", help="Let --topic match the plain topics of MQTT clients too.")
    ] = False,
    filter: Annotated[  # noqa: A002
        str, typer.Option(help="Only messages that satisfy this expression enter: \"amount > 100 AND country = 'de'\".")
    ] = "",
    source: Annotated[
        str,
        typer.Option(help="A stream that fills this queue: its messages, old and new, that satisfy the filter."),
    ] = "",
    source_from: Annotated[
        str, typer.Option("--from", help="The start in that stream: earliest, latest, an offset, timestamp=TIME.")
    ] = "",
    description: Annotated[str, typer.Option(help="The purpose of the queue, in words.")] = "",
    history: Annotated[str, typer.Option(help="The time to keep each message's consumers and outcome: 24h.")] = "",
    argument: Annotated[
        list[str] | None, typer.Option("--argument", "-a", help="One of RabbitMQ's arguments, x-name=value.")
    ] = None,
) -> None:
    """Declare a queue: durable, with retries and dead letters. --argument makes it a queue like RabbitMQ's."""
    given: dict[str, Any] = {
        "arguments": dict(_argument(text) for text in argument or []),
        "limits": {"max_depth": max_depth} if max_depth else None,
        "retention": {"max_age": max_age} if max_age else None,
        "topics": topic,
        "capture": capture,
        "filter": filter,
        "source": source,
        "source_from": source_from,
        "description": description,
        "history": history,
    }
    body = {"type": kind, **{key: value for key, value in given.items() if value}}
    if argument and len(body) > 2:
        fail("--argument says it RabbitMQ's way: give x-max-length, x-max-age, x-filter, x-source with it", EXIT_USAGE)
    if capture and not topic:
        fail("--capture is about the patterns of --topic: give one, such as --topic 'sensors/#'", EXIT_USAGE)
    queue = client.put(*client.queue(name), body=body)
    for text in queue.get("warnings", []):
        announce(text)
    print_facts({"queue": queue["name"], "type": queue["type"]}, as_json, queue)


def _argument(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        fail(f"--argument takes name=value; {text!r} has no '='", EXIT_USAGE)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


@connected(app, "headrace queues delete orders --yes", "headrace queues delete orders --if-empty -y")
def delete(
    client: Client,
    as_json: bool,
    name: QueueName,
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Delete only an empty queue.")] = False,
    if_unused: Annotated[bool, typer.Option("--if-unused", help="Delete only a queue without consumers.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a queue with all its messages."""
    queue = client.get(*client.queue(name))
    confirm(f"delete the queue {name!r} with {count(queue['messages'], 'message')}?", yes)
    done = client.delete(*client.queue(name), if_empty=if_empty, if_unused=if_unused)
    print_facts({"deleted": f"{name} with {count(done['messages'], 'message')}"}, as_json, done)


@connected(app, "headrace queues purge orders --yes")
def purge(client: Client, as_json: bool, name: QueueName, yes: Yes = False) -> None:
    """Drop all waiting messages of a queue, delayed ones too. Consumers keep the messages that they hold."""
    waiting = client.get(*client.queue(name))["waiting"]
    confirm(f"drop {count(waiting, 'message')} that wait in the queue {name!r}?", yes)
    done = client.post(*client.queue(name, "purge"))
    print_facts({"purged": f"{count(done['messages'], 'message')} of {name}"}, as_json, done)

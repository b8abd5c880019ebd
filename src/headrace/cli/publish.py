"""`headrace publish`: publishes messages of the command line or of standard input."""

import base64
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Final

import typer

from headrace.cli.client import Client, connected, queue_names
from headrace.cli.output import fail, print_facts, progress
from headrace.process import EXIT_PROBLEMS, EXIT_USAGE

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)
MAX_BYTES: Final = 20 << 20


@connected(
    app,
    'headrace publish orders \'{"item": "espresso"}\'',
    "headrace publish orders hello --header table=7 --content-type text/plain",
    "headrace publish --topic plant/1/temperature 21.5",
    "echo hello | headrace publish orders -",
    "seq 100 | headrace publish orders --lines -",
)
def publish(
    client: Client,
    as_json: bool,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY] PAYLOAD",
            help="The queue or routing key, and the payload; - reads it from standard input.",
            autocompletion=queue_names,
        ),
    ] = None,
    exchange: Annotated[str, typer.Option(help="The exchange; without one KEY is a queue's name.")] = "",
    topic: Annotated[str, typer.Option(help="A topic or an address instead of a key: $queue/orders/eu.")] = "",
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="name=value; may be repeated.")] = None,
    content_type: Annotated[str, typer.Option(help="The type of the payload, such as text/plain.")] = "",
    priority: Annotated[int, typer.Option(min=0, max=255, help="From 0 to 255.")] = 0,
    expires_in: Annotated[float, typer.Option(help="Seconds until the message expires; 0 for never.")] = 0.0,
    lines: Annotated[bool, typer.Option("--lines", help="Every line of standard input is a message.")] = False,
) -> None:
    """Publish a message; returns when it would survive a crash. Exit code 1 when no queue took it."""
    given = list(words or [])
    if len(given) != (1 if topic else 2):
        fail(
            "give a KEY and a PAYLOAD, or --topic and a PAYLOAD; a PAYLOAD of - is read from standard input", EXIT_USAGE
        )
    body: dict[str, Any] = {"topic": topic} if topic else {"exchange": exchange, "routing_key": given[0]}
    properties: dict[str, Any] = {"priority": priority, "headers": dict(_header(text) for text in header or [])}
    if content_type:
        properties["content_type"] = content_type
    body |= {"properties": properties, "expires_in_ms": round(expires_in * 1000), "payload_encoding": "base64"}
    sent = taken = 0
    with progress("publishing", is_quiet=not lines) as show:
        for payload in _payloads(given[-1], lines):
            body["payload"] = base64.b64encode(payload).decode()
            taken += client.post("publish", client.host, body=body)["queues"]
            sent += 1
            show(f"published {sent:,}")
    print_facts({"published": sent, "stored in queues": taken}, as_json, {"published": sent, "queues": taken})
    if sent and not taken:
        fail("no queue took it: is the name right?", EXIT_PROBLEMS)


def _payloads(text: str, lines: bool) -> Iterator[bytes]:
    if text != "-":
        yield text.encode(errors="surrogateescape")
    elif lines:
        for line in sys.stdin.buffer:
            yield line.rstrip(b"\r\n")
    else:
        payload = sys.stdin.buffer.read(MAX_BYTES + 1)
        if len(payload) > MAX_BYTES:
            fail(f"standard input has more than {MAX_BYTES} bytes, which is the most for one message here", EXIT_USAGE)
        yield payload


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        fail(f"--header takes name=value; {text!r} is not that", EXIT_USAGE)
    return name, value

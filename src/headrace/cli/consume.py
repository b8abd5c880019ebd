"""`headrace consume`: prints messages of a queue."""

from typing import Annotated, Final

import typer

from headrace.cli.client import Client, QueueName, connected
from headrace.cli.output import Form, check_format, fail, print_message
from headrace.process import EXIT_USAGE

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)
_AT_ONCE: Final = 100
_WAIT_MS: Final = 20_000


@connected(
    app,
    "headrace consume orders",
    "headrace consume orders --count 10 --format json",
    "headrace consume orders --keep --count 3          look at them, and put them back",
    "headrace consume events --group audit --from first",
    "headrace consume events --from timestamp=1767225600 --count 5",
    "headrace consume events --follow                  wait for more until Ctrl-C",
)
def consume(
    client: Client,
    as_json: bool,
    queue: QueueName,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many messages; 0 for all that wait.")] = 0,
    group: Annotated[str, typer.Option(help="The consumer group; for streams, the command's own by default.")] = "",
    position: Annotated[
        str, typer.Option("--from", help="For streams: first, next, an offset, or timestamp=<unix time>.")
    ] = "",
    form: Form = "text",
    keep: Annotated[bool, typer.Option("--keep", help="Put the messages back instead of acknowledging them.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more messages when none are left.")] = False,
) -> None:
    """Print messages as they arrive. The broker acknowledges them when it sends them."""
    check_format(form)
    if keep and (follow or not count):
        fail("--keep puts messages back, and would get them again for ever: give --count, and no --follow", EXIT_USAGE)
    left = count
    while True:
        limit = min(left, 1000) if keep else min(left or _AT_ONCE, _AT_ONCE)
        body = {
            "limit": limit,
            "group": group,
            "then": "requeue" if keep else "ack",
            "wait_ms": _WAIT_MS if follow else 0,
            "position": position or None,
        }
        position = ""  # the group goes on from there by itself
        items = client.post(*client.queue(queue, "consume"), body=body)["items"]
        for message in items:
            print_message(message, "json" if as_json else form)
        left -= len(items) if count else 0
        if (count and not left) or keep or (not items and not follow):
            return

"""`headrace pipeline compact`: the last message of every key, in the place of all or in a stream of its own."""

from typing import Annotated

import typer

from headrace.cli.client import Client
from headrace.cli.output import confirm
from headrace.cli.pipeline.running import (
    DEFAULT_MASTER,
    DEFAULT_URL,
    Conf,
    Master,
    Url,
    Vhost,
    endpoint,
    spark_session,
)
from headrace.cli.words import count, examples


def add_to(app: typer.Typer) -> None:
    app.command(
        epilog=examples(
            "headrace pipeline compact --from prices --yes",
            "headrace pipeline compact --from prices --to prices-now",
            "headrace pipeline compact --from telemetry --to latest --key header:device",
            "headrace pipeline compact --from telemetry --to latest --key json:$.device.id",
        )
    )(compact)


def compact(
    source: Annotated[str, typer.Option("--from", help="The queue to read, usually a stream.")],
    to: Annotated[
        str,
        typer.Option(metavar="QUEUE", help="A stream for the last messages, made if it is not there; else in place."),
    ] = "",
    key: Annotated[
        str, typer.Option(help="What messages are told apart by: routing_key, header:NAME or json:PATH.")
    ] = "routing_key",
    url: Url = DEFAULT_URL,
    vhost: Vhost = "/",
    master: Master = DEFAULT_MASTER,
    conf: Conf = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="In place: do not ask.")] = False,
) -> None:
    """Have a stream keep the last message of every key, or store these in another stream; all at once."""
    if to in ("", source) and not yes and url.startswith("http"):
        messages = Client(url, "guest", "guest", vhost).get("queues", vhost, source)["messages"]
        confirm(f"drop all but the last of every key of the {count(messages, 'message')} of {source!r}?", yes)
    with spark_session(master, conf) as spark:
        from headrace.spark.pipelines.compact import CompactSettings, run_compact

        done = run_compact(spark, CompactSettings(endpoint(url, vhost), source, to or source, key))
        typer.echo(f"{to or source}: {count(done.kept, 'message')} of {done.messages:,}")

"""`headrace serve`: starts the broker. What it starts is in app.py."""

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace import serving
from headrace.app import (
    DEFAULT_ADDRESS,
    DEFAULT_AMQP_PORT,
    DEFAULT_DATA,
    DEFAULT_HTTP_PORT,
    DEFAULT_MQTT_PORT,
    ServeSettings,
)
from headrace.cli.words import EXIT_USAGE, examples, fail, port

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(
    epilog=examples(
        "headrace serve",
        "headrace serve --data /var/lib/headrace",
        "headrace serve --memory --ready-file /tmp/headrace.ready",
        "headrace serve --host 0.0.0.0 --amqp 5672",
        "headrace serve --http off",
    )
)
def serve(
    data: Annotated[
        Path | None, typer.Option(help=f"Where everything is kept (default: {DEFAULT_DATA}).", show_default=False)
    ] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep everything in memory; it is gone at the end.")] = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = DEFAULT_ADDRESS,
    amqp: Annotated[
        str, typer.Option(metavar="PORT", help="Where AMQP clients are served; 0 for a free port, off for nowhere.")
    ] = str(DEFAULT_AMQP_PORT),
    mqtt: Annotated[str, typer.Option(metavar="PORT", help="Where MQTT clients are served, likewise.")] = str(
        DEFAULT_MQTT_PORT
    ),
    http: Annotated[
        str, typer.Option(metavar="PORT", help="Where the admin API, metrics and the dashboard are served, likewise.")
    ] = str(DEFAULT_HTTP_PORT),
    coap: Annotated[str, typer.Option(metavar="PORT", help="Where CoAP clients publish (UDP), likewise.")] = "off",
    ready_file: Annotated[
        Path | None, typer.Option(help="Write pid, data directory and ports here, as JSON, once it serves.")
    ] = None,
) -> None:
    """Start the broker; Ctrl-C or SIGTERM stops it."""
    if memory and data is not None:
        fail("--memory keeps nothing in a directory; give either --data or --memory", EXIT_USAGE)
    where = None if memory else data or DEFAULT_DATA
    settings = ServeSettings(
        where,
        ready_file,
        host,
        amqp=port("--amqp", amqp),
        mqtt=port("--mqtt", mqtt),
        http=port("--http", http),
        coap=port("--coap", coap),
    )
    serving.become(settings)

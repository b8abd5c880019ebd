"""`headrace serve`: starts the broker. What it starts is in app.py."""

from pathlib import Path
from typing import Annotated, Final

import typer

from headrace import serving
from headrace.app import (
    DEFAULT_ADDRESS,
    DEFAULT_AMQP_PORT,
    DEFAULT_AMQPS_PORT,
    DEFAULT_DATA,
    DEFAULT_HTTP_PORT,
    DEFAULT_HTTPS_PORT,
    DEFAULT_MQTT_PORT,
    DEFAULT_MQTTS_PORT,
    DEFAULT_WS_PORT,
    ServeSettings,
)
from headrace.cli.words import EXIT_USAGE, examples, fail, port
from headrace.net.tls import TlsFiles

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)


@app.command(
    epilog=examples(
        "headrace serve",
        "headrace serve --data /var/lib/headrace",
        "headrace serve --memory --ready-file /tmp/headrace.ready",
        "headrace serve --host 0.0.0.0 --amqp 5672",
        "headrace serve --http off",
        "headrace serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key --amqp off",
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
    ws: Annotated[
        str, typer.Option(metavar="PORT", help="Where MQTT clients are served over WebSocket, likewise.")
    ] = str(DEFAULT_WS_PORT),
    http: Annotated[
        str, typer.Option(metavar="PORT", help="Where the admin API, metrics and the dashboard are served, likewise.")
    ] = str(DEFAULT_HTTP_PORT),
    coap: Annotated[str, typer.Option(metavar="PORT", help="Where CoAP clients publish (UDP), likewise.")] = "off",
    tls_cert: Annotated[
        Path | None, typer.Option(help="The certificate (chain) in PEM for the ports below; needs --tls-key.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="The certificate's private key in PEM.")] = None,
    tls_ca: Annotated[
        Path | None, typer.Option(help="Let only clients in whose certificates these authorities (PEM) have signed.")
    ] = None,
    amqps: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help=f"AMQP with TLS (default: {DEFAULT_AMQPS_PORT} with a certificate).",
            show_default=False,
        ),
    ] = None,
    mqtts: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help=f"MQTT with TLS (default: {DEFAULT_MQTTS_PORT} with a certificate).",
            show_default=False,
        ),
    ] = None,
    https: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            help=f"HTTP with TLS (default: {DEFAULT_HTTPS_PORT} with a certificate).",
            show_default=False,
        ),
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write pid, data directory and ports here, as JSON, once it serves.")
    ] = None,
) -> None:
    """Start the broker; Ctrl-C or SIGTERM stops it."""
    if memory and data is not None:
        fail("--memory keeps nothing in a directory; give either --data or --memory", EXIT_USAGE)
    where = None if memory else data or DEFAULT_DATA
    tls = _tls(tls_cert, tls_key, tls_ca)
    settings = ServeSettings(
        where,
        ready_file,
        host,
        amqp=port("--amqp", amqp),
        mqtt=port("--mqtt", mqtt),
        ws=port("--ws", ws),
        http=port("--http", http),
        coap=port("--coap", coap),
        tls=tls,
        amqps=_tls_port("--amqps", amqps, DEFAULT_AMQPS_PORT, tls),
        mqtts=_tls_port("--mqtts", mqtts, DEFAULT_MQTTS_PORT, tls),
        https=_tls_port("--https", https, DEFAULT_HTTPS_PORT, tls),
    )
    serving.become(settings)


def _tls(certificate: Path | None, key: Path | None, authority: Path | None) -> TlsFiles | None:
    if certificate is None and key is None and authority is None:
        return None
    if certificate is None or key is None:
        fail("TLS needs both --tls-cert and --tls-key", EXIT_USAGE)
    return TlsFiles(certificate, key, authority)


def _tls_port(option: str, text: str | None, default: int, tls: TlsFiles | None) -> int | None:
    """The port for TLS; there is one without being asked for where there is a certificate."""
    if text is None:
        return default if tls is not None else None
    number = port(option, text)
    if tls is None and number is not None:
        fail(f"{option} needs a certificate: give --tls-cert and --tls-key", EXIT_USAGE)
    return number

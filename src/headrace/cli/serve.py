"""`headrace serve`: starts the broker. The broker is in app.py, its settings are in config/."""

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli.output import examples
from headrace.config.configuration import Flags
from headrace.launch import Launch, become

app: Final = typer.Typer(rich_markup_mode="rich", add_completion=False)

_KEYS: Final = {
    "data": ("storage", "data"),
    "memory": ("storage", "memory"),
    "store": ("storage", "store"),
    "host": ("listeners", "host"),
    "amqp": ("listeners", "amqp"),
    "amqps": ("listeners", "amqps"),
    "mqtt": ("listeners", "mqtt"),
    "mqtts": ("listeners", "mqtts"),
    "stream": ("listeners", "stream"),
    "streams": ("listeners", "streams"),
    "stomp": ("listeners", "stomp"),
    "stomps": ("listeners", "stomps"),
    "ws": ("listeners", "ws"),
    "http": ("listeners", "http"),
    "https": ("listeners", "https"),
    "coap": ("listeners", "coap"),
    "tls_cert": ("tls", "certificate"),
    "tls_key": ("tls", "key"),
    "tls_ca": ("tls", "authority"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}
"""Flags and the keys of the settings that they set."""


def _port(text: str) -> Any:
    return typer.Option(metavar="PORT", help=text, show_default=False)


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


@app.command(
    epilog=examples(
        "headrace serve",
        "headrace serve --config /etc/headrace/headrace.yaml",
        "headrace serve --data /var/lib/headrace",
        "headrace serve --memory --ready-file /tmp/headrace.ready",
        "headrace serve --store s3://bucket/headrace",
        "headrace serve --host 0.0.0.0 --amqp 5672",
        "headrace serve --http off --ws off",
        "headrace serve --host 0.0.0.0 --tls-cert server.pem --tls-key server.key --amqp off",
    )
)
def serve(
    context: typer.Context,
    config: Annotated[
        Path | None, _option("The file with settings and queues (default: headrace.yaml, where there is one).")
    ] = None,
    data: Annotated[str | None, _option("The data directory (default: data).")] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory and lose it at the end.", show_default=False)
    ] = False,
    store: Annotated[
        str | None,
        _option("Keep everything in an object store: s3://bucket/prefix, gs://, az://, file:///dir or memory://."),
    ] = None,
    host: Annotated[str | None, _option("The address to listen on (default: 127.0.0.1).")] = None,
    amqp: Annotated[str | None, _port("The port for AMQP; 0 for a free port, off for none (default: 5672).")] = None,
    mqtt: Annotated[str | None, _port("MQTT, likewise (default: 1883).")] = None,
    stream: Annotated[str | None, _port("RabbitMQ's stream protocol, likewise (default: off).")] = None,
    stomp: Annotated[str | None, _port("STOMP, likewise (default: off).")] = None,
    ws: Annotated[str | None, _port("MQTT over WebSocket, likewise (default: 8083).")] = None,
    http: Annotated[str | None, _port("The admin API, metrics and the dashboard, likewise (default: 15672).")] = None,
    coap: Annotated[str | None, _port("CoAP (UDP), likewise (default: off).")] = None,
    tls_cert: Annotated[
        str | None, _option("The certificate (chain) in PEM for the ports below; needs --tls-key.")
    ] = None,
    tls_key: Annotated[str | None, _option("The certificate's private key in PEM.")] = None,
    tls_ca: Annotated[
        str | None, _option("Accept only clients with a certificate that these authorities (PEM) signed.")
    ] = None,
    amqps: Annotated[str | None, _port("AMQP with TLS (default: 5671 with a certificate).")] = None,
    mqtts: Annotated[str | None, _port("MQTT with TLS (default: 8883 with a certificate).")] = None,
    streams: Annotated[str | None, _port("The stream protocol with TLS (default: off).")] = None,
    stomps: Annotated[str | None, _port("STOMP with TLS (default: off).")] = None,
    https: Annotated[str | None, _port("HTTP with TLS (default: 15671 with a certificate).")] = None,
    log_level: Annotated[str | None, _option("debug, info, warning or error (default: info).")] = None,
    log_format: Annotated[str | None, _option("text or json (default: text).")] = None,
    ready_file: Annotated[
        Path | None, _option("Write pid, data directory or store, and ports here, as JSON, once it serves.")
    ] = None,
) -> None:
    """Start the broker. Ctrl-C or SIGTERM stops it; after SIGHUP it reads its configuration again.

    Flags win over environment variables (HEADRACE_LISTENERS_AMQP, HEADRACE_STORAGE_DATA, ...), and these over the file.
    """
    become(Launch(config, _flags(context.params), ready_file))


def _flags(given: dict[str, Any]) -> Flags:
    """Return the given flags as text, by the key of their setting."""
    return {
        key: (f"--{name.replace('_', '-')}", str(given[name]).lower() if name == "memory" else given[name])
        for name, key in _KEYS.items()
        if given[name]
    }

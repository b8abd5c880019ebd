"""TLS and EXTERNAL: the name in the client's certificate is the user, in asyncio's own loop and in uvloop."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
import uvloop
from pika.credentials import ExternalCredentials

from headrace.clock import SystemClock
from headrace.core.broker import Broker
from headrace.core.rights import Permission
from headrace.net.listener import Listener
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.handshake import Server as Amqp091Server
from headrace.storage.memory import MemoryEngine
from tests.doors import doors_to, must


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One self-signed certificate for localhost that both sides show and trust."""
    directory = tmp_path_factory.mktemp("tls")
    key, cert, both = directory / "key.pem", directory / "cert.pem", directory / "both.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(cert)]
    subprocess.run(command, check=True, capture_output=True)
    both.write_bytes(key.read_bytes() + cert.read_bytes())
    return both


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_certificate_logs_its_owner_in(certificate: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def run() -> bytes:
        loop = asyncio.get_running_loop()

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        hosts, access = doors_to(Broker(MemoryEngine(), SystemClock(), soon))
        access.put_user("localhost", None, (), must)
        access.put_permission(Permission("localhost", "/", ".*", ".*", ".*"), must)
        server = Amqp091Server(hosts, access, "test")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        context.load_verify_locations(certificate)
        context.verify_mode = ssl.CERT_REQUIRED
        listener = Listener(lambda: Connection(server, SystemClock()))
        await listener.open("127.0.0.1", 0, context)
        body = await loop.run_in_executor(None, lambda: _echo(listener.port, certificate))
        await listener.close()
        return body

    with asyncio.Runner(loop_factory=make_loop) as runner:
        body = runner.run(run())

    assert body == b"secret" * 100_000


def _echo(port: int, certificate: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(certificate))
    context.load_cert_chain(certificate)
    parameters = pika.ConnectionParameters(
        "127.0.0.1",
        port,
        ssl_options=pika.SSLOptions(context, "localhost"),
        credentials=ExternalCredentials(),
    )
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.queue_declare("tls")
    channel.confirm_delivery()
    channel.basic_publish("", "tls", b"secret" * 100_000)
    _, _, body = channel.basic_get("tls", auto_ack=True)
    connection.close()
    return bytes(body)

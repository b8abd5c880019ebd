"""AMQP over TLS: certificates for the server, for clients, and new ones without a restart."""

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import pytest
import uvloop
from pika.adapters.blocking_connection import BlockingConnection
from pika.credentials import ExternalCredentials
from pika.exceptions import AMQPConnectionError, ProbableAuthenticationError

from headrace.clock import SystemClock
from headrace.core.broker import Broker
from headrace.errors import Unavailable
from headrace.net.listener import Listener
from headrace.net.tls import Tls, TlsFiles
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.server import Server as Amqp091Server
from headrace.storage.memory import MemoryEngine
from tests.certificates import Authority, asking_for_certificates, encrypt
from tests.endpoints import access_to
from tests.servers import Server, serving

_TIMEOUT = 60.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    with serving(asking_for_certificates(tmp_path_factory.mktemp("server"), authority)) as running:
        yield running


def _connect(
    server: Server, trusted: Path, shown: tuple[Path, Path] | None, **parameters: object
) -> BlockingConnection:
    context = ssl.create_default_context(cafile=str(trusted))
    if shown is not None:
        context.load_cert_chain(*shown)
    options = pika.SSLOptions(context, "localhost")
    settings = {"connection_attempts": 1, "ssl_options": options, **parameters}
    return BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.ports["amqps"], **settings))


def _echo(connection: BlockingConnection, body: bytes) -> bytes:
    channel = connection.channel()
    channel.queue_declare("tls")
    channel.confirm_delivery()
    channel.basic_publish("", "tls", body)
    _, _, got = channel.basic_get("tls", auto_ack=True)
    connection.close()
    return bytes(got or b"")


def test_the_name_in_a_certificate_is_the_user(server: Server, authority: Authority) -> None:
    connection = _connect(server, authority.path, authority.sign("device"), credentials=ExternalCredentials())
    assert _echo(connection, b"secret" * 100_000) == b"secret" * 100_000


def test_a_certificate_of_no_user_is_let_in_with_a_password_only(server: Server, authority: Authority) -> None:
    stranger = authority.sign("stranger")
    with pytest.raises(ProbableAuthenticationError, match="EXTERNAL"):
        _connect(server, authority.path, stranger, credentials=ExternalCredentials())
    assert _echo(_connect(server, authority.path, stranger), b"x") == b"x"


def test_no_certificate_and_one_of_another_authority_are_not_let_in(
    server: Server, authority: Authority, tmp_path: Path
) -> None:
    for shown in (None, Authority(tmp_path, "other").sign("device")):
        with pytest.raises(AMQPConnectionError):
            _connect(server, authority.path, shown)
    assert _echo(_connect(server, authority.path, authority.sign("device")), b"x") == b"x"


def test_bytes_that_are_no_tls_end_that_connection_alone(server: Server, authority: Authority) -> None:
    with socket.create_connection(("127.0.0.1", server.ports["amqps"]), _TIMEOUT) as bare:
        bare.sendall(b"AMQP\x00\x00\x09\x01" * 100)
        bare.settimeout(_TIMEOUT)
        while bare.recv(4096):
            pass
    assert _echo(_connect(server, authority.path, authority.sign("device")), b"x") == b"x"


def test_a_new_certificate_is_shown_after_sighup_and_a_broken_one_is_not(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("localhost", "changing")
    running = Server(
        tmp_path,
        True,
        ["--tls-cert", str(certificate), "--tls-key", str(key), "--amqps", "0", "--mqtts", "0", "--https", "0"],
    )
    running.start()
    try:
        first = _shown_by(running, authority.path)
        kept = _connect(running, authority.path, None)

        certificate.write_text("no certificate")
        running.hang_up()
        _wait_for(running, "the configuration stays as it was")
        assert _shown_by(running, authority.path) == first

        authority.sign("localhost", "changing")
        running.hang_up()
        _wait_for(running, "connections from now on get the certificate")
        assert _shown_by(running, authority.path) != first
        assert _echo(kept, b"still here") == b"still here"
    finally:
        assert running.stop() == 0


def _shown_by(server: Server, trusted: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(trusted))
    with (
        socket.create_connection(("127.0.0.1", server.ports["amqps"]), _TIMEOUT) as bare,
        context.wrap_socket(bare, server_hostname="localhost") as wrapped,
    ):
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")
        return wrapped.getpeercert(binary_form=True) or b""


def _wait_for(server: Server, text: str) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while text not in server.log():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.02)


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_authority_that_is_replaced_counts_for_connections_from_then_on(
    tmp_path: Path, make_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.path.read_bytes())
    tls = Tls(TlsFiles(*old.sign("localhost", "server"), trusted))

    async def run() -> list[bool]:
        loop = asyncio.get_running_loop()

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        server = Amqp091Server(*access_to(Broker(MemoryEngine(), SystemClock(), soon)), "test")
        listener = Listener(lambda: Connection(server, SystemClock()))
        await listener.open("127.0.0.1", 0, tls.context)
        outcomes = []
        for _ in range(2):
            for signer in (old, new):
                shown = signer.sign("client", f"client-of-{signer.path.stem}")
                outcomes.append(await loop.run_in_executor(None, _is_let_in, listener.port, old.path, shown))
            trusted.write_bytes(new.path.read_bytes())
            tls.reload()
        await listener.close()
        return outcomes

    with asyncio.Runner(loop_factory=make_loop) as runner:
        assert runner.run(run()) == [True, False, False, True]


def _is_let_in(port: int, trusted: Path, shown: tuple[Path, Path]) -> bool:
    context = ssl.create_default_context(cafile=str(trusted))
    context.load_cert_chain(*shown)
    options = pika.SSLOptions(context, "localhost")
    try:
        parameters = pika.ConnectionParameters("127.0.0.1", port, ssl_options=options, connection_attempts=1)
        BlockingConnection(parameters).close()
    except AMQPConnectionError:
        return False
    return True


def test_files_that_cannot_be_used_are_named_with_what_is_wrong(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.sign("localhost", "one")
    _, other_key = authority.sign("localhost", "two")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello")
    missing = tmp_path / "missing.pem"
    encrypted = encrypt(key, tmp_path / "encrypted.key")
    for files, expected in (
        ((missing, key), f"the certificate {missing} cannot be read: No such file"),
        ((certificate, missing), f"the key {missing} cannot be read: No such file"),
        ((certificate, other_key), "KEY_VALUES_MISMATCH"),
        ((garbage, key), f"the certificate {garbage} and the key {key} cannot be used"),
        ((certificate, encrypted), "the key is encrypted"),
        ((certificate, key, missing), f"the authority {missing} cannot be read: No such file"),
        ((certificate, key, garbage), f"the authority {garbage} cannot be used"),
    ):
        with pytest.raises(Unavailable) as refusal:
            Tls(TlsFiles(*files))
        assert expected in str(refusal.value), files


def test_a_server_without_a_usable_certificate_does_not_start(authority: Authority, tmp_path: Path) -> None:
    certificate, _ = authority.sign("localhost", "one")
    options = ["--tls-cert", str(certificate), "--tls-key", str(tmp_path / "missing.key")]
    ports = ["--amqp", "0", "--mqtt", "off", "--http", "off"]
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--memory", *ports, *options],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"headrace: the key {tmp_path / 'missing.key'} cannot be read: No such file or directory\n"

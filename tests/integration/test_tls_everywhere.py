"""Who is not let in over TLS, on every listener that has it and by every protocol there."""

import contextlib
import gc
import socket
import ssl
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode
from pika.exceptions import AMQPConnectionError
from proton import ConnectionException, SSLDomain
from proton.utils import BlockingConnection

from tests.certificates import Authority
from tests.servers import Server, serving

# paho leaves the socket of a handshake that failed to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
SECONDS = 60.0
PORTS = ("amqps", "mqtts", "https")


@dataclass
class Papers:
    """What a client trusts, what it shows, and its login."""

    trusted: Path
    shown: tuple[Path, Path] | None
    password: str = "guest"

    def context(self) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(self.trusted))
        if self.shown is not None:
            made.load_cert_chain(*self.shown)
        return made


def _amqp091(server: Server, papers: Papers) -> bool:
    options = pika.SSLOptions(papers.context(), "localhost")
    login = pika.PlainCredentials("guest", papers.password)
    where = pika.ConnectionParameters(
        "127.0.0.1", server.ports["amqps"], ssl_options=options, credentials=login, connection_attempts=1
    )
    try:
        pika.BlockingConnection(where).close()
    except (AMQPConnectionError, ssl.SSLError):
        return False
    return True


def _amqp10(server: Server, papers: Papers) -> bool:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(papers.trusted))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    if papers.shown is not None:
        domain.set_credentials(str(papers.shown[0]), str(papers.shown[1]), None)
    url = f"amqps://localhost:{server.ports['amqps']}"
    login = {"user": "guest", "password": papers.password, "allowed_mechs": "PLAIN"}
    try:
        BlockingConnection(url, timeout=SECONDS, ssl_domain=domain, reconnect=False, **login).close()
    except ConnectionException:
        return False
    return True


def _mqtt(
    server: Server, papers: Papers, version: MQTTProtocolVersion, port: str = "mqtts", transport: str = "tcp"
) -> bool:
    client = paho.Client(CallbackAPIVersion.VERSION2, "papers", protocol=version, transport=transport)  # type: ignore[arg-type]
    client.username_pw_set("guest", papers.password)
    client.tls_set_context(papers.context())
    client.connect_timeout = SECONDS
    ended = threading.Event()
    entered: list[bool] = []

    def connected(client: paho.Client, data: object, flags: object, code: ReasonCode, more: object) -> None:
        entered.append(not code.is_failure)
        ended.set()

    client.on_connect = connected
    client.on_disconnect = lambda *_: ended.set()
    try:
        client.connect("localhost", server.ports[port])
    except (OSError, paho.WebsocketConnectionError):
        return False
    client.loop_start()
    try:
        assert ended.wait(SECONDS)
    finally:
        client.disconnect()
        client.loop_stop()
    return entered == [True]


def _http(server: Server, papers: Papers) -> bool:
    url = f"https://localhost:{server.ports['https']}/api/v1/overview"
    try:
        answer = httpx.get(url, auth=("guest", papers.password), verify=papers.context(), timeout=SECONDS)
    except httpx.TransportError:
        return False
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 200


PROTOCOL_CLIENTS: dict[str, Callable[[Server, Papers], bool]] = {
    "amqp 0-9-1": _amqp091,
    "amqp 1.0": _amqp10,
    "mqtt 3.1.1": lambda server, papers: _mqtt(server, papers, MQTTProtocolVersion.MQTTv311),
    "mqtt 5": lambda server, papers: _mqtt(server, papers, MQTTProtocolVersion.MQTTv5),
    "websocket": lambda server, papers: _mqtt(server, papers, MQTTProtocolVersion.MQTTv5, "https", "websockets"),
    "http": _http,
}


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a client leaves is gone before the next test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "other")


@contextlib.contextmanager
def _serving(directory: Path, authority: Authority, *options: str) -> Iterator[Server]:
    certificate, key = authority.sign("localhost", "server")
    more = ["--tls-cert", str(certificate), "--tls-key", str(key), *options]
    with serving(Server(directory, True, [*more, *(word for name in PORTS for word in (f"--{name}", "0"))])) as running:
        yield running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    with _serving(tmp_path_factory.mktemp("server"), authority) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    """The same, and clients have to show certificates."""
    with _serving(tmp_path_factory.mktemp("mutual"), authority, "--tls-ca", str(authority.path)) as running:
        yield running


@pytest.mark.parametrize("name", PROTOCOL_CLIENTS)
def test_a_password_is_needed_behind_a_certificate_too(server: Server, authority: Authority, name: str) -> None:
    assert PROTOCOL_CLIENTS[name](server, Papers(authority.path, None))
    assert not PROTOCOL_CLIENTS[name](server, Papers(authority.path, None, "wrong"))


@pytest.mark.parametrize("name", PROTOCOL_CLIENTS)
def test_a_client_that_trusts_others_does_not_get_its_password_asked(
    server: Server, authority: Authority, other: Authority, name: str
) -> None:
    assert not PROTOCOL_CLIENTS[name](server, Papers(other.path, None))
    assert PROTOCOL_CLIENTS[name](server, Papers(authority.path, None))


@pytest.mark.parametrize("name", PROTOCOL_CLIENTS)
def test_only_certificates_of_the_authority_are_let_in_where_it_is_asked_for(
    mutual: Server, authority: Authority, other: Authority, name: str
) -> None:
    may_enter = PROTOCOL_CLIENTS[name]

    assert not may_enter(mutual, Papers(authority.path, None))
    assert not may_enter(mutual, Papers(authority.path, other.sign("guest")))
    assert not may_enter(mutual, Papers(authority.path, authority.sign("guest"), "wrong"))
    assert may_enter(mutual, Papers(authority.path, authority.sign("guest")))


@pytest.mark.parametrize("port", PORTS)
def test_versions_before_1_2_are_refused(server: Server, authority: Authority, port: str) -> None:
    for version, is_spoken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = ssl.create_default_context(cafile=str(authority.path))
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it is what this is about
            context.minimum_version = ssl.TLSVersion.TLSv1
            context.maximum_version = version
        with socket.create_connection(("127.0.0.1", server.ports[port]), SECONDS) as bare:
            if is_spoken:
                context.wrap_socket(bare, server_hostname="localhost").close()
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    context.wrap_socket(bare, server_hostname="localhost")


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("hello", [b"AMQP\0\0\x09\x01", b"\x10\x0c\0\x04MQTT\x04\2\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"])
def test_who_speaks_no_tls_is_told_nothing(server: Server, port: str, hello: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.ports[port]), SECONDS) as bare:
        bare.sendall(hello)
        heard = b""
        with contextlib.suppress(ConnectionError):
            while data := bare.recv(4096):
                heard += data

    assert heard[:1] in (b"", b"\x15")  # nothing, or an alert of TLS


@pytest.mark.parametrize("port", ["amqp", "mqtt", "http"])
def test_who_speaks_tls_where_there_is_none_harms_nobody(server: Server, authority: Authority, port: str) -> None:
    context = ssl.create_default_context(cafile=str(authority.path))
    with (
        socket.create_connection(("127.0.0.1", server.ports[port]), SECONDS) as bare,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(bare, server_hostname="localhost")

    assert server.connect().is_open
    server.close_connections()

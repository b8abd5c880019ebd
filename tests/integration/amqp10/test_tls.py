"""AMQP 1.0 over TLS: EXTERNAL with a client's certificate, PLAIN in spite of one."""

from collections.abc import Iterator

import pytest
from proton import ConnectionException, Message, SSLDomain
from proton.utils import BlockingConnection

from tests.certificates import Authority, asking_for_certificates
from tests.servers import Server, serving


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Server]:
    with serving(asking_for_certificates(tmp_path_factory.mktemp("server"), authority)) as running:
        yield running


def _domain(authority: Authority, shown: str) -> SSLDomain:
    domain = SSLDomain(SSLDomain.MODE_CLIENT)
    domain.set_trusted_ca_db(str(authority.path))
    domain.set_peer_authentication(SSLDomain.VERIFY_PEER)
    certificate, key = authority.sign(shown)
    domain.set_credentials(str(certificate), str(key), None)
    return domain


def test_a_certificate_is_a_login(server: Server, authority: Authority) -> None:
    connection = BlockingConnection(
        f"amqps://localhost:{server.ports['amqps']}",
        timeout=60,
        ssl_domain=_domain(authority, "device"),
        allowed_mechs="EXTERNAL",
    )
    replies = connection.create_receiver("$queue/tls", credit=1)
    connection.create_sender("$queue/tls").send(Message(body="by certificate"))

    assert replies.receive(timeout=60).body == "by certificate"
    with pytest.raises(Exception, match="unauthorized-access"):
        connection.create_receiver("$queue/other")
    connection.close()


def test_a_password_goes_before_a_certificate(server: Server, authority: Authority) -> None:
    connection = BlockingConnection(
        f"amqps://localhost:{server.ports['amqps']}",
        timeout=60,
        ssl_domain=_domain(authority, "device"),
        allowed_mechs="PLAIN",
        user="guest",
        password="guest",
    )
    replies = connection.create_receiver("$queue/any", credit=1)
    connection.create_sender("$queue/any").send(Message(body="by password"))

    assert replies.receive(timeout=60).body == "by password"
    connection.close()


def test_a_certificate_of_nobody_is_refused(server: Server, authority: Authority) -> None:
    with pytest.raises(ConnectionException):
        BlockingConnection(
            f"amqps://localhost:{server.ports['amqps']}",
            timeout=60,
            ssl_domain=_domain(authority, "stranger"),
            allowed_mechs="EXTERNAL",
        )

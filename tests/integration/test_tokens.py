"""Logins by signed tokens over every protocol: taken when all is right, refused for each thing that may be wrong."""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import jwt
import pika
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pika.exceptions import AMQPConnectionError, ConnectionClosedByBroker

from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission
from headrace.core.hosts import Hosts
from tests.endpoints import must, prepare
from tests.paho_helpers import wait_for
from tests.protocol_clients import PROTOCOL_CLIENTS, ProtocolClient
from tests.servers import Server
from tests.tokens import AUDIENCE, ISSUER, TokenService

_SCOPES = f"openid {AUDIENCE}.write:%2F/orders {AUDIENCE}.write:%2F/amq.default {AUDIENCE}.tag:management"


def _start(directory: Path, service: TokenService, scope_claim: str = "") -> Server:
    def users(hosts: Hosts, access: Access) -> None:
        access.put_user("ann", None, ["management"], must)
        access.put_permission(Permission("ann", "/", "", "^orders$|^everybodys$|^amq[.]default$", ""), must)

    prepare(directory / "data", users)
    file = directory / "headrace.yaml"
    settings = {
        "keys": str(service.file), "issuer": ISSUER, "audience": AUDIENCE, "scope_claim": scope_claim, "leeway": 0
    }  # fmt: skip
    file.write_text(json.dumps({"jwt": settings}))
    server = Server(directory, options=["--config", str(file), "--coap", "0"])
    server.start()
    channel = server.connect().channel()
    channel.queue_declare("orders", durable=True)
    channel.queue_declare("everybodys", durable=True)
    return server


def _stop(server: Server, *secrets: str) -> None:
    server.close_connections()
    assert server.stop() == 0, server.log()
    assert "Traceback" not in server.log(), server.log()
    for secret in secrets:
        assert secret not in server.log()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> TokenService:
    return TokenService(tmp_path_factory.mktemp("service") / "keys.json")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, service: TokenService) -> Iterator[Server]:
    running = _start(tmp_path_factory.mktemp("server"), service)
    yield running
    _stop(running, "eyJ")


@pytest.fixture(params=PROTOCOL_CLIENTS, ids=[kind.name for kind in PROTOCOL_CLIENTS])
def client(request: pytest.FixtureRequest, server: Server) -> ProtocolClient:
    made = request.param(server)
    assert isinstance(made, ProtocolClient)
    return made


def _bearer(server: Server, token: str, path: str = "/api/whoami") -> httpx.Response:
    return httpx.get(server.http_url + path, headers={"Authorization": f"Bearer {token}"}, timeout=30, verify=False)


# -- every protocol


def test_a_token_is_a_password_over_every_protocol(client: ProtocolClient, service: TokenService) -> None:
    token = service.token("ann")

    assert client.may_enter("whoever", token)
    assert client.may_publish("whoever", token, "$queue/orders")
    assert not client.may_publish("whoever", token, "$queue/other")
    if client.consumes:
        assert not client.may_consume("whoever", token, "$queue/orders")


def test_a_token_that_is_over_is_refused_over_every_protocol(client: ProtocolClient, service: TokenService) -> None:
    assert client.may_enter("ann", service.token("ann"))
    assert not client.may_enter("ann", service.token("ann", exp=time.time() - 60))


# -- what a token must be like


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_bearer_comes_in_with_every_kind_of_key(server: Server, service: TokenService, algorithm: str) -> None:
    answer = _bearer(server, service.token("ann", algorithm))

    assert answer.json() == {"name": "ann", "tags": ["management"], "is_internal_user": False}


def _unsigned(service: TokenService) -> str:
    return jwt.encode({"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60}, "", "none")


def _confused(service: TokenService) -> str:
    """Signed with what everybody knows, the public key, as if it were a shared secret."""
    key = service.keys["RS256"].public_key()
    parts = [
        {"alg": "HS256", "typ": "JWT", "kid": "RS256"},
        {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60},
    ]
    text = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    secret = key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signature = hmac.new(secret, text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


def _forged(service: TokenService) -> str:
    claims = {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60}
    return jwt.encode(claims, ec.generate_private_key(ec.SECP256R1()), "ES256", {"kid": "ES256"})


def _altered(service: TokenService) -> str:
    head, claims, signature = service.token("bob").split(".")
    other = service.token("ann").split(".")[1]
    assert claims != other
    return f"{head}.{other}.{signature}"


_WRONG = {
    "is over": lambda service: service.token("ann", exp=time.time() - 1),
    "does not end": lambda service: service.token("ann", exp=None),
    "begins later": lambda service: service.token("ann", nbf=time.time() + 600),
    "is for another": lambda service: service.token("ann", aud="other"),
    "is for nobody": lambda service: service.token("ann", aud=None),
    "is of another": lambda service: service.token("ann", iss="https://evil.example.com"),
    "is of nobody": lambda service: service.token("ann", iss=None),
    "names nobody": lambda service: service.token("ann", sub=None),
    "names no text": lambda service: service.token("ann", sub=""),
    "names one who is not stored": lambda service: service.token("bob"),
    "is not signed": _unsigned,
    "is signed with the public key": _confused,
    "is signed by another": _forged,
    "was altered": _altered,
    "says another algorithm": lambda service: jwt.encode(
        {"sub": "ann", "iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 60},
        service.keys["RS256"], "RS256", {"kid": "ES256"},
    ),
    "names no key": lambda service: jwt.encode({"sub": "ann"}, service.keys["ES256"], "ES256"),
    "names an unknown key": lambda service: jwt.encode(
        {"sub": "ann"}, service.keys["ES256"], "ES256", {"kid": "other"}
    ),
    "is cut": lambda service: service.token("ann")[:-20],
    "is too long": lambda service: service.token("ann", more="x" * 20_000),
    "is none": lambda service: "eyJ.eyJ.AAAA",
}  # fmt: skip


@pytest.mark.parametrize("what", _WRONG)
def test_a_token_is_refused_that(server: Server, service: TokenService, what: str) -> None:
    assert _bearer(server, service.token("ann")).status_code == 200  # so that a failure is the first in a row
    answer = _bearer(server, _WRONG[what](service))  # type: ignore[no-untyped-call]

    assert answer.status_code == 401
    assert answer.json()["error"] == "not_authorised"


def test_the_log_says_why_and_not_the_token(server: Server, service: TokenService) -> None:
    token = service.token("ann", aud="somebody else")
    _bearer(server, token)

    assert "refused: the token is not to be trusted: Audience doesn't match" in server.log()
    assert token.split(".")[1] not in server.log()


# -- what becomes of connections


def test_a_connection_ends_with_its_token_unless_it_is_renewed(server: Server, service: TokenService) -> None:
    seconds = 5.0
    while True:  # on a busy machine a token may be over before the connection is there
        try:
            ends, stays = [
                server.connect(
                    credentials=pika.PlainCredentials("", service.token("ann", exp=time.time() + seconds, jti=str(at))),
                    connection_attempts=1,
                )
                for at in range(2)
            ]
            break
        except AMQPConnectionError:
            seconds *= 2
    renewed: list[object] = []
    stays._impl.update_secret(service.token("ann"), "renewed", renewed.append)
    while not renewed:
        stays.process_data_events(1)

    with pytest.raises(ConnectionClosedByBroker, match="the token of user 'ann' has expired"):
        _listen(ends)

    stays.process_data_events(0)
    assert stays.is_open


def _listen(connection: pika.BlockingConnection) -> None:
    while True:
        connection.process_data_events(1)


def test_a_secret_of_somebody_else_renews_nothing(server: Server, service: TokenService) -> None:
    connection = server.connect(credentials=pika.PlainCredentials("", service.token("ann")), connection_attempts=1)
    connection._impl.update_secret(service.token("bob"), "", lambda frame: None)

    with pytest.raises(ConnectionClosedByBroker, match="none of user 'ann'"):
        _listen(connection)


# -- permissions that the token carries


def test_scopes_are_the_permissions_where_that_is_configured(tmp_path: Path, service: TokenService) -> None:
    server = _start(tmp_path, service, "scope")
    try:
        for kind in PROTOCOL_CLIENTS:
            client = kind(server)
            token = service.token("carol", scope=f"{_SCOPES} {AUDIENCE}.write:%2F/everybodys")
            assert client.may_enter("carol", token), kind.name
            assert client.may_publish("carol", token, "$queue/orders"), kind.name
            assert not client.may_publish("carol", token, "$queue/other"), kind.name
            if client.consumes:
                assert not client.may_consume("carol", token, "$queue/orders"), kind.name
            assert not client.may_enter("ann", service.token("ann")), kind.name
        assert _bearer(server, service.token("carol", scope=_SCOPES.split())).json()["name"] == "carol"
    finally:
        _stop(server, "eyJ")


# -- keys


def test_keys_are_read_again_at_a_reload_and_those_that_are_no_use_change_nothing(tmp_path: Path) -> None:
    service = TokenService(tmp_path / "keys.json")
    server = _start(tmp_path, service)
    try:
        token = service.token("ann", "RS256")
        assert _bearer(server, token).status_code == 200

        service.file.write_text("{}")
        server.hang_up()
        wait_for(lambda: "is no JWKS" in server.log())
        assert _bearer(server, token).status_code == 200

        service.publish("ES256")
        server.hang_up()
        wait_for(lambda: "the configuration was read again" in server.log())
        assert _bearer(server, token).status_code == 401
        assert _bearer(server, service.token("ann", "ES256")).status_code == 200
    finally:
        _stop(server, "eyJ")

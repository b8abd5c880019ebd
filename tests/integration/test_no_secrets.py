"""No secret is told: a session over every protocol, and then what the log, the answers, metrics and commands said."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest

from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission
from headrace.core.hosts import Hosts
from tests.certificates import Authority
from tests.commands import headrace
from tests.endpoints import must, prepare
from tests.protocol_clients import PROTOCOL_CLIENTS
from tests.servers import Server
from tests.tokens import AUDIENCE, ISSUER, TokenService

_RIGHT = "right-7c1f0a"
_WRONG = "wrong-55e2b9"
_NEXT = "next-0d93aa"
_SECRETS = (_RIGHT, _WRONG, _NEXT, "$argon2", "PRIVATE KEY")
_PATHS = (
    "/metrics",
    "/health",
    "/ready",
    "/api/v1/overview",
    "/api/v1/users",
    "/api/v1/users/ann",
    "/api/v1/permissions",
    "/api/v1/connections",
    "/api/v1/openapi.json",
    "/api/overview",
    "/api/nodes",
    "/api/whoami",
    "/api/users",
    "/api/connections",
    "/api/channels",
    "/api/permissions",
)


@pytest.fixture
def service(tmp_path: Path) -> TokenService:
    return TokenService(tmp_path / "jwks.json")


@pytest.fixture(params=["text", "json"])
def server(request: pytest.FixtureRequest, tmp_path: Path, service: TokenService) -> Iterator[Server]:
    """It says all it can."""

    def users(hosts: Hosts, access: Access) -> None:
        access.put_user("ann", _RIGHT, ["administrator"], must)
        access.put_permission(Permission("ann", "/", ".*", ".*", ".*"), must)

    prepare(tmp_path / "data", users)
    certificate, key = Authority(tmp_path).sign("localhost", "server")
    options = ["--tls-cert", str(certificate), "--tls-key", str(key), "--amqps", "0", "--mqtts", "0", "--https", "0"]
    file = tmp_path / "headrace.yaml"
    jwt = {"keys": str(service.file), "issuer": ISSUER, "audience": AUDIENCE}
    file.write_text(json.dumps({"log": {"level": "debug", "format": request.param}, "jwt": jwt}))
    running = Server(tmp_path, options=["--config", str(file), *options, "--coap", "0"])
    running.start()
    _put(running, "/api/v1/queues/%2F/orders", {})
    _put(running, "/api/v1/queues/%2F/everybodys", {})
    yield running
    running.close_connections()


def _put(server: Server, path: str, body: object) -> httpx.Response:
    return httpx.put(server.http_url + path, auth=("ann", _RIGHT), json=body, timeout=60, verify=False)


def test_no_password_hash_or_token_is_told_to_anybody(server: Server, service: TokenService) -> None:
    token = service.token("ann")
    said = [_talk(server, token), _errors(server), *_commands(server)]
    server.hang_up()
    assert server.stop() == 0

    log = server.log()
    assert "ann" in log  # it does say who came
    basic = [base64.b64encode(f"ann:{secret}".encode()).decode() for secret in (_RIGHT, _WRONG)]
    parts = [part for part in token.split(".") if len(part) > 40]
    for secret in (*_SECRETS, *basic, *parts):
        for text in (log, *said):
            assert secret not in text, f"{secret} in {text}"


def _talk(server: Server, token: str) -> str:
    """Good and bad logins by every protocol, and all that is told about users and connections meanwhile."""
    for kind in PROTOCOL_CLIENTS:
        client = kind(server)
        assert client.may_enter("ann", _RIGHT), kind.name
        assert client.may_enter("ann", token), kind.name
        assert not client.may_enter("ann", _WRONG), kind.name
    held = server.connect(credentials=pika.PlainCredentials("ann", _RIGHT))
    with httpx.Client(base_url=server.http_url, auth=("ann", _RIGHT), timeout=60, verify=False) as http:
        answers = [http.get(path) for path in _PATHS]
    held.close()
    for answer in answers:
        assert answer.is_success, answer.url
    return "".join(f"{answer.headers}{answer.text}" for answer in answers)


def _errors(server: Server) -> str:
    """What is answered where a secret is in a request that fails."""
    answers = [
        _put(server, "/api/v1/users/bad%00name", {"password": _NEXT, "tags": []}),
        _put(server, "/api/v1/users/bob", {"password": [_NEXT], "tags": []}),
        _put(server, "/api/v1/users/bob", {"password": _NEXT, "tags": "x,y"}),
        _put(server, "/api/v1/users/bob", {"password": _NEXT * 500, "tags": []}),
        _put(server, "/api/v1/users/bob", {"password": _NEXT, "tags": [], "other": 1}),
        _put(server, "/api/users/bob", {"password": [_NEXT], "tags": ""}),
        _put(server, "/api/users/bob", {"password_hash": f"{_NEXT}?", "tags": [1]}),
        httpx.get(f"{server.http_url}/api/v1/overview", auth=("ann", _WRONG), timeout=60, verify=False),
        httpx.get(
            f"{server.http_url}/api/v1/overview",
            headers={"authorization": f"Bearer {_WRONG}"},
            timeout=60,
            verify=False,
        ),
        httpx.get(
            f"{server.http_url}/api/v1/overview", headers={"authorization": f"Basic {_WRONG}"}, timeout=60, verify=False
        ),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500, answer.text
    return "".join(answer.text for answer in answers)


def _commands(server: Server) -> Iterator[str]:
    """What commands print, to people and to programs, when they succeed and when they do not."""
    good, bad = (server.http_url.replace("//", f"//ann:{secret}@") for secret in (_RIGHT, _WRONG))
    nowhere = f"http://ann:{_WRONG}@127.0.0.1:1"
    for words, url, given in (
        (["users", "add", "bob"], good, _NEXT),
        (["users", "password", "bob"], good, _NEXT),
        (["users", "list", "--json"], good, ""),
        (["queues", "list"], bad, ""),
        (["queues", "list"], nowhere, ""),
        (["consume", "orders", "--json"], nowhere, ""),
        (["queues", "list", "--url", f"http://ann:{_WRONG}@[bad"], good, ""),
        (["queues", "list", "--url", f"http://ann:{_WRONG}@broker:99999999"], good, ""),
    ):
        result = headrace(*words, given=f"{given}\n", environment={"HEADRACE_URL": url})
        assert "Traceback" not in result.stderr, result.stderr
        assert (result.returncode == 0) is (url == good and "--url" not in words), result.stderr
        yield result.stdout + result.stderr

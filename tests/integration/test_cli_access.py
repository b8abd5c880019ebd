"""`headrace users`, `permissions` and `vhosts` against a running broker, and what AMQP makes of it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ProbableAccessDeniedError, ProbableAuthenticationError

from headrace.cli.client import EXIT_LOGIN, EXIT_UNAVAILABLE
from headrace.process import EXIT_USAGE
from tests import commands
from tests.servers import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(Server(tmp_path_factory.mktemp("server"))) as running:
        yield running
    for secret in ("hunter2", "hunter3", "argon2"):
        assert secret not in running.log()


def headrace(server: Server, *arguments: str, given: str = "", code: int = 0) -> str:
    """What the command prints: its result, or with a code its complaint."""
    url = f"http://guest:guest@127.0.0.1:{server.http_port}"
    done = commands.headrace(*arguments, "--url", url, given=given)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def _connect(server: Server, user: str, password: str, host: str = "/") -> pika.BlockingConnection:
    return server.connect(credentials=pika.PlainCredentials(user, password), virtual_host=host, connection_attempts=1)


def test_a_user_is_added_let_in_and_removed(server: Server) -> None:
    headrace(server, "users", "add", "ann", "--tag", "monitoring", "--limit", "max-connections=2", given="hunter2\n")
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        _connect(server, "ann", "hunter2")

    headrace(server, "permissions", "set", "ann", "--configure", "^ann", "--write", "", "--read", "^ann")
    _connect(server, "ann", "hunter2").channel().queue_declare("ann.1")
    users = {user["name"]: user for user in json.loads(headrace(server, "users", "list", "--json"))}
    assert users["ann"] == {"name": "ann", "tags": ["monitoring"], "limits": {"max-connections": 2}}
    given = json.loads(headrace(server, "permissions", "list", "--json"))
    assert {"user": "ann", "vhost": "/", "configure": "^ann", "write": "", "read": "^ann"} in given
    assert "max-connections=2" in headrace(server, "users", "list")

    headrace(server, "users", "password", "ann", given="hunter3\n")
    with pytest.raises(ProbableAuthenticationError):
        _connect(server, "ann", "hunter2")
    assert _connect(server, "ann", "hunter3").is_open

    headrace(server, "permissions", "clear", "ann")
    headrace(server, "users", "remove", "ann")
    with pytest.raises(ProbableAuthenticationError):
        _connect(server, "ann", "hunter3")


def test_a_user_is_bound_to_topics_and_set_free(server: Server) -> None:
    headrace(server, "users", "add", "dev", given="hunter2\n")
    headrace(server, "permissions", "set", "dev")
    headrace(server, "permissions", "set-topic", "dev", "--write", "^plant[.]", "--read", "")
    entry = {"user": "dev", "vhost": "/", "exchange": "amq.topic", "write": "^plant[.]", "read": ""}
    assert json.loads(headrace(server, "permissions", "list-topic", "--json")) == [entry]
    assert "^plant[.]" in headrace(server, "permissions", "list-topic")

    channel = _connect(server, "dev", "hunter2").channel()
    channel.basic_publish("amq.topic", "plant.1", b"")
    channel.basic_publish("amq.topic", "house.1", b"")
    with pytest.raises(ChannelClosedByBroker, match=r"topic 'house\.1'"):
        channel.queue_declare("late")

    headrace(server, "permissions", "clear-topic", "dev")
    assert json.loads(headrace(server, "permissions", "list-topic", "--json")) == []
    channel = _connect(server, "dev", "hunter2").channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "house.1", b"")
    assert "no topic permissions" in headrace(server, "permissions", "clear-topic", "dev", code=3)


def test_policies_are_set_shown_and_removed(server: Server) -> None:
    headrace(server, "queues", "declare", "tmp.1")
    said = headrace(server, "policies", "set", "short", "^tmp", "max-length=7", "ha-mode=all", "--priority", "2")
    assert "without effect here" in said
    headrace(server, "policies", "set", "roof", ".*", "max-length=5", "--operator")
    (policy,) = json.loads(headrace(server, "policies", "list", "--json"))
    assert policy == {
        "vhost": "/",
        "name": "short",
        "pattern": "^tmp",
        "apply_to": "all",
        "priority": 2,
        "definition": {"max-length": 7, "ha-mode": "all"},
        "without_effect": ["ha-mode"],
    }
    queue = json.loads(headrace(server, "queues", "show", "tmp.1", "--json"))
    assert (queue["policy"], queue["operator_policy"]) == ("short", "roof")
    assert queue["policy_settings"] == {"max-length": 5, "ha-mode": "all"}
    assert "not recognised policy settings" in headrace(server, "policies", "set", "x", "x", "max-lenght=1", code=1)
    assert "KEY=VALUE" in headrace(server, "policies", "set", "x", "x", "max-length", code=2)

    headrace(server, "policies", "remove", "short")
    headrace(server, "policies", "remove", "roof", "--operator")
    assert "no policy 'short'" in headrace(server, "policies", "remove", "short", code=3)
    assert json.loads(headrace(server, "queues", "show", "tmp.1", "--json"))["policy_settings"] == {}


def test_a_virtual_host_has_its_limits(server: Server) -> None:
    headrace(server, "vhosts", "add", "small", "--limit", "max-queues=3", "--limit", "max-connections=5")
    hosts = {host["name"]: host["limits"] for host in json.loads(headrace(server, "vhosts", "list", "--json"))}
    assert hosts["small"] == {"max-queues": 3, "max-connections": 5}
    headrace(server, "vhosts", "add", "small", "--limit", "max-queues=-1")
    hosts = {host["name"]: host["limits"] for host in json.loads(headrace(server, "vhosts", "list", "--json"))}
    assert hosts["small"] == {"max-connections": 5}
    assert "no key 'max-odd'" in headrace(server, "vhosts", "add", "small", "--limit", "max-odd=1", code=1)
    headrace(server, "vhosts", "remove", "small", "--yes")


def test_a_virtual_host_is_added_used_and_removed(server: Server) -> None:
    headrace(server, "vhosts", "add", "a/b c")
    headrace(server, "permissions", "set", "guest", "--vhost", "a/b c")
    _connect(server, "guest", "guest", "a/b c").channel().queue_declare("q", durable=True)
    hosts = json.loads(headrace(server, "vhosts", "list", "--json"))
    assert [host["name"] for host in hosts] == ["/", "a/b c"]
    assert hosts[1] == {"name": "a/b c", "queues": 1, "limits": {}}

    assert "add --yes" in headrace(server, "vhosts", "remove", "a/b c", code=2)
    headrace(server, "vhosts", "remove", "a/b c", "--yes")
    with pytest.raises(ProbableAccessDeniedError, match="530"):
        _connect(server, "guest", "guest", "a/b c")


def test_what_makes_no_sense_is_said_in_one_line(server: Server) -> None:
    for arguments, code, expected in (
        (("users", "add", "bob"), 2, "there is no password"),
        (
            ("users", "add", "bob", "--no-password", "--limit", "max-cats=3"),
            1,
            "there is no key 'max-cats'; known are max-channels",
        ),
        (("users", "add", "bob", "--no-password", "--limit", "many"), 2, "--limit takes NAME=NUMBER"),
        (("users", "remove", "nobody"), 3, "no user 'nobody'"),
        (("permissions", "set", "guest", "--write", "("), 1, "'(' is not a regular expression"),
        (("permissions", "set", "guest", "--vhost", "nowhere"), 3, "no vhost 'nowhere'"),
        (("vhosts", "remove", "/", "--yes"), 1, "always there"),
    ):
        said = headrace(server, *arguments, code=code)
        assert said.startswith("headrace: "), said
        assert expected in said
        assert said.count("\n") == 1


def test_no_broker_and_a_wrong_login_are_told_apart(server: Server, tmp_path: Path) -> None:
    for url, expected in (
        ("http://guest:guest@127.0.0.1:1", "the broker at http://127.0.0.1:1 does not answer"),
        (f"http://guest:secret@127.0.0.1:{server.http_port}", "refuses the login"),
        ("amqp://guest:secret@localhost", "--url takes an address like http://127.0.0.1:15672; 'localhost'"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "headrace", "users", "list"],
            env={"HEADRACE_URL": url, "PATH": "", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (EXIT_LOGIN, EXIT_UNAVAILABLE, EXIT_USAGE)
        assert expected in done.stderr
        assert "secret" not in done.stderr

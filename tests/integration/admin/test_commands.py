"""The commands that are clients of the HTTP API, as people and scripts run them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from headrace.cli.client import EXIT_LOGIN, EXIT_NOT_FOUND, EXIT_UNAVAILABLE
from tests.commands import headrace
from tests.servers import Server

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_CLIENTS = ["publish", "consume", "queues", "groups", "dlq"]


@pytest.fixture
def environment(server: Server) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HEADRACE_URL": server.http_url, "COLUMNS": "160", "NO_COLOR": "1"}


@pytest.fixture
def run(environment: dict[str, str]) -> Run:
    def _run(*arguments: str, code: int = 0, given: str = "") -> "subprocess.CompletedProcess[str]":
        result = headrace(*arguments, given=given, environment=environment)
        assert result.returncode == code, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return result

    return _run


@pytest.mark.parametrize("command", [[name] for name in _CLIENTS])
def test_help_says_what_there_is(run: Run, command: list[str]) -> None:
    assert "Usage: headrace" in run(*command, "--help").stdout


# -- for people and for scripts


def test_queues_are_tables_for_people_and_json_for_scripts(run: Run, http: httpx.Client, name: str) -> None:
    run("queues", "declare", name, "-a", "x-max-length=5", "-a", "x-queue-mode=lazy")
    run("publish", name, "hello")

    table = run("queues", "list", "--search", name).stdout
    rows = json.loads(run("queues", "list", "--search", name, "--json").stdout)
    shown = run("queues", "show", name).stdout

    assert name in table
    assert "waiting" in table
    assert [(row["name"], row["counters"]["ready"]) for row in rows] == [(name, 1)]
    assert rows[0]["arguments"] == {"x-max-length": 5, "x-queue-mode": "lazy", "x-queue-type": "classic"}
    assert "waiting" in shown
    assert "purged  1 message" in run("queues", "purge", name, "--yes").stdout
    assert f"deleted  {name} with 0 messages" in run("queues", "delete", name, "--yes").stdout


def test_a_queue_says_what_it_is_for_and_what_became_of_its_messages(run: Run, name: str) -> None:
    run("queues", "declare", name, "--history", "1h", "--description", "the night shift")
    run("publish", name, "one")
    run("consume", name, "--count", "1")

    assert "the night shift" in run("queues", "show", name).stdout
    (entry,) = json.loads(run("queues", "history", name, "--json").stdout)
    assert (entry["outcome"], entry["deliveries"]) == ("done", 1)
    assert "http-guest" in run("queues", "history", name).stdout
    other = run("queues", "declare", name, "--max-depth", "7", code=1)
    assert "differs in max_length" in other.stderr


def test_a_table_in_a_pipe_has_names_whole(run: Run, environment: dict[str, str], name: str) -> None:
    long = name + "-of-the-third-warehouse" * 5
    run("queues", "declare", long)
    del environment["COLUMNS"]

    command = [sys.executable, "-m", "headrace", "queues", "list", "--search", name]
    listed = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=True)

    assert long in listed.stdout


def test_messages_go_in_and_come_out_as_they_were(run: Run, name: str) -> None:
    run("queues", "declare", name)
    run("publish", name, "-", given="größe\n\n")
    run("publish", "--lines", name, "-", given="one\ntwo\n")

    kept = run("consume", name, "--keep", "--count", "1", "--format", "hex").stdout
    everything = run("consume", name).stdout

    assert "67 72 c3 b6 c3 9f 65 0a 0a" in kept
    assert everything == "größe\n\n\none\ntwo\n"


def test_a_stream_is_read_from_where_it_is_asked(run: Run, name: str) -> None:
    run("queues", "declare", name, "--type", "stream")
    run("publish", "--lines", name, "-", given="a\nb\nc\n")

    first = run("consume", name, "--group", "g", "--count", "2").stdout
    rest = run("consume", name, "--group", "g").stdout
    again = run("consume", name, "--group", "h", "--from", "1").stdout
    as_json = [json.loads(line) for line in run("consume", name, "--group", "i", "--json").stdout.splitlines()]

    assert (first, rest, again) == ("a\nb\n", "c\n", "b\nc\n")
    assert [message["offset"] for message in as_json] == [0, 1, 2]


def test_exit_codes_say_what_went_wrong(run: Run, server: Server, name: str) -> None:
    missing = run("queues", "show", name, code=EXIT_NOT_FOUND)
    nowhere = run("publish", name, "x", code=1)
    login = run("queues", "list", "--password", "wrong", code=EXIT_LOGIN)
    silent = run("queues", "list", "--url", "http://127.0.0.1:1", code=EXIT_UNAVAILABLE)
    other = run("queues", "list", "--url", f"http://127.0.0.1:{server.port}", code=EXIT_UNAVAILABLE)
    bad_url = run("queues", "list", "--url", "over there", code=2)
    asked = run("queues", "delete", name, code=2)
    refused = run("queues", "declare", name, "--type", "round", code=1)

    assert f"no queue '{name}'" in missing.stderr
    assert "no queue took it" in nowhere.stderr
    assert "refuses the login: Login failed" in login.stderr
    assert "is it running?" in silent.stderr
    assert "does not answer" in other.stderr or "no Headrace broker" in other.stderr
    assert "takes an address like" in bad_url.stderr
    assert "add --yes" in asked.stderr
    assert "must be one of" in refused.stderr
    for result in (missing, nowhere, login, silent, other, bad_url, asked, refused):
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "only-a-key"],
        ["publish", "q", "x", "--header", "no-equals"],
        ["consume", "q", "--format", "morse"],
        ["consume", "q", "--keep"],
        ["queues", "declare", "q", "-a", "novalue"],
        ["dlq", "show", "q", "--format", "morse"],
    ],
)
def test_what_makes_no_sense_is_told_before_anything_is_done(run: Run, arguments: list[str]) -> None:
    assert run(*arguments, code=2).stderr.startswith("headrace: ")


def test_the_login_may_be_in_the_address(run: Run, server: Server, http: httpx.Client, name: str) -> None:
    http.put(f"/api/v1/users/{name}", json={"password": "p@ss:word", "tags": ["management"]})
    http.put(f"/api/v1/permissions/%2F/{name}", json={})

    run("queues", "list", "--url", f"http://{name}:p%40ss%3Aword@127.0.0.1:{server.http_port}")
    run("queues", "list", "--url", f"http://{name}:wrong@127.0.0.1:{server.http_port}", code=EXIT_LOGIN)


def test_version_and_help_load_no_command(environment: dict[str, str]) -> None:
    code = "import sys, headrace.cli; sys.exit('headrace.app' in sys.modules or 'rich.table' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0

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
from tests.paho_helpers import Paho
from tests.servers import Server

Run = Callable[..., "subprocess.CompletedProcess[str]"]
_CLIENTS = ["publish", "consume", "queues", "groups", "dlq"]


def reject_all(http: httpx.Client, queue: str) -> None:
    http.post(f"/api/v1/queues/%2F/{queue}/consume", json={"limit": 100, "then": "reject"}).raise_for_status()


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
    run("queues", "declare", f"{name}-there")
    asked = run("queues", "delete", f"{name}-there", code=2)
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


# -- what is lost is told before


def test_dead_letters_of_a_queue_that_has_none_are_none_and_the_queue_keeps_its_messages(run: Run, name: str) -> None:
    run("queues", "declare", name)
    run("queues", "declare", f"{name}-to")
    run("publish", name, "alive")

    shown = run("dlq", "show", name).stdout
    purged = json.loads(run("dlq", "purge", name, "--yes", "--json").stdout)
    moved = json.loads(run("dlq", "move", name, f"{name}-to", "--json").stdout)

    assert (shown, purged["messages"], moved["messages"]) == ("", 0, 0)
    assert "no dead letters" in run("dlq", "purge", name, "--yes").stdout
    assert run("consume", name).stdout == "alive\n"
    run("dlq", "purge", f"{name}-missing", "--yes", code=EXIT_NOT_FOUND)


def test_dead_letters_that_die_again_are_sent_back_once(run: Run, http: httpx.Client, name: str) -> None:
    parking = f"{name}-parking"
    run("queues", "declare", parking)
    dead_letters = "-a", 'x-dead-letter-exchange=""', "-a", f"x-dead-letter-routing-key={parking}"
    run("queues", "declare", name, "-a", "x-message-ttl=0", *dead_letters)
    run("publish", name, "-", "--lines", given="".join(f"{number}\n" for number in range(2500)))

    back = json.loads(run("dlq", "redrive", parking, "--limit", "2200", "--json").stdout)

    assert (back["queue"], back["messages"]) == (parking, 2200)
    assert http.get(f"/api/v1/queues/%2F/{parking}").json()["waiting"] == 2500


def test_dead_letters_behind_an_exchange_are_found_and_sent_back(run: Run, http: httpx.Client, name: str) -> None:
    run("queues", "declare", f"{name}-parking", "-a", "x-max-length=10")
    run(
        "queues", "declare", name,
        "-a", 'x-dead-letter-exchange=""', "-a", f"x-dead-letter-routing-key={name}-parking",
    )  # fmt: skip
    run("publish", name, "broken")
    reject_all(http, name)

    rows = json.loads(run("dlq", "list", "--json").stdout)
    assert [(row["origin"], row["messages"]) for row in rows if row["queue"] == f"{name}-parking"] == [(name, 1)]
    assert "broken" in run("dlq", "show", f"{name}-parking").stdout
    back = run("dlq", "redrive", f"{name}-parking")
    assert f"sending the dead letters that died in '{name}' among the 1 message of '{name}-parking'" in back.stderr
    assert f"1 message of {name}-parking" in back.stdout
    assert run("consume", name).stdout == "broken\n"


def test_each_command_that_loses_messages_says_first_how_many_of_which_queue(
    run: Run, http: httpx.Client, name: str
) -> None:
    run("queues", "declare", name)
    run("publish", name, "one")
    run("publish", name, "two")
    http.put(f"/api/v1/vhosts/{name}").raise_for_status()
    http.put(f"/api/v1/permissions/{name}/guest", json={"configure": ".*", "write": ".*", "read": ".*"})
    run("queues", "declare", "inside", "--vhost", name)
    run("publish", "inside", "x", "--vhost", name)

    assert f"drop 2 messages that wait in the queue '{name}'?" in run("queues", "purge", name, code=2).stderr
    assert f"delete the queue '{name}' with 2 messages?" in run("queues", "delete", name, code=2).stderr
    gone = f"remove the virtual host '{name}' with 1 queue and 1 message?"
    assert gone in run("vhosts", "remove", name, code=2).stderr
    assert f"{name} with 1 queue and 1 message" in run("vhosts", "remove", name, "--yes").stdout
    reject_all(http, name)
    assert f"drop the 2 messages of '$dlq/{name}'?" in run("dlq", "purge", name, code=2).stderr
    assert f"2 messages of $dlq/{name}" in run("dlq", "purge", name, "--yes").stdout


def test_the_default_group_of_a_work_queue_is_not_forgotten(run: Run, name: str) -> None:
    run("queues", "declare", name)
    run("publish", name, "one")
    run("consume", name)

    refused = run("groups", "delete", name, "default", "--yes", code=1)

    assert "would be delivered again" in refused.stderr
    assert run("consume", name).stdout == ""


def test_a_group_of_a_stream_is_forgotten_with_what_it_had_not_finished(run: Run, name: str) -> None:
    run("queues", "declare", name, "--type", "stream")
    run("publish", name, "one")
    run("publish", name, "two")
    run("consume", name, "--group", "readers", "--from", "first", "--count", "1")

    asked = run("groups", "delete", name, "readers", code=2)
    assert f"forget the group 'readers' of '{name}', which has not finished 1 message?" in asked.stderr
    assert "had not finished 1 message" in run("groups", "delete", name, "readers", "--yes").stdout


# -- what is probably not meant


def test_a_queue_captures_what_mqtt_publishes_only_if_it_is_told_to(run: Run, server: Server, name: str) -> None:
    idle = run("queues", "declare", f"{name}-idle", "--topic", f"{name}/#")
    busy = run("queues", "declare", name, "--topic", f"{name}/#", "--capture")
    run("queues", "declare", f"{name}-alone", "--capture", code=2)
    publisher = Paho(server.mqtt_port, name)
    publisher.sure(f"{name}/1", b"21.5")
    publisher.close()

    assert f"gets nothing by '{name}/#'" in idle.stderr
    assert "--capture" in idle.stderr
    assert busy.stderr == ""
    assert run("consume", name).stdout == "21.5\n"
    assert run("consume", f"{name}-idle").stdout == ""
    assert "gets nothing" in run("queues", "show", f"{name}-idle").stdout
    assert "of plain topics only with --capture" in " ".join(run("queues", "declare", "--help").stdout.split()).replace(
        "│ │ ", ""
    )


def test_a_misspelled_variable_is_told(environment: dict[str, str]) -> None:
    result = headrace("queues", "list", environment={**environment, "HEADRACE_PASWORD": "x", "HEADRACE_IMAGE": "y"})

    assert "HEADRACE_PASWORD means nothing and is ignored; the nearest is HEADRACE_PASSWORD" in result.stderr
    assert "HEADRACE_IMAGE" not in result.stderr


def test_compacting_in_place_asks_first(run: Run, name: str) -> None:
    run("queues", "declare", name, "--type", "stream")
    run("publish", name, "one")

    asked = run("pipeline", "compact", "--from", name, code=2)

    assert f"drop all but the last of every key of the 1 message of '{name}'?" in asked.stderr

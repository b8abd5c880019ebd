"""A broker with a configuration file: queues that are there, reloads by signal and over HTTP, the log as JSON."""

import base64
import configparser
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from headrace.storage.local.engine import LocalEngine
from tests.commands import headrace
from tests.servers import Server, drain

_DEADLINE_SECONDS = 60.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "headrace.yaml"


@pytest.fixture
def server(tmp_path: Path, file: Path) -> Iterator[Server]:
    server = Server(tmp_path, options=["--config", str(file), "--log-format", "json"])
    yield server
    server.close_connections()
    server.kill()


def _queues(*entries: str) -> str:
    return "queues:\n" + "".join(f"  - {entry}\n" for entry in entries)


def _events(server: Server) -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log().splitlines() if line.startswith("{")]


def _until(server: Server, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first line of the log for which this holds."""
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while time.monotonic() < deadline:
        for event in _events(server):
            if condition(event):
                return event
        time.sleep(0.02)
    raise AssertionError(server.log())


def _post(server: Server, path: str) -> tuple[int, Any]:
    login = base64.b64encode(b"guest:guest").decode()
    request = urllib.request.Request(
        server.http_url + path, data=b"", method="POST", headers={"Authorization": f"Basic {login}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_DEADLINE_SECONDS) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_queues_of_the_file_are_there_for_every_client_and_survive_a_restart(server: Server, file: Path) -> None:
    file.write_text(_queues("{name: orders, topics: ['$queue/orders/#'], limits: {max_depth: 2}}"))
    server.start()
    channel = server.connect().channel()
    channel.basic_publish("", "orders", b"one")
    channel.basic_publish("", "$queue/orders/eu", b"two")
    assert server.stop() == 0

    server.start()

    assert drain(server.connect().channel(), "orders", 2) == [b"one", b"two"]


def test_a_reload_by_signal_changes_what_can_change_and_says_what_cannot(server: Server, file: Path) -> None:
    file.write_text(_queues("{name: orders}"))
    server.start()
    file.write_text(
        "log: {level: debug}\nmqtt: {session_bytes: 1MiB}\nstorage: {cache_bytes: 1MiB}\n"
        + _queues("{name: orders, limits: {max_depth: 5}}", "{name: jobs}")
    )

    server.hang_up()

    assert _until(server, lambda event: event.get("key") == "log.level")["message"] == "changed and in use"
    waiting = {event["key"] for event in _events(server) if "after a restart" in event["message"]}
    assert waiting == {"mqtt.session_bytes", "storage.cache_bytes"}
    assert _until(server, lambda event: event.get("queue") == "orders" and "changed" in event["message"])
    server.connect().channel().queue_declare("jobs", passive=True)


def test_policies_of_the_file_count_and_a_reload_replaces_them(server: Server, file: Path) -> None:
    text = "policies:\n  - {name: short, pattern: '^jobs', apply_to: queues, definition: {max-length: LENGTH}}\n"
    roof = "  - {name: roof, vhost: eu, pattern: '', operator: true, definition: {max-length: 1}}\n"
    file.write_text(text.replace("LENGTH", "3"))
    server.start()
    channel = server.connect().channel()
    channel.queue_declare("jobs", durable=True)
    for number in range(9):
        channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(delivery_mode=2))
    assert channel.queue_declare("jobs", passive=True).method.message_count == 3
    file.write_text(text.replace("LENGTH", "2") + roof)

    status, answer = _post(server, "/api/v1/reload")

    assert (status, answer["policies"]) == (200, ["short", "roof"])
    assert channel.queue_declare("jobs", passive=True).method.message_count == 2
    assert _post(server, "/api/v1/reload")[1]["policies"] == []
    assert server.stop() == 0
    file.write_text("")
    server.start()
    channel = server.connect().channel()
    assert drain(channel, "jobs", 2) == [b"7", b"8"]
    for payload in (b"a", b"b", b"c"):
        channel.basic_publish("", "jobs", payload, pika.BasicProperties(delivery_mode=2))
    left = channel.queue_declare("jobs", passive=True).method.message_count
    assert left == 2, "a policy that left the file stays"


def test_a_reload_over_http_answers_what_it_did(server: Server, file: Path) -> None:
    file.write_text("")
    server.start()
    file.write_text("listeners: {coap: 5683}\nlog: {level: warning}\n" + _queues("{name: jobs}"))

    status, answer = _post(server, "/api/v1/reload")

    assert status == 200
    assert answer == {
        "applied": ["log.level"],
        "created": ["jobs"],
        "altered": [],
        "policies": [],
        "needs_restart": ["listeners.coap"],
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("listeners: {ampq: 1}\n", "headrace.yaml:1: listeners: there is no key 'ampq'"),
        (_queues("{name: orders, type: stream}"), "headrace queues delete orders"),
        (
            "policies:\n  - {name: p, pattern: x, definition: {max-length: 1}}\n"
            "  - {name: odd, pattern: '(', definition: {max-length: 1}}\n",
            "headrace.yaml:3: policy 'odd': not a regular expression",
        ),
        (
            "policies:\n  - {name: odd, pattern: x, definition: {max-lenght: 1}}\n",
            "headrace.yaml:2: policy 'odd': 'max-lenght' are not recognised policy settings",
        ),
        ("policies:\n  - {name: odd, pattern: x}\n", "headrace.yaml:2: policies[0]: the key 'definition' is missing"),
    ],
)
def test_a_reload_that_cannot_be_changes_nothing_and_serving_goes_on(
    server: Server, file: Path, text: str, words: str
) -> None:
    file.write_text(_queues("{name: orders}"))
    server.start()
    file.write_text("log: {level: debug}\n" + text if text.startswith("queues") else text)

    status, answer = _post(server, "/api/v1/reload")
    server.hang_up()

    assert status == 400
    assert words in answer["reason"]
    event = _until(server, lambda event: "stays as it was" in event["message"])
    assert (event["level"], words in event["message"]) == ("error", True)
    channel = server.connect().channel()
    channel.confirm_delivery()
    channel.basic_publish("", "orders", b"still here")


def test_a_start_that_would_lose_messages_is_refused_and_nothing_is_touched(server: Server, file: Path) -> None:
    entry = "{name: events, type: stream"
    file.write_text(_queues(entry + "}"))
    server.start()
    channel = server.connect().channel()
    channel.confirm_delivery()
    for number in range(5):
        channel.basic_publish("", "events", b"%d" % number)
    server.stop()
    file.write_text(_queues(entry + ", retention: {max_length_messages: 2}}"))

    with pytest.raises(AssertionError, match=r"headrace\.yaml:2: queue .events.: its new limits would drop 3 of"):
        server.start()

    data = file.parent / "data"
    engine = LocalEngine(data)
    assert (engine.log("events").first_offset, engine.log("events").next_offset) == (0, 5)
    engine.close()
    file.write_text("queue_manager: {shrink: drop}\n" + file.read_text())
    server.start()
    server.stop()
    engine = LocalEngine(data)
    assert (engine.log("events").first_offset, engine.log("events").next_offset) == (3, 5)
    engine.close()


def test_every_line_of_the_log_is_one_event_with_connection_user_and_queue(server: Server, file: Path) -> None:
    file.write_text(_queues("{name: orders}"))
    server.start()
    connection = server.connect()
    connection.channel()
    server.close_connections()

    came = _until(server, lambda event: event["message"] == "connected")
    left = _until(server, lambda event: event["message"] == "the connection is ended")

    assert (came["user"], came["vhost"], came["protocol"]) == ("guest", "/", "AMQP 0-9-1")
    assert came["connection"] == left["connection"]
    assert came["connection"].endswith(f"127.0.0.1:{server.port}")
    assert _until(server, lambda event: event.get("queue") == "orders")["level"] == "info"
    for event in _events(server):
        assert {"time", "level", "room", "message"} <= set(event)


def test_the_configuration_and_the_unit_in_deploy_can_be_used(tmp_path: Path) -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(deploy / "headrace.service")
    command = unit["Service"]["ExecStart"].split()

    checked = subprocess.run(
        [sys.executable, "-m", "headrace", "config", "check", str(deploy / "headrace.yaml")],
        capture_output=True,
        text=True,
        check=False,
    )
    described = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--help"],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "160"},
        check=True,
    )

    assert checked.returncode == 0, checked.stderr
    assert command[1] == "serve"
    assert all(flag in described.stdout for flag in command if flag.startswith("--"))


def test_what_a_configuration_comes_to_is_shown_with_where_it_was_said(file: Path) -> None:
    file.write_text("listeners: {amqp: 7000}\n" + _queues("{name: orders}"))
    run = [sys.executable, "-m", "headrace", "config"]
    environment = {**os.environ, "HEADRACE_LOG_LEVEL": "debug", "COLUMNS": "200"}

    table = subprocess.run([*run, "show", str(file)], capture_output=True, text=True, env=environment, check=True)
    values = subprocess.run(
        [*run, "show", str(file), "--json"], capture_output=True, text=True, env=environment, check=True
    )
    wrong = subprocess.run(
        [*run, "check", str(file)],
        capture_output=True,
        text=True,
        env={**os.environ, "HEADRACE_LISTENERS_MQTT": "7000"},
        check=False,
    )

    assert f"{file}:1" in table.stdout
    assert "HEADRACE_LOG_LEVEL" in table.stdout
    said = json.loads(values.stdout)
    assert (said["listeners"]["amqp"], said["log"]["level"], said["queues"][0]["name"]) == (7000, "debug", "orders")
    assert wrong.returncode == 2
    assert "mqtt and amqp cannot both have port 7000" in wrong.stderr


def test_queues_of_the_file_are_in_their_virtual_hosts_which_are_made(server: Server, file: Path) -> None:
    file.write_text(_queues("{name: orders}", "{name: orders, vhost: eu, type: stream}"))
    server.start()
    server.close_connections()
    assert _get(server, "/api/v1/queues/%2F/orders")["type"] == "classic"
    assert _get(server, "/api/v1/queues/eu/orders")["type"] == "stream"

    file.write_text(_queues("{name: jobs, vhost: eu}", "{name: jobs, vhost: us}"))
    assert _post(server, "/api/v1/reload")[1]["created"] == ["jobs", "jobs"]
    assert _get(server, "/api/v1/queues/us/jobs")["vhost"] == "us"

    file.write_text(_queues("{name: jobs, vhost: eu}", "{name: jobs, vhost: eu}"))
    status, answer = _post(server, "/api/v1/reload")
    assert (status, "is there twice" in answer["reason"]) == (400, True)
    file.write_text(_queues("{name: orders, vhost: eu}"))
    server.stop()
    result = subprocess.run(
        [sys.executable, "-m", "headrace", "serve", "--config", str(file), "--data", str(file.parent / "data")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert f"{file}:2: queue 'orders': it is a stream queue and cannot become a classic queue" in result.stderr


def test_connections_over_http_are_in_the_log_with_their_user(server: Server, file: Path) -> None:
    file.write_text("")
    server.start()
    with httpx.Client(base_url=server.http_url, auth=("guest", "guest"), timeout=30, verify=False) as client:
        client.get("/health")
        for _ in range(3):
            assert client.get("/api/v1/overview").status_code == 200

    ended = _until(server, lambda event: event["message"] == "the connection is ended")

    assert (ended["protocol"], ended["user"]) == ("HTTP", "guest")
    assert ended["connection"].endswith(f"-> 127.0.0.1:{server.http_port}")
    assert len([event for event in _events(server) if event["message"] == "connected"]) == 1


def _get(server: Server, path: str) -> Any:
    answer = httpx.get(server.http_url + path, auth=("guest", "guest"), timeout=30, verify=False)
    assert answer.status_code == 200, answer.text
    return answer.json()


# -- what is probably not meant


def test_a_pattern_that_gets_nothing_and_a_variable_that_means_nothing_are_in_the_log(
    tmp_path: Path, file: Path
) -> None:
    file.write_text(
        _queues("{name: idle, topics: ['sensors/#']}", "{name: busy, topics: ['sensors/#'], capture: true}")
    )
    environment = {"HEADRACE_STORGE_DATA": "elsewhere", "HEADRACE_SERVICE_HOST": "10.0.0.1"}
    server = Server(tmp_path, options=["--config", str(file), "--log-format", "json"], environment=environment)
    server.start()
    assert server.stop() == 0

    warnings = [event["message"] for event in _events(server) if event["level"] == "warning"]
    assert any("queue 'idle' gets nothing by 'sensors/#'" in text and "capture" in text for text in warnings)
    assert any("HEADRACE_STORGE_DATA" in text and "HEADRACE_STORAGE_DATA" in text for text in warnings)
    assert not any("busy" in text or "SERVICE_HOST" in text for text in warnings)


def test_a_check_of_the_configuration_warns_of_both(file: Path) -> None:
    file.write_text(_queues("{name: idle, topics: ['$queue/idle/#', 'sensors/#']}"))
    environment = {"HEADRACE_LISTENER_AMQP": "1"}

    shown = headrace("config", "check", str(file), environment=environment)
    told = json.loads(headrace("config", "check", str(file), "--json", environment=environment).stdout)

    assert shown.returncode == 0
    assert "it can be used, with 2 warnings" in shown.stdout
    assert "HEADRACE_LISTENER_AMQP means nothing and is ignored; the nearest is HEADRACE_LISTENERS_AMQP" in shown.stderr
    assert "gets nothing by 'sensors/#'" in shown.stderr
    assert (told["problems"], len(told["warnings"])) == ([], 2)

"""`headrace migrate` and `headrace shovel`: from another broker of ours, and from RabbitMQ where it is installed."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest
from paho.mqtt import publish
from pika.adapters.blocking_connection import BlockingChannel

from tests.commands import headrace
from tests.rabbitmq import IS_INSTALLED, RabbitMq, running_rabbitmq
from tests.servers import Server, serving
from tests.waiting import eventually

_SOURCES = ["headrace", *(["rabbitmq"] if IS_INSTALLED else [])]
_COUNT = 3000
_LARGE = bytes(range(256)) * 2000
"""A body of several frames."""

Broker = Server | RabbitMq
Message = tuple[bytes, str, object, int | None]


@pytest.fixture(scope="module", params=_SOURCES)
def there(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that messages come from."""
    folder = tmp_path_factory.mktemp("there")
    with contextlib.ExitStack() as stack:
        if request.param == "rabbitmq":
            yield stack.enter_context(running_rabbitmq(folder / "rabbitmq"))
        else:
            yield stack.enter_context(serving(Server(folder, in_memory=True)))


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Server]:
    """The broker that messages go to."""
    (tmp_path / "here").mkdir()
    with serving(Server(tmp_path / "here")) as running:
        yield running


@contextlib.contextmanager
def channel_of(broker: Broker, vhost: str = "/") -> Iterator[BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", broker.port, vhost)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        connection.close()


def fill(channel: BlockingChannel, queue: str, count: int = _COUNT, **arguments: Any) -> list[Message]:
    """Declare a queue with messages of which no two are alike."""
    channel.queue_declare(queue, durable=True, arguments=arguments)
    sent: list[Message] = []
    for number in range(count):
        body = _LARGE if number == 7 else b"" if number == 8 else b"%d " % number + b"x" * (number % 300)
        headers = {"n": number, "list": [1, "two"]} if number % 3 else {}
        priority = number % 4 or None
        properties = pika.BasicProperties(
            message_id=f"{queue}-{number}", headers=headers or None, priority=priority, delivery_mode=2
        )
        channel.basic_publish("", queue, body, properties)
        sent.append((body, f"{queue}-{number}", headers or None, priority))
    return sent


def taken(channel: BlockingChannel, queue: str, count: int, **arguments: object) -> list[Message]:
    """Take so many messages; of a stream, without the headers that its broker adds."""
    found: list[Message] = []
    channel.basic_qos(prefetch_count=500)
    for method, properties, body in channel.consume(queue, inactivity_timeout=60, arguments=arguments):
        assert method is not None, f"{len(found)} messages of {count} came"
        headers = {name: value for name, value in (properties.headers or {}).items() if not name.startswith("x-")}
        found.append((body, properties.message_id, headers or None, properties.priority))
        channel.basic_ack(method.delivery_tag)
        if len(found) == count:
            break
    channel.cancel()
    return found


def waiting(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def _api(broker: Broker) -> httpx.Client:
    return httpx.Client(base_url=f"{broker.http_url}/api", auth=("guest", "guest"), timeout=60)


def _with_login(broker: Broker) -> str:
    return broker.http_url.replace("http://", "http://guest:guest@")


def _migrate(there: Broker, here: Server, folder: Path, *more: object, code: int = 0) -> dict[str, Any]:
    report = folder / "report.json"
    ended = headrace(
        "migrate", there.url, "--management", _with_login(there), "--to", here.url, "--url", _with_login(here),
        "--state", folder / "state.json", "--report", report, *more,
    )  # fmt: skip
    assert ended.returncode == code, ended.stderr
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def test_definitions_policies_and_messages_come(there: Broker, here: Server, tmp_path: Path) -> None:
    host = "the/eu"
    with _api(there) as api:
        api.put("/vhosts/the%2Feu").raise_for_status()
        api.put("/users/ann", json={"password": "secret", "tags": ""}).raise_for_status()
        for user in ("ann", "guest"):
            everything = {"configure": ".*", "write": ".*", "read": ".*"}
            api.put(f"/permissions/the%2Feu/{user}", json=everything).raise_for_status()
        policy = {"pattern": "^mig", "definition": {"max-length": 50_000, "ha-mode": "all"}, "apply-to": "queues"}
        api.put("/policies/the%2Feu/roof", json=policy).raise_for_status()
        api.put("/vhost-limits/the%2Feu/max-queues", json={"value": 50}).raise_for_status()
    with channel_of(there, host) as channel:
        sent = {
            "mig-classic": fill(channel, "mig-classic"),
            "mig-quorum": fill(channel, "mig-quorum", _COUNT, **{"x-queue-type": "quorum"}),
            "mig-stream": fill(channel, "mig-stream", _COUNT, **{"x-queue-type": "stream"}),
        }
        channel.exchange_declare("mig-x", "topic", durable=True)
        if isinstance(there, Server):  # the plugin is not in RabbitMQ's package
            inner = {"x-delayed-type": "fanout"}
            channel.exchange_declare("mig-delays", "x-delayed-message", durable=True, arguments=inner)
        channel.queue_bind("mig-classic", "mig-x", "a.*")
        channel.queue_declare("other", durable=True)
        channel.basic_publish("", "other", b"stays")
        eventually(lambda: all(waiting(channel, name) == _COUNT for name in sent))
        # RabbitMQ's streams drop some headers themselves.
        sent["mig-stream"] = taken(channel, "mig-stream", _COUNT, **{"x-stream-offset": "first"})

    report = _migrate(there, here, tmp_path, "--queues", "^mig")

    rows = {row["queue"]: row for row in report["queues"] if row["vhost"] == host}
    assert {name: (row["messages"], row["done"]) for name, row in rows.items()} == dict.fromkeys(sent, (_COUNT, True))
    left = [(each["kind"], each["name"], each["setting"]) for each in report["without_effect"]]
    assert ("policy", "roof", "ha-mode") in left
    with channel_of(here, host) as channel:
        for name, messages in sent.items():
            offset = {"x-stream-offset": "first"} if name == "mig-stream" else {}
            assert taken(channel, name, _COUNT, **offset) == messages, name
        assert waiting(channel, "other") == 0
        channel.basic_publish("mig-x", "a.b", b"routed")
        eventually(lambda: waiting(channel, "mig-classic") == 1)
    with channel_of(there, host) as channel:
        eventually(lambda: waiting(channel, "mig-classic") == _COUNT)
    with _api(here) as ours:
        assert ours.get("/queues/the%2Feu/mig-classic").json()["policy"] == "roof"
        assert ours.get("/vhost-limits/the%2Feu").json()[0]["value"] == {"max-queues": 50}
        if isinstance(there, Server):
            assert ours.get("/exchanges/the%2Feu/mig-delays").json()["arguments"] == {"x-delayed-type": "fanout"}
    login = pika.PlainCredentials("ann", "secret")
    here.connect(virtual_host=host, credentials=login).close()

    again = _migrate(there, here, tmp_path, "--queues", "^mig")
    assert [row["messages"] for row in again["queues"] if row["vhost"] == host] == [_COUNT] * 3
    with channel_of(here, host) as channel:
        assert waiting(channel, "mig-quorum") == 0, "a second run copies nothing twice"
    with _api(there) as api:
        api.delete("/vhosts/the%2Feu").raise_for_status()


def test_a_drain_that_is_killed_goes_on_and_loses_nothing(there: Broker, here: Server, tmp_path: Path) -> None:
    with channel_of(there) as channel:
        sent = fill(channel, "drained", 20_000)
        eventually(lambda: waiting(channel, "drained") == 20_000)
    with channel_of(here) as channel:
        channel.queue_declare("drained", durable=True)
    command = [
        sys.executable, "-m", "headrace", "migrate", there.url, "--management", _with_login(there), "--to", here.url,
        "--url", _with_login(here), "--queues", "^drained$", "--drain", "--state", str(tmp_path / "state.json"),
    ]  # fmt: skip
    with channel_of(here) as channel:
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            eventually(lambda: waiting(channel, "drained") > 100 or process.poll() is not None)
            process.send_signal(signal.SIGKILL)
        report = _migrate(there, here, tmp_path, "--queues", "^drained$", "--drain")
        assert report["queues"][0]["done"]
        found = taken(channel, "drained", waiting(channel, "drained"))
    assert {each[1] for each in found} == {each[1] for each in sent}
    with channel_of(there) as channel:
        assert waiting(channel, "drained") == 0
        channel.queue_delete("drained")


def test_a_queue_that_refuses_is_named_and_keeps_its_messages_there(
    there: Broker, here: Server, tmp_path: Path
) -> None:
    with channel_of(there) as channel:
        fill(channel, "narrow", 20)
        eventually(lambda: waiting(channel, "narrow") == 20)
    definition = {"max-length": 5, "overflow": "reject-publish"}
    with _api(here) as ours:
        ours.put("/policies/%2F/narrow", json={"pattern": "^narrow$", "definition": definition}).raise_for_status()
    report = _migrate(there, here, tmp_path, "--queues", "^narrow$", "--drain", code=1)
    row = report["queues"][0]
    assert (row["done"], "refuses a message" in row["reason"]) == (False, True)
    with channel_of(there) as channel, channel_of(here) as ours_channel:
        eventually(lambda: waiting(channel, "narrow") == 15)
        assert waiting(ours_channel, "narrow") == 5
        channel.queue_delete("narrow")


def test_a_shovel_moves_what_is_published_until_it_is_stopped(there: Broker, here: Server) -> None:
    with channel_of(there) as channel, channel_of(here) as ours:
        sent = fill(channel, "live", 500)
        ours.queue_declare("moved", durable=True)
        command = [sys.executable, "-m", "headrace", "shovel", there.url, here.url, "--from", "live", "--to", "moved"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            eventually(lambda: waiting(ours, "moved") == 500)
            sent += fill(channel, "live", 300)
            eventually(lambda: waiting(ours, "moved") == 800)
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        assert said.startswith("800 messages moved")
        assert taken(ours, "moved", 800) == sent
        assert waiting(channel, "live") == 0
        channel.queue_delete("live")


def test_a_shovel_goes_on_after_the_other_broker_was_killed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "here").mkdir()
    there, here = Server(tmp_path / "there"), Server(tmp_path / "here")
    there.start()
    here.start()
    try:
        with channel_of(there) as channel, channel_of(here) as ours:
            sent = fill(channel, "live", 50)
            ours.queue_declare("live", durable=True)
        command = [sys.executable, "-m", "headrace", "shovel", there.url, here.url, "--from", "live"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            with channel_of(here) as ours:
                eventually(lambda: waiting(ours, "live") == 50)
            here.kill()
            with channel_of(there) as channel:
                sent += fill(channel, "live", 50)
            here.start(amqp_port=here.port)
            with channel_of(here) as ours:
                eventually(lambda: waiting(ours, "live") >= 100)
                found = taken(ours, "live", waiting(ours, "live"))
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "again in" in said
        assert {each[0] for each in found} == {each[0] for each in sent}
    finally:
        there.stop()
        here.stop()


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("http://x", "amqp://y", "--from", "q"), 2, "the address of a broker is like"),
        (("amqp://x:1", "amqp://y", "--from", "q", "--to", "a", "--to-exchange", "b"), 2, "give one of them"),
    ],
)
def test_a_shovel_says_what_its_arguments_lack(arguments: tuple[str, ...], code: int, why: str) -> None:
    ended = headrace("shovel", *arguments)
    assert ended.returncode == code
    assert why in ended.stderr


def test_a_shovel_ends_where_a_retry_cannot_help(here: Server) -> None:
    wrong = here.url.replace("guest:guest", "guest:wrong")
    assert "refuses" in headrace("shovel", wrong, here.url, "--from", "q").stderr
    missing = headrace("shovel", here.url, here.url, "--from", "no queue", "--until-empty")
    assert (missing.returncode, "no queue 'no queue'" in missing.stderr) == (1, True)


# -- topics


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(params=["headrace", *(["mosquitto"] if shutil.which("mosquitto") else [])])
def topics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    """The port of a broker of MQTT."""
    folder = tmp_path / "topics"
    folder.mkdir()
    if request.param == "headrace":
        with serving(Server(folder)) as running:
            yield running.mqtt_port
        return
    port = _free_port()
    (folder / "mosquitto.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    with subprocess.Popen(["mosquitto", "-c", str(folder / "mosquitto.conf")], stderr=subprocess.DEVNULL) as process:
        eventually(lambda: _listens(port))
        yield port
        process.terminate()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


def _publish_topics(port: int, *messages: tuple[str, bytes]) -> None:
    login: Any = {"username": "guest", "password": "guest"}
    found: Any = [(topic, payload, 1, False) for topic, payload in messages]
    publish.multiple(found, "127.0.0.1", port, auth=login)


@contextlib.contextmanager
def _shoveling(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "headrace", "shovel", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


@pytest.mark.parametrize("way", ["mqtt", "amqp"])
def test_topics_come_with_their_names_and_what_came_meanwhile(topics: int, here: Server, way: str) -> None:
    source = f"mqtt://guest:guest@127.0.0.1:{topics}"
    arguments: tuple[str, ...]
    if way == "mqtt":
        arguments = (source, f"mqtt://guest:guest@127.0.0.1:{here.mqtt_port}", "--from", "plant/#")
    else:
        arguments = (source, here.url, "--from", "plant/#", "--to-exchange", "amq.topic")
    with channel_of(here) as channel:
        channel.queue_declare("plant", durable=True)
        channel.queue_bind("plant", "amq.topic", "plant.#")

        def arrived() -> int:
            return waiting(channel, "plant")

        with _shoveling(*arguments):

            def reached() -> bool:
                _publish_topics(topics, ("plant/0/begin", b"is it there"))
                return arrived() > 0

            eventually(reached)
        channel.queue_purge("plant")
        _publish_topics(topics, *[(f"plant/{number}/t", b"a%d" % number) for number in range(50)])
        with _shoveling(*arguments):
            eventually(lambda: arrived() >= 50)
            _publish_topics(topics, *[(f"plant/{number}/t", b"b%d" % number) for number in range(50)])
            eventually(lambda: arrived() >= 100)
        found: set[tuple[str, bytes]] = set()
        while (got := channel.basic_get("plant", auto_ack=True))[0] is not None:
            found.add((got[0].routing_key, got[2]))
    expected = {(f"plant.{number}.t", b"%s%d" % (part, number)) for number in range(50) for part in (b"a", b"b")}
    assert expected <= found
    assert {payload for _, payload in found - expected} <= {b"is it there"}


def test_a_queue_goes_to_a_topic_and_a_topic_to_a_queue(here: Server, topics: int) -> None:
    broker = f"mqtt://guest:guest@127.0.0.1:{topics}"
    with channel_of(here) as channel:
        sent = fill(channel, "out", 300)
        channel.queue_declare("back", durable=True)
        with _shoveling(broker, here.url, "--from", "plant/all", "--to", "back"):

            def reached() -> bool:
                _publish_topics(topics, ("plant/all", b"is it there"))
                return waiting(channel, "back") > 0

            eventually(reached)
            with _shoveling(here.url, broker, "--from", "out", "--to", "plant/all"):
                eventually(lambda: waiting(channel, "back") > 300)
        found = {each[0] for each in taken(channel, "back", waiting(channel, "back"))}
        assert found - {b"is it there"} == {each[0] for each in sent}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("mqtt://x", "amqp://y", "--from", "t"), "name one"),
        (("mqtt://x", "mqtt://y", "--from", "t", "--until-empty"), "--until-empty is for queues"),
        (("amqp://x", "mqtt://y", "--from", "q", "--to-exchange", "e"), "an MQTT broker has topics"),
    ],
)
def test_a_shovel_of_topics_says_what_its_arguments_lack(arguments: tuple[str, ...], why: str) -> None:
    ended = headrace("shovel", *arguments)
    assert ended.returncode == 2
    assert why in ended.stderr

"""What docs/coming-from/ tells people to do when they move over, done between two brokers."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
import yaml

from headrace.config.configuration import load
from headrace.core.queue.configured import FILE_QUEUE, wanted_queues
from tests.commands import headrace
from tests.servers import Server, drain, serving

_PAGES = Path(__file__).parents[2] / "docs" / "coming-from"


def _blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}[^\n]*\n(.*?)^```", (_PAGES / page).read_text(), re.DOTALL | re.MULTILINE)


def _block(page: str, kind: str) -> str:
    (found,) = _blocks(page, kind)
    return found


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[tuple[Server, Server]]:
    """The one that is left, and the one that is moved to."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    with serving(Server(tmp_path / "old")) as old, serving(Server(tmp_path / "new")) as new:
        yield old, new


def test_definitions_and_messages_are_carried_over(brokers: tuple[Server, Server], tmp_path: Path) -> None:
    old, new = brokers
    channel = old.connect().channel()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 1000})
    channel.queue_bind("orders", "shop", "order.#")
    properties = [pika.BasicProperties(message_id=f"m{number}", headers={"n": number}) for number in range(5)]
    for number, each in enumerate(properties):
        channel.basic_publish("shop", "order.new", f"order {number}".encode(), each)
    api = f"{old.http_url}/api/users/ann"
    assert httpx.put(api, auth=("guest", "guest"), json={"password": "secret", "tags": "management"}).is_success
    moving, carrying = (
        block.replace("rabbit:5672", f"127.0.0.1:{old.port}").replace("rabbit:15672", f"127.0.0.1:{old.http_port}")
        for block in _blocks("rabbitmq.md", "sh")
    )
    here = [
        "--to",
        f"amqp://guest:guest@127.0.0.1:{new.port}",
        "--url",
        f"http://guest:guest@127.0.0.1:{new.http_port}",
    ]

    moved = headrace(*shlex.split(moving)[1:], *here, cwd=tmp_path)
    assert moved.returncode == 0, moved.stdout + moved.stderr
    channel.basic_publish("shop", "order.new", b"order 5")  # by a publisher that is still there
    carried = headrace(*shlex.split(carrying.replace("localhost:5672", f"127.0.0.1:{new.port}"))[1:], cwd=tmp_path)
    assert carried.returncode == 0, carried.stdout + carried.stderr

    assert httpx.get(f"{new.http_url}/api/whoami", auth=("ann", "secret")).is_success
    there = new.connect().channel()
    there.queue_declare("orders", durable=True, arguments={"x-max-length": 1000})
    method, found, _ = there.basic_get("orders")
    assert found.message_id == "m0"
    assert found.headers["n"] == 0
    there.basic_nack(method.delivery_tag)
    assert drain(there, "orders", 6) == [f"order {number}".encode() for number in range(6)]
    there.basic_publish("shop", "order.new", b"routed")
    assert drain(there, "orders", 1) == [b"routed"]
    assert channel.queue_declare("orders", passive=True).method.message_count == 0


def test_a_queue_like_one_of_sqs_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "headrace.yaml"
    file.write_text(_block("sqs.md", "yaml"))

    (queue,) = wanted_queues(load(FILE_QUEUE, file, {}, {}).queues)

    assert (queue.definition.lease_ms, queue.definition.dead_letter_queue) == (30_000, "$dlq/orders")
    assert queue.definition.message_ttl_ms == 96 * 3_600_000


def test_every_key_of_fluxmq_that_the_page_names_is_taken(tmp_path: Path) -> None:
    """A file with all of them, made from the first column of the table."""
    values = {
        "topics": ["$queue/orders/#"], "type": "classic", "primary_group": "work", "reserved": False,
        "ack_durability": "fsync", "max_age": "7D", "message_ttl": "168h", "initial_backoff": "5s", "max_backoff": "5m",
        "multiplier": 2, "enabled": True, "topic": "$dlq/orders", "group": "main", "mode": "sync", "ack_timeout": "5s",
        "name": "orders", "auto_commit_interval": "5s", "write_policy": "forward", "distribution_mode": "replicate",
    }  # fmt: skip
    made: dict[str, object] = {}
    count = 0
    for row in re.findall(r"^\| (`(?:queues|queue_manager|cluster)[^|]*) \|", (_PAGES / "fluxmq.md").read_text(), re.M):
        first, *others = re.findall(r"`([^`]+)`", row)
        table = first.rpartition(".")[0]
        for name in (first, *(other if "." in other else f"{table}.{other}" for other in others)):
            path = name if name.startswith(("queues", "queue_manager", "cluster")) else f"queues[].{name}"
            *folders, key = path.split(".")
            place = made
            for folder in folders:
                place = place.setdefault(folder, {})  # type: ignore[assignment]
            place[key] = values.get(key, 1000)
            count += 1
    made["queues"] = [made.pop("queues[]")]
    file = tmp_path / "headrace.yaml"
    file.write_text(yaml.safe_dump(made))

    read = load(FILE_QUEUE, file, {}, {})

    assert count > 25
    assert read.warnings == []
    assert [each.definition.name for each in wanted_queues(read.queues)] == ["orders"]

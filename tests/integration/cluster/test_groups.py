"""Several replication groups in one store: each has its owner and its queues, and what befalls one is its own."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pika.exceptions import ChannelClosedByBroker
from typer.testing import CliRunner

from headrace.cli.client import EXIT_UNAVAILABLE
from headrace.cli.cluster import app
from headrace.clock import SystemClock
from headrace.cluster.lease import EXPIRY, Lease, Node, Presence, Records, Takeover, epoch_name, lease_name, node_name
from headrace.cluster.status import FOLLOWER, OWNER
from headrace.process import EXIT_PROBLEMS
from headrace.storage.objects.engine import ObjectEngine
from tests.clusters import Cluster, ClusterNode
from tests.publishers import PERSISTENT, PikaPublisher, check
from tests.servers import Server, drain
from tests.stores import S3, moto
from tests.waiting import eventually

HOT = "hot"
QUEUES = """
queues:
- {name: orders}
- {name: events, replication: {enabled: true, group: default}}
- {name: clicks, replication: {enabled: true, group: hot}}
"""
MOVED = QUEUES.replace("group: default", "group: hot")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "headrace.yaml"
    file.write_text(QUEUES)
    return file


def queues(node: Server | ClusterNode) -> list[str]:
    """Those of the file that are there."""
    found = []
    connection = node.connect()
    for name in ("orders", "events", "clicks"):
        try:
            connection.channel().queue_declare(name, passive=True)
        except ChannelClosedByBroker:
            continue
        found.append(name)
    connection.close()
    return found


# -- a broker for each group -------------------------------------------------------------------------------------------


@contextmanager
def serving(directory: Path, store: str, file: Path, group: str) -> Iterator[Server]:
    directory.mkdir()
    environment = {"HEADRACE_CONFIG": str(file), "HEADRACE_CLUSTER_GROUP": group}
    server = Server(directory, store=store, environment=environment)
    server.start()
    try:
        yield server
    finally:
        server.close_connections()
        server.kill()


def test_brokers_of_two_groups_share_a_store_and_each_has_its_queues(tmp_path: Path, file: Path) -> None:
    store = f"file://{tmp_path}/store"
    with serving(tmp_path / "one", store, file, "default") as main, serving(tmp_path / "two", store, file, HOT) as hot:
        channel = main.connect().channel()
        channel.confirm_delivery()
        channel.basic_publish("", "events", b"first", PERSISTENT, mandatory=True)

        assert queues(main) == ["orders", "events"]
        assert queues(hot) == ["clicks"]
        assert "left to the brokers of other replication groups: hot: clicks" in main.log()
        assert "left to the brokers of other replication groups: main: orders, events" in hot.log()
        assert "serves replication group 'hot' of store" in hot.log()

        file.write_text(MOVED)
        main.hang_up()
        hot.hang_up()
        eventually(lambda: "to be in 'hot': it stays here as it is" in main.log())
        eventually(lambda: queues(hot) == ["events", "clicks"])

        assert drain(main.connect().channel(), "events", 1) == [b"first"]
        answer = httpx.put(
            f"{main.http_url}/api/v1/queues/%2F/late",
            json={"replication": {"enabled": True, "group": HOT}},
            auth=("guest", "guest"),
            timeout=60,
            verify=False,
        )
        assert (answer.status_code, "this broker serves 'main'" in answer.text) == (400, True)

    answered = CliRunner().invoke(app, ["status", "--store", store, "--json"])
    found = json.loads(answered.stdout)["groups"]
    assert [(each["group"], each["owner"], each["lease"]["state"]) for each in found] == [
        ("hot", "", "none"),
        ("main", "", "none"),
    ]


def test_the_groups_of_a_bucket_are_seen_without_any_broker() -> None:
    now_us = SystemClock().now_us()
    node = Node("a", "127.0.0.1:1", "1", now_us)
    with moto() as port, contextlib.closing(S3(port)) as s3, s3.here():
        ObjectEngine(s3.url).close()
        hot = Records(s3.url, HOT, 10_000)
        hot.create(lease_name(1), Lease(1, 3, node, 3_600_000, now_us).encode())
        hot.create(node_name("a"), Presence(node, now_us, 3_600_000).encode())
        hot.create(epoch_name(3), Takeover(3, node, now_us, EXPIRY).encode())
        answered = CliRunner().invoke(app, ["status", "--store", s3.url, "--json"])
        shown = CliRunner().invoke(app, ["status", "--store", s3.url])
        elsewhere = CliRunner().invoke(app, ["status", "--store", f"s3://{s3.bucket}/elsewhere"])

    found = json.loads(answered.stdout)["groups"]
    assert [(each["group"], each["owner"], each["epoch"]) for each in found] == [(HOT, "a", 3), ("main", "", 0)]
    assert [each["role"] for each in found[0]["nodes"]] == [OWNER]
    assert [each["epoch"] for each in found[0]["takeovers"]] == [3]
    assert (shown.exit_code, "no nodes" in shown.stdout) == (0, True)
    assert (elsewhere.exit_code, "there is no store at s3://" in elsewhere.stderr) == (EXIT_PROBLEMS, True)


def test_a_look_at_a_store_that_is_not_there_makes_none(tmp_path: Path) -> None:
    answered = CliRunner().invoke(app, ["status", "--store", f"file://{tmp_path}/missing"])

    assert (answered.exit_code, f"{tmp_path}/missing" in answered.stderr) == (EXIT_UNAVAILABLE, True)
    assert not (tmp_path / "missing").exists()


# -- nodes for each group ----------------------------------------------------------------------------------------------


class Calm:
    """Publishes to a node on one connection, without a second try, and takes everything back from the queue."""

    def __init__(self, node: ClusterNode, queue: str) -> None:
        self._connection = node.connect()
        self._queue = queue
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.received: list[bytes] = []
        self.published = 0
        self.trouble: BaseException | None = None
        self._thread.start()

    def _run(self) -> None:
        try:
            channel = self._connection.channel()
            channel.confirm_delivery()
            while not self._ending.wait(0.02):
                channel.basic_publish("", self._queue, b"%d" % self.published, PERSISTENT, mandatory=True)
                self.published += 1
                self.received += drain(channel, self._queue, 1)
            self._connection.close()
        except BaseException as error:
            self.trouble = error

    def wait_for(self, more: int) -> None:
        wanted = self.published + more
        eventually(lambda: self.published >= wanted or self.trouble is not None)

    def stop(self) -> None:
        self._ending.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def status(cluster: Cluster) -> dict[str, Any]:
    """What a node says that is not the owner, which asks nobody to log in."""
    followers: list[ClusterNode] = []

    def found_some() -> bool:
        followers.extend([node for node in cluster.nodes.values() if node.role() == FOLLOWER])
        return bool(followers)

    eventually(found_some)
    follower = followers[0]
    connection = http.client.HTTPConnection("127.0.0.1", follower.ports["http"], timeout=60)
    try:
        connection.request("GET", "/api/v1/cluster")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return found


def stored(store: str, group: str, queue: str) -> list[bytes]:
    """What is in a queue's log, read after all have been stopped."""
    engine = ObjectEngine(store, group=group)
    try:
        log = engine.log(queue)
        return [message.payload for message in log.read(log.first_offset, log.next_offset)]
    finally:
        engine.close()


def test_when_the_owner_of_one_group_is_killed_clients_of_the_other_notice_nothing(tmp_path: Path, file: Path) -> None:
    store = f"file://{tmp_path}/store"
    settings = {"HEADRACE_CONFIG": str(file)}
    # The one group is not to lose its lease on a busy machine, the other is to be taken over soon.
    main = Cluster(tmp_path, store, "120s", settings, ("a", "b"))
    hot = Cluster(tmp_path, store, "3s", settings, ("c", "d"), HOT)
    with main, hot:
        owner = main.owner()
        calm = Calm(owner, "orders")
        publishers = [PikaPublisher(name, node.ports["amqp"], "clicks") for name, node in hot.nodes.items()]
        for publisher in publishers:
            publisher.start()
            publisher.wait_for(3)
        before = status(hot)

        hot.owner().kill()
        successor = hot.owner()
        next(each for each in publishers if each.name == successor.name).wait_for(3)
        calm.wait_for(3)

        calm.stop()
        for publisher in publishers:
            publisher.stop()
        assert calm.trouble is None
        assert calm.received == [b"%d" % number for number in range(calm.published)]
        assert main.owner() is owner
        assert queues(owner) == ["orders", "events"]
        assert queues(successor) == ["clicks"]
        assert [(each["group"], each["own"]) for each in before["groups"]] == [("hot", True), ("main", False)]
        assert (before["group"], before["role"]) == (HOT, FOLLOWER)
        epochs = {each["group"]: each["epoch"] for each in status(main)["groups"]}
        assert epochs["main"] == 1
        assert epochs["hot"] > before["epoch"]
    bodies = stored(store, HOT, "clicks")
    for publisher in publishers:
        check(bodies, publisher)

"""Three brokers over one store: the owner is killed, stopped and woken under load, and nothing confirmed is lost.

A busy machine may cost a node its lease at any time; that is a takeover like any other, and all of this holds then.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError

from headrace.storage.objects.engine import ObjectEngine
from tests.clusters import Cluster, ClusterNode
from tests.integration.objects.conftest import s3 as s3
from tests.integration.objects.conftest import s3_port as s3_port
from tests.publishers import PERSISTENT, PahoPublisher, PikaPublisher, Publisher, check
from tests.servers import drain
from tests.stores import S3
from tests.waiting import eventually

QUEUE = "jobs"
MQTT_QUEUE = "events"
TAKEOVERS = 20
MESSAGES = 20


@pytest.fixture
def cluster(tmp_path: Path, s3: S3) -> Iterator[Cluster]:
    with Cluster(tmp_path, s3.url, "10s", s3.environment) as running:
        yield running


def vouched(connection: BlockingConnection, *queues: str) -> None:
    """Have these queues, each with a message whose confirm vouches for all that was said before."""
    channel = connection.channel()
    channel.confirm_delivery()
    for queue in queues:
        channel.queue_declare(queue, durable=True)
        channel.basic_publish("", queue, b"first", PERSISTENT, mandatory=True)


def declare(cluster: Cluster) -> None:
    """Have both queues, for certain."""
    for _ in range(5):
        try:
            connection = cluster.owner().connect()
            vouched(connection, QUEUE, MQTT_QUEUE)
            connection.close()
        except AMQPError:  # another has taken over meanwhile
            continue
        return
    raise AssertionError("nobody stays the owner")


def started(cluster: Cluster) -> list[Publisher]:
    """A publisher at each node, and one that speaks MQTT."""
    declare(cluster)
    nodes = list(cluster.nodes.values())
    publishers: list[Publisher] = [PikaPublisher(f"pika-{node.name}", node.ports["amqp"], QUEUE) for node in nodes]
    publishers.append(PahoPublisher("paho", nodes[-1].ports["mqtt"], MQTT_QUEUE))
    for publisher in publishers:
        publisher.start()
    return publishers


def go_on(publishers: list[Publisher], without: ClusterNode | None = None) -> None:
    """Wait until everybody has had more confirmed."""
    for publisher in publishers:
        if without is None or publisher.port not in without.ports.values():
            publisher.wait_for(5)


def stored(cluster: Cluster, queue: str) -> list[bytes]:
    """What is in a queue's log, read without any broker, after all have been stopped."""
    cluster.stop()
    engine = ObjectEngine(cluster.store)
    try:
        log = engine.log(queue)
        found: list[bytes] = []
        while log.first_offset + len(found) < log.next_offset:
            found += [message.payload for message in log.read(log.first_offset + len(found), 1000)]
        return found
    finally:
        engine.close()


def verify(cluster: Cluster, publishers: list[Publisher]) -> None:
    """Nothing confirmed is lost, and no two wrote at once."""
    for publisher in publishers:
        publisher.stop()
    bodies = {queue: stored(cluster, queue) for queue in (QUEUE, MQTT_QUEUE)}
    for publisher in publishers:
        check(bodies[QUEUE if isinstance(publisher, PikaPublisher) else MQTT_QUEUE], publisher)
    epochs = [takeover.epoch for takeover in cluster.status().takeovers]
    assert epochs == sorted(set(epochs), reverse=True)
    assert all("Traceback" not in node.log() for node in cluster.nodes.values())


def test_nothing_confirmed_is_lost_when_the_owner_is_stopped_and_the_next_is_killed(cluster: Cluster) -> None:
    publishers = started(cluster)
    go_on(publishers)
    stopped = cluster.owner()
    stopped.pause()
    cluster.owner()
    go_on(publishers, without=stopped)
    stopped.resume()
    go_on(publishers)
    killed = cluster.owner()
    killed.kill()
    cluster.owner()
    go_on(publishers, without=killed)

    verify(cluster, publishers)


def test_twenty_takeovers_never_have_two_writers(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/store", "1500ms") as cluster:
        publishers = started(cluster)
        for _ in range(TAKEOVERS):
            owner = cluster.owner()
            owner.pause()
            cluster.owner()
            owner.resume()
        go_on(publishers)
        verify(cluster, publishers)
        lease = cluster.status().lease

        assert lease is not None
        assert lease.epoch > TAKEOVERS


class Attached:
    """A publisher and a consumer of one node; the consumer holds one message, and may hold no more."""

    def __init__(self, node: ClusterNode) -> None:
        self.node = node
        self.received: list[bytes] = []
        self._tags: list[int] = []
        self._publishing = node.connect()
        self._consuming = node.connect()
        self._publisher = self._publishing.channel()
        self._publisher.queue_declare(QUEUE, durable=True)
        self._publisher.confirm_delivery()
        for number in range(MESSAGES):
            self._publisher.basic_publish("", QUEUE, b"%d" % number, PERSISTENT)
        self._consumer = self._consuming.channel()
        self._consumer.basic_qos(prefetch_count=1)
        self._consumer.basic_consume(QUEUE, self._deliver)
        while not self.received:
            self._consuming.process_data_events(time_limit=0.1)

    def _deliver(self, channel: BlockingChannel, method: object, properties: object, body: bytes) -> None:
        self.received.append(body)
        self._tags.append(method.delivery_tag)  # type: ignore[attr-defined]

    def acknowledge(self) -> None:
        """Ask for the next message, in effect. The node may be stopped: then the bytes wait for it."""
        self._consumer.basic_ack(self._tags[0])

    def publish(self) -> Callable[[], BaseException | None]:
        """Publish one more, in a thread; what is returned waits for the outcome, None if it was confirmed."""
        outcome: list[BaseException] = []

        def publish() -> None:
            try:
                self._publisher.basic_publish("", QUEUE, b"too late", PERSISTENT)
            except AMQPError as error:
                outcome.append(error)

        thread = threading.Thread(target=publish, daemon=True)
        thread.start()

        def finished() -> BaseException | None:
            thread.join(60)
            assert not thread.is_alive()
            return outcome[0] if outcome else None

        return finished

    def farewell(self) -> str:
        """How the consumer's connection ended."""
        try:
            while True:
                self._consuming.process_data_events(time_limit=1)
        except AMQPError as error:
            return repr(error)


def attached(cluster: Cluster) -> Attached:
    """Clients of the owner."""
    for _ in range(5):
        try:
            return Attached(cluster.owner())
        except AMQPError:  # another has taken over meanwhile
            continue
    raise AssertionError("nobody stays the owner")


def settled_elsewhere(connection: BlockingConnection) -> list[bytes]:
    """All messages of the queue, settled for certain."""
    bodies = drain(connection.channel(), QUEUE, MESSAGES)
    vouched(connection, "witness")
    return bodies


def test_an_owner_that_wakes_up_delivers_and_confirms_nothing_of_what_is_not_its_own_any_more(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/store", "4s") as cluster:
        clients = attached(cluster)
        clients.node.pause()
        elsewhere = cluster.owner().connect()
        bodies = settled_elsewhere(elsewhere)
        outcome = clients.publish()
        clients.acknowledge()
        clients.node.resume()
        farewell = clients.farewell()

        assert outcome() is not None, "it confirmed what it cannot store"
        assert clients.received == [b"0"], "it delivered what was settled at another node"
        assert "320" in farewell
        assert sorted(bodies, key=int) == [b"%d" % number for number in range(MESSAGES)]
        elsewhere.close()
        eventually(lambda: clients.node.role() != "")
        assert b"too late" not in stored(cluster, QUEUE)


def test_a_node_that_is_told_to_stop_leaves_the_store_to_the_next_at_once(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/store", "120s") as cluster:
        first = cluster.owner()
        first.signal(signal.SIGTERM)

        assert first.wait() == 0
        assert cluster.owner() is not first
        assert [takeover.cause for takeover in cluster.status().takeovers] == ["release", "new"]


def test_an_owner_that_loses_the_store_waits_for_it_and_takes_its_seat_again(tmp_path: Path, s3: S3) -> None:
    with Cluster(tmp_path, s3.url, "2s", s3.environment, names=("a",)) as cluster:
        declare(cluster)
        node = cluster.owner()
        s3.shut()
        eventually(lambda: "this node waits for the store and takes its seat again then" in node.log())
        s3.open()

        assert node.is_alive
        assert cluster.owner() is node
        assert b"first" in stored(cluster, QUEUE)


def test_a_node_that_waits_for_the_store_stops_when_it_is_told_to(tmp_path: Path, s3: S3) -> None:
    with Cluster(tmp_path, s3.url, "2s", s3.environment, names=("a",)) as cluster:
        node = cluster.owner()
        s3.shut()
        eventually(lambda: "this node waits for the store and takes its seat again then" in node.log())
        node.signal(signal.SIGTERM)

        assert node.wait() == 0
        s3.open()


def test_a_node_that_the_owner_does_not_answer_is_not_ready(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/store", "120s", names=("a", "b")) as cluster:
        owner = cluster.owner()
        (other,) = [node for node in cluster.nodes.values() if node is not owner]
        eventually(lambda: other.ready() == (200, ""))

        owner.pause()
        eventually(lambda: other.ready()[0] == 503)
        assert "did not answer" in other.ready()[1]

        owner.resume()
        eventually(lambda: other.ready() == (200, ""))

"""Virtual hosts: apart from each other, there again after a restart, gone with everything in them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission, TopicPermission
from headrace.core.broker import Broker
from headrace.core.hosts import Hosts
from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import HeadraceError, NotFound, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.api import (
    BINDINGS,
    EXCHANGES,
    HOSTS,
    PERMISSIONS,
    QUEUES,
    RETAINED,
    SESSIONS,
    TOPIC_PERMISSIONS,
    TRANSACTIONS,
    Commit,
    Engine,
)
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine
from tests.contents import contents
from tests.disks import SnapshotDisk
from tests.endpoints import AtOnce, must
from tests.refusing_engine import RefusingEngine


class Place:
    """All hosts over one engine, with a loop that runs when told to."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.clock = ManualClock()
        self._soon: list[Callable[[], None]] = []
        self.hosts = Hosts(
            engine, lambda name, is_new: Broker(engine, self.clock, self._soon.append, name, is_new=is_new)
        )
        self.access = Access(engine, self.clock, AtOnce(), self.hosts)

    def run(self) -> None:
        """Until nothing is left to do."""
        self.engine.sync()
        while self._soon:
            soon, self._soon[:] = list(self._soon), []
            for call in soon:
                call()
            self.engine.sync()

    def host(self, name: str) -> Broker:
        broker = self.hosts.find(name)
        assert broker is not None
        return broker

    def create(self, name: str) -> Broker:
        self.hosts.create(name, must)
        self.run()
        return self.host(name)

    def fill(self, name: str) -> Broker:
        """A host with two queues, an exchange and two bindings, with a message in each queue."""
        broker = self.create(name) if self.hosts.find(name) is None else self.host(name)
        broker.declare(QueueDefinition("q"))
        broker.declare(QueueDefinition("s", STREAM))
        broker.declare_exchange(Exchange("x", "fanout", durable=True))
        broker.bind(Binding("x", "q"))
        broker.bind(Binding("x", "s"))
        broker.publish(Message(Source("", "x"), f"of {name}".encode(), self.clock.now_us()))
        self.run()
        return broker


@pytest.fixture
def place() -> Place:
    return Place(MemoryEngine())


def test_the_default_host_is_always_there_and_cannot_go(place: Place) -> None:
    assert place.hosts.names() == ["/"]
    with pytest.raises(Refused, match="always there"):
        place.hosts.delete("/", must)


def test_hosts_have_queues_and_exchanges_of_their_own(place: Place) -> None:
    for name in ("/", "eu", "us"):
        place.fill(name)
    place.host("eu").delete("q")
    place.host("us").purge("q")
    place.run()

    assert place.host("/").queue("q").messages == 1
    assert place.host("us").queue("q").messages == 0
    with pytest.raises(NotFound, match="no queue 'q' in vhost 'eu'"):
        place.host("eu").queue("q")
    assert [binding.destination for binding in place.host("eu").topology.exchanges.bindings()] == ["s"]
    assert len(place.host("us").topology.exchanges.bindings()) == 2


def test_a_new_host_looks_through_no_table_of_what_other_hosts_keep() -> None:
    engine = RefusingEngine()
    place = Place(engine)
    place.fill("/")
    engine.scanned.clear()

    place.create("eu")

    assert engine.scanned == []


def test_hosts_and_what_they_hold_are_there_again_after_a_restart(tmp_path: Path) -> None:
    place = Place(LocalEngine(tmp_path))
    place.fill("/")
    place.fill("größe/1")
    place.engine.close()

    place = Place(LocalEngine(tmp_path))

    assert place.hosts.names() == ["/", "größe/1"]
    for name in ("/", "größe/1"):
        (found,) = place.host(name).queue("q").browse(0, 10)
        assert found[1].payload == f"of {name}".encode()
        assert len(place.host(name).topology.exchanges.bindings()) == 2
    place.engine.close()


def test_a_deleted_host_leaves_nothing_behind_and_can_be_made_anew(tmp_path: Path) -> None:
    place = Place(LocalEngine(tmp_path))
    place.fill("/")
    before = contents(place.engine)
    broker = place.fill("eu")
    place.access.put_permission(Permission("guest", "eu", "", "", ""), must)
    place.access.put_topic_permission(TopicPermission("guest", "eu", "x", "", ""), must)
    of_a_session = Commit()
    of_a_session.append("eu\0$session/c", [Message(Source("t"), b"waits", 1)])
    for table in (RETAINED, SESSIONS, TRANSACTIONS):
        of_a_session.put(table, b"eu\0c\0s", b"{}")
    place.engine.commit(of_a_session, must)
    place.engine.sync()
    told: list[str] = []
    broker.on_ended["test"] = told.append

    place.hosts.delete("eu", must)
    assert place.hosts.find("eu") is None
    with pytest.raises(Unavailable, match="still being deleted"):
        place.hosts.create("eu", must)
    place.run()

    assert told == ["vhost 'eu' is deleted"]
    assert contents(place.engine) == before
    for table in (HOSTS, QUEUES, EXCHANGES, BINDINGS, PERMISSIONS, TOPIC_PERMISSIONS, RETAINED, SESSIONS, TRANSACTIONS):
        assert [key for key, _ in place.engine.items(table) if key.startswith(b"eu")] == []
    assert len(place.hosts.brokers()) == 1
    broker.declare(QueueDefinition("late"))
    place.run()
    assert contents(place.engine) == before, "who comes too late leaves nothing behind either"
    again = place.create("eu")
    with pytest.raises(NotFound):
        again.queue("q")
    assert place.access.rights(place.access.account("guest"), "eu") is None
    place.engine.close()


def test_a_crash_while_a_host_is_deleted_leaves_all_of_it_or_nothing(tmp_path: Path) -> None:
    disk = SnapshotDisk()
    copies: list[Path] = []
    write_synced = disk.write_synced

    def copying(fd: int, buffers: list[bytes], position: int) -> None:
        copies.append(tmp_path / f"copy{len(copies)}")
        disk.snapshot(tmp_path / "data", copies[-1])
        write_synced(fd, buffers, position)
        copies.append(tmp_path / f"copy{len(copies)}")
        disk.snapshot(tmp_path / "data", copies[-1])

    place = Place(LocalEngine(tmp_path / "data", disk=disk))
    place.fill("eu")
    disk.write_synced = copying  # type: ignore[assignment, method-assign]
    place.hosts.delete("eu", must)
    place.run()
    disk.write_synced = write_synced  # type: ignore[method-assign]
    place.engine.close()

    seen: set[bool] = set()
    for copy in copies:
        engine = LocalEngine(copy)
        found = Place(engine)
        is_there = found.hosts.find("eu") is not None
        seen.add(is_there)
        stored = {(table, key) for table in (QUEUES, EXCHANGES, BINDINGS) for key, _ in engine.items(table)}
        assert len(stored) == (5 if is_there else 0)
        assert len(engine.logs()) == (2 if is_there else 0)
        engine.close()
    assert seen == {True, False}


def test_a_host_that_cannot_be_deleted_in_storage_yet_is_deleted_when_it_can() -> None:
    engine = RefusingEngine()
    place = Place(engine)
    place.fill("eu")
    engine.refusal = Unavailable("the disk is full")
    errors: list[HeadraceError | None] = []
    place.hosts.delete("eu", errors.append)
    place.run()
    assert [str(error) for error in errors] == ["the disk is full"]
    assert place.hosts.find("eu") is None

    engine.refusal = None
    place.clock.advance(2)
    for broker in place.hosts.brokers():
        broker.tick()
    place.run()

    assert [key for key, _ in engine.items(HOSTS)] == [b"/"]
    assert len(place.hosts.brokers()) == 1


def test_a_host_that_cannot_be_stored_is_not_made() -> None:
    engine = RefusingEngine()
    place = Place(engine)
    engine.refusal = Unavailable("the disk is full")
    with pytest.raises(Unavailable):
        place.hosts.create("eu", must)
    assert place.hosts.find("eu") is None


def test_making_a_host_twice_keeps_what_it_holds(place: Place) -> None:
    place.fill("eu")
    assert place.create("eu").queue("q").messages == 1


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256, "\ud800"])
def test_names_that_cannot_be_are_refused(place: Place, name: str) -> None:
    with pytest.raises(Refused, match="virtual host name"):
        place.hosts.create(name, must)


def test_deleting_what_is_not_there_is_not_found(place: Place) -> None:
    with pytest.raises(NotFound, match="no vhost 'eu'"):
        place.hosts.delete("eu", must)

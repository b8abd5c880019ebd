"""Membership with its thread: two nodes of one name, and a node that leaves."""

import threading
from pathlib import Path

from headrace.clock import SystemClock
from headrace.cluster.lease import Node, Records
from headrace.cluster.lease_keeper import Tell
from headrace.cluster.membership import Membership
from headrace.cluster.status import Status, read_groups, read_status
from headrace.config.replication import MAIN
from headrace.errors import HeadraceError
from tests.waiting import eventually

LEASE_MS = 500


class Party:
    """A member of a cluster in a directory."""

    def __init__(self, directory: Path, name: str, group: str = MAIN) -> None:
        clock = SystemClock()
        self.doubles: list[HeadraceError] = []
        self._lock = threading.Lock()
        me = Node(name, "127.0.0.1:1", "1", clock.now_us())
        tell: Tell = self._tell
        records = Records(f"file://{directory}", group, 1000)
        self._clock = clock
        self._records = records
        self.member = Membership(records, me, LEASE_MS, clock, tell, self.doubles.append)
        self.member.start()

    def status(self) -> Status:
        return read_status(self._records, self._clock)

    def groups(self) -> dict[str, Status]:
        return read_groups(self._records, self._clock)

    def _tell(self, call: object) -> None:
        with self._lock:
            call()  # type: ignore[operator]


def test_nodes_share_a_secret_and_only_one_of_them_owns_the_store(tmp_path: Path) -> None:
    a, b = Party(tmp_path, "a"), Party(tmp_path, "b")
    eventually(lambda: a.member.ownership.mine or b.member.ownership.mine)
    eventually(lambda: len(a.status().nodes) == 2)

    assert a.member.ownership.secret == b.member.ownership.secret
    assert len(a.member.ownership.secret) == 32
    a.member.stop()
    eventually(lambda: b.member.ownership.mine)
    assert [presence.node.name for presence in b.status().nodes] == ["b"]
    b.member.stop()
    assert b.status().nodes == []


def test_of_two_nodes_with_one_name_the_one_that_was_there_first_hears_of_it(tmp_path: Path) -> None:
    first = Party(tmp_path, "a")
    eventually(lambda: len(first.status().nodes) == 1)
    second = Party(tmp_path, "a")
    eventually(lambda: bool(first.doubles))

    assert "'a'" in str(first.doubles[0])
    assert second.doubles == []
    first.member.stop()
    assert [presence.node.name for presence in second.status().nodes] == ["a"]
    second.member.stop()


def test_who_gives_the_store_back_leaves_it_to_another(tmp_path: Path) -> None:
    a, b = Party(tmp_path, "a"), Party(tmp_path, "b")
    eventually(lambda: a.member.ownership.mine or b.member.ownership.mine)
    holder, other = (a, b) if a.member.ownership.mine else (b, a)
    holder.member.give_back()

    eventually(lambda: other.member.ownership.mine)
    a.member.stop()
    b.member.stop()


def test_groups_of_one_store_have_owners_epochs_and_secrets_of_their_own(tmp_path: Path) -> None:
    cold, hot = Party(tmp_path, "a", "cold"), Party(tmp_path, "a", "hot")
    eventually(lambda: cold.member.ownership.mine and hot.member.ownership.mine)
    eventually(lambda: all(len(each.nodes) == 1 for each in cold.groups().values()))
    secrets = {cold.member.ownership.secret, hot.member.ownership.secret}
    hot.member.stop()
    second = Party(tmp_path, "b", "hot")
    eventually(lambda: second.member.ownership.mine)
    eventually(lambda: len(second.status().nodes) == 1)
    found = second.groups()

    assert len(secrets) == 2
    assert not cold.doubles
    assert not hot.doubles
    assert {name: (each.owner, each.to_json()["epoch"]) for name, each in found.items()} == {
        "cold": ("a", 1),
        "hot": ("b", 2),
    }
    assert [presence.node.name for presence in found["hot"].nodes] == ["b"]
    cold.member.stop()
    second.member.stop()

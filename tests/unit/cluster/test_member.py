"""A node among others, with its thread: two of one name, and one that leaves."""

import threading
from pathlib import Path

from headrace.clock import SystemClock
from headrace.cluster.keeper import Tell
from headrace.cluster.member import Member
from headrace.cluster.node import Node
from headrace.errors import HeadraceError
from tests.waiting import eventually

LEASE_MS = 500


class Party:
    """A member of a cluster in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        clock = SystemClock()
        self.doubles: list[HeadraceError] = []
        self._lock = threading.Lock()
        me = Node(name, "127.0.0.1:1", "1", clock.now_us())
        tell: Tell = self._tell
        self.member = Member(f"file://{directory}", me, LEASE_MS, clock, tell, self.doubles.append)
        self.member.start()

    def _tell(self, call: object) -> None:
        with self._lock:
            call()  # type: ignore[operator]


def test_nodes_share_a_secret_and_only_one_of_them_owns_the_store(tmp_path: Path) -> None:
    a, b = Party(tmp_path, "a"), Party(tmp_path, "b")
    eventually(lambda: a.member.ownership.mine or b.member.ownership.mine)
    eventually(lambda: len(a.member.status().nodes) == 2)

    assert a.member.ownership.secret == b.member.ownership.secret
    assert len(a.member.ownership.secret) == 32
    a.member.stop()
    eventually(lambda: b.member.ownership.mine)
    assert [presence.node.name for presence in b.member.status().nodes] == ["b"]
    b.member.stop()
    assert b.member.status().nodes == []


def test_of_two_nodes_with_one_name_the_one_that_was_there_first_hears_of_it(tmp_path: Path) -> None:
    first = Party(tmp_path, "a")
    eventually(lambda: len(first.member.status().nodes) == 1)
    second = Party(tmp_path, "a")
    eventually(lambda: bool(first.doubles))

    assert "'a'" in str(first.doubles[0])
    assert second.doubles == []
    first.member.stop()
    assert [presence.node.name for presence in second.member.status().nodes] == ["a"]
    second.member.stop()


def test_who_gives_the_store_back_leaves_it_to_another(tmp_path: Path) -> None:
    a, b = Party(tmp_path, "a"), Party(tmp_path, "b")
    eventually(lambda: a.member.ownership.mine or b.member.ownership.mine)
    holder, other = (a, b) if a.member.ownership.mine else (b, a)
    holder.member.give_back()

    eventually(lambda: other.member.ownership.mine)
    a.member.stop()
    b.member.stop()

"""Leases in a directory, step by step: takeovers, renewals and losses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.clock import ManualClock
from headrace.cluster.lease import LEASES, Node, Records, decode_lease, epoch_name, lease_name, numbers
from headrace.cluster.lease_keeper import LeaseKeeper
from headrace.cluster.status import Ownership, read_status
from headrace.errors import Corrupt, Refused, Unavailable

LEASE_MS = 3000


def at_once(call: Callable[[], None]) -> None:
    call()


class Party:
    """A node with a lease of three seconds and its own clock."""

    def __init__(self, directory: Path, name: str) -> None:
        self.clock = ManualClock()
        self.records = Records(f"file://{directory}", "main", 1000)
        self.ownership = Ownership(Node(name, "127.0.0.1:1", "1", self.clock.now_us()), b"secret", self.clock)
        self.keeper = LeaseKeeper(self.records, self.ownership, LEASE_MS, self.clock, at_once)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.keeper.step()
        self.keeper.tidy()

    @property
    def knows(self) -> str:
        """Name of the owner that the node knows."""
        return self.ownership.owner.name if self.ownership.owner is not None else ""


@pytest.fixture
def a(tmp_path: Path) -> Party:
    return Party(tmp_path, "a")


@pytest.fixture
def b(tmp_path: Path) -> Party:
    return Party(tmp_path, "b")


def test_the_first_to_come_owns_a_new_store_and_the_others_know_it(a: Party, b: Party) -> None:
    a.keeper.step()
    b.keeper.step()

    assert (a.ownership.mine, b.ownership.mine) == (True, False)
    assert (a.knows, b.knows) == ("a", "a")
    assert (a.ownership.epoch, b.ownership.epoch) == (1, 1)


def test_an_owner_that_renews_stays_the_owner(a: Party, b: Party) -> None:
    a.keeper.step()
    for _ in range(40):
        a.wait(1)
        b.wait(1)

    assert (a.ownership.mine, b.ownership.mine) == (True, False)
    assert b.ownership.epoch == 1
    assert len(a.records.names(LEASES)) < 20, "old leases are removed"


def test_an_owner_that_is_silent_has_stopped_before_another_takes_over(a: Party, b: Party) -> None:
    a.keeper.step()
    b.keeper.step()
    for _ in range(29):
        a.clock.advance(0.1)
        b.wait(0.1)
        assert not (a.ownership.mine and b.ownership.mine)
    has_stopped = not a.ownership.mine
    a.clock.advance(0.1)
    b.wait(0.1)

    assert has_stopped
    assert b.ownership.mine
    assert b.ownership.epoch == 2
    a.keeper.step()
    assert not a.ownership.mine
    a.wait(0.1)
    assert a.knows == "b"


def test_an_owner_that_slept_does_not_come_back_even_when_nobody_took_over(a: Party) -> None:
    a.keeper.step()
    a.wait(LEASE_MS / 1000)

    assert not a.ownership.mine


def test_a_lease_that_is_released_is_taken_at_once(a: Party, b: Party) -> None:
    a.keeper.step()
    b.keeper.step()
    a.keeper.release()
    b.keeper.step()

    assert (a.ownership.mine, b.ownership.mine) == (False, True)


def test_who_cannot_use_the_store_lets_others_try_and_waits_itself(a: Party, b: Party) -> None:
    a.keeper.step()
    a.keeper.give_back()
    a.wait(0.1)
    a.wait(0.1)
    had_it_back = a.ownership.mine
    b.keeper.step()

    assert not had_it_back
    assert b.ownership.mine


def test_of_two_that_want_the_store_at_the_same_moment_one_gets_it(a: Party, b: Party) -> None:
    a.keeper.step()
    b.keeper.step()
    a.keeper.release()
    third = Party(Path(a.records.url.removeprefix("file://")), "c")
    third.keeper.step()
    b.keeper.step()

    assert third.ownership.mine
    assert not b.ownership.mine


def test_a_node_that_slept_while_leases_were_removed_does_not_take_a_number_that_was_there_before(
    a: Party, b: Party
) -> None:
    a.keeper.step()
    b.keeper.step()
    for _ in range(40):
        a.wait(1)
    b.wait(1000)

    assert a.ownership.mine
    assert not b.ownership.mine
    assert b.knows == "a"
    assert numbers(a.records.names(LEASES))[-1] == 41


def test_a_number_that_is_made_again_after_its_removal_counts_for_nothing(a: Party, b: Party) -> None:
    a.keeper.step()
    for _ in range(20):
        a.wait(1)
    b.keeper._number = 3  # the state of a node that slept after its check

    assert not b.keeper._make(7, "held")
    assert lease_name(4) not in [f"{LEASES}/{name}" for name in a.records.names(LEASES)]


def test_a_renewal_whose_answer_was_lost_is_no_loss(a: Party) -> None:
    a.keeper.step()
    a.clock.advance(1)
    number = a.keeper._number
    lease = replace(decode_lease(a.records.get(lease_name(number)) or b"", "x"), number=number + 1)
    a.records.create(lease_name(number + 1), lease.encode())
    a.keeper.step()
    a.wait(1)

    assert a.ownership.mine
    assert a.ownership.epoch == 1


def test_a_lease_that_cannot_be_read_is_said_with_its_name(a: Party, b: Party) -> None:
    a.records.create(lease_name(1), b"nonsense")

    with pytest.raises(Corrupt, match=r"lease/0+1"):
        b.keeper.step()
    assert not b.ownership.mine


@pytest.mark.parametrize("wrong", [{"version": 2}, {"epoch": "x"}, {"state": "?"}, {"number": -1}, {"node": None}])
def test_a_lease_that_says_something_strange_is_corrupt(a: Party, wrong: dict[str, object]) -> None:
    a.keeper.step()
    values = json.loads(a.records.get(lease_name(1)) or b"")

    with pytest.raises(Corrupt):
        decode_lease(json.dumps({**values, **wrong}).encode(), "here")


def test_every_epoch_is_written_down_once(a: Party, b: Party) -> None:
    a.keeper.step()
    a.keeper.release()
    b.keeper.step()
    b.keeper.release()
    a.keeper.step()
    status = read_status(a.records, a.clock)

    assert [(each.epoch, each.node.name, each.cause) for each in status.takeovers] == [
        (3, "a", "release"),
        (2, "b", "release"),
        (1, "a", "new"),
    ]
    assert not a.records.create(epoch_name(2), b"another")
    assert status.owner == "a"


def test_a_store_of_one_process_alone_is_no_store_for_a_cluster(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="share"):
        Records("memory://", "main", 1000)
    with pytest.raises(Refused, match="begins with"):
        Records("ftp://x", "main", 1000)
    with pytest.raises(Unavailable):
        Records("file:///proc/nowhere", "main", 1000).prove_creation()
    Records(f"file://{tmp_path}", "main", 1000).prove_creation()

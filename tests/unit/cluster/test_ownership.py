"""The owner of the store in a node's memory."""

import json

import pytest

from headrace.clock import ManualClock
from headrace.cluster.lease import Node, read_json
from headrace.cluster.status import Ownership
from headrace.errors import Corrupt


def node(name: str) -> Node:
    return Node(name, "127.0.0.1:7001", "1.2.3", 1_700_000_000_000_000, {"amqp": "10.0.0.1:5672"})


def test_a_node_reads_back_as_it_was_written() -> None:
    written = json.dumps(node("a").to_json()).encode()

    assert Node.from_json(read_json(written, "x"), "x") == node("a")
    assert node("a").internal == ("127.0.0.1", 7001)
    assert node("a") != node("b")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"name": "a", "address": "nowhere", "version": "1", "started_us": 1}',
        b"\xff",
        b'{"name": 1}',
    ],
)
def test_what_is_no_node_is_corrupt_and_says_where(text: bytes) -> None:
    with pytest.raises(Corrupt, match="lease/7"):
        Node.from_json(read_json(text, "lease/7"), "lease/7")


def test_an_owner_is_one_only_until_its_lease_runs_out() -> None:
    clock = ManualClock()
    ownership = Ownership(node("a"), b"secret", clock)
    seen = [ownership.mine]

    ownership.became(ownership.me, 3, clock.monotonic_us() + 1_000_000)
    seen.append(ownership.mine)
    clock.advance(0.999)
    seen.append(ownership.mine)
    clock.advance(0.001)
    seen.append(ownership.mine)
    ownership.renewed(clock.monotonic_us() + 1)
    seen.append(ownership.mine)

    assert seen == [False, True, True, False, True]


def test_changes_are_told_once_and_only_when_there_are_any() -> None:
    told: list[tuple[str, int]] = []
    ownership = Ownership(node("a"), b"secret", ManualClock())

    def changed() -> None:
        told.append((ownership.owner.name if ownership.owner else "", ownership.epoch))

    ownership.watch(changed)
    ownership.became(node("b"), 1)
    ownership.became(node("b"), 1)
    ownership.became(None, 1)

    assert told == [("b", 1), ("", 1)]

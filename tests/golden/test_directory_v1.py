"""A whole data directory as the first release wrote it: it opens, and everything in it is still there.

The directory was left by a process that was killed: its last commits are in the journal only, in two of its files, and
some of their messages had been written to segments that the checkpoint does not know of. Never make it anew: when a
format changes, add another directory beside it.
"""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headrace.model import AMQP091, MQTT5, Message, Source
from headrace.storage.api import BINDINGS, EXCHANGES, QUEUES, RETAINED, SESSIONS, TRANSACTIONS
from headrace.storage.group_state import STREAM, WORK, GroupState, Pending
from headrace.storage.local.engine import LocalEngine
from tests.golden.samples import HERE
from tests.workbench import SMALL, all_values, store, values

START_US = 1_700_000_000_000_000
CREATED = Source("orders/created", "", "sensor-1", "mqtt", MQTT5)
PAID = Source("orders/paid", "amq.topic", "till-7", "amqp091", AMQP091)
ODD = "Größe/№ 1 @#."
LONG = "x" * 255


def _order(number: int) -> Message:
    """Every fifth message has every column, the others have none."""
    time_us = START_US + number * 1000
    if number % 5 == 4:
        properties = b"\x01p%d" % number
        return Message(PAID, b"paid %d" % number, time_us, properties, number % 10, time_us + 60_000_000, time_us + 500)
    return Message(CREATED, b"order %d" % number, time_us)


def _orders(*numbers: int) -> list[Message]:
    return [_order(number) for number in numbers]


LOGS: dict[str, tuple[int, list[Message]]] = {
    "orders": (9, _orders(*range(9, 130))),
    "copies": (0, _orders(*(number for ten in range(60, 130, 10) for number in range(ten, ten + 3)))),
    ODD: (0, [Message(Source("a b"), b"one", START_US), Message(Source("a b"), b"", START_US + 1)]),
    "..": (0, [Message(Source("dots"), b"dot", START_US)]),
    LONG: (0, [Message(Source("long"), b"long", START_US)]),
    "again": (0, [Message(Source("fresh"), b"fresh", START_US + 9)]),
    "large": (0, [Message(Source("bulk"), bytes(range(256)) * 40, START_US)]),
    "empty": (0, []),
}
TABLES: dict[str, dict[bytes, bytes]] = {
    QUEUES: {
        b"orders": b'{"type":"classic","topics":["orders/#"]}',
        ODD.encode(): b'{"type":"stream"}',
        b"copies": b'{"type":"classic"}',
    },
    EXCHANGES: {},
    BINDINGS: {b"events>orders": b'{"key":"orders.#"}'},
    RETAINED: {b"door": b"shut", b"bell": b""},
    SESSIONS: {b"sensor-1": b"\x00\x01\xff"},
    TRANSACTIONS: {b"batch-1": b"7", b"batch-2": b"8"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(HERE / "directory-v1", tmp_path / "data")


@pytest.fixture
def engine(root: Path) -> Iterator[LocalEngine]:
    with closing(LocalEngine(root, settings=SMALL)) as engine:
        yield engine


def _progress(state: GroupState) -> tuple[int, str, int, int, list[tuple[int, int]]]:
    return state.mode, state.filter, state.cursor, state.committed, list(state.settled)


def _check(engine: LocalEngine) -> None:
    assert sorted(engine.logs()) == sorted(LOGS)
    for name, (first, messages) in LOGS.items():
        log = engine.log(name)
        assert (log.first_offset, log.next_offset) == (first, first + len(messages)), name
        assert all_values(log.read(first, 1000)) == all_values(messages), name
    for table, expected in TABLES.items():
        assert dict(engine.items(table)) == expected, table


def test_every_log_exists_and_no_other(engine: LocalEngine) -> None:
    assert sorted(engine.logs()) == sorted(LOGS)


@pytest.mark.parametrize("name", LOGS)
def test_every_message_is_there(engine: LocalEngine, name: str) -> None:
    first, messages = LOGS[name]
    log = engine.log(name)

    assert (log.first_offset, log.next_offset) == (first, first + len(messages))
    assert all_values(log.read(first, 1000)) == all_values(messages)


def test_messages_are_found_by_time(engine: LocalEngine) -> None:
    log = engine.log("orders")

    assert [log.find(START_US + number * 1000) for number in (0, 9, 39, 40, 129, 130)] == [9, 9, 39, 40, 129, 130]


def test_a_message_of_each_kind_reads_as_these_literals(engine: LocalEngine) -> None:
    order, paid = engine.log("orders").read(63, 2)

    assert values(order) == (
        ("orders/created", "", "sensor-1", "mqtt", 2), b"order 63", 1_700_000_000_063_000, b"", 0, 0, 0,
    )  # fmt: skip
    assert values(paid) == (
        ("orders/paid", "amq.topic", "till-7", "amqp091", 1),
        b"paid 64",
        1_700_000_000_064_000,
        b"\x01p64",
        4,
        1_700_000_060_064_000,
        1_700_000_000_064_500,
    )


def test_a_work_group_has_its_progress_and_what_is_pending(engine: LocalEngine) -> None:
    state = engine.log("orders").groups["billing"]

    assert _progress(state) == (WORK, "orders/#", 22, 9, [(13, 14)])
    first = Pending(1, START_US + 30_000_000, "worker-1")
    second = Pending(1, START_US + 31_000_000, "worker-2")
    assert state.pending == {
        9: first,
        10: Pending(2, START_US + 120_000_000, "worker-3"),
        11: first,
        12: second,
        **dict.fromkeys(range(14, 20), second),
        20: Pending(1, START_US + 121_000_000, "worker-1"),
        21: Pending(1, START_US + 121_000_000, "worker-1"),
    }


@pytest.mark.parametrize(
    ("log", "group", "expected"),
    [
        ("orders", "Audit/1", (STREAM, "", 70, 25, [])),
        ("again", "fresh", (WORK, "", 0, 0, [])),
        ("empty", "waiting", (STREAM, "", 0, 0, [])),
    ],
)
def test_every_other_group_has_its_progress(
    engine: LocalEngine, log: str, group: str, expected: tuple[int, str, int, int, list[tuple[int, int]]]
) -> None:
    state = engine.log(log).groups[group]

    assert _progress(state) == expected
    assert state.pending == {}


def test_no_other_group_exists(engine: LocalEngine) -> None:
    assert {(name, group) for name in engine.logs() for group in engine.log(name).groups} == {
        ("orders", "billing"),
        ("orders", "Audit/1"),
        ("again", "fresh"),
        ("empty", "waiting"),
    }


@pytest.mark.parametrize("table", TABLES)
def test_every_table_has_its_values(engine: LocalEngine, table: str) -> None:
    assert dict(engine.items(table)) == TABLES[table]


def test_it_is_the_same_after_a_checkpoint_of_this_release(root: Path) -> None:
    LocalEngine(root, settings=SMALL).close()

    with closing(LocalEngine(root, settings=SMALL)) as engine:
        _check(engine)


def test_it_goes_on_where_it_ended(root: Path) -> None:
    with closing(LocalEngine(root, settings=SMALL)) as engine:
        store(engine, lambda commit: commit.append("orders", [_order(130)]))

    with closing(LocalEngine(root, settings=SMALL)) as engine:
        assert all_values(engine.log("orders").read(129, 10)) == all_values(_orders(129, 130))

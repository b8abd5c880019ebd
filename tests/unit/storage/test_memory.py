"""The reference engine: what every other engine has to do as well."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from headrace.errors import HeadraceError, Refused, Unavailable
from headrace.storage.api import MAX_COMMIT_BYTES, QUEUES, RETAINED, Commit
from headrace.storage.group_state import STREAM, WORK, Pending
from headrace.storage.memory import MemoryEngine
from tests.workbench import Build, all_values, full_message, many, outcome, payloads, plain, store


@pytest.fixture
def engine() -> Iterator[MemoryEngine]:
    with closing(MemoryEngine()) as engine:
        yield engine


def test_a_log_that_was_never_written_is_empty(engine: MemoryEngine) -> None:
    log = engine.log("orders")

    assert (log.first_offset, log.next_offset, log.size_bytes, log.read(0, 10)) == (0, 0, 0, [])


def test_asking_for_a_log_does_not_make_it_exist(engine: MemoryEngine) -> None:
    engine.log("orders")

    assert engine.logs() == []


def test_messages_come_back_as_they_were_given(engine: MemoryEngine) -> None:
    messages = [*plain(b"a", b""), full_message()]

    store(engine, lambda commit: commit.append("orders", messages))

    assert all_values(engine.log("orders").read(0, 10)) == all_values(messages)


def test_an_append_knows_its_offset_once_it_is_staged(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", many(3)))
    commit = Commit()
    append = commit.append("orders", many(2))

    engine.commit(commit, lambda error: None)

    assert append.base == 3


def test_a_read_is_bounded_by_messages(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"a", b"b", b"c")))

    assert payloads(engine.log("orders").read(1, 1)) == [b"b"]


def test_a_read_is_bounded_by_bytes(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"aaa", b"bbb", b"ccc")))

    assert payloads(engine.log("orders").read(0, 10, max_bytes=6)) == [b"aaa", b"bbb"]


def test_a_read_gives_one_message_even_when_it_is_too_large(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"aaa", b"b")))

    assert payloads(engine.log("orders").read(0, 10, max_bytes=0)) == [b"aaa"]


def test_finding_a_time_gives_the_first_message_at_or_after_it(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"a", b"b", b"c", timestamp_us=100)))

    assert [engine.log("orders").find(time) for time in (0, 100, 101, 102, 103)] == [0, 0, 1, 2, 3]


def test_truncation_takes_what_is_below_and_nothing_above(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"a", b"b", b"c")))

    store(engine, lambda commit: commit.truncate("orders", 2))

    log = engine.log("orders")
    assert (log.first_offset, payloads(log.read(2, 10)), log.size_bytes) == (2, [b"c"], 1)


def test_reading_what_was_truncated_is_refused(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"a", b"b")))
    store(engine, lambda commit: commit.truncate("orders", 1))

    with pytest.raises(Refused, match="offset 0 is gone, the log starts at 1"):
        engine.log("orders").read(0, 1)


def test_truncating_beyond_the_end_keeps_the_next_offset(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"a", b"b")))

    store(engine, lambda commit: commit.truncate("orders", 99))

    assert (engine.log("orders").first_offset, engine.log("orders").next_offset) == (2, 2)


def test_a_dropped_log_is_gone_and_its_name_starts_again_at_zero(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.append("orders", plain(b"old", b"older")))
    store(engine, lambda commit: commit.drop("orders"))
    assert engine.logs() == []

    store(engine, lambda commit: commit.append("orders", plain(b"new")))

    assert payloads(engine.log("orders").read(0, 10)) == [b"new"]


def test_a_group_is_made_moved_and_deleted_by_commits(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.create_group("orders", "billing", WORK, "orders/#", 3))
    store(engine, lambda commit: commit.claim("orders", "billing", 3, 5, "c1", 30))

    state = engine.log("orders").groups["billing"]
    assert (state.mode, state.filter, state.cursor, state.committed) == (WORK, "orders/#", 5, 3)
    assert state.pending == {3: Pending(1, 30, "c1"), 4: Pending(1, 30, "c1")}

    store(engine, lambda commit: commit.delete_group("orders", "billing"))
    assert engine.log("orders").groups == {}


def test_a_log_exists_with_its_first_group(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.create_group("orders", "audit", STREAM))

    assert engine.logs() == ["orders"]


def test_acks_in_a_row_become_one_step() -> None:
    commit = Commit()

    for offset in range(100):
        commit.ack("orders", "billing", offset, offset + 1)
    commit.bury("orders", "billing", 100, 101)

    assert [(step.start, step.stop) for step in commit.steps] == [(0, 100), (100, 101)]


def test_keyed_state_is_put_replaced_and_deleted(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.put(RETAINED, b"a", b"1"))
    store(engine, lambda commit: commit.put(RETAINED, b"a", b"2"))
    assert (engine.get(RETAINED, b"a"), dict(engine.items(RETAINED))) == (b"2", {b"a": b"2"})

    store(engine, lambda commit: commit.delete(RETAINED, b"a"))
    assert (engine.get(RETAINED, b"a"), dict(engine.items(RETAINED)), dict(engine.items(QUEUES))) == (None, {}, {})


def test_a_step_on_a_group_that_does_not_exist_is_refused_and_nothing_of_the_commit_happens(
    engine: MemoryEngine,
) -> None:
    commit = Commit()
    commit.append("orders", plain(b"a"))
    commit.ack("orders", "nobody", 0, 1)

    with pytest.raises(Refused, match="group 'nobody' of 'orders' does not exist"):
        engine.commit(commit, lambda error: None)

    assert engine.logs() == []


def test_creating_a_group_twice_is_refused(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.create_group("orders", "billing", WORK))

    with pytest.raises(Refused, match="exists already"):
        outcome(engine, lambda commit: commit.create_group("orders", "billing", WORK))


@pytest.mark.parametrize("name", ["", "x" * 513, "é" * 257, "\ud800"])
def test_a_name_that_is_empty_too_long_or_no_unicode_is_refused(engine: MemoryEngine, name: str) -> None:
    with pytest.raises(Refused, match="the log name"):
        outcome(engine, lambda commit: commit.append(name, plain(b"a")))


def test_a_range_that_runs_backwards_is_refused(engine: MemoryEngine) -> None:
    store(engine, lambda commit: commit.create_group("orders", "billing", WORK))

    with pytest.raises(Refused, match=r"5\.\.3 is not a range"):
        outcome(engine, lambda commit: commit.ack("orders", "billing", 5, 3))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda commit: commit.claim("orders", "billing", 0, 1, "c" * 65536, 9), "the consumer 'c+' is too long"),
        (lambda commit: commit.claim("orders", "billing", 0, 1, "\ud800", 9), "not valid Unicode"),
        (lambda commit: commit.claim("orders", "billing", 0, 1, "c", 1 << 63), "is not a time"),
        (lambda commit: commit.ack("orders", "billing", 0, 1 << 63), "is not a range"),
        (lambda commit: commit.seek("orders", "billing", -1), "is not a range"),
        (lambda commit: commit.create_group("orders", "other", 9), "there is no mode 9"),
        (lambda commit: commit.create_group("orders", "other", WORK, "f" * 65536), "the filter 'f+' is too long"),
        (lambda commit: commit.put("t" * 65536, b"k", b"v"), "the table 't+' is too long"),
        (lambda commit: commit.put(QUEUES, b"k", b"not JSON"), "a value of JSON"),
        (lambda commit: commit.put(QUEUES, b"\xff", b"{}"), "a key of UTF-8"),
        (lambda commit: commit.put(QUEUES, b"k", b'"\\ud800"'), "a value of JSON"),
        (lambda commit: commit.truncate("orders", 1 << 63), "is not an offset"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_happens(
    engine: MemoryEngine, build: Build, reason: str
) -> None:
    store(engine, lambda commit: commit.create_group("orders", "billing", WORK))

    with pytest.raises(Refused, match=reason):
        outcome(engine, lambda commit: commit.append("orders", plain(b"x")), build)

    assert engine.log("orders").next_offset == 0


def test_a_commit_that_is_too_large_is_refused(engine: MemoryEngine) -> None:
    commit = Commit()
    commit.size_bytes = MAX_COMMIT_BYTES + 1

    with pytest.raises(Refused, match="publish smaller batches"):
        engine.commit(commit, lambda error: None)


def test_callbacks_run_on_poll_and_in_order(engine: MemoryEngine) -> None:
    told: list[tuple[int, HeadraceError | None]] = []
    for number in range(3):
        commit = Commit()
        commit.append("orders", plain(b"x"))
        engine.commit(commit, lambda error, number=number: told.append((number, error)))  # type: ignore[misc]
    assert told == []

    engine.poll()

    assert told == [(0, None), (1, None), (2, None)]


def test_staged_bytes_are_those_whose_callbacks_have_not_run(engine: MemoryEngine) -> None:
    commit = Commit()
    commit.append("orders", [full_message()])
    engine.commit(commit, lambda error: None)
    assert engine.staged_bytes == len(b"paid")

    engine.poll()

    assert engine.staged_bytes == 0


def test_the_owner_is_woken_for_a_commit() -> None:
    woken: list[bool] = []
    with closing(MemoryEngine(lambda: woken.append(True))) as engine:
        store(engine, lambda commit: commit.append("orders", plain(b"a")))

    assert woken == [True]


def test_a_closed_engine_takes_nothing(engine: MemoryEngine) -> None:
    engine.close()

    with pytest.raises(Unavailable, match="closed"):
        engine.commit(Commit(), lambda error: None)

"""A log of the local engine: reading it wherever its messages are, truncating it, dropping it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import Refused
from headrace.model import Message
from headrace.storage.group_state import WORK
from headrace.storage.local.engine import LocalSettings
from tests.workbench import Bench, all_values, full_message, many, payloads, plain


def _fill(bench: Bench, rounds: int, log: str = "orders") -> None:
    """Commits of 50 messages of 100 bytes; two of them make the tail large enough to be flushed."""
    for _ in range(rounds):
        bench.store(lambda commit: commit.append(log, many(50, size=100)))


def _in_segments(root: Path, messages: list[Message]) -> Bench:
    with Bench(root) as bench:
        for at in range(0, len(messages), 40):
            bench.store(lambda commit, at=at: commit.append("orders", messages[at : at + 40]))  # type: ignore[misc]
    return Bench(root)


def _in_segments_and_tail(root: Path, messages: list[Message]) -> Bench:
    bench = _in_segments(root, messages[:-30])
    bench.store(lambda commit: commit.append("orders", messages[-30:-10]))
    bench.store(lambda commit: commit.append("orders", messages[-10:]))
    return bench


def _in_tail(root: Path, messages: list[Message]) -> Bench:
    bench = Bench(root, LocalSettings())
    for at in range(0, len(messages), 70):
        bench.store(lambda commit, at=at: commit.append("orders", messages[at : at + 70]))  # type: ignore[misc]
    return bench


def _in_one_large_commit(root: Path, messages: list[Message]) -> Bench:
    bench = Bench(root, LocalSettings())
    bench.store(lambda commit: commit.append("other", many(300)), lambda commit: commit.append("orders", messages))
    return bench


Place = Callable[[Path, list[Message]], Bench]
anywhere = pytest.mark.parametrize("place", [_in_segments, _in_segments_and_tail, _in_tail, _in_one_large_commit])
MESSAGES = [full_message(1_000 + at) if at % 7 == 3 else m for at, m in enumerate(many(400, size=60))]


def test_a_log_of_one_message_is_read_cut_flushed_and_reopened_like_any_other(root: Path) -> None:
    with Bench(root) as bench:
        bench.store(lambda commit: commit.create_group("orders", "workers", WORK))
        log = bench.engine.log("orders")
        for number in range(5):
            bench.store(lambda commit: commit.append("orders", plain(b"%d" % number)))  # noqa: B023
            assert payloads(log.read(number, 10)) == [b"%d" % number]
            assert [batch["payload"].to_pylist() for batch in log.record_batches(number, 10)] == [[b"%d" % number]]
            assert log.find(0) == number
            bench.store(lambda commit: commit.ack("orders", "workers", number, number + 1, number + 1))  # noqa: B023
            assert (log.first_offset, log.next_offset, log.size_bytes) == (number + 1, number + 1, 0)
        bench.store(lambda commit: commit.append("orders", plain(b"5")))
        bench.store(
            lambda commit: commit.ack("orders", "workers", 5, 6, 6), lambda commit: commit.append("orders", plain(b"6"))
        )
        assert payloads(log.read(6, 10)) == [b"6"]
        bench.store(lambda commit: commit.append("orders", plain(b"7")))
        assert payloads(log.read(6, 10)) == [b"6", b"7"]

    with Bench(root) as bench:
        log = bench.engine.log("orders")
        assert (log.first_offset, payloads(log.read(6, 10))) == (6, [b"6", b"7"])


@anywhere
def test_every_message_comes_back_as_it_was(root: Path, place: Place) -> None:
    with place(root, MESSAGES) as bench:
        assert all_values(bench.engine.log("orders").read(0, 1000)) == all_values(MESSAGES)


@anywhere
def test_a_read_starts_and_stops_where_it_is_told(root: Path, place: Place) -> None:
    with place(root, MESSAGES) as bench:
        log = bench.engine.log("orders")

        for start, count in [(0, 1), (39, 2), (123, 200), (369, 5), (399, 9), (400, 9), (500, 9), (5, 0)]:
            assert all_values(log.read(start, count)) == all_values(MESSAGES[start : start + count])


@anywhere
@pytest.mark.parametrize("max_bytes", [0, 1, 59, 60, 61, 600, 6000])
def test_a_read_is_bounded_by_bytes_but_gives_at_least_one(root: Path, place: Place, max_bytes: int) -> None:
    with place(root, many(400, size=60)) as bench:
        found = bench.engine.log("orders").read(35, 400, max_bytes)

        assert len(found) == max(1, max_bytes // 60)


@anywhere
def test_a_read_bounded_by_bytes_goes_on_through_empty_messages(root: Path, place: Place) -> None:
    with place(root, plain(b"x", *[b""] * 399)) as bench:
        assert len(bench.engine.log("orders").read(0, 1000, max_bytes=1)) == 400


@anywhere
def test_a_time_is_found_at_the_first_message_that_reaches_it(root: Path, place: Place) -> None:
    messages = plain(*[b"x" * 60] * 300, timestamp_us=10_000) + plain(*[b"y" * 60] * 100, timestamp_us=5_000)
    with place(root, messages) as bench:
        log = bench.engine.log("orders")

        assert [log.find(time) for time in (0, 5_000, 10_000, 10_001, 10_299)] == [0, 0, 0, 1, 299]
        assert log.find(10_300) == 400


@anywhere
def test_a_time_below_what_was_truncated_is_found_at_the_first_message_left(root: Path, place: Place) -> None:
    with place(root, many(400, size=60)) as bench:
        bench.store(lambda commit: commit.truncate("orders", 123))

        assert [bench.engine.log("orders").find(time) for time in (0, 1_122, 1_124)] == [123, 123, 124]


def test_many_small_commits_become_one_block(root: Path) -> None:
    with Bench(root, LocalSettings()) as bench:
        for number in range(50):
            bench.store(lambda commit, number=number: commit.append("orders", plain(b"%d" % number)))  # type: ignore[misc]

    with Bench(root) as bench:
        assert len(list(bench.engine.log("orders").record_batches(0, 50))) == 1


# -- dropping and truncating ---------------------------------------------------------------------------------


def test_a_dropped_log_takes_its_files_along(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
        bench.store(lambda commit: commit.create_group("orders", "billing", WORK))
    with Bench(root) as bench:
        bench.store(lambda commit: commit.drop("orders"))
        bench.until(lambda: not any((root / "queues").iterdir()))

        assert bench.engine.logs() == []


def test_a_log_made_again_starts_at_zero_without_groups(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
        bench.store(lambda commit: commit.create_group("orders", "billing", WORK))

        bench.store(lambda commit: commit.drop("orders"))
        bench.store(lambda commit: commit.append("orders", plain(b"new")))

        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"new"]
        assert bench.engine.log("orders").groups == {}


def test_a_log_made_again_never_shows_what_the_dropped_one_had_on_disk(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
    with Bench(root) as bench:
        assert bench.engine.log("orders").read(0, 1)[0].payload.startswith(b"order 0")
        bench.store(lambda commit: commit.drop("orders"))
        bench.store(lambda commit: commit.append("orders", many(200, "new ", 100)))
        bench.until(lambda: bench.engine.log("orders").size_bytes < 30_000)  # out of memory, in a segment

        assert payloads(bench.engine.log("orders").read(0, 1000)) == payloads(many(200, "new ", 100))


def test_a_log_dropped_and_made_again_is_there_after_a_kill(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
    with Bench(root) as bench:
        bench.store(lambda commit: commit.drop("orders"))
        _fill(bench, 6)
        before = all_values(bench.engine.log("orders").read(0, 1000))
        left = bench.killed(tmp_path / "left")

    with Bench(left) as bench:
        assert all_values(bench.engine.log("orders").read(0, 1000)) == before
    with Bench(left) as bench:
        assert all_values(bench.engine.log("orders").read(0, 1000)) == before


def test_truncation_removes_the_segments_in_which_nothing_is_left(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 20)
    with Bench(root) as bench:
        names = [name.removesuffix(".seg") for name in bench.segments()]
        assert len(names) > 3

        bench.store(lambda commit: commit.truncate("orders", int(names[2])))

        bench.until(lambda: {path.stem for path in (root / "queues/orders/segments").iterdir()} == set(names[2:]))


def test_truncation_within_a_segment_keeps_its_file(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 10)
    with Bench(root) as bench:
        before = bench.segments()
        second = int(before[1].removesuffix(".seg"))

        bench.store(lambda commit: commit.truncate("orders", second - 1))

    assert bench.segments() == before


@anywhere
@pytest.mark.parametrize("before", [1, 40, 123, 370, 399, 400, 1000])
def test_truncation_takes_what_is_below_and_never_what_is_above(root: Path, place: Place, before: int) -> None:
    with place(root, MESSAGES) as bench:
        bench.store(lambda commit: commit.truncate("orders", before))
        first = min(before, 400)

        log = bench.engine.log("orders")
        assert (log.first_offset, log.next_offset) == (first, 400)
        assert all_values(log.read(first, 1000)) == all_values(MESSAGES[first:])
    with Bench(root) as bench:
        log = bench.engine.log("orders")
        assert (log.first_offset, log.next_offset) == (first, 400)
        assert all_values(log.read(first, 1000)) == all_values(MESSAGES[first:])


@anywhere
@pytest.mark.parametrize("before", [1, 40, 123, 370, 399, 400, 1000])
def test_what_is_let_go_is_gone_at_once_and_back_after_a_kill(
    root: Path, tmp_path: Path, place: Place, before: int
) -> None:
    with place(root, MESSAGES) as bench:
        first = min(before, 400)
        log = bench.engine.log("orders")
        log.let_go(before)

        assert (log.first_offset, log.next_offset) == (first, 400)
        assert all_values(log.read(first, 1000)) == all_values(MESSAGES[first:])
        killed = bench.killed(tmp_path / "killed")
        bench.store(lambda commit: commit.append("orders", plain(b"next")))
    with Bench(killed) as bench:
        log = bench.engine.log("orders")
        assert all_values(log.read(0, 1000)) == all_values(MESSAGES)
    with Bench(root) as bench:
        log = bench.engine.log("orders")
        assert all_values(log.read(first, 1000)) == all_values([*MESSAGES[first:], *plain(b"next")])


def test_what_is_let_go_takes_no_memory(bench: Bench) -> None:
    bench.store(lambda commit: commit.append("orders", many(1)), lambda commit: commit.append("other", many(20)))
    for name in ("orders", "other"):
        log = bench.engine.log(name)
        assert log.size_bytes > 0
        log.let_go(log.next_offset)
        assert log.size_bytes == 0


def test_the_segments_of_what_was_let_go_stay_until_it_is_stored_that_they_may_go(root: Path) -> None:
    with Bench(root) as bench:
        bench.store(lambda commit: commit.create_group("orders", "workers", WORK))
        _fill(bench, 20)
    with Bench(root) as bench:
        before = bench.segments()
        bench.engine.log("orders").let_go(1000)
        bench.store(lambda commit: commit.append("other", plain(b"x")))
        assert bench.segments() == before

        bench.store(lambda commit: commit.ack("orders", "workers", 0, 1000, 1000))

        bench.until(lambda: bench.segments() == [])


def test_what_is_let_go_stays_in_its_segments_while_less_of_it_is_stored(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        bench.store(lambda commit: commit.create_group("orders", "workers", WORK))
        for name in ("orders", "other"):
            _fill(bench, 20, name)
    with Bench(root) as bench:
        bench.engine.log("orders").let_go(1000)
        bench.store(lambda commit: commit.ack("orders", "workers", 0, 3, 3))
        bench.store(lambda commit: commit.truncate("other", 1000))
        bench.until(lambda: bench.segments("other") == [])  # all removals before that happened too

        killed = bench.killed(tmp_path / "killed")

    with Bench(killed) as bench:
        log = bench.engine.log("orders")
        assert (log.first_offset, log.next_offset) == (3, 1000)
        assert len(log.read(3, 1000)) == 997


def test_reading_what_was_truncated_is_refused(bench: Bench) -> None:
    bench.store(lambda commit: commit.append("orders", many(3)))
    bench.store(lambda commit: commit.truncate("orders", 2))

    with pytest.raises(Refused, match="offset 1 is gone, the log starts at 2"):
        bench.engine.log("orders").read(1, 1)


def test_a_log_that_was_truncated_whole_goes_on_at_its_next_offset(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 2)
        bench.store(lambda commit: commit.truncate("orders", 100))
    with Bench(root) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"next")))

        assert payloads(bench.engine.log("orders").read(100, 10)) == [b"next"]


def test_names_of_255_bytes_and_odd_ones_are_logs_like_any_other(root: Path) -> None:
    names = ["x" * 255, "x" * 254 + "y", "X" * 255, "é" * 127 + "z", "/" * 255, "." * 255, ".", "..", "a/../b", "a+"]
    with Bench(root) as bench:
        for name in names:
            bench.store(lambda commit, name=name: commit.append(name, plain(name.encode())))  # type: ignore[misc]
            bench.store(lambda commit, name=name: commit.create_group(name, name, WORK))  # type: ignore[misc]

    with Bench(root) as bench:
        assert sorted(bench.engine.logs()) == sorted(names)
        for name in names:
            assert payloads(bench.engine.log(name).read(0, 10)) == [name.encode()]
            assert list(bench.engine.log(name).groups) == [name]
    assert sorted(path.name for path in root.iterdir()) == ["LOCK", "config", "journal", "queues", "state"]

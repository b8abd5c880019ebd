"""A directory seen from outside shows every committed message once, whatever its engine does meanwhile."""

import shutil
from pathlib import Path

import pytest

from headrace.errors import Corrupt, HeadraceError, NotFound, Unavailable
from headrace.storage.arrow import SCHEMA
from headrace.storage.local.arrow import batch_of_block, span_batches
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.follower import Follower, SpanReader
from headrace.storage.local.staging import encoded
from headrace.storage.local.stored import Span
from tests.workbench import Bench, append_encoded, many, plain

RECYCLING = LocalSettings(
    journal_file_bytes=32 << 10,
    checkpoint_bytes=64 << 10,
    tail_bytes=8 << 10,
    segment_bytes=8 << 10,
    cache_bytes=1 << 16,
)


def read(follower: Follower, name: str = "orders", start: int = 0, stop: int = 1 << 62) -> list[tuple[int, bytes]]:
    """The messages of a range, in record batches that stand in Arrow's memory; the blocks of Python say the same."""
    reader = SpanReader(follower.log_id(name))
    found: list[tuple[int, bytes]] = []
    for span in follower.spans(name, start, stop):
        batches = [*span_batches(reader, span, SCHEMA.names)]
        rows = [*reader.rows(span)]
        assert batches == [(base, batch_of_block(block, first, last, base=base)) for base, block, first, last in rows]
        for base, batch in batches:
            assert batch.column("offset")[0].as_py() == base
            found += zip(batch.column("offset").to_pylist(), batch.column("payload").to_pylist(), strict=True)
    reader.close()
    return found


def check_refused(follower: Follower, span: Span, kind: type[HeadraceError], match: str) -> None:
    """Nothing there is read, in either way."""
    reader = SpanReader(follower.log_id("orders"))
    with pytest.raises(kind, match=match):
        [*reader.rows(span)]
    with pytest.raises(kind, match=match):
        [*span_batches(reader, span, SCHEMA.names)]
    reader.close()


def append(bench: Bench, count: int, prefix: str = "order ", log: str = "orders", size: int = 0) -> None:
    bench.store(lambda commit: commit.append(log, many(count, prefix, size)))


def test_what_only_the_journal_has_is_seen_while_the_engine_is_open(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        append(bench, 3)
        follower = Follower(tmp_path)

        append(bench, 2, "later ")
        follower.refresh()

        assert follower.bounds("orders") == (0, 5)
        assert read(follower) == list(enumerate([b"order 0 ", b"order 1 ", b"order 2 ", b"later 0 ", b"later 1 "]))


def test_several_logs_in_one_record_are_told_apart(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.store(
            lambda commit: commit.append("a", plain(b"a0", b"a1")), lambda commit: commit.append("b", plain(b"b0"))
        )
        follower = Follower(tmp_path)

        assert read(follower, "a") == [(0, b"a0"), (1, b"a1")]
        assert read(follower, "b") == [(0, b"b0")]
        assert follower.names() == ["a", "b"]


def test_large_commits_of_several_blocks_are_spans_of_a_block_each_that_are_never_mistaken(tmp_path: Path) -> None:
    with Bench(tmp_path, RECYCLING) as bench:
        append(bench, 3)
        blocks = [encoded(encode_block(0, many(100, f"{number} "))) for number in range(4)]
        bench.store(*[lambda commit, rows=rows: append_encoded(commit, "orders", rows) for rows in blocks])
        follower = Follower(tmp_path)
        expected = [b"order 0 ", b"order 1 ", b"order 2 "]
        expected += [message.payload for number in range(4) for message in many(100, f"{number} ")]
        spans = follower.spans("orders", 0, 403)
        assert [(span[4], span[5]) for span in spans] == [(0, 3), (3, 103), (103, 203), (203, 303), (303, 403)]
        assert read(follower) == list(enumerate(expected))

        for _ in range(60):
            append(bench, 40, "other ", "others", 100)

        check_refused(follower, spans[1], Unavailable, "used again")
        follower.refresh()
        assert read(follower) == list(enumerate(expected))


def test_every_message_is_seen_once_through_flushes_checkpoints_and_recycled_journal_files(tmp_path: Path) -> None:
    with Bench(tmp_path, RECYCLING) as bench:
        follower = Follower(tmp_path)
        seen: list[tuple[int, bytes]] = []
        for round_number in range(60):
            append(bench, 40, f"{round_number} ", size=100)
            bench.engine.poll()
            follower.refresh()
            seen += read(follower, start=len(seen))

        expected = [message.payload for number in range(60) for message in many(40, f"{number} ", 100)]
        assert seen == list(enumerate(expected))
        assert read(Follower(tmp_path)) == seen


def test_a_follower_that_was_overtaken_by_the_ring_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    with Bench(tmp_path, RECYCLING) as bench:
        append(bench, 1)
        follower = Follower(tmp_path)
        for _ in range(60):
            append(bench, 40, size=100)

        follower.refresh()

        assert [offset for offset, _ in read(follower)] == list(range(2401))


def test_a_span_of_a_journal_file_that_was_used_again_is_never_mistaken_for_other_messages(tmp_path: Path) -> None:
    with Bench(tmp_path, RECYCLING) as bench:
        append(bench, 40, size=100)
        follower = Follower(tmp_path)
        spans = follower.spans("orders", 0, 40)
        for _ in range(60):
            append(bench, 40, "other ", "others", 100)

        check_refused(follower, spans[0], Unavailable, "used again")

        follower.refresh()
        assert read(follower) == list(enumerate(message.payload for message in many(40, size=100)))


def test_truncation_is_seen_at_once_and_removed_segments_are_noticed(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        for _ in range(5):
            append(bench, 100, size=100)
    with Bench(tmp_path) as bench:
        follower = Follower(tmp_path)
        spans = follower.spans("orders", 0, 500)
        bench.store(lambda commit: commit.truncate("orders", 450))
        bench.until(lambda: not Path(spans[0][1]).exists())

        follower.refresh()

        assert follower.bounds("orders") == (450, 500)
        assert [offset for offset, _ in read(follower)] == list(range(450, 500))
        check_refused(follower, spans[0], Unavailable, "gone")


def test_a_range_whose_segments_vanish_while_it_is_looked_for_is_looked_for_again(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        for _ in range(5):
            append(bench, 100, size=100)
    with Bench(tmp_path) as bench:
        follower = Follower(tmp_path)
        first_segment = Path(follower.spans("orders", 0, 1)[0][1])
        bench.store(lambda commit: commit.truncate("orders", 450))
        bench.until(lambda: not first_segment.exists())

        spans = follower.spans("orders", 0, 500)  # not refreshed: it still believes that the log starts at 0

        assert spans[0][4] == 450


def test_a_log_that_was_dropped_and_came_again_is_another_log(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        append(bench, 3)
        follower = Follower(tmp_path)
        old = follower.log_id("orders")

        bench.store(lambda commit: commit.drop("orders"))
        follower.refresh()
        assert follower.names() == []
        with pytest.raises(NotFound, match="no queue 'orders'"):
            follower.bounds("orders")

        append(bench, 1, "new ")
        follower.refresh()
        assert follower.log_id("orders") != old
        assert read(follower) == [(0, b"new 0 ")]


def test_messages_are_found_by_time_in_segments_and_in_the_journal(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.store(lambda commit: commit.append("orders", plain(*[b"x"] * 50, timestamp_us=1_000)))
    with Bench(tmp_path) as bench:
        bench.store(lambda commit: commit.append("orders", plain(*[b"y"] * 50, timestamp_us=2_000)))
        follower = Follower(tmp_path)

        assert follower.find("orders", 0) == 0
        assert follower.find("orders", 1_007) == 7
        assert follower.find("orders", 1_500) == 50
        assert follower.find("orders", 2_049) == 99
        assert follower.find("orders", 3_000) == 100


def test_an_idle_look_reads_no_record_and_changes_no_file(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        append(bench, 5)
        follower = Follower(tmp_path)
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}

        for _ in range(3):
            follower.refresh()

        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        assert follower.bounds("orders") == (0, 5)


def test_what_a_killed_engine_left_is_what_recovery_finds(tmp_path: Path) -> None:
    with Bench(tmp_path / "live", RECYCLING) as bench:
        for number in range(25):
            append(bench, 40, f"{number} ", size=100)
        killed = bench.killed(tmp_path / "killed")
    copied = shutil.copytree(killed, tmp_path / "copied")

    seen = read(Follower(killed))

    engine = LocalEngine(copied, settings=RECYCLING)
    log = engine.log("orders")
    recovered = [message.payload for message in log.read(0, log.next_offset)]
    engine.close()
    assert [payload for _, payload in seen] == recovered


def test_a_damaged_block_is_refused_with_its_place(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        append(bench, 100, size=100)
    follower = Follower(tmp_path)
    (segment,) = (tmp_path / "queues/orders/segments").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[-20] ^= 1
    segment.write_bytes(data)

    (span,) = follower.spans("orders", 0, 100)
    check_refused(follower, span, Corrupt, f"{segment}.*byte {span[2]}.*checksum")


def test_a_block_that_was_cut_short_is_refused_with_its_place(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        append(bench, 100, size=100)
    follower = Follower(tmp_path)
    (span,) = follower.spans("orders", 0, 100)
    (segment,) = (tmp_path / "queues/orders/segments").glob("*.seg")
    whole = segment.read_bytes()

    for length in (span[2] + 3, span[2] + 64, len(whole) - 1):
        segment.write_bytes(whole[:length])
        check_refused(follower, span, Corrupt, f"{segment}.*byte {span[2]}.*are left")


def test_what_is_no_data_directory_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no data directory"):
        Follower(tmp_path / "nothing")


def test_full_segments_are_read_without_their_indexes_too(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        for _ in range(5):
            append(bench, 100, size=100)
            bench.store(lambda commit: commit.append("other", many(100, size=200)))
    expected = read(Follower(tmp_path))
    for path in (tmp_path / "queues/orders/segments").iterdir():
        if path.suffix != ".seg":
            path.unlink()

    assert read(Follower(tmp_path)) == expected
    assert len(expected) == 500

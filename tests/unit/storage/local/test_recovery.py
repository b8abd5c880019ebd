"""Opening a directory again: after closing, after a kill, and when something in it is damaged."""

import logging
import shutil
from pathlib import Path

import pytest

from headrace.errors import Corrupt, Unavailable
from headrace.storage.api import QUEUES, RETAINED, Commit
from headrace.storage.group_state import STREAM, WORK
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.workbench import SMALL, Bench, all_values, full_message, many, outcome, payloads, plain, store

MESSAGES = [full_message(1_000 + at) if at % 7 == 3 else m for at, m in enumerate(many(400, size=60))]


def _fill(bench: Bench, rounds: int, log: str = "orders") -> None:
    """Commits of 50 messages of 100 bytes; two of them make the tail large enough to be flushed."""
    for _ in range(rounds):
        bench.store(lambda commit: commit.append(log, many(50, size=100)))


def _everything(engine: LocalEngine) -> tuple[object, ...]:
    log = engine.log("orders")
    return (
        sorted(engine.logs()),
        (log.first_offset, log.next_offset, all_values(log.read(log.first_offset, 1000))),
        {name: (state.mode, state.filter, state.cursor, state.committed) for name, state in log.groups.items()},
        {name: (list(state.settled), state.pending) for name, state in log.groups.items()},
        {table: dict(engine.items(table)) for table in (QUEUES, RETAINED)},
    )


def _change_a_lot(bench: Bench) -> None:
    bench.store(lambda commit: commit.append("orders", MESSAGES[:200]))
    bench.store(lambda commit: commit.append("x" * 255, plain(b"long")))
    bench.store(
        lambda commit: commit.create_group("orders", "billing", WORK, "orders/#"),
        lambda commit: commit.create_group("orders", "G" * 255, STREAM, "", 7),
        lambda commit: commit.claim("orders", "billing", 0, 20, "c1", 99),
        lambda commit: commit.ack("orders", "billing", 0, 3),
        lambda commit: commit.ack("orders", "billing", 5, 9),
        lambda commit: commit.requeue("orders", "billing", 10, 11, 120),
    )
    bench.store(
        lambda commit: commit.put(QUEUES, b"orders", b'{"a":1}'), lambda commit: commit.put(RETAINED, b"k", b"v")
    )
    bench.store(lambda commit: commit.truncate("orders", 3))
    bench.store(lambda commit: commit.append("orders", MESSAGES[200:]))


def test_everything_is_there_after_closing_and_opening(root: Path) -> None:
    with Bench(root) as bench:
        _change_a_lot(bench)
        before = _everything(bench.engine)

    with Bench(root) as bench:
        assert _everything(bench.engine) == before


def test_everything_is_there_after_a_kill(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        _change_a_lot(bench)
        before = _everything(bench.engine)
        left = bench.killed(tmp_path / "left")

    with Bench(left) as bench:
        assert _everything(bench.engine) == before


def test_everything_is_there_after_a_kill_behind_a_checkpoint(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        _change_a_lot(bench)
    with Bench(root) as bench:
        bench.store(lambda commit: commit.ack("orders", "billing", 3, 5))
        bench.store(lambda commit: commit.delete(RETAINED, b"k"))
        before = _everything(bench.engine)
        left = bench.killed(tmp_path / "left")

    with Bench(left) as bench:
        assert _everything(bench.engine) == before


def test_a_torn_end_is_cut_back_to_the_last_whole_commit_and_said(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Bench(root) as bench:
        bench.store(lambda commit: commit.append("orders", plain(b"kept")))
        bench.store(lambda commit: commit.append("orders", plain(b"torn in two")))
        left = bench.killed(tmp_path / "left")
    for path in (left / "journal").glob("*.jnl"):
        path.write_bytes(path.read_bytes().replace(b"torn in two", b"torn in\0\0\0\0"))

    with caplog.at_level(logging.WARNING), Bench(left) as bench:
        assert payloads(bench.engine.log("orders").read(0, 10)) == [b"kept"]
    assert "never finished" in caplog.text


def test_a_truncation_replayed_before_appends_that_were_flushed_is_no_damage(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
    with Bench(root) as bench:
        bench.store(lambda commit: commit.truncate("orders", 1))
        length = (root / "queues/orders/segments/00000000000000000000.seg").stat().st_size
        _fill(bench, 3)
        bench.until(lambda: (root / "queues/orders/segments/00000000000000000000.seg").stat().st_size > length)
        before = all_values(bench.engine.log("orders").read(1, 1000))
        left = bench.killed(tmp_path / "left")

    with Bench(left) as bench:
        assert all_values(bench.engine.log("orders").read(1, 1000)) == before


def test_what_was_flushed_but_lost_from_the_journal_is_cut_and_no_damage(root: Path, tmp_path: Path) -> None:
    """A power loss may keep a segment's new blocks and lose the end of the journal that was not synced yet."""
    with Bench(root) as bench:
        _fill(bench, 1)
    journal = shutil.copytree(root / "journal", tmp_path / "journal")
    with Bench(root) as bench:
        _fill(bench, 6)
        bench.until(lambda: len(bench.segments()) > 1)
        left = bench.killed(tmp_path / "left")
    shutil.rmtree(left / "journal")
    journal.rename(left / "journal")

    with Bench(left) as bench:
        assert len(bench.engine.log("orders").read(0, 1000)) == 50
        bench.store(lambda commit: commit.append("orders", plain(b"next")))
        assert payloads(bench.engine.log("orders").read(50, 10)) == [b"next"]


def test_opening_again_and_again_does_not_make_more_and_more_journal_files(root: Path) -> None:
    counts: list[int] = []
    for _ in range(6):
        with Bench(root) as bench:
            bench.store(lambda commit: commit.append("orders", plain(b"x")))
        counts.append(len(list((root / "journal").glob("*.jnl"))))

    assert counts[1:] == [counts[1]] * 5


def test_a_missing_checkpoint_is_corrupt_when_there_are_queues_and_no_journal(root: Path) -> None:
    with Bench(root) as bench:
        _fill(bench, 1)
    shutil.rmtree(root / "journal")

    with pytest.raises(Corrupt, match="it is missing, but the directory is not new"):
        LocalEngine(root)


def test_a_closed_engine_takes_nothing(root: Path) -> None:
    with Bench(root) as bench:
        pass

    with pytest.raises(Unavailable, match="closed"):
        bench.engine.commit(Commit(), lambda error: None)


def test_the_small_settings_of_these_tests_leave_checkpoints_to_closing(root: Path) -> None:
    """The tests above rely on this: a killed directory has an old checkpoint."""
    checkpoint = root / "journal" / "checkpoint.json"
    with Bench(root) as bench:
        at_first = checkpoint.read_bytes()
        _fill(bench, 10)

        assert checkpoint.read_bytes() == at_first
    assert checkpoint.read_bytes() != at_first
    assert SMALL.checkpoint_bytes > 10 * 50 * 200


def test_a_checkpoint_is_made_when_the_journal_gets_long(root: Path) -> None:
    settings = LocalSettings(journal_file_bytes=32 << 10, checkpoint_bytes=64 << 10, tail_bytes=8 << 10)
    with Bench(root, settings) as bench:
        checkpoint = root / "journal" / "checkpoint.json"
        at_first = checkpoint.read_bytes()
        for _ in range(40):
            store(bench.engine, lambda commit: commit.append("orders", many(50, size=100)))
            bench.engine.poll()
        bench.until(lambda: checkpoint.read_bytes() != at_first)

        assert len(list((root / "journal").glob("*.jnl"))) < 20


# -- damage ---------------------------------------------------------------------------------


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def _damaged(root: Path) -> Path:
    """A directory with a queue whose last segment is damaged; the file."""
    with Bench(root) as bench:
        _fill(bench, 10)
        bench.store(lambda commit: commit.append("other", plain(b"fine")))
    path = root / "queues/orders/segments" / bench.segments()[-1]
    _flip(path, 200)
    return path


def test_a_damaged_segment_refuses_its_queue_and_no_other(root: Path) -> None:
    path = _damaged(root)

    with Bench(root) as bench:
        assert payloads(bench.engine.log("other").read(0, 10)) == [b"fine"]
        with pytest.raises(Corrupt, match="checksum") as corruption:
            bench.engine.log("orders").read(499, 1)
        with pytest.raises(Corrupt):
            outcome(bench.engine, lambda commit: commit.append("orders", plain(b"more")))

    assert corruption.value.file == str(path)


def test_the_files_of_a_damaged_queue_are_kept_through_truncation_checkpoints_and_kills(
    root: Path, tmp_path: Path
) -> None:
    _damaged(root)
    before = {path.name: path.read_bytes() for path in (root / "queues/orders/segments").glob("*.seg")}
    with Bench(root) as bench:
        with pytest.raises(Corrupt):
            bench.engine.log("orders").read(499, 1)
        bench.store(lambda commit: commit.truncate("orders", 400))
        bench.store(lambda commit: commit.put(RETAINED, b"k", b"v"))
    with Bench(root) as bench:
        bench.store(lambda commit: commit.put(RETAINED, b"k", b"w"))
        with pytest.raises(Corrupt):
            bench.engine.log("orders").read(499, 1)
        left = bench.killed(tmp_path / "left")
    Bench(left).engine.close()

    assert {path.name: path.read_bytes() for path in (left / "queues/orders/segments").glob("*.seg")} == before


@pytest.mark.parametrize("file", ["state.json", "pel.log"])
def test_a_damaged_group_file_refuses_the_queue_and_stays_as_it_is(root: Path, tmp_path: Path, file: str) -> None:
    with Bench(root) as bench:
        bench.store(
            lambda commit: commit.append("orders", many(9)),
            lambda commit: commit.create_group("orders", "billing", WORK),
        )
        bench.store(lambda commit: commit.claim("orders", "billing", 0, 5, "c1", 9))
    with Bench(root) as bench:
        bench.store(lambda commit: commit.ack("orders", "billing", 0, 2))
        left = bench.killed(tmp_path / "left")
    path = left / "queues/orders/consumers/billing" / file
    _flip(path, 40)
    before = path.read_bytes()

    for _ in range(2):
        with Bench(left) as bench, pytest.raises(Corrupt, match=file):
            bench.engine.log("orders").read(0, 1)
    assert path.read_bytes() == before


def test_a_damaged_group_file_does_no_harm_once_the_journal_deletes_the_group(root: Path, tmp_path: Path) -> None:
    with Bench(root) as bench:
        bench.store(
            lambda commit: commit.append("orders", many(9)),
            lambda commit: commit.create_group("orders", "billing", WORK),
        )
    with Bench(root) as bench:
        bench.store(lambda commit: commit.delete_group("orders", "billing"))
        left = bench.killed(tmp_path / "left")
    state = left / "queues/orders/consumers/billing/state.json"
    state.parent.mkdir(parents=True, exist_ok=True)
    state.write_bytes(b"rubbish")

    with Bench(left) as bench:
        assert len(bench.engine.log("orders").read(0, 10)) == 9

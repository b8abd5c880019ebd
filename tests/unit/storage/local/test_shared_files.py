"""Small tails and groups in files that many share: through checkpoints, kills and damage, and seen from outside."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import Corrupt, HeadraceError, Unavailable
from headrace.model import Message
from headrace.storage.api import Commit
from headrace.storage.group_state import WORK
from headrace.storage.local.backup import back_up
from headrace.storage.local.checkpoint import GROUPS, Checkpoint, checkpoint_path, decode_checkpoint, tails_path
from headrace.storage.local.doctor import examine, repair
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.follower import Follower
from headrace.storage.local.group_files import group_key
from headrace.storage.local.tables import table_path
from tests.contents import contents
from tests.disks import FailingDisk
from tests.unit.storage.local.test_follower import read
from tests.workbench import SMALL, Bench, many, payloads, plain

LOGS = [f"queue-{number:02}" for number in range(12)]
SHARING = replace(SMALL, tail_bytes=64 << 10, own_files=4)
OWN = replace(SHARING, own_files=64)


def checkpoint_of(root: Path) -> Checkpoint:
    path = checkpoint_path(root)
    return decode_checkpoint(path.read_bytes(), path)


def checkpoint(bench: Bench) -> None:
    """Have one written while the engine goes on."""
    bench.engine._upkeep.checkpoint_wanted = True
    bench.until(lambda: not bench.engine._upkeep.checkpoint_wanted and not bench.engine._upkeep.flushing)


def fill(bench: Bench, count: int = 3, logs: list[str] = LOGS) -> None:
    for name in logs:
        commit = Commit()
        commit.append(name, many(count, f"{name} "))
        commit.create_group(name, "workers", WORK, filter="a/#")
        commit.claim(name, "workers", 0, 2, "ann", 5)
        commit.ack(name, "workers", 1, 2)
        stored(bench, commit)


def settle(bench: Bench, before: int, logs: list[str] = LOGS) -> None:
    for name in logs:
        commit = Commit()
        commit.ack(name, "workers", 0, before)
        commit.truncate(name, before)
        stored(bench, commit)


def append(bench: Bench, name: str, messages: list[Message]) -> None:
    commit = Commit()
    commit.append(name, messages)
    stored(bench, commit)


def stored(bench: Bench, commit: Commit) -> None:
    told: list[HeadraceError | None] = []
    bench.engine.commit(commit, told.append)
    bench.engine.sync()
    assert told == [None]


def files(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "queues").rglob("*") if path.is_file())


def same_after_reopening(root: Path, expected: object) -> None:
    engine = LocalEngine(root, settings=SHARING)
    assert contents(engine) == expected
    engine.close()


def test_many_small_tails_and_groups_have_no_files_of_their_own(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
        before = contents(bench.engine)

    found = checkpoint_of(tmp_path)
    assert files(tmp_path) == []
    assert tails_path(tmp_path, found.tails[0]).stat().st_size == found.tails[1]
    assert found.tables[GROUPS][0] == 1
    same_after_reopening(tmp_path, before)


def test_few_have_files_of_their_own_and_an_earlier_release_opens_them(tmp_path: Path) -> None:
    with Bench(tmp_path, OWN) as bench:
        fill(bench)

    assert b'"format":1,' in checkpoint_path(tmp_path).read_bytes()
    assert files(tmp_path) == sorted(["00000000000000000000.seg", "pel.log", "state.json"] * len(LOGS))
    assert not list((tmp_path / "journal").glob("*.tails"))


def test_everything_is_there_after_each_of_several_checkpoints_and_a_kill(tmp_path: Path) -> None:
    with Bench(tmp_path / "live", SHARING) as bench:
        fill(bench)
        for number in range(4):
            checkpoint(bench)
            append(bench, LOGS[0], plain(b"more"))
            append(bench, LOGS[1], many(40, size=600))
            settle(bench, number, LOGS[2:8])
            commit = Commit()
            commit.drop(LOGS[8 + number])
            stored(bench, commit)
            left = bench.killed(tmp_path / f"left-{number}")

            assert len(list((left / "journal").glob("*.tails"))) == 1
            same_after_reopening(left, contents(bench.engine))
        last = contents(bench.engine)
    same_after_reopening(tmp_path / "live", last)


def test_a_tail_is_flushed_to_segments_once_it_is_large(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
        checkpoint(bench)
        append(bench, LOGS[0], many(200, size=400))
        bench.until(lambda: bool(bench.segments(LOGS[0])))
        killed = bench.killed(tmp_path.with_name(f"{tmp_path.name}-killed"))
        checkpoint(bench)
        before = contents(bench.engine)

    assert files(tmp_path).count("00000000000000000000.seg") == 1
    same_after_reopening(tmp_path, before)
    same_after_reopening(
        killed, before
    )  # the segment goes beyond the checkpoint, which has the tail in the shared file
    shutil.rmtree(killed)


def test_what_nobody_needs_leaves_the_shared_files(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
        checkpoint(bench)
        settle(bench, 3)
        for name in LOGS[:6]:
            commit = Commit()
            commit.delete_group(name, "workers")
            stored(bench, commit)
        before = contents(bench.engine)

    found = checkpoint_of(tmp_path)
    assert found.tails == (0, 0)
    assert not list((tmp_path / "journal").glob("*.tails"))
    same_after_reopening(tmp_path, before)
    engine = LocalEngine(tmp_path)
    assert sorted(key for key, _ in engine.items(GROUPS)) == sorted(
        group_key(group_id) for entry in found.logs[6:] for group_id, _ in entry.groups
    )
    engine.close()


def test_files_of_groups_go_when_they_change_among_many(tmp_path: Path) -> None:
    with Bench(tmp_path, OWN) as bench:
        fill(bench)
    with Bench(tmp_path, SHARING) as bench:
        bench.store(lambda commit: commit.ack(LOGS[0], "workers", 0, 1))
        checkpoint(bench)
        assert files(tmp_path).count("state.json") == len(LOGS)

        settle(bench, 1, LOGS[:8])
        checkpoint(bench)
        assert files(tmp_path).count("state.json") == len(LOGS) - 8
        before = contents(bench.engine)
        killed = bench.killed(tmp_path.with_name(f"{tmp_path.name}-killed"))

    same_after_reopening(killed, before)
    same_after_reopening(tmp_path, before)
    assert examine(tmp_path).is_clean
    shutil.rmtree(killed)


def test_files_of_a_group_that_a_kill_left_beside_the_table_do_not_count(tmp_path: Path) -> None:
    with Bench(tmp_path, OWN) as bench:
        fill(bench)
    old = shutil.copytree(tmp_path / "queues", tmp_path.with_name(f"{tmp_path.name}-old"))
    with Bench(tmp_path, SHARING) as bench:
        settle(bench, 1)
        before = contents(bench.engine)
    shutil.copytree(old / LOGS[0] / "consumers", tmp_path / "queues" / LOGS[0] / "consumers", dirs_exist_ok=True)

    report = examine(tmp_path)
    (problem,) = report.all_problems()
    assert (problem.file, problem.repairable) == (str(tmp_path / "queues" / LOGS[0] / "consumers" / "workers"), True)
    same_after_reopening(tmp_path, before)
    repair(tmp_path, examine(tmp_path))
    assert examine(tmp_path).is_clean
    shutil.rmtree(old)


def test_it_is_seen_from_outside_and_copied(tmp_path: Path) -> None:
    with Bench(tmp_path / "live", SHARING) as bench:
        fill(bench)
        checkpoint(bench)
        follower = Follower(tmp_path / "live")
        append(bench, LOGS[0], plain(b"later"))
        settle(bench, 2, LOGS[1:2])
        follower.refresh()

        assert follower.bounds(LOGS[0]) == (0, 4)
        assert [payload for _, payload in read(follower, LOGS[0])] == [
            *payloads(many(3, f"{LOGS[0]} ")),
            b"later",
        ]
        assert read(follower, LOGS[1], 2) == [(2, payloads(many(3, f"{LOGS[1]} "))[2])]
        assert follower.find(LOGS[2], 1_001) == 1

        checkpoint(bench)
        with pytest.raises(Unavailable, match=r"1\.tails is gone"):
            read(follower, LOGS[2])
        follower.refresh()
        assert [offset for offset, _ in read(follower, LOGS[2])] == [0, 1, 2]
        copied = back_up(tmp_path / "live", tmp_path / "copy")
        before = contents(bench.engine)

    assert copied.queues == len(LOGS)
    assert examine(tmp_path / "copy").is_clean
    same_after_reopening(tmp_path / "copy", before)


def test_a_follower_finds_messages_in_segments_and_in_the_shared_file(tmp_path: Path) -> None:
    with Bench(tmp_path, OWN) as bench:
        fill(bench)
    with Bench(tmp_path, SHARING) as bench:
        for name in LOGS:
            append(bench, name, plain(b"more", timestamp_us=9_000))
        checkpoint(bench)

        follower = Follower(tmp_path)

        assert read(follower, LOGS[3]) == list(enumerate([*payloads(many(3, f"{LOGS[3]} ")), b"more"]))
        assert [follower.find(LOGS[3], time) for time in (0, 1_002, 5_000, 9_001)] == [0, 2, 3, 4]
        assert examine(bench.killed(tmp_path.with_name(f"{tmp_path.name}-killed"))).is_clean
    shutil.rmtree(tmp_path.with_name(f"{tmp_path.name}-killed"))


def test_damaged_tails_refuse_the_directory_and_stay_as_they_are(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
    path = tails_path(tmp_path, checkpoint_of(tmp_path).tails[0])
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)

    with pytest.raises(Corrupt) as caught:
        LocalEngine(tmp_path, settings=SHARING)

    assert (caught.value.file, caught.value.position) == (str(path), 0)
    assert path.read_bytes() == raw
    assert (str(path), 0) in [(problem.file, problem.position) for problem in examine(tmp_path).problems]
    path.unlink()
    with pytest.raises(Corrupt, match="the file is missing"):
        LocalEngine(tmp_path, settings=SHARING)


def test_a_damaged_table_of_groups_refuses_the_directory(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
    path = table_path(tmp_path, GROUPS, checkpoint_of(tmp_path).tables[GROUPS][0])
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)

    with pytest.raises(Corrupt, match="an entry's checksum is wrong") as caught:
        LocalEngine(tmp_path, settings=SHARING)

    assert caught.value.file == str(path)
    assert path.read_bytes() == raw
    report = examine(tmp_path)
    assert [problem.file for problem in report.all_problems()] == [str(path)]
    assert {row.groups[0].mode for row in report.queues} == {"unreadable"}


def test_the_state_of_a_group_that_is_not_known_refuses_its_queue_alone(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
        (group_id, _), *_ = checkpoint_of_group(bench)
        bench.store(lambda commit: commit.put(GROUPS, group_key(group_id), b"\x02 of a later release"))
    path = table_path(tmp_path, GROUPS, checkpoint_of(tmp_path).tables[GROUPS][0])

    with Bench(tmp_path, SHARING) as bench:
        with pytest.raises(Corrupt, match="has version 02, which is not known to this release"):
            bench.engine.log(LOGS[0]).read(0, 1)
        assert payloads(bench.engine.log(LOGS[1]).read(0, 1)) == [f"{LOGS[1]} 0 ".encode()]
        settle(bench, 1, LOGS[1:])

    found = {problem.file for problem in examine(tmp_path).all_problems()}
    assert found == {str(path)}


def checkpoint_of_group(bench: Bench) -> list[tuple[int, str]]:
    checkpoint(bench)
    return checkpoint_of(bench.root).logs[0].groups


def test_tails_that_no_checkpoint_names_are_found_and_removed(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        fill(bench)
        before = contents(bench.engine)
    stray = tails_path(tmp_path, 77)
    stray.write_bytes(b"half of a che")

    (problem,) = examine(tmp_path).all_problems()
    assert (problem.file, problem.repairable) == (str(stray), True)
    same_after_reopening(tmp_path, before)
    assert not stray.exists()


def test_a_full_disk_leaves_the_checkpoint_before_and_the_next_one_has_it_all(tmp_path: Path) -> None:
    disk = FailingDisk()
    with Bench(tmp_path, SHARING, disk=disk) as bench:
        fill(bench)
        checkpoint(bench)
        named = checkpoint_of(tmp_path)
        append(bench, LOGS[0], plain(b"more"))
        disk.full = True
        bench.engine._upkeep.checkpoint_wanted = True
        bench.until(lambda: bench.engine._upkeep.full is not None and not bench.engine._upkeep.flushing)

        assert [path.name for path in (tmp_path / "journal").glob("*.tails")] == [f"{named.tails[0]}.tails"]
        disk.full = False
        bench.engine._upkeep.retry_now()
        checkpoint(bench)
        before = contents(bench.engine)
        assert checkpoint_of(tmp_path).tails[0] == named.tails[0] + 1
    same_after_reopening(tmp_path, before)

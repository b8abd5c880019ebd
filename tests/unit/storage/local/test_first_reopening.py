"""A directory that was left in a hurry, before its first checkpoint: the journal is all there is."""

import shutil
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.model import Message, Source
from headrace.storage.api import Commit
from headrace.storage.local.engine import LocalEngine, LocalSettings

_SMALL = LocalSettings(journal_file_bytes=1 << 20, checkpoint_bytes=4 << 20)


def _commit(engine: LocalEngine, payload: bytes) -> None:
    commit = Commit()
    commit.append("orders", [Message(Source("orders"), payload, 1)])
    results: list[HeadraceError | None] = []
    engine.commit(commit, results.append)
    engine.sync()
    assert results == [None]


def _crash(engine: LocalEngine, root: Path, name: str) -> Path:
    """The directory as a kill -9 would leave it now."""
    left = root.with_name(name)
    while True:
        try:
            shutil.copytree(root, left)
        except shutil.Error:  # something was removed under the copy's hands: that is not how a kill leaves it
            shutil.rmtree(left)
        else:
            break
    engine.close()
    return left


def _payloads(root: Path) -> list[bytes]:
    engine = LocalEngine(root, settings=_SMALL)
    try:
        return [message.payload for message in engine.log("orders").read(0, 100)]
    finally:
        engine.close()


def test_commits_made_before_the_first_checkpoint_survive_a_crash(tmp_path: Path) -> None:
    root = tmp_path / "data"
    engine = LocalEngine(root, settings=_SMALL)
    for payload in (b"one", b"two", b"three"):
        _commit(engine, payload)

    left = _crash(engine, root, "left")

    assert _payloads(left) == [b"one", b"two", b"three"]


def test_a_damaged_header_of_the_first_journal_file_does_not_let_its_records_be_overwritten(tmp_path: Path) -> None:
    root = tmp_path / "data"
    engine = LocalEngine(root, settings=_SMALL)
    _commit(engine, b"one")
    _commit(engine, b"two")
    left = _crash(engine, root, "left")
    (used,) = [path for path in (left / "journal").glob("*.jnl") if path.read_bytes()[:4] == b"HRJF"]
    with used.open("r+b") as file:
        file.write(b"????")

    engine = LocalEngine(left, settings=_SMALL)
    _commit(engine, b"three")
    left_again = _crash(engine, left, "left-again")

    assert _payloads(left_again) == [b"one", b"two", b"three"]


def test_a_queue_dropped_and_made_again_survives_a_replay_that_flushes(tmp_path: Path) -> None:
    root = tmp_path / "data"
    engine = LocalEngine(root, settings=_SMALL)
    _commit(engine, b"old")
    engine.close()
    engine = LocalEngine(root, settings=_SMALL)
    drop = Commit()
    drop.drop("orders")
    engine.commit(drop, lambda error: None)
    for _ in range(3):
        _commit(engine, b"new" * 100)
    left = _crash(engine, root, "left")

    engine = LocalEngine(left, settings=LocalSettings(journal_file_bytes=1 << 20, tail_bytes=200))

    try:
        assert [message.payload for message in engine.log("orders").read(0, 100)] == [b"new" * 100] * 3
    finally:
        engine.close()

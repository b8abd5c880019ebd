"""A version that this release does not know is refused by file and number, and the file is left as it is."""

import json
import shutil
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.disk import Disk
from headrace.storage.local.engine import LocalEngine
from headrace.storage.local.files import encode_json
from headrace.storage.local.journal import read_files
from headrace.storage.local.record import decode_record
from tests.golden.samples import HERE
from tests.workbench import SMALL

SEGMENT = "queues/orders/segments/00000000000000000000.seg"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(HERE / "directory-v1", tmp_path / "data")


def _reseal(data: bytearray, crc_at: int, end: int) -> None:
    data[crc_at : crc_at + 4] = zlib.crc32(data[crc_at + 4 : end]).to_bytes(4, "little")


def _patch_header(path: Path, version_at: int, end: int = 0) -> None:
    """Set the version of a file whose checksum stands at byte 4 and covers up to `end`, or all."""
    data = bytearray(path.read_bytes())
    data[version_at] = 2
    _reseal(data, 4, end or len(data))
    path.write_bytes(data)


def _patch_table(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4] = 2
    path.write_bytes(data)


def _patch_json(path: Path, version: int = 2) -> None:
    values = json.loads(path.read_bytes())
    del values["crc32"]
    path.write_bytes(encode_json({**values, "format": version}))


def _patch_checkpoint(path: Path) -> None:
    _patch_json(path, 3)


def _patch_block(path: Path) -> None:
    """The first block of a segment."""
    data = bytearray(path.read_bytes())
    data[32 + 8] = 2
    _reseal(data, 32 + 4, 32 + 64 + int.from_bytes(data[32 + 12 : 32 + 16], "little"))
    path.write_bytes(data)


def _first_record(root: Path) -> tuple[Path, int]:
    """The first record behind the checkpoint."""
    index, at = json.loads((root / "journal/checkpoint.json").read_bytes())["journal"]
    (path,) = [file.path for file in read_files(Disk(), root / "journal") if file.index == index]
    return path, at


def _patch_record(root: Path, version_at: Callable[[int], int]) -> Path:
    """The first record behind the checkpoint; `version_at` is told where its block starts, counted from the record."""
    path, at = _first_record(root)
    _patch_record_at(path, at, version_at)
    return path


def _patch_record_at(path: Path, at: int, version_at: Callable[[int], int]) -> None:
    data = bytearray(path.read_bytes())
    record = decode_record(bytes(data), at)
    assert record is not None
    (block,) = record.blocks
    block_at = record.length - block.length
    data[at + version_at(block_at)] = 3
    _reseal(data, at + block_at + 4, at + record.length)
    _reseal(data, at + 4, at + block_at + 64)
    path.write_bytes(data)


def _refusal_on_opening(root: Path) -> str:
    with pytest.raises(Corrupt) as refusal:
        LocalEngine(root, settings=SMALL)
    return str(refusal.value)


def _refusal_on_reading(root: Path) -> str:
    with closing(LocalEngine(root, settings=SMALL)) as engine:
        assert engine.log("..").read(0, 1)[0].payload == b"dot"  # every other queue serves
        with pytest.raises(Corrupt) as refusal:
            engine.log("orders").read(9, 1)
    return str(refusal.value)


def test_a_journal_file(root: Path) -> None:
    path, _ = _first_record(root)
    _patch_header(path, 8, 32)
    before = path.read_bytes()

    refusal = _refusal_on_opening(root)

    assert str(path) in refusal
    assert "journal version 2 is not known to this release" in refusal
    assert path.read_bytes() == before


def test_a_journal_record(root: Path) -> None:
    path = _patch_record(root, lambda _: 24)
    before = path.read_bytes()

    refusal = _refusal_on_opening(root)

    assert str(path) in refusal
    assert "record version 3 is not known to this release" in refusal
    assert path.read_bytes() == before


def test_a_block_in_the_journal(root: Path) -> None:
    path = _patch_record(root, lambda block_at: block_at + 8)
    before = path.read_bytes()

    refusal = _refusal_on_opening(root)

    assert str(path) in refusal
    assert "block version 3 is not known to this release" in refusal
    assert path.read_bytes() == before


def test_a_record_of_small_tails(tmp_path: Path) -> None:
    root = shutil.copytree(HERE / "directory-v2", tmp_path / "data")
    path = root / "journal/1.tails"
    _patch_record_at(path, 0, lambda _: 24)
    before = path.read_bytes()

    refusal = _refusal_on_opening(root)

    assert str(path) in refusal
    assert "record version 3 is not known to this release" in refusal
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("file", "patch", "version"),
    [
        ("journal/checkpoint.json", _patch_checkpoint, "format 3"),
        ("config/queues.json", _patch_json, "format 2"),
        ("state/retained.1.kv", _patch_table, "table version 2"),
    ],
)
def test_a_file_that_the_whole_directory_depends_on(
    root: Path, file: str, patch: Callable[[Path], None], version: str
) -> None:
    patch(root / file)
    before = (root / file).read_bytes()

    refusal = _refusal_on_opening(root)

    assert str(root / file) in refusal
    assert f"{version} is not known to this release" in refusal
    assert (root / file).read_bytes() == before


@pytest.mark.parametrize(
    ("file", "patch", "version"),
    [
        (SEGMENT, lambda path: _patch_header(path, 8, 32), "segment version 2"),
        (SEGMENT, _patch_block, "block version 2"),
        ("queues/orders/consumers/billing/state.json", _patch_json, "format 2"),
        ("queues/orders/consumers/billing/pel.log", lambda path: _patch_header(path, 8), "pending list version 2"),
    ],
)
def test_a_file_of_one_queue(root: Path, file: str, patch: Callable[[Path], None], version: str) -> None:
    patch(root / file)
    before = (root / file).read_bytes()

    refusal = _refusal_on_reading(root)

    assert str(root / file) in refusal
    assert f"{version} is not known to this release" in refusal
    assert (root / file).read_bytes() == before


@pytest.mark.parametrize("suffix", [".idx", ".tix"])
def test_an_index_is_made_again_instead(root: Path, suffix: str) -> None:
    path = (root / SEGMENT).with_suffix(suffix)
    before = path.read_bytes()
    _patch_header(path, 8)

    with closing(LocalEngine(root, settings=SMALL)) as engine:
        assert engine.log("orders").read(10, 1)[0].payload == b"order 10"

    assert path.read_bytes() == before

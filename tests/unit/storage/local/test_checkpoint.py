"""The checkpoint comes back as it was, or is refused."""

from pathlib import Path

import pytest

from headrace.errors import Corrupt
from headrace.storage.local.checkpoint import (
    Checkpoint,
    LogEntry,
    checkpoint_path,
    decode_checkpoint,
    encode_checkpoint,
)
from headrace.storage.local.files import encode_json
from headrace.storage.local.journal import Position

PATH = Path("journal/checkpoint.json")


def _checkpoint() -> Checkpoint:
    checkpoint = Checkpoint(Position(70, 3, 8192), 12)
    full = LogEntry(1, 'größe\n/\t\\ "\x01\x7f\u2028😀', 5, 60)
    full.segment, full.segment_length, full.stored_bytes = 40, 1280, 3800
    full.groups = [(7, "billing"), (8, '"Audit"/1')]
    checkpoint.logs = [full, LogEntry(2, "empty", 0, 0)]
    checkpoint.tables = {"queues": (0, 120), "retained": (4, 82)}
    checkpoint.files = {7: (70, True), 8: (66, False)}
    return checkpoint


def _fields(log: LogEntry) -> tuple[object, ...]:
    return log.id, log.name, log.first, log.next, log.segment, log.segment_length, log.stored_bytes, log.groups


def _encoded(checkpoint: Checkpoint) -> bytes:
    return b"".join(encode_checkpoint(checkpoint))


def test_it_stands_beside_the_journal() -> None:
    assert checkpoint_path(Path("data")) == Path("data/journal/checkpoint.json")


def test_everything_in_it_comes_back_as_it_was() -> None:
    found = decode_checkpoint(_encoded(_checkpoint()), PATH)

    assert (found.position.seq, found.position.index, found.position.at, found.next_id) == (70, 3, 8192, 12)
    assert [_fields(log) for log in found.logs] == [_fields(log) for log in _checkpoint().logs]
    assert found.tables == _checkpoint().tables
    assert found.files == _checkpoint().files


def test_a_log_without_segments_says_minus_one() -> None:
    found = decode_checkpoint(_encoded(_checkpoint()), PATH)

    assert (found.logs[1].segment, found.logs[1].segment_length) == (-1, 0)


def test_a_changed_number_is_corrupt() -> None:
    data = _encoded(_checkpoint()).replace(b"8192", b"8193")

    with pytest.raises(Corrupt, match=r"checkpoint\.json .*the checksum does not fit"):
        decode_checkpoint(data, PATH)


def test_a_cut_is_corrupt() -> None:
    with pytest.raises(Corrupt, match="this is not JSON"):
        decode_checkpoint(_encoded(_checkpoint())[:-1], PATH)


@pytest.mark.parametrize(
    "values",
    [
        {"format": 1},
        {"format": 1, "seq": 1, "journal": [1], "next_id": 1, "logs": [], "tables": {}},
        {"format": 1, "seq": 1, "journal": [1, 1], "next_id": 1, "logs": [[1]], "tables": {}},
        {"format": 1, "seq": 1, "journal": [1, 1], "next_id": 1, "logs": [], "tables": {"queues": 1}},
    ],
)
def test_a_document_that_lacks_something_is_corrupt(values: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="a field is missing or of the wrong kind"):
        decode_checkpoint(encode_json(values), PATH)

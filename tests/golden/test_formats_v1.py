"""The bytes of every format, for good: what the code writes and reads, and what docs/formats/ shows, are the same."""

from pathlib import Path

import pytest

from headrace.storage.api import QUEUES, RETAINED
from headrace.storage.local.block import HEADER_BYTES, Block, decode_block
from headrace.storage.local.checkpoint import decode_checkpoint, decode_tails
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import decode_messages
from headrace.storage.local.group_files import decode_pending, decode_progress, decode_state
from headrace.storage.local.journal import read_files, read_newest
from headrace.storage.local.record import decode_operations, decode_record
from headrace.storage.local.segment import load_indexes, scan_segment
from headrace.storage.local.tables import decode_definitions, decode_table
from tests.golden import samples
from tests.golden.samples import WRITTEN, documented, golden
from tests.workbench import all_values


@pytest.mark.parametrize("name", WRITTEN)
def test_the_code_writes_the_golden_bytes(name: str, tmp_path: Path) -> None:
    assert WRITTEN[name](tmp_path).hex(" ") == golden(name).hex(" ")


@pytest.mark.parametrize("name", WRITTEN)
def test_the_documentation_shows_the_golden_bytes(name: str) -> None:
    assert documented(name).hex(" ") == golden(name).hex(" ")


def test_every_golden_file_is_written_by_the_code() -> None:
    assert {path.stem for path in samples.HERE.iterdir() if path.suffix in (".hex", ".json")} == set(WRITTEN)


def _block(name: str) -> Block:
    data = golden(name)
    return decode_block(data[:HEADER_BYTES], data[HEADER_BYTES:], name, 0)


def test_a_golden_block_without_optional_columns_is_read() -> None:
    block = _block("block-plain-v1")

    assert (block.base, block.next) == (samples.PLAIN_BASE, samples.PLAIN_BASE + 2)
    assert all_values(decode_messages(block, 0, 2)) == all_values(samples.PLAIN_MESSAGES)


def test_a_golden_block_with_every_column_is_read() -> None:
    block = _block("block-full-v1")

    assert (block.base, block.max_time_us) == (samples.FULL_BASE, samples.START_US + 500)
    assert all_values(decode_messages(block, 0, 2)) == all_values(samples.FULL_MESSAGES)


def test_a_golden_record_is_read() -> None:
    record = decode_record(golden("record-v1"), 0)

    assert record is not None
    assert (record.seq, record.synced) == (samples.RECORD_SEQ, samples.RECORD_SYNCED)
    assert (record.operations, record.runs) == (samples.RECORD_OPERATIONS, samples.RECORD_RUNS)
    (block,) = record.blocks
    assert all_values(decode_messages(block, 0, 2)) == all_values(samples.PLAIN_MESSAGES)


def test_a_golden_record_of_several_blocks_is_read() -> None:
    record = decode_record(golden("record-v2"), 0)

    assert record is not None
    assert (record.seq, record.runs) == (samples.RECORD_SEQ, samples.BLOCK_RUNS)
    appends = [
        (log_id, base, decode_messages(block, row, row + count)) for log_id, count, base, block, row in record.appends()
    ]
    assert [(log_id, base, all_values(messages)) for log_id, base, messages in appends] == [
        (1, samples.PLAIN_BASE, all_values(samples.PLAIN_MESSAGES)),
        (2, 7, all_values(samples.PLAIN_MESSAGES[:1])),
    ]


def test_golden_operations_are_read() -> None:
    found = decode_operations(golden("operations-v1"))

    assert [operation.kind for operation in found] == list(range(1, 14))


def test_a_golden_journal_header_is_read(tmp_path: Path) -> None:
    (tmp_path / "0000.jnl").write_bytes(golden("journal-header-v1"))

    (file,) = read_files(Disk(), tmp_path)

    assert (file.index, file.first_seq) == (2, samples.RECORD_SEQ)


def test_a_golden_statement_of_the_newest_journal_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "newest").write_bytes(golden("newest-v1").ljust(8192, b"\0"))

    (newest,), is_damaged = read_newest(Disk(), tmp_path)

    assert (newest.name, newest.index, newest.first_seq, newest.size) == ("0003.jnl", 2, samples.RECORD_SEQ, 16 << 20)
    assert not is_damaged


def test_a_golden_segment_is_read(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000041.seg"
    path.write_bytes(golden("segment-v1"))

    segment = scan_segment(Disk(), path, 41, samples.SEGMENT_LOG_ID)

    assert (segment.next, list(segment.bases), list(segment.positions)) == (43, [41], [32])


def test_golden_indexes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000041.seg"
    path.write_bytes(golden("segment-v1")[:32] + bytes(352))
    path.with_suffix(".idx").write_bytes(golden("idx-v1"))
    path.with_suffix(".tix").write_bytes(golden("tix-v1"))

    segment, problem = load_indexes(Disk(), path, 41, samples.SEGMENT_LOG_ID)

    assert problem == ""
    assert (list(segment.bases), list(segment.positions)) == ([41, 43], [32, 184])
    assert list(segment.times) == [samples.START_US + 250, samples.START_US + 250]


def test_a_golden_state_is_read() -> None:
    state, seq = decode_progress(golden("state-v1"), Path("state.json"), samples.GROUP_ID)

    expected = samples.group()
    assert seq == samples.GROUP_SEQ
    assert (state.name, state.mode, state.filter) == (expected.name, expected.mode, expected.filter)
    assert (state.cursor, state.committed, list(state.settled)) == (50, 40, [(42, 45), (47, 48)])


def test_a_golden_pending_list_is_read() -> None:
    pending, seq = decode_pending(golden("pel-v1"), Path("pel.log"), samples.GROUP_ID)

    assert (pending, seq) == (samples.group().pending, samples.GROUP_SEQ)


def test_golden_definitions_are_read() -> None:
    table = decode_definitions(QUEUES, golden("definitions-v1"), Path("queues.json"))

    assert table.values == samples.definitions().values


def test_a_golden_table_is_read() -> None:
    data = golden("table-v1")

    table = decode_table(RETAINED, 1, data, len(data), Path("retained.1.kv"))

    assert table.values == {b"lamp": b"on"}


def test_a_golden_checkpoint_is_read() -> None:
    found = decode_checkpoint(golden("checkpoint-v1"), Path("checkpoint.json"))

    assert (found.position.seq, found.position.index, found.position.at, found.next_id) == (9, 2, 8192, 3)
    (log,) = found.logs
    assert (log.id, log.name, log.first, log.next) == (1, "orders", 40, 50)
    assert (log.segment, log.segment_length, log.stored_bytes, log.groups) == (41, 4096, 8160, [(2, "billing")])
    assert found.tables == {QUEUES: (0, 120), RETAINED: (1, 36)}


def test_a_golden_checkpoint_with_the_age_of_files_is_read() -> None:
    found = decode_checkpoint(golden("checkpoint-v1-files"), Path("checkpoint.json"))

    assert (found.tables, found.files) == ({"queues": (0, 9), "retained": (1, 36)}, {2: (9, True)})


def test_a_golden_checkpoint_with_shared_files_is_read() -> None:
    found = decode_checkpoint(golden("checkpoint-v2"), Path("checkpoint.json"))

    assert found.tails == (5, len(golden("tails-v1")))
    assert found.tables == {QUEUES: (0, 120), RETAINED: (1, 36), "groups": (1, 8 + 12 + 4 + len(golden("group-v1")))}


def test_a_golden_file_of_small_tails_is_read() -> None:
    data = golden("tails-v1")

    ((at, record),) = decode_tails(data, len(data), Path("5.tails"))

    assert (at, record.seq, record.runs) == (0, samples.GROUP_SEQ, [(1, 2, samples.PLAIN_BASE), (2, 1, 7)])
    rows = all_values([*samples.PLAIN_MESSAGES, samples.PLAIN_MESSAGES[0]])
    assert all_values(decode_messages(record.blocks[0], 0, 3)) == rows


def test_a_golden_state_in_the_table_of_groups_is_read() -> None:
    state = decode_state(golden("group-v1"), Path("groups.1.kv"), samples.GROUP_ID, "billing")

    expected = samples.group()
    assert (state.name, state.mode, state.filter) == (expected.name, expected.mode, expected.filter)
    assert (state.cursor, state.committed, list(state.settled)) == (50, 40, [(42, 45), (47, 48)])
    assert state.pending == expected.pending

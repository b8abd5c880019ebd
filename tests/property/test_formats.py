"""Laws of the byte formats: what goes in comes out, and bytes that were harmed never pass for something else."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.errors import Corrupt
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, RETAINED
from headrace.storage.group_state import STREAM, WORK, GroupState, Pending
from headrace.storage.local.block import HEADER_BYTES, Block, decode_block
from headrace.storage.local.checkpoint import (
    Checkpoint,
    LogEntry,
    Tail,
    decode_checkpoint,
    decode_tails,
    encode_checkpoint,
)
from headrace.storage.local.disk import Disk
from headrace.storage.local.encoding import decode_messages, encode_block
from headrace.storage.local.flusher import encode_tails
from headrace.storage.local.group_files import (
    decode_pending,
    decode_progress,
    decode_state,
    encode_pending,
    encode_progress,
    encode_state,
)
from headrace.storage.local.journal import Position
from headrace.storage.local.record import (
    Run,
    decode_operations,
    decode_record,
    encode_create_log,
    encode_put,
    encode_record,
)
from headrace.storage.local.segment import Segment, load_indexes, scan_segment, segment_path, write_indexes
from headrace.storage.local.segment import encode_segment_header as encode_header
from headrace.storage.local.tables import Table, decode_definitions, decode_table
from tests.contents import members
from tests.workbench import all_values, encode_runs

PATH = Path("file")

text = st.text(st.characters(codec="utf-8"), max_size=12)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
u32 = st.integers(0, (1 << 32) - 1)
u63 = st.integers(0, (1 << 63) - 1)
sources = st.builds(Source, text, text, text, text, st.integers(0, 255))
messages_of_one = st.builds(
    Message,
    st.shared(sources, key="source"),
    st.binary(max_size=20),
    i64,
    st.binary(max_size=9) | st.just(b""),
    st.integers(0, 255) | st.just(0),
    i64 | st.just(0),
    i64 | st.just(0),
)
messages_of_any = st.builds(
    Message, sources, st.binary(max_size=20), i64, st.binary(max_size=9), st.integers(0, 255), i64, i64
)
plain_messages = st.builds(Message, st.shared(sources, key="source"), st.binary(max_size=20), i64)
messages = (
    st.lists(plain_messages, min_size=1, max_size=6)
    | st.lists(messages_of_one, min_size=1, max_size=6)
    | st.lists(messages_of_one | messages_of_any, min_size=1, max_size=6)
)
blocks = st.builds(encode_block, st.integers(0, 1 << 62), messages)
pending = st.dictionaries(u63, st.builds(Pending, u32, i64, text), max_size=5)
ranges = st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 100)), max_size=4)


@st.composite
def groups(draw: st.DrawFn) -> GroupState:
    state = GroupState(draw(text), draw(st.sampled_from([WORK, STREAM])), draw(text), draw(u63))
    state.cursor = draw(u63)
    for start, length in draw(ranges):
        state.add_settled(start, start + length)
    state.pending = draw(pending)
    return state


@st.composite
def checkpoints(draw: st.DrawFn) -> Checkpoint:
    found = Checkpoint(Position(draw(u63), draw(u63), draw(u63)), draw(u32))
    for name in draw(st.lists(text, max_size=3)):
        log = LogEntry(draw(u32), name, draw(u63), draw(u63))
        log.segment, log.segment_length, log.stored_bytes = draw(st.integers(-1, 1 << 62)), draw(u63), draw(u63)
        log.groups = draw(st.lists(st.tuples(u32, text), max_size=2))
        found.logs.append(log)
    found.tables = draw(st.dictionaries(text | st.just("groups"), st.tuples(u32, u63), max_size=3))
    found.tails = draw(st.just((0, 0)) | st.tuples(u32, u63))
    return found


tables = st.dictionaries(st.binary(max_size=9), st.binary(max_size=9), max_size=5)
json_values = st.recursive(st.none() | st.booleans() | st.integers() | text, lambda inner: st.lists(inner, max_size=3))
definitions = st.dictionaries(text, st.dictionaries(text, json_values, max_size=3), max_size=3)


def _block_bytes(block: Block) -> bytes:
    return block.header + block.body


def _read_block(data: bytes) -> object:
    block = decode_block(data[:HEADER_BYTES], data[HEADER_BYTES:], "file", 0)
    return block.base, block.count, block.max_time_us, all_values(decode_messages(block, 0, block.count))


def _record_bytes(block: Block | None, runs: list[Run], operations: bytes) -> bytes:
    return b"".join(encode_record(7, 6, operations, encode_runs(runs), [] if block is None else [block]))


def _read_record(data: bytes) -> object:
    record = decode_record(data, 0)
    if record is None:
        return None
    rows = [all_values(decode_messages(block, 0, block.count)) for block in record.blocks]
    operations = [vars_of(operation) for operation in decode_operations(record.operations)]
    return record.seq, record.synced, record.runs, operations, rows


def vars_of(value: object) -> dict[str, object]:
    return {name: found for name, found in members(value).items() if name != "step"}


def _read_progress(data: bytes) -> object:
    state, seq = decode_progress(data, PATH, 2)
    return seq, state.name, state.mode, state.filter, state.cursor, state.committed, list(state.settled)


def _read_pending(data: bytes) -> object:
    return decode_pending(data, PATH, 2)


def _tails_bytes(tails: list[Tail]) -> bytes:
    return b"".join([buffer for buffers in encode_tails(tails, 7) for buffer in buffers])


def _table_bytes(values: dict[bytes, bytes], gone: list[bytes]) -> bytes:
    table = Table(RETAINED)
    for key, value in values.items():
        table.put(key, value)
    first = table.write(PATH, 1)
    table.generation, table.length = first.generation, first.length
    for key in gone:
        table.put(key, None)
    second = table.write(PATH, 2)
    second.take(table.values, len(second.changed))
    return b"".join([*first.parts(), *second.parts()])


def _definition_bytes(values: Mapping[str, object]) -> bytes:
    table = Table(QUEUES)
    for key, value in values.items():
        table.put(key.encode(), json.dumps(value).encode())
    return b"".join(table.write(PATH, 1).parts())


def _read_definitions(data: bytes) -> object:
    return decode_definitions(QUEUES, data, PATH).values


def _read_checkpoint(data: bytes) -> object:
    found = decode_checkpoint(data, PATH)
    return vars_of(found.position), found.next_id, [vars_of(log) for log in found.logs], found.tables, found.tails


def _read_table_of(length: int) -> Callable[[bytes], object]:
    return lambda data: decode_table(RETAINED, 1, data, length, PATH).values


tails = st.lists(st.builds(Tail, u32, st.integers(0, 1 << 62), messages, st.integers(0, 1 << 20)), max_size=4)
operations = st.one_of(
    st.builds(encode_create_log, u32, text),
    st.builds(encode_put, text, st.binary(max_size=5), st.binary(max_size=5) | st.none()),
)
block_bytes = blocks.map(_block_bytes)
record_bytes = st.builds(
    _record_bytes,
    blocks | st.none(),
    st.lists(st.tuples(u32, u32, u63), max_size=3),
    st.lists(operations, max_size=3).map(b"".join),
)
progress_bytes = st.builds(encode_progress, text, st.just(2), groups(), u63)
pending_bytes = st.builds(encode_pending, st.just(2), groups(), u63)
tails_bytes = tails.map(_tails_bytes)
table_bytes = st.builds(_table_bytes, tables, st.lists(st.binary(max_size=9), min_size=1, max_size=3))
definition_bytes = definitions.map(_definition_bytes)
checkpoint_bytes = checkpoints().map(lambda checkpoint: b"".join(encode_checkpoint(checkpoint)))


# -- what goes in comes out ----------------------------------------------------------------------------------------


@given(st.integers(0, 1 << 62), messages)
def test_any_messages_come_out_of_a_block_as_they_went_in(base: int, given_messages: list[Message]) -> None:
    block = encode_block(base, given_messages)

    decoded = decode_block(block.header, block.body, "file", 0)

    assert (decoded.base, decoded.count) == (base, len(given_messages))
    assert all_values(decode_messages(decoded, 0, decoded.count)) == all_values(given_messages)


@given(blocks, st.data())
def test_any_rows_of_a_block_are_those_of_the_whole(block: Block, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, block.count))
    stop = data.draw(st.integers(start, block.count))

    assert (
        all_values(decode_messages(block, start, stop))
        == all_values(decode_messages(block, 0, block.count))[start:stop]
    )


@given(blocks, st.integers(0, 1 << 62))
def test_any_block_may_be_rebased(block: Block, base: int) -> None:
    moved = block.rebased(base)

    decoded = decode_block(moved.header, moved.body, "file", 0)

    assert decoded.base == base
    assert all_values(decode_messages(decoded, 0, block.count)) == all_values(decode_messages(block, 0, block.count))


@given(record_bytes, st.integers(0, 5))
def test_any_record_is_read_wherever_it_stands(data: bytes, words: int) -> None:
    padding = bytes(8 * words)

    record = decode_record(padding + data + padding, len(padding))

    assert record is not None
    assert record.length == len(data)


@given(groups(), u63)
def test_any_group_comes_out_of_its_files_as_it_went_in(state: GroupState, seq: int) -> None:
    progress, progress_seq = decode_progress(encode_progress("q", 2, state, seq), PATH, 2)
    entries, pending_seq = decode_pending(encode_pending(2, state, seq), PATH, 2)

    assert (progress_seq, pending_seq) == (seq, seq)
    assert (progress.name, progress.mode, progress.filter) == (state.name, state.mode, state.filter)
    assert (progress.cursor, progress.committed, list(progress.settled)) == (
        state.cursor,
        state.committed,
        list(state.settled),
    )
    assert entries == state.pending


@given(groups())
def test_any_group_comes_out_of_the_table_of_groups_as_it_went_in(state: GroupState) -> None:
    found = decode_state(encode_state(state), PATH, 2, state.name)

    assert (found.name, found.mode, found.filter) == (state.name, state.mode, state.filter)
    assert (found.cursor, found.committed, list(found.settled)) == (state.cursor, state.committed, list(state.settled))
    assert found.pending == state.pending


@given(groups().map(encode_state), st.data())
def test_any_bytes_as_the_state_of_a_group_are_a_state_or_are_refused(value: bytes, data: st.DataObject) -> None:
    cut = value[: data.draw(st.integers(0, len(value)))]
    longer = cut + data.draw(st.binary(max_size=60))

    for harmed in (cut, longer, data.draw(st.binary(max_size=120)), b"\x01" + data.draw(st.binary(max_size=120))):
        _outcome(lambda found: decode_state(found, PATH, 2, "group"), harmed)


@given(tails)
def test_any_tails_come_out_as_they_went_in(given_tails: list[Tail]) -> None:
    data = _tails_bytes(given_tails)

    found = [
        (log_id, base, all_values(decode_messages(block, row, row + count)))
        for _, record in decode_tails(data, len(data), PATH)
        for log_id, count, base, block, row in record.appends()
    ]

    assert found == [(tail.log_id, tail.base, all_values(tail.messages)) for tail in given_tails]


@given(tails_bytes.filter(bool), st.data())
def test_any_harm_to_tails_is_refused(data: bytes, choose: st.DataObject) -> None:
    length = len(data)
    flipped = _flip(data, choose.draw(st.integers(0, length * 8 - 1)))
    cut = data[: choose.draw(st.integers(0, length - 1))]

    assert _outcome(lambda found: list(decode_tails(found, length, PATH)), flipped) is None
    assert _outcome(lambda found: list(decode_tails(found, length, PATH)), cut) is None


@given(tables, st.lists(st.binary(max_size=9), min_size=1, max_size=3))
def test_any_table_comes_out_without_what_was_deleted(values: dict[bytes, bytes], gone: list[bytes]) -> None:
    data = _table_bytes(values, gone)

    assert _read_table_of(len(data))(data) == {key: value for key, value in values.items() if key not in gone}


@given(checkpoints())
def test_any_checkpoint_comes_out_as_it_went_in(given_checkpoint: Checkpoint) -> None:
    found = decode_checkpoint(b"".join(encode_checkpoint(given_checkpoint)), PATH)

    assert vars_of(found.position) == vars_of(given_checkpoint.position)
    assert [vars_of(log) for log in found.logs] == [vars_of(log) for log in given_checkpoint.logs]
    assert (found.next_id, found.tables) == (given_checkpoint.next_id, given_checkpoint.tables)
    assert found.tails == given_checkpoint.tails


# -- harm ----------------------------------------------------------------------------------------------------------


def _flip(data: bytes, bit: int) -> bytes:
    harmed = bytearray(data)
    harmed[bit // 8] ^= 1 << bit % 8
    return bytes(harmed)


def _outcome(read: Callable[[bytes], object], data: bytes) -> object:
    """Return the content, or None if it is refused as the format refuses damage. Any other error is a failure."""
    try:
        return read(data)
    except Corrupt:
        return None


FORMATS: dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], object]]] = {
    "block": (block_bytes, _read_block),
    "record": (record_bytes, _read_record),
    "state.json": (progress_bytes, _read_progress),
    "pel.log": (pending_bytes, _read_pending),
    "definitions": (definition_bytes, _read_definitions),
    "checkpoint": (checkpoint_bytes, _read_checkpoint),
}
every_format = pytest.mark.parametrize("name", FORMATS)


@every_format
@given(st.data())
def test_any_flipped_bit_gives_the_same_value_or_is_refused(name: str, data: st.DataObject) -> None:
    strategy, read = FORMATS[name]
    whole = data.draw(strategy)
    harmed = _flip(whole, data.draw(st.integers(0, len(whole) * 8 - 1)))

    assert _outcome(read, harmed) in (None, read(whole))


@every_format
@given(st.data())
def test_any_cut_gives_the_same_value_or_is_refused(name: str, data: st.DataObject) -> None:
    strategy, read = FORMATS[name]
    whole = data.draw(strategy)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]

    assert _outcome(read, cut) in (None, read(whole))


@every_format
@given(st.data())
def test_any_garbage_is_refused(name: str, data: st.DataObject) -> None:
    _, read = FORMATS[name]
    garbage = data.draw(st.binary(max_size=200))

    assert _outcome(read, garbage) is None


@every_format
@given(st.data())
def test_bytes_that_were_replaced_give_the_same_value_or_are_refused(name: str, data: st.DataObject) -> None:
    """As a sector that went bad would: a run of bytes became others."""
    strategy, read = FORMATS[name]
    whole = data.draw(strategy)
    at = data.draw(st.integers(0, len(whole) - 1))
    others = data.draw(st.binary(min_size=1, max_size=16))
    harmed = (whole[:at] + others + whole[at + len(others) :])[: len(whole)]

    assert _outcome(read, harmed) in (None, read(whole))


@given(table_bytes, st.data())
def test_any_flipped_bit_of_a_table_is_refused(data: bytes, choose: st.DataObject) -> None:
    read = _read_table_of(len(data))
    harmed = _flip(data, choose.draw(st.integers(0, len(data) * 8 - 1)))

    assert _outcome(read, harmed) is None


@given(table_bytes, st.data())
def test_any_cut_of_a_table_is_refused(data: bytes, choose: st.DataObject) -> None:
    read = _read_table_of(len(data))

    assert _outcome(read, data[: choose.draw(st.integers(0, len(data) - 1))]) is None


@given(st.binary(max_size=60))
def test_operations_are_read_or_raise_value_error_and_nothing_else(data: bytes) -> None:
    with suppress(ValueError):
        decode_operations(data)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_any_flipped_bit_of_an_index_makes_it_anew_from_the_segment(
    tmp_path: Path, parts: list[list[Message]], data: st.DataObject
) -> None:
    segment = _write_segment(tmp_path, parts)
    write_indexes(Disk(), segment)
    index = segment.path.with_suffix(data.draw(st.sampled_from([".idx", ".tix"])))
    right = index.read_bytes()
    index.write_bytes(_flip(right, data.draw(st.integers(0, len(right) * 8 - 1))))

    loaded, problem = load_indexes(Disk(), segment.path, 0, 1)

    assert index.name in problem
    assert index.read_bytes() == right
    assert (loaded.bases, loaded.positions, loaded.times) == (segment.bases, segment.positions, segment.times)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(messages, min_size=1, max_size=3), st.data())
def test_any_flipped_bit_of_a_segment_is_refused(
    tmp_path: Path, parts: list[list[Message]], data: st.DataObject
) -> None:
    path = _write_segment(tmp_path, parts).path
    whole = path.read_bytes()
    path.write_bytes(_flip(whole, data.draw(st.integers(0, len(whole) * 8 - 1))))

    with pytest.raises(Corrupt):
        scan_segment(Disk(), path, 0, 1)


def _write_segment(directory: Path, parts: list[list[Message]]) -> Segment:
    path = segment_path(directory, 0)
    data = encode_header(1, 0)
    base = 0
    for part in parts:
        block = encode_block(base, part)
        data += block.header + block.body
        base = block.next
    path.write_bytes(data)
    return scan_segment(Disk(), path, 0, 1)

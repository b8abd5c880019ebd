"""Commits to journal records and back."""

import zlib

import pytest

from headrace.errors import Corrupt
from headrace.storage.group_state import (
    ACKED,
    CLAIMED,
    COMMITTED,
    CREATED,
    CURSOR,
    DEAD,
    DELETED,
    REQUEUED,
    STREAM,
    Transition,
)
from headrace.storage.local.encoding import decode_messages, encode_block
from headrace.storage.local.record import (
    CREATE_LOG,
    DELETE,
    DROP_LOG,
    PUT,
    TRUNCATE,
    Operation,
    check_version,
    decode_operations,
    decode_record,
    encode_create_log,
    encode_drop_log,
    encode_put,
    encode_record,
    record_seq,
)
from tests.workbench import all_values, encode_runs, encode_step, encode_truncate, many

OPERATIONS = encode_create_log(1, "orders") + encode_truncate(1, 5)
BLOCK = encode_block(3, many(4))
WITH_BLOCK = b"".join(encode_record(9, 8, OPERATIONS, encode_runs([(1, 3, 3), (2, 1, 70)]), [BLOCK]))
WITHOUT_BLOCK = b"".join(encode_record(10, 9, OPERATIONS, b"", []))


def test_a_record_comes_back_as_it_was() -> None:
    record = decode_record(WITH_BLOCK, 0)

    assert record is not None
    assert (record.seq, record.synced, record.length) == (9, 8, len(WITH_BLOCK))
    assert (record.operations, record.runs) == (OPERATIONS, [(1, 3, 3), (2, 1, 70)])
    (block,) = record.blocks
    assert all_values(decode_messages(block, 0, 4)) == all_values(many(4))


def test_a_record_without_messages_has_no_block() -> None:
    record = decode_record(WITHOUT_BLOCK, 0)

    assert record is not None
    assert (record.blocks, record.runs, record.operations) == ([], [], OPERATIONS)


def test_records_stand_one_behind_the_other_at_multiples_of_eight() -> None:
    assert len(WITH_BLOCK) % 8 == 0

    record = decode_record(WITH_BLOCK + WITHOUT_BLOCK, len(WITH_BLOCK))

    assert record is not None
    assert record.seq == 10


def test_the_sequence_number_can_be_seen_unchecked() -> None:
    assert record_seq(b"12345678" + WITH_BLOCK, 8) == 9


@pytest.mark.parametrize("whole", [WITH_BLOCK, WITHOUT_BLOCK])
def test_a_record_that_is_cut_anywhere_is_none(whole: bytes) -> None:
    assert [cut for cut in range(len(whole)) if decode_record(whole[:cut], 0) is not None] == []


@pytest.mark.parametrize("whole", [WITH_BLOCK, WITHOUT_BLOCK])
def test_a_record_with_any_byte_changed_is_none(whole: bytes) -> None:
    changed = [whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :] for at in range(len(whole))]

    assert [at for at, data in enumerate(changed) if decode_record(data, 0) is not None] == []


def test_what_is_whole_torn_or_no_record_says_nothing_about_versions() -> None:
    for data in (WITH_BLOCK, WITH_BLOCK[:-8], WITH_BLOCK[:100], bytes(64), b""):
        check_version(data, 0, "file")


def test_a_version_byte_that_is_only_damaged_says_nothing_about_versions() -> None:
    damaged = WITH_BLOCK[:24] + b"\x02" + WITH_BLOCK[25:]

    check_version(damaged, 0, "file")


def _one(data: bytes) -> Operation:
    (operation,) = decode_operations(data)
    return operation


def test_creating_a_log_keeps_its_id_and_name() -> None:
    operation = _one(encode_create_log(7, "größe"))

    assert (operation.kind, operation.log_id, operation.name) == (CREATE_LOG, 7, "größe")


def test_dropping_a_log_keeps_its_id() -> None:
    operation = _one(encode_drop_log(7))

    assert (operation.kind, operation.log_id) == (DROP_LOG, 7)


def test_truncating_a_log_keeps_the_offset() -> None:
    operation = _one(encode_truncate(7, 1 << 40))

    assert (operation.kind, operation.log_id, operation.offset) == (TRUNCATE, 7, 1 << 40)


def test_a_put_keeps_table_key_and_value() -> None:
    operation = _one(encode_put("retained", b"\x00key", b""))

    assert (operation.kind, operation.table, operation.key, operation.value) == (PUT, "retained", b"\x00key", b"")


def test_a_deletion_keeps_table_and_key() -> None:
    operation = _one(encode_put("retained", b"key", None))

    assert (operation.kind, operation.table, operation.key, operation.value) == (DELETE, "retained", b"key", None)


def test_creating_a_group_keeps_everything_about_it() -> None:
    created = Transition(CREATED, "orders", "billing", 40, mode=STREAM, filter="orders/#")

    operation = _one(encode_step(created, 1, 2))

    step = operation.step
    assert step is not None
    assert (operation.log_id, operation.group_id) == (1, 2)
    assert (step.kind, step.group, step.mode, step.filter, step.start) == (CREATED, "billing", STREAM, "orders/#", 40)


@pytest.mark.parametrize(
    "step",
    [
        Transition(DELETED, "orders", "billing"),
        Transition(CLAIMED, "orders", "billing", 3, 9, -5, "c1"),
        Transition(ACKED, "orders", "billing", 3, 9),
        Transition(DEAD, "orders", "billing", 3, 9),
        Transition(REQUEUED, "orders", "billing", 3, 9, 1 << 50),
        Transition(CURSOR, "orders", "billing", 3),
        Transition(COMMITTED, "orders", "billing", 1 << 60),
    ],
    ids=lambda step: f"kind {step.kind}",
)
def test_a_step_keeps_the_group_and_what_happened(step: Transition) -> None:
    operation = _one(encode_step(step, 1, 2))

    found = operation.step
    assert found is not None
    assert operation.group_id == 2
    assert (found.kind, found.start, found.stop, found.due_us, found.consumer) == (
        step.kind,
        step.start,
        step.stop,
        step.due_us,
        step.consumer,
    )


@pytest.mark.parametrize("number", [(1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_ids_have_32_bits(number: int) -> None:
    cut = _one(encode_truncate(number, 5))
    created = _one(encode_step(Transition(CREATED, "orders", "billing"), number, number - 1))
    record = decode_record(b"".join(encode_record(1, 0, b"", encode_runs([(number, 4, 5)]), [BLOCK])), 0)

    assert (cut.log_id, created.log_id, created.group_id) == (number, number, number - 1)
    assert record is not None
    assert record.runs == [(number, 4, 5)]


def test_operations_come_in_the_order_they_were_given() -> None:
    found = decode_operations(encode_drop_log(1) + encode_create_log(2, "orders") + encode_put("t", b"k", b"v"))

    assert [operation.kind for operation in found] == [DROP_LOG, CREATE_LOG, PUT]


@pytest.mark.parametrize(
    "data", [b"\x00", b"\x0e", b"\x01\x01", encode_create_log(1, "orders")[:-1], b"\x0d\x01\x00\xff"]
)
def test_operations_that_make_no_sense_are_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        decode_operations(data)


def test_a_version_not_known_in_a_whole_record_is_corrupt() -> None:
    data = bytearray(WITHOUT_BLOCK)
    data[24] = 9
    data[4:8] = zlib.crc32(data[8:]).to_bytes(4, "little")

    with pytest.raises(Corrupt, match="file is damaged at byte 24: record version 9 is not known"):
        check_version(bytes(data), 0, "file")
    assert decode_record(bytes(data), 0) is None

"""The bytes of the records in an object store, for good: written, read, and shown on their page."""

from pathlib import Path

import pytest

from headrace.model import Message, Source
from headrace.storage.group_state import WORK, GroupState
from headrace.storage.objects import keys, records
from headrace.storage.objects.keys import encode_array, encode_terminated, encode_utf8, encode_var_bytes, encode_var_u64
from headrace.storage.objects.records import (
    Attempt,
    Available,
    InFlight,
    LogState,
    MetadataDecoder,
    MetadataEncoder,
    Sequence,
    Settled,
    Spec,
    decode_block,
    decode_instance,
    decode_log,
    decode_progress,
    encode_block,
    encode_instance,
    encode_log,
    encode_progress,
)
from tests.workbench import all_values

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "objects.md"
TIME_US = 1_700_000_000_000
QUEUE = b"q1"
AVAILABLE = Available(5, keys.claim_id(2, 304), 1, b"hi")
IN_FLIGHT = InFlight(6, keys.claim_id(2, 305), TIME_US, TIME_US + 30_000, 1, b"")
DONE = Settled(5, keys.claim_id(2, 304), TIME_US, 1, b"")
SPEC = Spec("a/#", 5, 3600, 2, "demo")
SPEC_EXPRESSION = Spec("", 5, 3600, 2, "demo", "n > 1")
SPEC_BOTH = Spec("a/#", 5, 3600, 2, "demo", "n > 1")
LOG = LogState("orders", 3, 17, 400, TIME_US, 5)
MESSAGE = Message(Source("t", "e", "c", "amqp091", 1), b"payload", TIME_US, b"\x80\x00", 4, TIME_US + 1, TIME_US + 2)
PREFIX = keys.entry_prefix(keys.log_name("main", 7))


def progress() -> GroupState:
    state = GroupState("workers", WORK, "", 40)
    state.cursor = 50
    state.add_settled(42, 45)
    state.add_settled(70, 100)
    return state


WRITTEN = {
    "terminated 00": encode_terminated(b"\x00"),
    "terminated 01": encode_terminated(b"\x01"),
    "terminated ff": encode_terminated(b"\xff"),
    "terminated empty": encode_terminated(b""),
    "utf8 hello": encode_utf8("hello"),
    "var bytes hi": encode_var_bytes(b"hi"),
    "payload key": keys.payload_key(0x0102030405060708),
    "active key": keys.queue_key(keys.ACTIVE, QUEUE, keys.bucket_id(2, 304)),
    "active": records.encode_active([records.encode_available(AVAILABLE)], [records.encode_in_flight(IN_FLIGHT)]),
    "done key": keys.queue_key(keys.DONE, QUEUE, keys.bucket_id(2, 304)),
    "done": encode_array([records.encode_settled(DONE)]),
    "failed key": keys.queue_key(keys.FAILED, QUEUE, keys.bucket_id(2, 304)),
    "attempts key": keys.queue_key(keys.ATTEMPTS, QUEUE, 5),
    "attempts": records.encode_attempts((Attempt(TIME_US, "c1"),)),
    "spec key": keys.spec_key(QUEUE),
    "spec": records.encode_spec(SPEC),
    "spec with an expression": records.encode_spec(SPEC_EXPRESSION),
    "spec with both": records.encode_spec(SPEC_BOTH),
    "entry key": keys.entry_key(PREFIX, 100),
    "entry": records.encode_entry([5, 6], [b"hi", b""]),
    "segment key": keys.LOG_SEGMENT,
    "listing key": keys.listing_key(keys.log_name("main", 7)),
    "sequence key": keys.SEQUENCE,
    "sequence": encode_block(0x0102030405060708, 0x1112131415161718),
    "log key": keys.LOG + keys.u64(7),
    "log": encode_log(LOG),
    "progress key": keys.queue_prefix(keys.PROGRESS, QUEUE),
    "progress": encode_progress(7, progress()),
    "table key": keys.table_key("queues", b"/orders"),
    "collected key": keys.COLLECTED + keys.u64(7),
    "dropped log key": keys.DROPPED_LOG + keys.u64(7),
    "dropped queue key": keys.queue_prefix(keys.DROPPED_QUEUE, QUEUE),
    "time key": keys.time_key(7, TIME_US),
    "reference key": keys.reference_key(5, 7),
    "reference key of a copy": keys.copy_key(5, 7, 9),
    "lent key": keys.LENT + keys.u64(7),
    "instance key": keys.INSTANCE,
    "payloads key": keys.payloads_key(5),
    "payloads": records.encode_payloads([b"hi", b"", b"one"]),
    "instance": encode_instance("main"),
    "metadata": MetadataEncoder().encode(MESSAGE, records.PACKED),
    "metadata of a shared message": MetadataEncoder().encode(MESSAGE, records.SHARED),
    "metadata of an available message": records.encode_visible_at(TIME_US + 3),
    "metadata of a message in flight": records.encode_consumer("c1"),
}

# Read from OpenData's own tests and texts: whatever else changes, these are not ours to change.
FOREIGN = {
    "terminated 00": "01 01 00",
    "terminated 01": "01 02 00",
    "terminated ff": "ff 00",
    "terminated empty": "00",
    "utf8 hello": "05 00 68 65 6c 6c 6f",
    "payload key": "01 01 01 02 03 04 05 06 07 08",
    "active key": "01 02 71 31 00 20 00 00 00 00 00 01 2c",
    "active": "01 00 05 00 00 00 00 00 00 00 30 01 00 00 00 00 00 20 01 00 02 00 00 00 68 69"
    " 01 00 06 00 00 00 00 00 00 00 31 01 00 00 00 00 00 20 00 68 e5 cf 8b 01 00 00 30 dd e5 cf 8b 01 00 00"
    " 01 00 00 00 00 00",
    "done": "01 00 05 00 00 00 00 00 00 00 30 01 00 00 00 00 00 20 00 68 e5 cf 8b 01 00 00 01 00 00 00 00 00",
    "attempts key": "01 05 71 31 00 00 00 00 00 00 00 00 05",
    "spec key": "01 06 71 31",
    "entry": "02 00 05 00 00 00 00 00 00 00 02 00 00 00 68 69 06 00 00 00 00 00 00 00 00 00 00 00",
    "sequence": "01 02 03 04 05 06 07 08 11 12 13 14 15 16 17 18",
}


def documented() -> dict[str, str]:
    """The examples of the page: lines of a name, two spaces, and hex."""
    text = PAGE.read_text().split("```text golden\n")[1].split("```")[0]
    lines = [line.rsplit("  ", 1) for line in text.splitlines() if line.strip()]
    return {name.strip(): value for name, value in lines}


@pytest.mark.parametrize("name", FOREIGN)
def test_the_bytes_are_those_of_the_sources(name: str) -> None:
    assert WRITTEN[name].hex(" ") == FOREIGN[name]


def test_the_page_shows_what_the_code_writes() -> None:
    assert documented() == {name: value.hex(" ") for name, value in WRITTEN.items()}


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0, "00"),
        (15, "0f"),
        (16, "10 10"),
        (4095, "1f ff"),
        (4096, "20 10 00"),
        (1 << 20, "30 10 00 00"),
        (1 << 28, "40 10 00 00 00"),
        (1 << 36, "50 10 00 00 00 00"),
        (1 << 44, "60 10 00 00 00 00 00"),
        (1 << 52, "70 10 00 00 00 00 00 00"),
        ((1 << 60) - 1, "7f ff ff ff ff ff ff ff"),
        (1 << 60, "80 10 00 00 00 00 00 00 00"),
        ((1 << 64) - 1, "80 ff ff ff ff ff ff ff ff"),
    ],
)
def test_numbers_of_the_log_have_the_bytes_of_the_source(value: int, raw: str) -> None:
    assert encode_var_u64(value).hex(" ") == raw


def test_an_entry_of_the_metadata_log_has_the_key_of_the_source() -> None:
    assert keys.entry_key(keys.entry_prefix(b"k"), 100).hex(" ") == "03 01 00 00 00 01 10 6b 00 10 64"


def test_the_golden_values_are_read() -> None:
    def where(name: str) -> tuple[bytes, str]:
        return bytes.fromhex(documented()[name]), name

    assert records.decode_active(*where("active")) == ([AVAILABLE], [IN_FLIGHT])
    assert records.decode_settled(*where("done")) == [DONE]
    assert records.decode_attempts(*where("attempts")) == [Attempt(TIME_US, "c1")]
    assert records.decode_spec(*where("spec")) == SPEC
    assert records.decode_spec(*where("spec with an expression")) == SPEC_EXPRESSION
    assert records.decode_spec(*where("spec with both")) == SPEC_BOTH
    assert records.decode_entry(*where("entry")) == ([5, 6], [b"hi", b""])
    assert decode_block(*where("sequence")) == (0x0102030405060708, 0x1112131415161718)
    assert decode_log(*where("log")) == LOG
    assert decode_instance(*where("instance")) == "main"
    log_id, state = decode_progress(*where("progress"))
    assert (log_id, state.name, state.mode, state.cursor, state.committed) == (7, "workers", WORK, 50, 40)
    assert list(state.settled) == [(42, 45), (70, 100)]


def test_golden_metadata_is_read() -> None:
    def where(name: str) -> tuple[bytes, str]:
        return bytes.fromhex(documented()[name]), name

    for name in ("metadata", "metadata of a shared message"):
        metadata, _ = where(name)
        assert all_values([MetadataDecoder().decode(metadata, MESSAGE.payload, name)]) == all_values([MESSAGE])
    assert records.decode_payloads(*where("payloads")) == [b"hi", b"", b"one"]
    assert records.decode_visible_at(*where("metadata of an available message")) == TIME_US + 3
    assert records.decode_consumer(*where("metadata of a message in flight")) == "c1"


AVAILABLE_V1 = (
    "01 0f 01 04 07 00 00 00 00 68 e5 cf 8b 01 00 00 03 68 e5 cf 8b 01 00 00 01 68 e5 cf 8b 01 00 00"
    " 02 68 e5 cf 8b 01 00 00 01 00 74 01 00 65 01 00 63 07 00 61 6d 71 70 30 39 31 80 00"
)
"""The metadata of a message given back, in a bucket of a release before."""


def test_buckets_of_releases_before_are_read() -> None:
    assert records.decode_visible_at(bytes.fromhex(AVAILABLE_V1), "available") == TIME_US + 3
    assert records.decode_consumer(MetadataEncoder().encode(MESSAGE), "in flight") is None
    assert records.decode_visible_at(MetadataEncoder().encode(MESSAGE), "available") is None
    assert decode_instance(bytes.fromhex("01 04 00 6d 61 69 6e"), "instance") == "main"


def test_the_bucket_of_a_message_follows_from_its_number() -> None:
    assert keys.number_of(keys.bucket_id(2, 304)) == 300
    assert keys.number_of(keys.bucket_id(0, 304)) == 304


def test_a_sequence_spills_into_the_next_block_without_a_gap() -> None:
    sequence = Sequence(None, "sequence")

    assert sequence.allocate(4086) == 0
    assert sequence.record == encode_block(0, 4096)
    assert sequence.allocate(25) == 4086
    assert sequence.record == encode_block(4096, 4096)


def test_a_sequence_goes_on_behind_the_block_that_was_stored() -> None:
    sequence = Sequence(encode_block(4096, 4096), "sequence")

    assert sequence.record is None
    assert sequence.allocate(1) == 8192
    assert sequence.allocate(10_000) == 8193
    assert sequence.record == encode_block(12_288, 5_905)

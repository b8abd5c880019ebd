"""Laws of the records in an object store: what goes in comes out, order is kept, garbage is Corrupt."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import Corrupt
from headrace.model import Message, Source
from headrace.storage.group_state import STREAM, WORK, GroupState
from headrace.storage.objects import keys, records
from headrace.storage.objects import records as state
from headrace.storage.objects.columns import facts_of, texts_of
from headrace.storage.objects.keys import (
    decode_sortable_i64,
    decode_terminated,
    decode_var_u64,
    encode_array,
    encode_sortable_i64,
    encode_terminated,
    encode_var_u64,
    lexical_successor,
)
from headrace.storage.objects.records import (
    MetadataDecoder,
    MetadataEncoder,
    decode_block,
)
from tests.workbench import all_values

u64 = st.integers(0, (1 << 64) - 1)
u16 = st.integers(0, (1 << 16) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
offsets = st.integers(0, (1 << 63) - 1)
text = st.text(st.characters(codec="utf-8"), max_size=12)
raw = st.binary(max_size=20)
keyed = st.binary(max_size=6) | st.lists(st.sampled_from([0, 1, 2, 97, 255]), max_size=6).map(bytes)
messages = st.builds(
    Message,
    st.builds(Source, text, text, text, text, st.integers(0, 255)),
    raw,
    i64,
    st.binary(max_size=9),
    st.integers(0, 255),
    i64,
    i64,
)

DECODERS: dict[str, Callable[[bytes, str], object]] = {
    "active": records.decode_active,
    "attempts": records.decode_attempts,
    "block": decode_block,
    "entry": records.decode_entry,
    "facts of one": lambda data, where: facts_of(data, 1, where),
    "facts of two": lambda data, where: facts_of(data, 2, where),
    "instance": state.decode_instance,
    "log": state.decode_log,
    "metadata": lambda data, where: MetadataDecoder().decode(data, b"", where),
    "progress": state.decode_progress,
    "queue key": lambda data, _: keys.decode_queue_key(data),
    "settled": records.decode_settled,
    "spec": records.decode_spec,
    "texts": texts_of,
    "table key": lambda data, _: keys.decode_table_key(data),
    "visible at": records.decode_visible_at,
    "consumer": records.decode_consumer,
    "payloads": records.decode_payloads,
}


@given(keyed, keyed, raw)
def test_terminated_bytes_come_back_and_sort_as_they_are(one: bytes, other: bytes, rest: bytes) -> None:
    encoded = encode_terminated(one)

    assert decode_terminated(encoded + rest, 0, "key") == (one, len(encoded))
    assert (one < other) == (encoded < encode_terminated(other))


@given(u64, u64)
def test_numbers_of_keys_come_back_and_sort_as_they_are(one: int, other: int) -> None:
    encoded = encode_var_u64(one)

    assert decode_var_u64(encoded, 0, "key") == (one, len(encoded))
    assert (one < other) == (encoded < encode_var_u64(other))


@given(i64, i64)
def test_times_of_keys_come_back_and_sort_as_they_are(one: int, other: int) -> None:
    assert decode_sortable_i64(encode_sortable_i64(one)) == one
    assert (one < other) == (encode_sortable_i64(one) < encode_sortable_i64(other))


@given(keyed, keyed)
def test_what_begins_with_a_prefix_is_below_its_successor(prefix: bytes, rest: bytes) -> None:
    successor = lexical_successor(prefix)

    assert prefix + rest >= prefix
    assert successor is None or prefix + rest < successor


@given(st.lists(st.builds(records.Available, u64, u64, u16, raw), max_size=4))
def test_available_messages_come_back(available: list[records.Available]) -> None:
    value = records.encode_active([records.encode_available(each) for each in available], [])

    assert records.decode_active(value, "active") == (available, [])


@given(st.lists(st.builds(records.InFlight, u64, u64, i64, i64, u16, raw), max_size=4))
def test_messages_in_flight_come_back(in_flight: list[records.InFlight]) -> None:
    value = records.encode_active([], [records.encode_in_flight(each) for each in in_flight])

    assert records.decode_active(value, "active") == ([], in_flight)


@given(st.lists(st.builds(records.Settled, u64, u64, i64, u16, raw), max_size=4))
def test_settled_messages_come_back(settled: list[records.Settled]) -> None:
    value = encode_array([records.encode_settled(each) for each in settled])

    assert records.decode_settled(value, "done") == settled


@given(st.lists(st.builds(records.Attempt, i64, text), max_size=4))
def test_attempts_come_back(attempts: list[records.Attempt]) -> None:
    assert records.decode_attempts(records.encode_attempts(tuple(attempts)), "attempts") == attempts


@given(st.builds(records.Spec, text, u16, st.integers(0, (1 << 32) - 1), st.integers(0, 4), text, text))
def test_a_specification_comes_back(spec: records.Spec) -> None:
    assert records.decode_spec(records.encode_spec(spec), "spec") == spec


@given(st.lists(st.tuples(u64, raw), max_size=5))
def test_an_entry_of_the_metadata_log_comes_back(rows: list[tuple[int, bytes]]) -> None:
    ids, metadata = [row[0] for row in rows], [row[1] for row in rows]

    assert records.decode_entry(records.encode_entry(ids, metadata), "entry") == (ids, metadata)


@given(st.lists(st.tuples(u64, messages), max_size=5), st.booleans())
def test_columns_say_of_many_messages_what_each_says(rows: list[tuple[int, Message]], are_alike: bool) -> None:
    if are_alike and rows:
        rows = [(message_id, rows[0][1]) for message_id, _ in rows]
    encoder = MetadataEncoder()
    about = [encoder.encode(message) for _, message in rows]
    entry = records.encode_entry([message_id for message_id, _ in rows], about)

    facts = facts_of(entry[2:], len(rows), "here")

    found = []
    for row in range(len(rows)):
        *texts, properties = texts_of(facts.kinds[facts.which[row]], "here")
        times = (facts.times[row], facts.expires[row], facts.not_before[row])
        found.append((facts.ids[row], facts.sizes[row], *times, facts.priorities[row], texts, facts.encodings[row]))
        assert properties == rows[row][1].properties
    assert found == [
        (
            message_id,
            len(message.payload),
            message.timestamp_us,
            message.expires_us,
            message.not_before_us,
            message.priority,
            [message.source.topic, message.source.exchange, message.source.client_id, message.source.protocol],
            message.source.encoding,
        )
        for message_id, message in rows
    ]


@given(st.lists(messages, max_size=5), st.sampled_from([0, records.SHARED, records.PACKED]))
def test_metadata_comes_back(rows: list[Message], flags: int) -> None:
    encoder, decoder = MetadataEncoder(), MetadataDecoder()
    metadata = [encoder.encode(message, flags) for message in rows]

    found = [decoder.decode(about, row.payload, "metadata") for about, row in zip(metadata, rows, strict=True)]

    assert all_values(found) == all_values(rows)
    assert all(records.flags_of(about, "metadata") & (records.SHARED | records.PACKED) == flags for about in metadata)


@given(i64, text)
def test_what_a_bucket_has_of_a_message_comes_back(due_us: int, consumer: str) -> None:
    assert records.decode_visible_at(records.encode_visible_at(due_us), "available") == due_us
    assert records.decode_consumer(records.encode_consumer(consumer), "in flight") == consumer


@given(st.lists(raw, max_size=5), st.data())
def test_payloads_come_back_and_are_corrupt_if_cut_off(payloads: list[bytes], data: st.DataObject) -> None:
    value = records.encode_payloads(payloads)

    assert records.decode_payloads(value, "payloads") == payloads
    with pytest.raises(Corrupt, match="payloads"):
        records.decode_payloads(value[: data.draw(st.integers(0, len(value) - 1))], "payloads")


@given(
    st.sampled_from([WORK, STREAM]), offsets, offsets, text, st.lists(st.tuples(offsets, st.integers(1, 9)), max_size=5)
)
def test_progress_comes_back(mode: int, cursor: int, committed: int, name: str, ranges: list[tuple[int, int]]) -> None:
    group = GroupState(name, mode, "", committed)
    group.cursor = cursor
    for start, length in ranges:
        group.settle(committed + 1 + start % 1000, committed + 1 + start % 1000 + length)

    log_id, found = state.decode_progress(state.encode_progress(9, group), "progress")

    assert log_id == 9
    assert (found.name, found.mode, found.cursor, found.committed) == (name, mode, group.cursor, group.committed)
    assert list(found.settled) == list(group.settled)


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_garbage_is_corrupt_and_nothing_else(name: str, data: st.DataObject) -> None:
    garbage = data.draw(st.binary(max_size=60) | st.binary(max_size=40).map(lambda tail: b"\x01\x00" + tail))

    with suppress(Corrupt):
        DECODERS[name](garbage, name)


@given(st.lists(st.builds(records.InFlight, u64, u64, i64, i64, u16, raw), min_size=1, max_size=3), st.data())
def test_a_record_that_was_cut_off_is_corrupt(in_flight: list[records.InFlight], data: st.DataObject) -> None:
    value = records.encode_active([], [records.encode_in_flight(each) for each in in_flight])
    cut = data.draw(st.integers(0, len(value) - 1))

    with pytest.raises(Corrupt, match="active"):
        records.decode_active(value[:cut], "active")

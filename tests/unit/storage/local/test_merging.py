"""Blocks with rows for many logs become one block, log by log, and rows of it are again what they were."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.model import Message, Source
from headrace.storage.arrow import batch_of_messages
from headrace.storage.local.arrow import copy_to_logs, merge_by_log
from headrace.storage.local.block import Block, cut_block
from headrace.storage.local.encoding import decode_messages, encode_block

NAMES = ["a", "b", "c", "d"]
_MESSAGES = st.builds(
    Message,
    st.builds(Source, st.sampled_from(["x", "y/z", "w"])),
    st.binary(max_size=5),
    st.integers(1, 1 << 50),
    st.sampled_from([b"", b"{}", b"abc"]),
    st.sampled_from([0, 0, 7]),
    st.sampled_from([0, 0, 5, 1 << 40]),
    st.sampled_from([0, 0, 9]),
)
_PARTS = st.lists(st.lists(st.tuples(st.integers(0, 3), _MESSAGES), min_size=1, max_size=12), min_size=1, max_size=4)


def fields(message: Message) -> tuple[object, ...]:
    return (
        message.source.topic, message.payload, message.timestamp_us, message.properties, message.priority,
        message.expires_us, message.not_before_us,
    )  # fmt: skip


def rows_of(block: Block) -> list[tuple[object, ...]]:
    return [fields(message) for message in decode_messages(block, 0, block.count)]


@given(_PARTS)
def test_every_log_gets_its_messages_in_the_order_they_have(parts: list[list[tuple[int, Message]]]) -> None:
    blocks = [
        (encode_block(0, [message for _, message in part]), pa.array([number for number, _ in part], pa.int32()))
        for part in parts
    ]

    merged = merge_by_log(blocks, NAMES)

    wanted: dict[int, list[Message]] = {}
    for number, message in [row for part in parts for row in part]:
        wanted.setdefault(number, []).append(message)
    assert [(name, [fields(message) for message in rows.messages(0, rows.count)]) for name, rows in merged] == [
        (NAMES[number], [fields(message) for message in wanted[number]]) for number in sorted(wanted)
    ]
    for (name, rows), number in zip(merged, sorted(wanted), strict=True):
        own = wanted[number]
        assert (name, rows.payload_bytes) == (NAMES[number], sum(len(message.payload) for message in own))
        assert rows.largest_bytes == max(len(message.payload) for message in own)
        assert rows.first_expiry_us == min((each.expires_us for each in own if each.expires_us), default=0)
        assert rows_of(rows.alone().block) == [fields(message) for message in own]
    assert len({id(rows.block) for _, rows in merged}) == 1
    assert sum(rows.count for _, rows in merged) == merged[0][1].block.count


@given(st.lists(_MESSAGES, min_size=1, max_size=12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3))))
def test_copies_of_messages_are_as_they_were_but_for_their_time(
    messages: list[Message], copies: list[tuple[int, int]]
) -> None:
    chosen = [(row % len(messages), number) for row, number in copies]
    cut = len(messages) // 2
    batches = [batch_of_messages(0, part) for part in (messages[:cut], messages[cut:]) if part]
    rows = pa.array([row for row, _ in chosen], pa.int32())

    found = copy_to_logs(
        pa.Table.from_batches(batches), rows, pa.array([number for _, number in chosen], pa.int32()), NAMES, 42
    )

    wanted: dict[int, list[Message]] = {}
    for row, number in chosen:
        wanted.setdefault(number, []).append(messages[row])
    assert [(name, [fields(message) for message in rows.messages(0, rows.count)]) for name, rows in found] == [
        (NAMES[number], [(*fields(message)[:2], 42, *fields(message)[3:]) for message in wanted[number]])
        for number in sorted(wanted)
    ]


def test_copies_have_the_sources_of_their_messages_each_once() -> None:
    sources = [Source(topic, exchange, client, "mqtt", 2) for topic in "ab" for exchange in "xy" for client in "cd"]
    messages = [Message(sources[number % 8], b"", 1) for number in range(40)]
    rows = pa.array(range(40), pa.int32())
    table = pa.Table.from_batches([batch_of_messages(0, messages)])

    ((_, copies),) = copy_to_logs(table, rows, pa.repeat(pa.scalar(0, pa.int32()), 40), NAMES, 42)

    assert len(copies.block.sources()) == 8
    assert [repr(message.source) for message in copies.messages(0, 40)] == [repr(each.source) for each in messages]


def test_nothing_becomes_nothing() -> None:
    assert merge_by_log([], []) == []
    empty = pa.array([], pa.int32())
    assert copy_to_logs(pa.Table.from_batches([batch_of_messages(0, [])]), empty, empty, NAMES, 42) == []


@given(st.lists(_MESSAGES, min_size=1, max_size=20), st.data())
def test_rows_of_a_block_are_a_block_of_their_own(messages: list[Message], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(messages) - 1))
    stop = data.draw(st.integers(start + 1, len(messages)))
    whole = encode_block(10, messages)

    part = cut_block(whole, start, stop, 77)

    assert (part.base, part.count) == (77, stop - start)
    assert part.max_time_us == max(message.timestamp_us for message in messages[start:stop])
    assert rows_of(part) == [fields(message) for message in messages[start:stop]]
    assert {source.topic for source in part.sources()} == {each.source.topic for each in messages[start:stop]}

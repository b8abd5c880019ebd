"""Record batches say what the messages say, and those of blocks point into the block."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.storage.api import Log
from headrace.storage.arrow import SCHEMA, batch_of_messages
from headrace.storage.local.arrow import batch_of_block
from headrace.storage.local.encoding import encode_block
from headrace.storage.local.engine import LocalEngine
from headrace.storage.memory import MemoryEngine
from tests.workbench import FULL, PLAIN, SMALL, full_message, many, plain, store

BASE = 40
MIXED = [*plain(b"a", b"", b"ccc"), full_message(), Message(Source("größe"), b"\xff\x00", 7, b"p"), *plain(b"end")]
VARIANTS = {
    "nothing optional": plain(b"a", b"", b"ccc"),
    "every column": MIXED,
    "one message": plain(b"a"),
    "no payload at all": plain(b"", b""),
    "expires": [Message(PLAIN, b"x", 1, expires_us=5), *plain(b"y")],
    "not before": [Message(PLAIN, b"x", 1, not_before_us=5), *plain(b"y")],
    "priority": [Message(PLAIN, b"x", 1, priority=255), *plain(b"y")],
    "properties": [Message(PLAIN, b"x", 1, b"props"), *plain(b"y")],
    "two sources": [Message(FULL, b"x", 1), *plain(b"y"), Message(FULL, b"z", 2)],
}


def _expected(base: int, messages: Sequence[Message]) -> dict[str, list[Any]]:
    """Every column from the messages themselves, times as numbers."""
    return {
        "offset": list(range(base, base + len(messages))),
        "timestamp": [message.timestamp_us for message in messages],
        "topic": [message.source.topic for message in messages],
        "exchange": [message.source.exchange for message in messages],
        "payload": [message.payload for message in messages],
        "expires_at": [message.expires_us or None for message in messages],
        "not_before": [message.not_before_us or None for message in messages],
        "priority": [message.priority for message in messages],
        "client_id": [message.source.client_id for message in messages],
        "protocol": [message.source.protocol for message in messages],
        "encoding": [message.source.encoding for message in messages],
        "properties": [message.properties for message in messages],
    }


def _columns(*batches: pa.RecordBatch) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in SCHEMA.names}
    for batch in batches:
        assert batch.schema.equals(SCHEMA)
        batch.validate(full=True)
        for name in SCHEMA.names:
            column = batch.column(name)
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            found[name] += column.to_pylist()
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_of_a_block_says_what_the_messages_say(name: str) -> None:
    messages = VARIANTS[name]

    batch = batch_of_block(encode_block(BASE, messages), 0, len(messages))

    assert _columns(batch) == _expected(BASE, messages)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_batch_of_messages_says_what_they_say(name: str) -> None:
    messages = VARIANTS[name]

    assert _columns(batch_of_messages(BASE, messages)) == _expected(BASE, messages)


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (2, 5), (5, 6), (0, 6), (3, 3)])
def test_a_slice_of_a_block_has_those_rows(start: int, stop: int) -> None:
    batch = batch_of_block(encode_block(BASE, MIXED), start, stop)

    assert _columns(batch) == _expected(BASE + start, MIXED[start:stop])


@pytest.mark.parametrize(("start", "stop"), [(0, 6), (2, 5)])
@pytest.mark.parametrize("column", ["payload", "properties", "timestamp", "priority"])
def test_a_column_of_a_block_is_not_copied(column: str, start: int, stop: int) -> None:
    block = encode_block(BASE, MIXED)
    body = pa.py_buffer(block.body)

    batch = batch_of_block(block, start, stop)

    buffers = [buffer for buffer in batch.column(column).buffers() if buffer is not None]
    assert buffers
    assert all(body.address <= buffer.address < body.address + body.size for buffer in buffers)


def test_payload_bytes_are_at_the_address_where_the_block_has_them() -> None:
    block = encode_block(BASE, MIXED)
    body = pa.py_buffer(block.body)

    _, _, found = batch_of_block(block, 0, 6).column("payload").buffers()

    assert found.address == body.address + block.body.index(b"acccpaid")


def test_a_batch_keeps_the_block_alive() -> None:
    batch = batch_of_block(encode_block(BASE, MIXED), 0, 6)

    assert _columns(batch) == _expected(BASE, MIXED)


def _read(log: Log, start: int, stop: int) -> dict[str, list[Any]]:
    return _columns(*log.record_batches(start, stop))


def test_the_memory_engine_gives_what_the_messages_say() -> None:
    with closing(MemoryEngine()) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED))

        assert _read(engine.log("orders"), 0, 6) == _expected(0, MIXED)
        assert _read(engine.log("orders"), 2, 4) == _expected(2, MIXED[2:4])


def test_a_tail_gives_what_the_messages_say(tmp_path: Path) -> None:
    with closing(LocalEngine(tmp_path)) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED))

        assert _read(engine.log("orders"), 0, 6) == _expected(0, MIXED)
        assert _read(engine.log("orders"), 2, 4) == _expected(2, MIXED[2:4])


def test_a_tail_of_large_commits_gives_what_the_messages_say(tmp_path: Path) -> None:
    """Runs of this length stay encoded in memory, and may be a part of a block that several logs share."""
    messages = [*many(300), full_message(), *many(300)]
    with closing(LocalEngine(tmp_path)) as engine:
        store(
            engine, lambda commit: commit.append("other", many(400)), lambda commit: commit.append("orders", messages)
        )

        assert _read(engine.log("orders"), 0, 601) == _expected(0, messages)
        assert _read(engine.log("orders"), 299, 302) == _expected(299, messages[299:302])


def test_segments_give_what_the_messages_say(tmp_path: Path) -> None:
    messages = [*many(300, size=50), full_message(), *many(300, size=50)]
    with closing(LocalEngine(tmp_path, settings=SMALL)) as engine:
        for at in range(0, len(messages), 100):
            store(engine, lambda commit, at=at: commit.append("orders", messages[at : at + 100]))  # type: ignore[misc]

    with closing(LocalEngine(tmp_path, settings=SMALL)) as engine:
        assert _read(engine.log("orders"), 0, 601) == _expected(0, messages)
        assert _read(engine.log("orders"), 150, 450) == _expected(150, messages[150:450])


def test_segments_and_tail_follow_one_another(tmp_path: Path) -> None:
    with closing(LocalEngine(tmp_path)) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED[:4]))
    with closing(LocalEngine(tmp_path)) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED[4:]))

        assert _read(engine.log("orders"), 1, 6) == _expected(1, MIXED[1:])


@pytest.mark.parametrize("stop", [6, 7, 1 << 40])
def test_a_range_beyond_the_end_stops_there(tmp_path: Path, stop: int) -> None:
    with closing(LocalEngine(tmp_path)) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED))

        assert _read(engine.log("orders"), 5, stop) == _expected(5, MIXED[5:])
        assert _read(engine.log("orders"), 6, stop) == _expected(6, [])


def test_a_range_below_the_first_offset_is_refused(tmp_path: Path) -> None:
    with closing(LocalEngine(tmp_path)) as engine:
        store(engine, lambda commit: commit.append("orders", MIXED))
        store(engine, lambda commit: commit.truncate("orders", 2))

        with pytest.raises(Refused, match="offset 1 is gone"):
            next(engine.log("orders").record_batches(1, 6))

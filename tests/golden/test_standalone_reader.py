"""The program in docs/formats/block.md reads what Headrace writes, without Headrace."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headrace.model import Message
from tests.golden import samples
from tests.golden.samples import example, golden

ReadBlock = Callable[..., tuple[pa.RecordBatch, int]]


@pytest.fixture(scope="module")
def read_block() -> ReadBlock:
    language, code = example("read-block")
    assert language == "python"
    names: dict[str, Any] = {}
    exec(compile(code, "docs/formats/block.md", "exec"), names)
    found: ReadBlock = names["read_block"]
    return found


def _rows(base: int, messages: list[Message]) -> dict[str, list[object]]:
    return {
        "offset": list(range(base, base + len(messages))),
        "timestamp": [message.timestamp_us for message in messages],
        "topic": [message.source.topic for message in messages],
        "payload": [message.payload for message in messages],
    }


def _plain(batch: pa.RecordBatch) -> dict[str, list[object]]:
    batch.validate(full=True)
    columns = {name: batch.column(name) for name in batch.schema.names}
    columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    return {name: column.to_pylist() for name, column in columns.items()}


def test_it_reads_a_block_without_optional_columns(read_block: ReadBlock) -> None:
    batch, _ = read_block(golden("block-plain-v1"))

    assert _plain(batch) == _rows(samples.PLAIN_BASE, samples.PLAIN_MESSAGES)


def test_it_reads_a_block_with_every_column(read_block: ReadBlock) -> None:
    batch, _ = read_block(golden("block-full-v1"))

    assert _plain(batch) == _rows(samples.FULL_BASE, samples.FULL_MESSAGES)


def test_it_reads_a_segment_block_by_block(read_block: ReadBlock) -> None:
    data = golden("segment-v1") + golden("block-full-v1")

    first, at = read_block(data, 32)
    second, end = read_block(data, at)

    assert _plain(first) == _rows(samples.PLAIN_BASE, samples.PLAIN_MESSAGES)
    assert _plain(second) == _rows(samples.FULL_BASE, samples.FULL_MESSAGES)
    assert end == len(data)


@pytest.mark.parametrize("position", [0, 5, 8, 70, 150])
def test_it_notices_damage(read_block: ReadBlock, position: int) -> None:
    data = bytearray(golden("block-plain-v1"))
    data[position] ^= 1

    with pytest.raises(ValueError, match="no whole block of version 1 at byte 0"):
        read_block(bytes(data))

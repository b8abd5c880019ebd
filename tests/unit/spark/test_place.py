"""A task reads every row of a directory once, in batches of a handy size. These tests need no Spark session."""

from pathlib import Path
from typing import Any

from headrace.spark.options import read_options
from headrace.spark.place import schema_of
from headrace.spark.reader import BatchReader
from tests.workbench import Bench, many

SCHEMA = schema_of(["offset", "payload"])


def batches(directory: Path) -> list[dict[str, list[Any]]]:
    reader = BatchReader(read_options({"url": str(directory), "path": "orders"}), SCHEMA)
    return [batch.to_pydict() for partition in reader.partitions() for batch in reader.read(partition)]


def test_large_blocks_are_given_in_several_batches(tmp_path: Path) -> None:
    messages = many(300, size=20_000)
    with Bench(tmp_path) as bench:
        bench.store(lambda commit: commit.append("orders", messages))

    found = batches(tmp_path)

    assert 6 <= len(found) <= 12
    assert all(sum(len(payload) for payload in batch["payload"]) <= 1 << 20 for batch in found)
    assert [offset for batch in found for offset in batch["offset"]] == list(range(300))
    assert [payload for batch in found for payload in batch["payload"]] == [message.payload for message in messages]


def test_a_message_that_is_larger_is_a_batch_of_its_own(tmp_path: Path) -> None:
    with Bench(tmp_path) as bench:
        bench.store(lambda commit: commit.append("orders", [*many(2, size=2 << 20), *many(1)]))

    found = batches(tmp_path)

    assert [batch["offset"] for batch in found] == [[0], [1], [2]]

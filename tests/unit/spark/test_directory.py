"""A task that reads a data directory finds every message, wherever a checkpoint has put it since it was planned."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from headrace.spark.directory import Directory
from headrace.spark.options import read_options
from headrace.spark.place import QueuePartition
from tests.workbench import SMALL, Bench, many, payloads

SHARING = replace(SMALL, tail_bytes=64 << 10, own_files=0)
SCHEMA = pa.schema([("offset", pa.int64()), ("payload", pa.binary())])


def checkpoint(bench: Bench) -> None:
    bench.engine._upkeep.checkpoint_wanted = True
    bench.until(lambda: not bench.engine._upkeep.checkpoint_wanted and not bench.engine._upkeep.flushing)


def planned(place: Directory) -> QueuePartition:
    start, stop = place.bounds("orders")
    return QueuePartition("orders", start, stop, tuple(place.pieces("orders", start, stop, 0)), SCHEMA, True)


def test_messages_that_were_in_the_journal_and_in_a_shared_file_are_read_from_the_next_one(tmp_path: Path) -> None:
    with Bench(tmp_path, SHARING) as bench:
        bench.store(lambda commit: commit.append("orders", many(3)), lambda commit: commit.append("other", many(3)))
        place = Directory(read_options({"url": f"file://{tmp_path}", "path": "orders"}))
        in_journal = planned(place)
        checkpoint(bench)
        place.refresh()
        in_tails = planned(place)
        bench.store(lambda commit: commit.append("other", many(1)))
        checkpoint(bench)

        for partition in (in_journal, in_tails):
            rows = [row for batch in place.read(partition) for row in batch.to_pylist()]
            assert rows == [{"offset": at, "payload": payload} for at, payload in enumerate(payloads(many(3)))]
        place.close()

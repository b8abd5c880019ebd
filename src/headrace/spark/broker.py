"""The queues of a running broker, read through its bulk endpoints. No files."""

import http.client
import time
from collections.abc import Iterator
from typing import Final, final

import pyarrow as pa

from headrace.errors import NotFound, Truncated, Unavailable
from headrace.spark.client import Client
from headrace.spark.options import ReadOptions
from headrace.spark.place import (
    NO_LOG,
    Piece,
    Place,
    QueuePartition,
    check_deleted,
    check_loss,
    columns_of,
    split,
    wanted_rows,
)

_LOOK_SECONDS: Final = 0.02
"""Shortest time between two questions to the broker; an idle Spark asks every 10 ms. Questions in between wait: an old
answer would end a query before the latest messages."""
_UNBOUNDED: Final = 1 << 62
_BREAKS: Final = 20
"""The most interruptions while one partition is read."""


@final
class BrokerPlace(Place):
    """The queues of one virtual host of a broker."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.server is not None
        self.options = options
        self._client = Client(options.server)
        self._queues: dict[str, tuple[int, int, int]] = {}
        """The first offset, the one behind the last, and the id of the log."""
        self._looked = -1.0

    def __str__(self) -> str:
        return f"virtual host {self.options.vhost!r} of {self._client}"

    def refresh(self) -> None:
        if self._looked >= 0:
            time.sleep(max(0.0, self._looked + _LOOK_SECONDS - time.monotonic()))
        query = [("name", name) for name in self.options.queues]
        found = self._client.json("GET", "/bulk/queues", query)["queues"]
        if not isinstance(found, dict):
            raise Unavailable(f"{self} does not say which queues it has: is it a Headrace broker?")
        self._queues = {name: (each["first"], each["next"], each["log"]) for name, each in found.items()}
        self._looked = time.monotonic()

    def names(self) -> list[str]:
        if self._looked < 0:
            self.refresh()
        return list(self._queues)

    def all_names(self) -> list[str]:
        found = self._client.json("GET", "/bulk/queues", {})["queues"]
        return list(found) if isinstance(found, dict) else []

    def bounds(self, queue: str) -> tuple[int, int]:
        first, following, _ = self._facts(queue)
        return first, following

    def log_id(self, queue: str) -> int:
        return self._facts(queue)[2]

    def _facts(self, queue: str) -> tuple[int, int, int]:
        if queue not in self.names():
            raise NotFound(f"there is no queue {queue!r} in {self}, or {self._user()} may not read it")
        return self._queues[queue]

    def find(self, queue: str, timestamp_us: int) -> int:
        query: dict[str, str | int] = {"queue": queue, "timestamp": max(0, timestamp_us)}
        return int(str(self._client.json("GET", "/bulk/offset", query)["offset"]))

    def pieces(self, queue: str, start: int, stop: int, most_bytes: int, enough_bytes: int = 0) -> list[Piece]:
        found: list[Piece] = []
        left = enough_bytes or _UNBOUNDED
        while start < stop and left > 0:
            query: dict[str, str | int] = {"queue": queue, "from": start, "to": stop, "bytes": left}
            try:
                answer = self._client.json("GET", "/bulk/extents", query)["extents"]
            except Truncated:  # meanwhile; whether that is a loss is found out when they are read
                self.refresh()
                answer = [[start, min(stop, self.bounds(queue)[0]), 0]]
            assert isinstance(answer, list)
            found += [Piece(*each) for each in answer]
            if not answer:
                break
            start, left = found[-1].stop, left - sum(each[2] for each in answer)
        return split(found, most_bytes, self.options.min_partitions)

    def close(self) -> None:
        self._client.close()

    def report(self, positions: dict[str, int]) -> None:
        for queue, offset in positions.items():
            query: dict[str, str | int] = {"queue": queue, "group": self.options.consumer_group, "offset": offset}
            self._client.json("PUT", "/bulk/progress", query)

    def read(self, partition: QueuePartition) -> Iterator[pa.RecordBatch]:
        names = columns_of(partition.schema)
        wanted = list(dict.fromkeys(["offset", *names]))
        at = partition.start
        for _ in range(_BREAKS):
            try:
                for batch in self._stream(partition, at, wanted):
                    following = batch.column("offset")[-1].as_py() + 1
                    rows = wanted_rows(batch, partition.only)
                    if rows.num_rows:
                        arrays = [rows.column(name) for name in names]
                        yield pa.RecordBatch.from_arrays(arrays, schema=partition.schema)
                    at = following
                if at >= partition.stop:
                    return
            except (OSError, http.client.HTTPException, pa.ArrowInvalid):
                self._client.close()  # interrupted: go on where it ended
            except Truncated:
                self._looked = -1.0
                if partition.log != NO_LOG and self.log_id(partition.queue) != partition.log:
                    check_deleted(self.options, partition, at)
                    return
                at = check_loss(partition.gone_is_loss, partition.queue, at, self.bounds(partition.queue)[0])
        raise Unavailable(f"queue {partition.queue!r} of {self} could not be read from offset {at} on; try again")

    def _stream(self, partition: QueuePartition, start: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        query: dict[str, str | int] = {
            "queue": partition.queue, "from": start, "to": partition.stop, "columns": ",".join(columns),
        }  # fmt: skip
        if partition.log != NO_LOG:
            query["log"] = partition.log
        with self._client.open("/bulk/messages", query) as response, pa.ipc.open_stream(response) as reader:
            try:
                yield from reader
            except GeneratorExit:
                self._client.close()  # the connection still has the rest of the answer
                raise
            response.read()  # to the end, so that the connection can be used again

    def _user(self) -> str:
        assert self.options.server is not None
        return f"user {self.options.server.user!r}"

"""Work queues as a batch: messages are claimed, worked on, and acknowledged at the end. Streams are in work_stream.py.

Spark tells a batch source nothing about how the job ended, so whoever runs the job says it: by leaving a `with`.
"""

import json
import uuid
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from headrace.errors import Refused
from headrace.spark.claims import Claim, ClaimKeeper, Claims, claim_of
from headrace.spark.columns import arrow_schema
from headrace.spark.options import DEFAULT_LEASE_SECONDS, WORK_MODE, ReadOptions, read_options
from headrace.spark.place import open_place, read_partition
from headrace.spark.work_stream import DEFAULT_ROWS, work_partitions


@final
class Work:
    """Messages claimed from work queues, as a DataFrame; acknowledged when the `with` ends well, given back when not.

        with Work(spark, "orders", url="http://localhost:15672") as orders:
            orders.write.parquet("orders", mode="append")

    The claim is renewed while the `with` lasts. When this process dies, the messages go to others after the lease.
    """

    def __init__(
        self,
        spark: SparkSession,
        queues: str,
        most: int = DEFAULT_ROWS,
        lease_seconds: int = DEFAULT_LEASE_SECONDS,
        **options: str,
    ) -> None:
        """`options` are those of the data source: url, user, password, vhost, consumerGroup, includeHeaders.

        Raises Refused when one of them makes no sense.
        """
        self._spark = spark
        self._most = most
        self._given = {**options, "mode": WORK_MODE, "leaseSeconds": str(lease_seconds)}
        self._options = read_options({**self._given, "path": queues})
        self._queues = queues
        self._claims = Claims(self._options)
        self._keeper: ClaimKeeper | None = None
        self._claim = Claim("", 0, {})

    def __enter__(self) -> DataFrame:
        """Claim what waits, up to the most; the frame is empty when nothing does. Raises NotFound, Unavailable."""
        self._claim = self._take()
        self._keeper = ClaimKeeper(self._options)
        self._keeper.keep(self._claim)
        reader = self._spark.read.format("headrace").options(**self._given)
        return reader.option("claim", json.dumps(self._claim.to_offset())).load(self._queues)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        self._keeper.keep(None)
        self._keeper.close()
        try:
            if error is None:
                self._claims.finish(self._claim)
            else:
                self._claims.release(self._claim)
        finally:
            self._claims.close()

    def _take(self) -> Claim:
        by, left = f"spark-{uuid.uuid4().hex}", self._most
        place = open_place(self._options)
        try:
            names = place.matching(self._options.queues)
        finally:
            place.close()
        claim = Claim(by, 1, {})
        for queue in names:
            ranges = self._claims.take(by, queue, left) if left > 0 else ()
            if ranges:
                claim = Claim(by, 1, {**claim.taken, queue: ranges})
                left = self._most - claim.messages
        return claim


@final
class WorkReader(DataSourceReader):
    """The frame of a `Work`: reads what was claimed, as often as Spark wants to."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Raises Refused without a claim."""
        if not options.claim:
            raise Refused(
                "spark.read cannot say when a job is done, so mode=work needs somebody who does: "
                "`with headrace.spark.Work(spark, queue, url=...) as frame:` acknowledges at its end. "
                "spark.readStream takes mode=work as it is"
            )
        self._options = options
        self._schema = arrow_schema(schema)
        self._claim = claim_of(json.loads(options.claim))

    def partitions(self) -> Sequence[InputPartition]:
        return work_partitions(self._claim, self._options, self._schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(self._options, partition)

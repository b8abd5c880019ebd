"""Pipeline `compact`: keeps the last message of every key, in place or in another stream, in one commit."""

import uuid
from dataclasses import dataclass
from urllib.parse import quote

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import NotFound, Refused
from headrace.spark.client import Client
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.replay import store_again
from headrace.spark.pipelines.run import refusals

ROUTING_KEY = "routing_key"
_HEADER = "header:"
_JSON = "json:"


@dataclass(frozen=True)
class CompactSettings:
    """The settings of a pipeline `compact`."""

    endpoint: Endpoint
    queue: str
    target: str
    """The stream for the last messages: made if it does not exist, refused if it has messages. The queue's own name
    replaces the messages of the queue, which must be a stream."""
    key: str = ROUTING_KEY
    """`routing_key`, `header:NAME`, or `json:PATH` such as `json:$.device.id`."""


@dataclass(frozen=True)
class Compacted:
    """The number of messages before and after."""

    messages: int
    kept: int


def run_compact(spark: SparkSession, settings: CompactSettings) -> Compacted:
    """Store the last message of every key and all messages without a key, by offset.

    All of them become visible at once, or none. Raises Refused.
    """
    key = key_column(settings.key)
    if not settings.endpoint.is_broker:
        raise Refused(f"{settings.endpoint.url} is no broker; name one to write to")
    start, stop = _prepare(settings)
    with refusals(f"{settings.queue!r} cannot be compacted"):
        frame = settings.endpoint.read(
            spark, settings.queue, includeHeaders="true", startingOffsets=str(start), endingOffsets=str(stop)
        )
        last = last_of_each(frame, key).cache()
        try:
            kept = last.count()
            in_place = {"replaceBefore": str(stop)} if settings.target == settings.queue else {}
            store_again(last, settings.endpoint, settings.target, f"compact-{uuid.uuid4().hex}", **in_place)
        finally:
            last.unpersist()
    return Compacted(stop - start, kept)


def last_of_each(frame: DataFrame, key: Column) -> DataFrame:
    """Return the row with the highest offset of each key, and all rows without a key."""
    names = frame.columns
    keyed = frame.withColumn("_key", key)
    row = F.struct(*names)
    last = keyed.where("_key IS NOT NULL").groupBy("_key").agg(F.max_by(row, "offset").alias("_row")).select("_row.*")
    return last.unionByName(keyed.where("_key IS NULL").select(*names))


def key_column(text: str) -> Column:
    """Return the column of the key. Raises Refused."""
    if text == ROUTING_KEY:
        return F.col(ROUTING_KEY)
    if text.startswith(_HEADER) and len(text) > len(_HEADER):
        return F.col("headers")[text[len(_HEADER) :]]
    if text.startswith(_JSON) and len(text) > len(_JSON):
        return F.get_json_object(F.col("payload").cast("string"), text[len(_JSON) :])
    raise Refused(f"the key {text!r} is none; it may be {ROUTING_KEY}, {_HEADER}NAME or {_JSON}PATH, such as json:$.id")


def _prepare(settings: CompactSettings) -> tuple[int, int]:
    """Declare the target if needed; return the first offset to read and the one behind the last."""
    options = read_options({**settings.endpoint.options, "path": settings.queue})
    assert options.server is not None
    client = Client(options.server)
    try:
        names = [("name", settings.queue), ("name", settings.target)]
        found = client.json("GET", "/bulk/queues", names)["queues"]
        assert isinstance(found, dict)
        if settings.queue not in found:
            raise NotFound(f"there is no queue {settings.queue!r}, or it may not be read")
        if settings.target == settings.queue:
            if found[settings.queue]["type"] != "stream":
                raise Refused(f"queue {settings.queue!r} is no stream: compact it into another with --to")
            return int(found[settings.queue]["first"]), int(found[settings.queue]["next"])
        if settings.target not in found:
            host, target = quote(settings.endpoint.vhost, safe=""), quote(settings.target, safe="")
            client.json("PUT", f"/api/v1/queues/{host}/{target}", {}, {"type": "stream"})
        if settings.target in found and found[settings.target]["next"] > found[settings.target]["first"]:
            raise Refused(f"queue {settings.target!r} has messages already; name one that is empty or not there yet")
        return int(found[settings.queue]["first"]), int(found[settings.queue]["next"])
    finally:
        client.close()

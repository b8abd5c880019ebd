"""Pipeline `compact`: keeps the last message of every key, in place or in another stream, in one commit.

Spark reads the keys and finds the offsets that stay; the broker copies the messages, with all that they had.
"""

import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import NotFound, Refused
from headrace.spark.client import Client
from headrace.spark.options import Server, read_options
from headrace.spark.pipelines.endpoint import FORMAT, Endpoint, declare_queue
from headrace.spark.pipelines.run import refusals
from headrace.spark.place import schema_of
from headrace.spark.writer import Transaction
from headrace.storage.frame import HEADERS

ROUTING_KEY = "routing_key"
_HEADER = "header:"
_JSON = "json:"
_PART_COPIES: Final = 1 << 20
"""The most copies in one part; each takes 12 bytes."""


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
    column, key = key_column(settings.key)
    if not settings.endpoint.is_broker:
        raise Refused(f"{settings.endpoint.url} is no broker; name one to write to")
    server, start, stop = _prepare(settings)
    with refusals(f"{settings.queue!r} cannot be compacted"):
        reader = spark.read.format(FORMAT).options(**settings.endpoint.options).schema(schema_of(["offset", column]))
        frame = reader.options(startingOffsets=str(start), endingOffsets=str(stop)).load(settings.queue)
        kept = last_of_each(frame, key).orderBy("offset").toArrow().column("offset")
    _copy(server, settings, kept, stop)
    return Compacted(stop - start, len(kept))


def last_of_each(frame: DataFrame, key: Column) -> DataFrame:
    """Return the highest offset of each key, and the offsets of all rows without a key."""
    keyed = frame.select("offset", key.alias("_key"))
    last = keyed.where("_key IS NOT NULL").groupBy("_key").agg(F.max("offset").alias("offset")).select("offset")
    return last.unionAll(keyed.where("_key IS NULL").select("offset"))


def _copy(server: Server, settings: CompactSettings, offsets: pa.ChunkedArray, stop: int) -> None:
    """Have the broker copy the messages at these offsets, in one commit, in place of others if need be."""
    with Transaction(server, f"compact-{uuid.uuid4().hex}") as opened:
        parts: list[str] = []
        for at in range(0, len(offsets), _PART_COPIES):
            some = offsets.slice(at, _PART_COPIES).combine_chunks()
            targets = pa.DictionaryArray.from_arrays(
                pa.repeat(pa.scalar(0, pa.int32()), len(some)), pa.array([settings.target])
            )
            copies = pa.RecordBatch.from_arrays([some, targets], ["offset", "queue"])
            parts.append(opened.stage(f"offsets-{at}", {"copy": settings.queue}, [copies]))
        in_place = {"replace": {"queue": settings.queue, "before": stop}} if settings.target == settings.queue else {}
        opened.commit(parts, None, **in_place)


def check_key(text: str) -> None:
    """Check that a text names a key. Raises Refused."""
    is_named = any(text.startswith(kind) and len(text) > len(kind) for kind in (_HEADER, _JSON))
    if text != ROUTING_KEY and not is_named:
        raise Refused(
            f"the key {text!r} is none; it may be {ROUTING_KEY}, {_HEADER}NAME or {_JSON}PATH, such as json:$.id"
        )


def key_column(text: str) -> tuple[str, Column]:
    """Return the column that has the key, and the key. Raises Refused."""
    check_key(text)
    if text == ROUTING_KEY:
        return ROUTING_KEY, F.col(ROUTING_KEY)
    if text.startswith(_HEADER):
        return HEADERS, F.col(HEADERS)[text[len(_HEADER) :]]
    return "payload", F.get_json_object(F.col("payload").cast("string"), text[len(_JSON) :])


def _prepare(settings: CompactSettings) -> tuple[Server, int, int]:
    """Declare the target if needed; return the broker, the first offset to read and the one behind the last."""
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
            return options.server, int(found[settings.queue]["first"]), int(found[settings.queue]["next"])
        if settings.target not in found:
            declare_queue(client, settings.endpoint.vhost, settings.target, "stream")
        if settings.target in found and found[settings.target]["next"] > found[settings.target]["first"]:
            raise Refused(f"queue {settings.target!r} has messages already; name one that is empty or not there yet")
        return options.server, int(found[settings.queue]["first"]), int(found[settings.queue]["next"])
    finally:
        client.close()

"""Pipeline `compact`: keeps the last message of every key, in place or in another stream, in one commit.

Spark reads the keys and finds the offsets that stay; the broker copies the messages, with all that they had.

The names of the staged parts are stored before the commit. So an interrupted run asks for the same commit again, which
the broker stores once, and begins anew only where that commit never happened.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import NotFound, Refused
from headrace.spark.client import Client
from headrace.spark.options import Server, read_options
from headrace.spark.pipelines.endpoint import FORMAT, Endpoint, declare_queue
from headrace.spark.pipelines.run import Progress, State, Tell, open_state, refusals, say_nothing
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
    state: Path
    key: str = ROUTING_KEY
    """`routing_key`, `header:NAME`, or `json:PATH` such as `json:$.device.id`."""
    name: str = "compact"


@dataclass(frozen=True)
class Compacted:
    """The number of messages before and after."""

    messages: int
    kept: int


def run_compact(spark: SparkSession, settings: CompactSettings, tell: Tell = say_nothing) -> Compacted:
    """Store the last message of every key and all messages without a key, by offset; then remove the state.

    All of them become visible at once, or none. Raises Refused.
    """
    column, key = key_column(settings.key)
    if not settings.endpoint.is_broker:
        raise Refused(f"{settings.endpoint.url} is no broker; name one to write to")
    options = read_options({**settings.endpoint.options, "path": settings.queue})
    assert options.server is not None
    say = _teller(settings.name, tell)
    state = open_state(settings.state, settings.name, _identity(settings))
    with Transaction(options.server, f"compact-{state.id}") as opened:
        done = _finished(opened, settings, state, say)
        if done is None:
            say("reading", 0)
            start, stop = _prepare(options.server, settings)
            with refusals(f"{settings.queue!r} cannot be compacted"):
                reader = spark.read.format(FORMAT).options(**settings.endpoint.options)
                reader = reader.schema(schema_of(["offset", column]))
                frame = reader.options(startingOffsets=str(start), endingOffsets=str(stop)).load(settings.queue)
                kept = last_of_each(frame, key).orderBy("offset").toArrow().column("offset")
            done = Compacted(stop - start, len(kept))
            say("storing", done.messages)
            state.keep(parts=_stage(opened, settings, kept), stop=stop, **vars(done))
            _commit(opened, settings, state)
    state.remove()
    say("", done.messages)
    return done


def _teller(name: str, tell: Tell) -> Callable[[str, int], None]:
    """Return a function that tells a phase and the number of messages that were read."""
    started = time.monotonic()
    return lambda phase, messages: tell(
        Progress(name, messages, int(not phase), time.monotonic() - started, phase=phase)
    )


def _identity(settings: CompactSettings) -> dict[str, object]:
    return {"kind": "compact", "from": settings.queue, "to": settings.target, "key": settings.key}


def last_of_each(frame: DataFrame, key: Column) -> DataFrame:
    """Return the highest offset of each key, and the offsets of all rows without a key."""
    keyed = frame.select("offset", key.alias("_key"))
    last = keyed.where("_key IS NOT NULL").groupBy("_key").agg(F.max("offset").alias("offset")).select("offset")
    return last.unionAll(keyed.where("_key IS NULL").select("offset"))


def _finished(
    opened: Transaction, settings: CompactSettings, state: State, say: Callable[[str, int], None]
) -> Compacted | None:
    """Ask again for the commit of an interrupted run; return nothing where its parts are gone without one."""
    kept = state.kept
    if kept.get("parts") is None:
        return None
    done = Compacted(int(str(kept["messages"])), int(str(kept["kept"])))
    say("storing", done.messages)
    try:
        _commit(opened, settings, state)
    except NotFound:
        return None
    return done


def _stage(opened: Transaction, settings: CompactSettings, offsets: pa.ChunkedArray) -> list[str]:
    """Stage the copies of the messages at these offsets; return the parts."""
    parts: list[str] = []
    for at in range(0, len(offsets), _PART_COPIES):
        some = offsets.slice(at, _PART_COPIES).combine_chunks()
        targets = pa.DictionaryArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), len(some)), pa.array([settings.target])
        )
        copies = pa.RecordBatch.from_arrays([some, targets], ["offset", "queue"])
        parts.append(opened.stage(f"offsets-{at}", {"copy": settings.queue}, [copies]))
    return parts


def _commit(opened: Transaction, settings: CompactSettings, state: State) -> None:
    """Have the broker copy the messages of the staged parts, in place of others if need be, once.

    A refusal leaves nothing to ask for again, so that the next run begins anew.
    """
    parts, stop = state.kept["parts"], state.kept["stop"]
    assert isinstance(parts, list)
    in_place = {"replace": {"queue": settings.queue, "before": stop}} if settings.target == settings.queue else {}
    try:
        opened.commit(parts, None, **in_place)
    except Refused:
        state.keep(parts=None)
        raise


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


def _prepare(server: Server, settings: CompactSettings) -> tuple[int, int]:
    """Declare the target if needed; return the first offset to read and the one behind the last. Raises Refused."""
    client = Client(server)
    try:
        names = [("name", settings.queue), ("name", settings.target)]
        found = client.json("GET", "/bulk/queues", names)["queues"]
        assert isinstance(found, dict)
        if settings.queue not in found:
            raise NotFound(f"there is no queue {settings.queue!r}, or it may not be read")
        source, target = found[settings.queue], found.get(settings.target)
        if settings.target == settings.queue:
            if source["type"] != "stream":
                raise Refused(f"queue {settings.queue!r} is no stream: compact it into another with --to")
        elif target is None:
            declare_queue(client, settings.endpoint.vhost, settings.target, "stream")
        elif target["next"] > target["first"]:
            raise Refused(f"queue {settings.target!r} has messages already; name one that is empty or not there yet")
        return int(source["first"]), int(source["next"])
    finally:
        client.close()

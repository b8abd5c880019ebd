"""Pipeline `report`: what went through queues in a period, as tables, plots and one page. Others draw it.

<report>/index.html             everything on one page that needs no other file
<report>/tables/NAME.parquet    the numbers
<report>/plots/NAME.svg, .png   the plots
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pandas as pd
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.errors import Refused
from headrace.spark.client import Client
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.progress import reason_of
from headrace.spark.pipelines.report_page import write_page
from headrace.spark.pipelines.report_plots import draw

BUCKETS: Final = 60
"""The period is cut into at most so many equal pieces."""
_WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800)
_GROUP_COLUMNS: Final = (
    "queue", "name", "mode", "lag", "ready", "pending", "consumers", "delivered", "redelivered", "acknowledged",
    "committed",
)  # fmt: skip
_MANY: Final = 1000


@dataclass(frozen=True)
class ReportSettings:
    """What a report is about: queues, and a period of the messages' times."""

    endpoint: Endpoint
    queues: str
    directory: Path
    starting: str = "earliest"
    """A time such as `2026-01-31T12:00:00Z`, an offset, or earliest."""
    ending: str = "latest"
    topics: int = 20
    """How many of the hottest topics are shown."""


@dataclass(frozen=True)
class Report:
    """The tables of a report, by name, and the period they are about."""

    tables: Mapping[str, pd.DataFrame]
    first: datetime | None
    last: datetime | None
    messages: int
    page: Path


def run_report(spark: SparkSession, settings: ReportSettings) -> Report:
    """Write the report; one that is there already is replaced. Raises Refused when it cannot be made."""
    now = datetime.now(UTC)
    try:
        frame = _messages(spark, settings)
        (period,) = frame.agg(F.min("timestamp"), F.max("timestamp"), F.count("*")).collect()
        first, last, messages = _aware(period[0]), _aware(period[1]), int(period[2])
        tables = _tables(frame, settings, now, first, last)
    except PySparkException as error:
        raise Refused(f"the report cannot be made: {reason_of(error)}") from error
    _write_tables(settings.directory / "tables", tables)
    plots = draw(tables, settings.directory / "plots")
    page = settings.directory / "index.html"
    done = Report(tables, first, last, messages, page)
    write_page(page, tables, plots, _title(settings, first, last), messages, now)
    return done


def _messages(spark: SparkSession, settings: ReportSettings) -> DataFrame:
    """What all tables are made of, read once."""
    options = {"includeHeaders": "true", "startingOffsets": settings.starting, "endingOffsets": settings.ending}
    frame = settings.endpoint.read(spark, settings.queues, **options)
    headers = F.col("headers")
    return frame.select(
        "queue",
        "offset",
        "timestamp",
        "topic",
        F.octet_length("payload").cast("long").alias("bytes"),
        F.coalesce(headers["_dlq_reason"], headers["x-last-death-reason"]).alias("reason"),
        F.coalesce(headers["_dlq_original_queue"], headers["x-last-death-queue"]).alias("origin"),
        F.expr("try_cast(headers['_dlq_delivery_count'] AS BIGINT)").alias("attempts"),
    ).cache()


def _tables(
    frame: DataFrame, settings: ReportSettings, now: datetime, first: datetime | None, last: datetime | None
) -> dict[str, pd.DataFrame]:
    width = bucket_seconds(first, last)
    start = F.window("timestamp", f"{width} seconds")["start"].alias("start")
    throughput = frame.groupBy("queue", start).agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
    throughput = throughput.withColumn("per_second", F.col("messages") / width).orderBy("queue", "start")
    topics = frame.groupBy("queue", "topic").agg(F.count("*").alias("messages"), F.sum("bytes").alias("bytes"))
    topics = topics.orderBy(F.desc("messages"), "queue", "topic").limit(settings.topics)
    dead = frame.where("reason IS NOT NULL").groupBy("origin", "reason")
    letters = dead.agg(
        F.count("*").alias("messages"),
        F.avg("attempts").alias("mean_attempts"),
        F.max("attempts").alias("most_attempts"),
    )
    groups, attempts = _groups(settings)
    return {
        "throughput": _pandas(throughput),
        "sizes": _pandas(_quantiles(frame.groupBy("queue"), F.col("bytes"), "bytes")),
        "topics": _pandas(topics),
        "dead_letters": _pandas(letters.orderBy(F.desc("messages"), "origin", "reason")),
        "groups": groups,
        "waiting": _waiting(frame, groups, now),
        "attempts": attempts,
    }


def _quantiles(grouped: "object", column: "object", name: str) -> DataFrame:
    found = grouped.agg(  # type: ignore[attr-defined]
        F.count("*").alias("messages"),
        F.sum(column).alias("total"),  # type: ignore[arg-type]
        *[F.percentile_approx(column, share).alias(f"p{round(share * 100)}") for share in (0.5, 0.95, 0.99)],  # type: ignore[arg-type]
        F.max(column).alias("most"),  # type: ignore[arg-type]
    )
    renamed = found.withColumnsRenamed({each: f"{each}_{name}" for each in ("total", "p50", "p95", "p99", "most")})
    ordered: DataFrame = renamed.orderBy("queue")
    return ordered


def _waiting(frame: DataFrame, groups: pd.DataFrame, now: datetime) -> pd.DataFrame:
    """For how long the messages that a group has not finished have been in its queue."""
    columns = ["queue", "group", "messages", "p50_seconds", "p95_seconds", "p99_seconds", "most_seconds"]
    rows: list[pd.DataFrame] = []
    age = F.lit(now.timestamp()) - F.unix_micros("timestamp") / 1_000_000
    for each in groups.to_dict("records"):
        left = frame.where((F.col("queue") == each["queue"]) & (F.col("offset") >= int(each["committed"])))
        found = _pandas(_quantiles(left.groupBy("queue"), age, "seconds"))
        if len(found):
            rows.append(found.assign(group=each["name"])[columns])
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def _groups(settings: ReportSettings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """How far groups are and how often they had to be tried again, and the attempts of what is under way.

    Only a broker knows; of a data directory both are empty.
    """
    groups: list[dict[str, object]] = []
    pending: list[dict[str, object]] = []
    if settings.endpoint.is_broker:
        options = read_options({**settings.endpoint.options, "path": settings.queues})
        assert options.server is not None
        client = Client(options.server)
        found = client.json("GET", "/bulk/queues", [("name", name) for name in options.queues])["queues"]
        assert isinstance(found, dict)
        for queue in found:
            path = f"/api/v1/queues/{quote(settings.endpoint.vhost, safe='')}/{quote(queue, safe='')}/groups"
            for group in _items(client, path):
                groups.append(group)
                if group["pending"]:
                    rows = _items(client, f"{path}/{quote(str(group['name']), safe='')}/pending")
                    pending += [{"queue": queue, "group": group["name"], "attempts": row["attempts"]} for row in rows]
        client.close()
    counted = pd.DataFrame(pending, columns=["queue", "group", "attempts"])
    attempts = counted.groupby(["queue", "group", "attempts"]).size().reset_index(name="messages")
    return pd.DataFrame(groups, columns=list(_GROUP_COLUMNS)), attempts


def _items(client: Client, path: str) -> list[dict[str, object]]:
    items = client.json("GET", path, {"limit": _MANY})["items"]
    assert isinstance(items, list)
    return items


def bucket_seconds(first: datetime | None, last: datetime | None) -> int:
    """How wide the pieces of a period are."""
    whole = (last - first) if first is not None and last is not None else timedelta()
    return next((width for width in _WIDTHS if whole.total_seconds() / width <= BUCKETS), _WIDTHS[-1])


def _write_tables(directory: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_parquet(directory / f"{name}.parquet", index=False)


def _pandas(frame: DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = frame.toPandas()
    found.attrs = {}  # through Connect it has figures of the query, which no file can keep
    return found


def _aware(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _title(settings: ReportSettings, first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None:
        return f"Queues {settings.queues}: no messages in this period"
    form = "%Y-%m-%d %H:%M:%S"
    return f"Queues {settings.queues}, {first.strftime(form)} to {last.strftime(form)} UTC"

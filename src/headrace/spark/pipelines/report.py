"""Pipeline `report`: the traffic of queues in a period, as tables, plots and one page.

<report>/index.html             everything on one page that needs no other file
<report>/tables/NAME.parquet    the numbers
<report>/plots/NAME.svg, .png   the plots
<report>/.new/                  the next report, until it is whole
"""

import html
import io
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from headrace.spark.client import Client
from headrace.spark.options import read_options
from headrace.spark.pipelines.endpoint import Endpoint
from headrace.spark.pipelines.run import Progress, Tell, refusals, say_nothing

_PAGE: Final = "index.html"
_FRESH: Final = ".new"
BUCKETS: Final = 60
"""The most equal pieces of the period."""
_WIDTHS: Final = (1, 5, 10, 30, 60, 300, 600, 1800, 3600, 10_800, 21_600, 86_400, 604_800)
_GROUP_COLUMNS: Final = (
    "queue", "name", "mode", "lag", "ready", "pending", "consumers", "delivered", "redelivered", "acknowledged",
    "committed", "settled",
)  # fmt: skip
_MANY: Final = 1000
COLOURS: Final = ("#2563eb", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#14b8a6", "#ec4899", "#64748b")
MOST_LINES: Final = len(COLOURS)
_INK: Final = "#334155"
_GRID: Final = "#e2e8f0"
MOST_ROWS: Final = 200
_SECTIONS: Final = (
    ("Throughput", "throughput", "throughput", "Messages that entered the queues, a second."),
    ("Lag", "lag", "groups", "How many messages groups have not finished, now."),
    ("Time in queue", "waiting", "waiting", "For how long what a group has not finished has been waiting."),
    ("Retries", "retries", "attempts", "Deliveries that were not the first, since the broker was started."),
    ("Dead letters", "dead_letters", "dead_letters", "Messages that were given up, by queue and reason."),
    ("Hot topics", "topics", "topics", "The topics with the most messages."),
    ("Sizes", "sizes", "sizes", "How large payloads are."),
)
_STYLE: Final = """
:root { color-scheme: light; --ink: #0f172a; --soft: #64748b; --line: #e2e8f0; --paper: #fff; --back: #f8fafc; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 980px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 0; }
p { margin: 2px 0 12px; color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin: 20px 0; }
.fact, section { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
.fact { padding: 12px 16px; } .fact b { display: block; font-size: 22px; font-variant-numeric: tabular-nums; }
.fact span { color: var(--soft); font-size: 13px; }
section { padding: 18px 20px; margin: 16px 0; }
svg { width: 100%; height: auto; display: block; }
details { margin-top: 12px; } summary { cursor: pointer; color: var(--soft); font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } th.text, td.text { text-align: left; }
.none { color: var(--soft); font-style: italic; }
@media print { body { background: #fff; } section { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class ReportSettings:
    """The settings of a report: queues, and a period of message times."""

    endpoint: Endpoint
    queues: str
    directory: Path
    starting: str = "earliest"
    """A time such as `2026-01-31T12:00:00Z`, an offset, or earliest."""
    ending: str = "latest"
    topics: int = 20
    """The number of hot topics to show."""
    name: str = "report"


@dataclass(frozen=True)
class Report:
    """The tables of a report by name, and its period."""

    tables: Mapping[str, pd.DataFrame]
    first: datetime | None
    last: datetime | None
    messages: int
    page: Path


def run_report(spark: SparkSession, settings: ReportSettings, tell: Tell = say_nothing) -> Report:
    """Write the report, in place of an older one. Raises Refused."""
    now, started = datetime.now(UTC), time.monotonic()
    tell(Progress(settings.name, 0, 0, 0.0, phase="reading"))
    with refusals("the report cannot be made"):
        frame = _messages(spark, settings)
        (period,) = frame.agg(F.min("timestamp"), F.max("timestamp"), F.count("*")).collect()
        first, last, messages = _aware(period[0]), _aware(period[1]), int(period[2])
        tell(Progress(settings.name, messages, 0, time.monotonic() - started, phase="counting"))
        tables = _tables(frame, settings, now, first, last)
    tell(Progress(settings.name, messages, 0, time.monotonic() - started, phase="drawing"))
    fresh = settings.directory / _FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    _write_tables(fresh / "tables", tables)
    plots = draw(tables, fresh / "plots")
    write_page(fresh / _PAGE, tables, plots, _title(settings, first, last), messages, now)
    _put_in_place(fresh, settings.directory)
    tell(Progress(settings.name, messages, 1, time.monotonic() - started))
    return Report(tables, first, last, messages, settings.directory / _PAGE)


def _put_in_place(fresh: Path, directory: Path) -> None:
    """Replace an older report by a whole one, the page last."""
    for name in ("tables", "plots"):
        shutil.rmtree(directory / name, ignore_errors=True)
        (fresh / name).rename(directory / name)
    (fresh / _PAGE).replace(directory / _PAGE)
    fresh.rmdir()


def _messages(spark: SparkSession, settings: ReportSettings) -> DataFrame:
    """Return the columns of all tables, read once."""
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
        "sizes": _pandas(_quantiles(frame, F.col("bytes"), "bytes")),
        "topics": _pandas(topics),
        "dead_letters": _pandas(letters.orderBy(F.desc("messages"), "origin", "reason")),
        "groups": groups.drop(columns="settled"),
        "waiting": _waiting(frame, groups, now),
        "attempts": attempts,
    }


def _quantiles(frame: DataFrame, column: Column, unit: str) -> DataFrame:
    """Return count, total, quantiles and maximum of a column, by queue."""
    return (
        frame.groupBy("queue")
        .agg(
            F.count("*").alias("messages"),
            F.sum(column).alias(f"total_{unit}"),
            *[F.percentile_approx(column, share / 100).alias(f"p{share}_{unit}") for share in (50, 95, 99)],
            F.max(column).alias(f"most_{unit}"),
        )
        .orderBy("queue")
    )


def _waiting(frame: DataFrame, groups: pd.DataFrame, now: datetime) -> pd.DataFrame:
    """Return the age of the unsettled messages of each group."""
    columns = ["queue", "group", "messages", "p50_seconds", "p95_seconds", "p99_seconds", "most_seconds"]
    rows: list[pd.DataFrame] = []
    age = F.lit(now.timestamp()) - F.unix_micros("timestamp") / 1_000_000
    for each in groups.to_dict("records"):
        left = frame.where((F.col("queue") == each["queue"]) & (F.col("offset") >= int(each["committed"])))
        settled = each["settled"]
        for start, stop in settled if isinstance(settled, list) else []:
            left = left.where((F.col("offset") < start) | (F.col("offset") >= stop))
        found = _pandas(_quantiles(left, age, "seconds"))
        if len(found):
            rows.append(found.assign(group=each["name"])[columns])
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def _groups(settings: ReportSettings) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the progress and retries of groups, and the attempts of their claimed messages.

    Only a broker knows them; both are empty for a data directory.
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
    """Return the width of the pieces of a period."""
    whole = (last - first) if first is not None and last is not None else timedelta()
    return next((width for width in _WIDTHS if whole.total_seconds() / width <= BUCKETS), _WIDTHS[-1])


def _write_tables(directory: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_parquet(directory / f"{name}.parquet", index=False)


def _pandas(frame: DataFrame) -> pd.DataFrame:
    found: pd.DataFrame = frame.toPandas()
    found.attrs = {}  # through Connect it has query metrics, which Parquet cannot store
    return found


def _aware(time: datetime | None) -> datetime | None:
    return None if time is None else time.astimezone(UTC)


def _title(settings: ReportSettings, first: datetime | None, last: datetime | None) -> str:
    if first is None or last is None:
        return f"Queues {settings.queues}: no messages in this period"
    form = "%Y-%m-%d %H:%M:%S"
    return f"Queues {settings.queues}, {first.strftime(form)} to {last.strftime(form)} UTC"


# -- plots -------------------------------------------------------------------------------------------------------------


def draw(tables: Mapping[str, pd.DataFrame], directory: Path) -> dict[str, str]:
    """Draw every plot that has data, as SVG and PNG files; return the SVG texts by name."""
    from matplotlib import rc_context

    directory.mkdir(parents=True, exist_ok=True)
    texts: dict[str, str] = {}
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": "headrace"}):
        for name, (table, plot) in _PLOTS.items():
            if len(tables[table]):
                figure = _figure(tables[table], plot)
                texts[name] = _svg(figure)
                (directory / f"{name}.svg").write_text(texts[name])
                figure.savefig(directory / f"{name}.png", dpi=144)
    return texts


def _figure(table: pd.DataFrame, plot: Callable[[Axes, pd.DataFrame], float]) -> Figure:
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    height = plot(axes, table)
    figure.set_size_inches(9, height)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GRID)
    axes.tick_params(colors=_INK, labelsize=9, length=0)
    axes.set_axisbelow(True)
    return figure


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _plot_throughput(axes: Axes, table: pd.DataFrame) -> float:
    """Plot messages a second over time, a line for each of the busiest queues."""
    busiest = table.groupby("queue")["messages"].sum().sort_values(ascending=False).index[:MOST_LINES]
    times = pd.date_range(table["start"].min(), table["start"].max(), freq=_step(table))
    for colour, queue in zip(COLOURS, busiest, strict=False):
        values = table[table["queue"] == queue].set_index("start")["per_second"].reindex(times, fill_value=0.0)
        axes.plot(values.index, values.to_numpy(), color=colour, linewidth=1.8, label=queue, marker=_marker(len(times)))
        axes.fill_between(values.index, values.to_numpy(), color=colour, alpha=0.08, linewidth=0)
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color=_GRID, linewidth=0.8)
    axes.set_ylabel("messages a second", color=_INK, fontsize=9)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), labelcolor=_INK)
    return 3.2


def _step(table: pd.DataFrame) -> pd.Timedelta:
    """Return the width of the pieces: messages divided by messages a second."""
    row = table.iloc[0]
    return pd.Timedelta(seconds=round(row["messages"] / row["per_second"]))


def _marker(points: int) -> str:
    return "o" if points < 3 else ""


def _bars(axes: Axes, labels: list[str], values: list[float], colour: str) -> float:
    places = range(len(labels))
    axes.barh(places, values, color=colour, height=0.62)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(places, [label if len(label) <= 48 else label[:47] + "…" for label in labels])
    axes.set_xticks([])
    axes.set_xlim(0, max([*values, 1e-9]) * 1.12)
    for place, value in zip(places, values, strict=True):
        axes.text(value, place, f" {value:,.0f}", va="center", ha="left", fontsize=9, color=_INK)
    return 0.2 + 0.3 * len(labels)


def _plot_topics(axes: Axes, table: pd.DataFrame) -> float:
    labels = [f"{row.topic}  ({row.queue})" if row.topic != row.queue else row.queue for row in table.itertuples()]
    return _bars(axes, labels, table["messages"].tolist(), COLOURS[0])


def _plot_lag(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("lag", ascending=False).head(20)
    return _bars(axes, _group_labels(shown), shown["lag"].tolist(), COLOURS[1])


def _plot_dead_letters(axes: Axes, table: pd.DataFrame) -> float:
    labels = [f"{row.origin}: {row.reason}" for row in table.itertuples()]
    return _bars(axes, labels, table["messages"].tolist(), COLOURS[3])


def _plot_retries(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("redelivered", ascending=False).head(20)
    return _bars(axes, _group_labels(shown), shown["redelivered"].tolist(), COLOURS[4])


def _spread(axes: Axes, labels: list[str], table: pd.DataFrame, unit: str) -> float:
    """Plot median, 95 %, 99 % and maximum, a row each."""
    names = [f"p50_{unit}", f"p95_{unit}", f"p99_{unit}", f"most_{unit}"]
    places = range(len(labels))
    for place, (_, row) in zip(places, table.iterrows(), strict=True):
        values = [float(row[name]) for name in names]
        axes.plot([values[0], values[-1]], [place, place], color=_GRID, linewidth=6, solid_capstyle="round", zorder=1)
        axes.scatter(values, [place] * 4, c=[COLOURS[0], COLOURS[2], COLOURS[1], COLOURS[3]], s=34, zorder=2)
    for name, colour in zip(("median", "95 %", "99 %", "most"), (0, 2, 1, 3), strict=True):
        axes.scatter([], [], color=COLOURS[colour], s=34, label=name)
    axes.set_yticks(places, labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_xscale("symlog")
    axes.set_xlim(0, 1.3 * max(1.0, float(table[names[-1]].max())))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel(unit, color=_INK, fontsize=9)
    axes.grid(axis="x", color=_GRID, linewidth=0.8)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0), labelcolor=_INK)
    return 0.9 + 0.34 * len(labels)


def _plot_sizes(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("messages", ascending=False).head(20)
    return _spread(axes, shown["queue"].tolist(), shown, "bytes")


def _plot_waiting(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("messages", ascending=False).head(20)
    return _spread(axes, [f"{row.queue} / {row.group}" for row in shown.itertuples()], shown, "seconds")


def _group_labels(table: pd.DataFrame) -> list[str]:
    return [f"{queue} / {group}" for queue, group in zip(table["queue"], table["name"], strict=True)]


_PLOTS: Final[dict[str, tuple[str, Callable[[Axes, pd.DataFrame], float]]]] = {
    "throughput": ("throughput", _plot_throughput),
    "lag": ("groups", _plot_lag),
    "waiting": ("waiting", _plot_waiting),
    "retries": ("groups", _plot_retries),
    "dead_letters": ("dead_letters", _plot_dead_letters),
    "topics": ("topics", _plot_topics),
    "sizes": ("sizes", _plot_sizes),
}


# -- page --------------------------------------------------------------------------------------------------------------


def write_page(
    file: Path,
    tables: Mapping[str, pd.DataFrame],
    plots: Mapping[str, str],
    title: str,
    messages: int,
    now: datetime,
) -> None:
    """Write the page."""
    made = now.strftime("%Y-%m-%d %H:%M:%S UTC")
    sections = "".join(
        _section(heading, plots.get(plot), tables.get(table), text) for heading, plot, table, text in _SECTIONS
    )
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Queue report</h1><p>{html.escape(title)} · made {made}</p>"
        f'<div class="facts">{_facts(tables, messages)}</div>{sections}</main></body></html>\n'
    )
    file.write_text(page)


def _facts(tables: Mapping[str, pd.DataFrame], messages: int) -> str:
    throughput = tables["throughput"]
    busiest = throughput.groupby("start")["per_second"].sum().max() if len(throughput) else 0.0
    facts = {
        "messages": f"{messages:,}",
        "payload": _size(int(throughput["bytes"].sum()) if len(throughput) else 0),
        "queues": f"{throughput['queue'].nunique():,}",
        "most a second": f"{busiest:,.1f}",
        "not finished": f"{int(tables['groups']['lag'].sum()):,}",
        "dead letters": f"{int(tables['dead_letters']['messages'].sum()):,}",
    }
    return "".join(f'<div class="fact"><b>{value}</b><span>{name}</span></div>' for name, value in facts.items())


def _section(heading: str, plot: str | None, table: pd.DataFrame | None, text: str) -> str:
    body = plot or '<div class="none">nothing in this period</div>'
    if table is not None and len(table):
        body += f'<details><summary>the numbers</summary><div class="wide">{_table(table)}</div></details>'
    return f"<section><h2>{heading}</h2><p>{text}</p>{body}</section>"


def _table(table: pd.DataFrame) -> str:
    texts = [not pd.api.types.is_numeric_dtype(table[name]) for name in table.columns]
    head = "".join(_cell("th", name.replace("_", " "), text) for name, text in zip(table.columns, texts, strict=True))
    rows = "".join(
        "<tr>" + "".join(_cell("td", _shown(value), text) for value, text in zip(row, texts, strict=True)) + "</tr>"
        for row in table.head(MOST_ROWS).itertuples(index=False)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _cell(tag: str, value: str, is_text: bool) -> str:
    return f"<{tag}{' class=text' if is_text else ''}>{html.escape(value)}</{tag}>"


def _shown(value: object) -> str:
    if value is None or value is pd.NaT or (isinstance(value, float) and value != value):
        return "-"
    if isinstance(value, float):
        return f"{value:,.2f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1024
    return f"{size:,.1f} TiB"

"""The plots of a report, as files and for its page. No numbers are made here."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS: Final = ("#2563eb", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#14b8a6", "#ec4899", "#64748b")
MOST_LINES: Final = len(COLOURS)
_INK: Final = "#334155"
_GRID: Final = "#e2e8f0"


def draw(tables: Mapping[str, pd.DataFrame], directory: Path) -> dict[str, str]:
    """Draw every plot there are numbers for, as SVG and PNG files; returns the SVG texts by name."""
    from matplotlib import rc_context

    directory.mkdir(parents=True, exist_ok=True)
    for old in [*directory.glob("*.svg"), *directory.glob("*.png")]:
        old.unlink()
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


def _lines(axes: Axes, table: pd.DataFrame) -> float:
    """Messages a second over time, a line per queue; the busiest have one of their own."""
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
    """How wide the pieces are, as the table shows it: messages by messages a second."""
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


def _topics(axes: Axes, table: pd.DataFrame) -> float:
    labels = [f"{row.topic}  ({row.queue})" if row.topic != row.queue else row.queue for row in table.itertuples()]
    return _bars(axes, labels, table["messages"].tolist(), COLOURS[0])


def _lag(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("lag", ascending=False).head(20)
    return _bars(axes, _groups(shown), shown["lag"].tolist(), COLOURS[1])


def _dead(axes: Axes, table: pd.DataFrame) -> float:
    labels = [f"{row.origin}: {row.reason}" for row in table.itertuples()]
    return _bars(axes, labels, table["messages"].tolist(), COLOURS[3])


def _retries(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("redelivered", ascending=False).head(20)
    return _bars(axes, _groups(shown), shown["redelivered"].tolist(), COLOURS[4])


def _spread(axes: Axes, labels: list[str], table: pd.DataFrame, unit: str) -> float:
    """From the median over 95 and 99 of a hundred to the largest, a row each."""
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


def _sizes(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("messages", ascending=False).head(20)
    return _spread(axes, shown["queue"].tolist(), shown, "bytes")


def _waiting(axes: Axes, table: pd.DataFrame) -> float:
    shown = table.sort_values("messages", ascending=False).head(20)
    return _spread(axes, [f"{row.queue} / {row.group}" for row in shown.itertuples()], shown, "seconds")


def _groups(table: pd.DataFrame) -> list[str]:
    return [f"{queue} / {group}" for queue, group in zip(table["queue"], table["name"], strict=True)]


_PLOTS: Final[dict[str, tuple[str, Callable[[Axes, pd.DataFrame], float]]]] = {
    "throughput": ("throughput", _lines),
    "lag": ("groups", _lag),
    "waiting": ("waiting", _waiting),
    "retries": ("groups", _retries),
    "dead_letters": ("dead_letters", _dead),
    "topics": ("topics", _topics),
    "sizes": ("sizes", _sizes),
}

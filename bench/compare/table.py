"""Results as tables for a terminal. What is compared with what is in comparison.py."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bench.compare.comparison import Entry, entries, ours_of, ratio, shown_ratio
from bench.compare.course import BUSY_CORES
from bench.compare.result import Result

_OTHERS: Final = 0.3
_MIB: Final = 1 << 20


def _rate(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.2f} M/s"
    return f"{value / 1e3:.1f} k/s" if value >= 1e4 else f"{value:,.0f}/s"


def _cpu(value: float) -> str:
    return f"{value:.1f} us" if value >= 1 else f"{value:.2f} us"


def _latency(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:.1f} s"
    return f"{value / 1000:.1f} ms" if value >= 1000 else f"{value:.0f} us"


def _memory(value: float) -> str:
    return f"{value / _MIB:,.0f} MiB"


_COLUMNS: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "rate": ("rate", _rate),
    "cpu": ("CPU each", _cpu),
    "p50": ("p50", _latency),
    "p99": ("p99", _latency),
    "memory": ("memory", _memory),
}


def shown(figure: str, value: float) -> str:
    """A figure with its unit."""
    return _COLUMNS[figure][1](value)


def comparison_table(results: Sequence[Result]) -> Table:
    """A line for each broker in each row: its medians, and by what ours is a multiple of them."""
    found = entries(results)
    table = Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column("what", overflow="fold")
    table.add_column("broker", no_wrap=True)
    for title, _ in _COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    row = ""
    for entry in found:
        if entry.is_silent:
            continue
        if entry.row != row:
            table.add_section()
        cells = [_cell(entry, ours_of(found, entry.row), figure) for figure in _COLUMNS]
        table.add_row(Text(entry.title if entry.row != row else ""), Text(entry.broker), *cells)
        row = entry.row
    return table


def _cell(entry: Entry, ours: Entry | None, figure: str) -> Text:
    value = entry.median(figure)
    if value is None:
        return _absent(entry) if figure == "rate" else Text("")
    text = Text(shown(figure, value))
    if figure == "rate" and entry.is_generator_bound:
        text.append(" *", style="yellow")
    times = ratio(ours, entry, figure)
    if times is not None:
        is_better = times >= 1 if figure == "rate" else times <= 1
        text.append(f"\n{shown_ratio(times)}x", style="green" if is_better else "red")
    return text


def _absent(entry: Entry) -> Text:
    is_failure = any(result.verdict == "failed" for result in entry.results)
    return Text("failed", style="red") if is_failure else Text("cannot", style="dim")


def remarks(results: Sequence[Result]) -> list[Text]:
    """Notes below the table: why a row failed or cannot be, and whose figure is the generator's."""
    found = entries(results)
    notes = [Text(f"x: {found[0].broker} has so many times the figure above it", style="dim")] if found else []
    if any(entry.is_generator_bound for entry in found):
        notes.append(Text(f"*: the generator was the limit, at {BUSY_CORES:.0%} of a core or more", style="yellow"))
    busy = max([result.other_cores or 0.0 for result in results], default=0.0)
    if busy > _OTHERS:
        words = f"other programs used up to {busy:.1f} cores meanwhile: rates and latencies are worth little, CPU more"
        notes.append(Text(words, style="yellow"))
    silent: dict[str, list[str]] = {}
    for entry in found:
        stripped = sum(result.stripped for result in entry.results)
        if stripped:
            words = f"{entry.broker} lost ids or headers of {stripped:,} messages at {entry.row}"
            notes.append(Text(words, style="yellow"))
        for verdict in dict.fromkeys(result.verdict for result in entry.bad()):
            bad = [result for result in entry.bad() if result.verdict == verdict]
            if entry.is_silent:
                continue
            if verdict == "failed":
                words = f"{entry.broker} failed {len(bad)} of {len(entry.results)} times at {entry.row}: {bad[0].why}"
                notes.append(Text(words, style="red"))
            else:
                silent.setdefault(f"{entry.broker} cannot: {bad[0].why}", []).append(entry.row)
    return notes + [Text(f"{words} ({', '.join(rows)})", style="dim") for words, rows in silent.items()]


def scale_table(results: Sequence[Result]) -> Table:
    """Server CPU per message at each point of each axis, and its ratio to the first."""
    table = Table(header_style="bold")
    for title in ("as it grows", "broker"):
        table.add_column(title)
    for title in ("CPU each", "to the first", "rate", "memory"):
        table.add_column(title, justify="right")
    bases: dict[tuple[str, str], float] = {}
    for entry in entries(results):
        cpu = entry.median("cpu")
        key = entry.results[0].axis, entry.broker
        if cpu is not None:
            bases.setdefault(key, cpu)
        shown = [_cell(entry, None, figure) for figure in ("cpu", "rate", "memory")]
        times = Text("-" if cpu is None else f"{cpu / bases[key]:.2f}x")
        table.add_row(Text(entry.title), Text(entry.broker), shown[0], times, shown[1], shown[2])
    return table

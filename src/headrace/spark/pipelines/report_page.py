"""The page of a report: one HTML file with its plots and tables in it, that loads nothing. No numbers, no plots."""

import html
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import pandas as pd

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


def write_page(
    file: Path,
    tables: Mapping[str, pd.DataFrame],
    plots: Mapping[str, str],
    title: str,
    messages: int,
    now: datetime,
) -> None:
    """Write the page in one go."""
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
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_suffix(".tmp")
    fresh.write_text(page)
    fresh.replace(file)


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

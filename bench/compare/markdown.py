"""Results as a page of Markdown, for docs/benchmarks. What is compared with what is in comparison.py."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison import Entry, entries, ours_of, ratio, shown_ratio
from bench.compare.result import Result
from bench.compare.table import remarks, shown

_FIGURES: Final = ("rate", "cpu", "p50", "p99")


def page(results: Sequence[Result], record: Mapping[str, Any], command: str) -> str:
    """A heading with the date, how to repeat it, the machine, a line for each row, and the remarks."""
    machine = record["machine"]
    form = "compiled" if machine["compiled"] else "interpreted"
    versions = ", ".join(f"{name} {version}" for name, version in record["brokers"].items())
    rounds, seconds = record["settings"]["rounds"], record["settings"]["seconds"]
    lines = [
        f"# {machine['date'][:10]}",
        "",
        f"`{command}`: medians of {rounds} interleaved rounds of {seconds:g} s; ratios are of the same round.",
        f"{machine['cores']} cores ({machine['processor']}), Linux {machine['kernel']}, Python {machine['python']} "
        f"({form}), {machine['file_system']}; {versions}.",
        "",
        "Each cell: messages a second, server CPU a message, p50 / p99. In brackets: our rate and CPU as multiples of "
        "the peer's.",
        "",
        *_table(entries(results)),
        "",
        *[f"- {note.plain}" for note in remarks(results)[1:]],
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(found: Sequence[Entry]) -> list[str]:
    brokers = list(dict.fromkeys(entry.broker for entry in found))
    cells = {(entry.row, entry.broker): entry for entry in found}
    lines = [f"| what | {' | '.join(brokers)} |", "|---" * (len(brokers) + 1) + "|"]
    for row in dict.fromkeys(entry.row for entry in found):
        ours = ours_of(found, row)
        assert ours is not None
        texts = [_cell(ours, cells.get((row, broker))) for broker in brokers]
        lines.append(f"| {ours.title} | {' | '.join(texts)} |")
    return lines


def _cell(ours: Entry, entry: Entry | None) -> str:
    if entry is None or entry.is_silent:
        return ""
    values = {name: entry.median(name) for name in _FIGURES}
    if values["rate"] is None:
        return "failed" if any(result.verdict == "failed" for result in entry.results) else "cannot"
    texts = {name: shown(name, value) for name, value in values.items() if value is not None}
    said = texts["rate"] + (" *" if entry.is_generator_bound else "")
    said += f", {texts['cpu']}" if "cpu" in texts else ""
    said += f", {texts['p50']} / {texts['p99']}" if "p50" in texts and "p99" in texts else ""
    times = [shown_ratio(found) for name in ("rate", "cpu") if (found := ratio(ours, entry, name)) is not None]
    return f"{said} ({', '.join(times)})" if times else said


def write_page(text: str, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)

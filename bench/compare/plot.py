"""Results as pictures, where matplotlib is installed. What is compared with what is in comparison.py."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison import FIGURES, Entry, entries, ours_of, ratio, shown_ratio
from bench.compare.result import Result
from bench.compare.scaling import TITLES

_SUFFIXES: Final = (".svg", ".png")
_PANELS: Final = ("rate", "cpu", "p99", "memory")


def is_possible() -> bool:
    return find_spec("matplotlib") is not None


def draw_comparison(results: Sequence[Result], stem: Path) -> list[Path]:
    """Bars of the ratios, a panel for each figure; returns the files. Nothing is drawn without a peer."""
    found = entries(results)
    rows = [entry for entry in found if any(ratio(ours_of(found, entry.row), entry, name) for name in _PANELS)]
    if not rows:
        return []
    first = found[0].broker
    figure, panels = _figure(len(_PANELS), 3.4, 1.2 + 0.28 * len(rows))
    brokers = list(dict.fromkeys(entry.broker for entry in rows))
    for panel, name in zip(panels, _PANELS, strict=True):
        _draw_bars(panel, name, rows, found, brokers)
        panel.set_title(f"{FIGURES[name]}, {first} / peer", fontsize=9)
    panels[0].set_yticks(range(len(rows)), [f"{entry.title} | {entry.broker}" for entry in rows], fontsize=8)
    for panel in panels[1:]:
        panel.set_yticks([])
    return _saved(figure, stem)


def _draw_bars(panel: Any, name: str, rows: list[Entry], found: list[Entry], brokers: list[str]) -> None:
    for place, entry in enumerate(rows):
        times = ratio(ours_of(found, entry.row), entry, name)
        if times:
            panel.barh(place, times - 1, left=1, color=f"C{brokers.index(entry.broker)}", height=0.7)
            panel.annotate(shown_ratio(times), (times, place), fontsize=7, va="center")
    panel.set_xscale("log")
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.margins(x=0.15)
    panel.tick_params(labelsize=7)


def draw_scale(results: Sequence[Result], stem: Path) -> list[Path]:
    """Server CPU per message over size, a panel for each axis; returns the files."""
    found = [entry for entry in entries(results) if entry.median("cpu") is not None]
    axes = list(dict.fromkeys(entry.results[0].axis for entry in found))
    if not axes:
        return []
    figure, panels = _figure(len(axes), 3.6, 3.4)
    for panel, axis in zip(panels, axes, strict=True):
        for broker in dict.fromkeys(entry.broker for entry in found):
            points = [entry for entry in found if entry.broker == broker and entry.results[0].axis == axis]
            sizes = [max(entry.results[0].point, 1) for entry in points]  # a logarithmic axis has no 0
            panel.plot(sizes, [entry.median("cpu") for entry in points], marker="o", label=broker)
        panel.set_xscale("log")
        panel.set_ylim(0, 1.15 * max(entry.median("cpu") or 0 for entry in found if entry.results[0].axis == axis))
        panel.set_xlabel(TITLES[axis], fontsize=8)
        panel.tick_params(labelsize=7)
    panels[0].set_ylabel("server CPU per message, us", fontsize=8)
    panels[0].legend(fontsize=8)
    return _saved(figure, stem)


def _figure(panels: int, width: float, height: float) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure  # heavy, and only needed here

    figure = Figure(figsize=(width * panels, height), layout="constrained")
    return figure, list(figure.subplots(1, panels, squeeze=False)[0])


def _saved(figure: Any, stem: Path) -> list[Path]:
    files = [stem.with_suffix(suffix) for suffix in _SUFFIXES]
    for file in files:
        figure.savefig(file, dpi=130)
    return files

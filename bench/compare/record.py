"""Everything that was measured, as one JSON file. Nothing is rounded away or left out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.compare.comparison import FIGURES, entries, ours_of, ratio
from bench.compare.machine import describe
from bench.compare.result import Result

FORMAT: Final = 1


def make_record(
    results: Sequence[Result], versions: Mapping[str, str], settings: Mapping[str, object]
) -> dict[str, Any]:
    """Machine, brokers, settings, every raw result, and the ratios that follow from them."""
    found = entries(results)
    ratios = [
        {
            "row": entry.row,
            "broker": entry.broker,
            **{name: ratio(ours_of(found, entry.row), entry, name) for name in FIGURES},
        }
        for entry in found
        if ours_of(found, entry.row) is not entry
    ]
    return {
        "format": FORMAT,
        "machine": describe(),
        "brokers": dict(versions),
        "settings": dict(settings),
        "results": [asdict(result) for result in results],
        "ratios": ratios,
    }


def write_record(record: Mapping[str, Any], file: Path) -> None:
    file.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")

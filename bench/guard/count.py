"""Counts instructions per message, which a busy machine does not change, and compares them with what is recorded.

python -m bench.guard.count              exits with 1 when something takes more than it did
python -m bench.guard.count --record     what is counted now is what is expected from now on

The record has two columns. `--record` replaces the instructions and names all that rose; the baseline stays, so small
rises add up where everybody sees them.

Needs valgrind. Counts the package that Python finds: PYTHONPATH=build/compiled for the compiled one.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from bench.guard.scenarios import COUNT
from headrace.version import IS_COMPILED

HERE = Path(__file__).parent
RECORD = HERE / "instructions.json"
TOLERANCE = 0.05
TOLERANCE_ELSEWHERE = 1.0
"""For another Python, compiler or machine than the one that was recorded: only what is grossly wrong is seen there."""
FORM = "compiled" if IS_COMPILED else "interpreted"
TOOLS = f"Python {sys.version}, mypy {version('mypy')}, {platform.machine()}"
Counts = dict[str, int]


def count() -> Counts:
    """Instructions per message, scenario by scenario. Raises RuntimeError with what valgrind said."""
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "names"
        totals = count_module("scenarios", str(names))
        return {name: total // COUNT for name, total in zip(names.read_text().splitlines(), totals, strict=True)}


def count_module(module: str, *arguments: str) -> list[int]:
    """The instructions that a module takes between each two marks. Raises RuntimeError with what valgrind said."""
    with tempfile.TemporaryDirectory() as folder:
        dumps = Path(folder) / "dump"
        command = ["valgrind", "--tool=callgrind", "--dump-before=getsid", f"--callgrind-out-file={dumps}"]
        ended = subprocess.run(
            [*command, sys.executable, "-m", f"bench.guard.{module}", *arguments],
            cwd=HERE.parents[1],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
        )
        if ended.returncode:
            raise RuntimeError(ended.stderr[-4000:])
        # Dump 1 ends with the first mark, dump 2 with the second: those with even numbers are between two.
        marks = len(list(dumps.parent.glob("dump.*")))
        return [_total(Path(f"{dumps}.{number}")) for number in range(2, marks + 1, 2)]


def _total(dump: Path) -> int:
    found = re.search(r"^(?:totals|summary): (\d+)", dump.read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"callgrind's {dump.name} says no total")
    return int(found[1])


def compare(counts: Counts, recorded: Counts, baseline: Counts) -> None:
    """Show all counts beside both columns of the record."""
    print(
        f"{f'instructions per message, {FORM}':<42}{'baseline':>9}{'recorded':>9}{'now':>9}  since then, and baseline"
    )
    for name, now in counts.items():
        first, before = baseline.get(name), recorded.get(name)
        changes = f"{_change(now, before):>9}{_change(now, first):>9}"
        print(f"{name:<42}{first or '':>9}{before or '':>9}{now:>9}  {changes}")


def _change(now: int, before: int | None) -> str:
    return "new" if before is None else f"{now / before - 1:+.1%}"


def risen(counts: Counts, before: Counts, tolerance: float) -> list[str]:
    """The scenarios that take more than before, each with its change."""
    return [
        f"{name} ({_change(now, before.get(name))})"
        for name, now in counts.items()
        if name not in before or now > before[name] * (1 + tolerance)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write down what is counted now")
    to_record = parser.parse_args().record
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    recorded = record.get(FORM, {"tools": TOOLS, "baseline": {}, "instructions": {}})
    tolerance = TOLERANCE if recorded["tools"] == TOOLS else TOLERANCE_ELSEWHERE
    before = recorded["instructions"]
    counts = count()
    slower = risen(counts, before, tolerance)
    if any(name in before and counts[name] > before[name] * (1 + tolerance) for name in counts):
        # Runs in which the writer's thread takes part differ by up to 4 %: the lower of two counts is what it takes.
        counts = {name: min(counted, counts[name]) for name, counted in count().items()}
        slower = risen(counts, before, tolerance)
    compare(counts, before, recorded["baseline"])
    if to_record:
        baseline = {name: recorded["baseline"].get(name, counted) for name, counted in counts.items()}
        record[FORM] = {"tools": TOOLS, "baseline": baseline, "instructions": counts}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
        print(f"more than recorded before: {', '.join(slower) or 'nothing'}")
        print(f"more than the baseline: {', '.join(risen(counts, baseline, TOLERANCE)) or 'nothing'}")
        print("Say in the commit why each of these is worth it.")
    elif slower:
        sys.exit(
            f"more than {tolerance:.0%} above what is recorded: {', '.join(slower)}. If that is the price of something "
            f"worth it, record it: python -m bench.guard.count --record"
        )


if __name__ == "__main__":
    main()

"""Counts instructions per message, which a busy machine does not change, and compares them with what is recorded.

python -m bench.guard.count              exits with 1 when something takes more than it did
python -m bench.guard.count --record     what is counted now is what is expected from now on

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
TOLERANCE = 0.10
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


def compare(counts: Counts, recorded: Counts, tolerance: float) -> list[str]:
    """Show all; returns what takes more than it may."""
    slower: list[str] = []
    for name, now in counts.items():
        before = recorded.get(name)
        change = "not recorded" if before is None else f"{now / before - 1:+.1%}"
        print(f"{name:<42}{before or '':>9}{now:>9}  {change}")
        if before is None or now > before * (1 + tolerance):
            slower.append(name)
    return slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write down what is counted now")
    to_record = parser.parse_args().record
    counts = count()
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    recorded = record.get(FORM, {"tools": TOOLS, "instructions": {}})
    tolerance = TOLERANCE if recorded["tools"] == TOOLS else TOLERANCE_ELSEWHERE
    print(f"{f'instructions per message, {FORM}':<42}{'recorded':>9}{'now':>9}")
    slower = compare(counts, recorded["instructions"], tolerance)
    if to_record:
        record[FORM] = {"tools": TOOLS, "instructions": counts}
        RECORD.write_text(json.dumps(record, indent=2) + "\n")
    elif slower:
        sys.exit(
            f"more than {tolerance:.0%} above what is recorded: {', '.join(slower)}. If that is the price of something "
            f"worth it, record it: python -m bench.guard.count --record"
        )


if __name__ == "__main__":
    main()

"""Counts the instructions of a message as things grow: the points of `bench.compare --scale`, without its noise.

python -m bench.guard.growth                         all points, two at a time; takes half an hour
python -m bench.guard.growth 'scale-scattered-*'

Needs valgrind. Counts the package that Python finds: PYTHONPATH=build/compiled for the compiled one.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from bench.compare.catalog import choose
from bench.compare.load import Scenario
from bench.compare.scaling import TITLES, points
from bench.guard.count import FORM, count_module
from bench.guard.growing import MESSAGES


def count(scenario: Scenario) -> int:
    (total,) = count_module("growing", scenario.name)
    return total // MESSAGES


def main() -> None:
    steady = [point for point in points() if not point.loads[0].rate]  # at a fixed rate it is the waiting that counts
    chosen = choose(steady, sys.argv[1:] or ["*"])
    print(f"{f'instructions per message, {FORM}':<58}{'':>9}  to the first")
    first: dict[str, int] = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for scenario, found in zip(chosen, pool.map(count, chosen), strict=True):
            ratio = found / first.setdefault(scenario.axis, found)
            print(f"{scenario.point:>10,} {TITLES[scenario.axis]:<57}{found:>9,}{ratio:>14.2f}", flush=True)


if __name__ == "__main__":
    main()

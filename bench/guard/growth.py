"""Counts the instructions that a message takes as things grow: the work of `headrace bench --scale`, without its noise.

python bench/guard/growth.py                         all points, two at a time; takes half an hour
python bench/guard/growth.py 'scale-scattered-*'

Needs valgrind. Counts the package that Python finds: PYTHONPATH=build/compiled for the compiled one.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from count import FORM, count_script
from growing import MESSAGES

from headrace.bench.catalog import choose
from headrace.bench.load import Scenario
from headrace.bench.scaling import TITLES, points


def count(scenario: Scenario) -> int:
    (total,) = count_script("growing.py", scenario.name)
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

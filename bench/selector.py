"""Cost of a filter for a message: time of one evaluation, of one parse, and of importing the package."""

import subprocess
import sys
import timeit

from headrace.selector import MappingRow, parse

EXPRESSIONS = [
    "topic LIKE 'orders/%' AND priority > 3 AND region = 'eu'",
    "topic LIKE 'orders/%' AND priority > 9 AND region = 'eu'",
    "region = 'eu'",
    "amount > 99",
    "amount > 99.5",
    "region IN ('us', 'eu', 'ap')",
    "topic LIKE 'orders/%/_'",
    "priority * 2 + 1 > 10",
    "NOT (region = 'us' OR priority BETWEEN 0 AND 3)",
]
ROW = MappingRow({"topic": "orders/eu/1", "priority": 5}, {"region": "eu", "amount": "100"})

IMPORT = """
import abc, collections.abc, decimal, re, time, typing
def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4
before, start = resident(), time.perf_counter()
import headrace.selector
print(f"import: {(time.perf_counter() - start) * 1e3:.1f} ms, {resident() - before} KiB more")
"""


def main() -> None:
    print(f"{'evaluate':>9} {'parse':>9}")
    for text in EXPRESSIONS:
        names = {"test": parse(text).matches, "row": ROW, "parse": parse, "text": text}
        evaluate_ns = min(timeit.repeat("test(row)", globals=names, number=20_000, repeat=9)) / 20_000 * 1e9
        parse_us = min(timeit.repeat("parse(text)", globals=names, number=200, repeat=5)) / 200 * 1e6
        print(f"{evaluate_ns:6.0f} ns {parse_us:6.0f} us  {text}")
    subprocess.run([sys.executable, "-c", IMPORT], check=True)


if __name__ == "__main__":
    main()

"""`make differential`: random programs on Headrace and on the brokers that are installed beside it."""

import argparse
import sys

from tests.differential.trial import KINDS, trial


def main() -> int:
    """Run the programs; returns 1 if a difference is not in the table of the docs."""
    parser = argparse.ArgumentParser(prog="python -m tests.differential", description=__doc__)
    parser.add_argument("--programs", type=int, default=10_000, help="how many programs for each protocol")
    parser.add_argument("--first", type=int, default=0, help="seed of the first program")
    parser.add_argument("--most", type=int, default=20, help="stop after this many differences")
    parser.add_argument("--only", choices=[kind.name for kind in KINDS], help="one protocol alone")
    options = parser.parse_args()
    found = 0
    for kind in KINDS:
        if options.only not in (None, kind.name):
            continue
        if kind.peer.find() is None:
            print(f"{kind.name}: {kind.peer.name} is not installed, nothing is compared")
            continue
        with trial(kind) as running:
            count = 0
            for seed in range(options.first, options.first + options.programs):
                finding = running.check(seed)
                count += 1
                if finding is not None:
                    found += 1
                    print(f"{kind.name}, {finding}", flush=True)
                if found >= options.most:
                    break
            print(f"{kind.name}: {count} programs beside {kind.peer.name}, {len(running.used)} known differences seen")
    print(f"{found} unexplained differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""`scripts/mutate`: the mutants of some modules that no test notices."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from tests.mutation.coverage import ROOT
from tests.mutation.runner import Runner

TESTS = ("tests/unit/core", "tests/unit/protocols", "tests/property", "tests/conformance")


def main() -> int:
    """Run tests against each mutant that was not run yet, and print those that are left."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, help="modules, as in src/headrace/core/batch.py")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files and folders of tests")
    parser.add_argument("--again", action="store_true", help="run those again that were left without a reason")
    parser.add_argument(
        "--seconds", type=float, default=4, help="processor time for each mutant; nearest tests go first"
    )
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(prefix="headrace-mutation-"))
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as out:  # pytest captures the other
        runner = Runner([path.resolve() for path in options.files], options.again, options.seconds, scratch, out)
        quiet = ("-qq", "-n0", "-p", "no:cacheprovider", "-o", "timeout=0", f"--basetemp={scratch / 'tests'}")
        try:
            return int(pytest.main([*quiet, f"--rootdir={ROOT}", *options.tests], plugins=[runner]))
        finally:
            shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(main())

"""The broker's own process: `headrace serve` becomes it once its arguments are read. What it does is in app.py.

The libraries behind the command line weigh as much as an idle broker (measured: 48 MB with them, 34 MB without), and
nobody needs them while it serves. The process id stays the same, so supervisors and ready files notice nothing.
"""

import os
import pickle
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import final

from headrace.app import serve
from headrace.engines import OpenEngine, open_engine
from headrace.errors import Corrupt, Fatal, HeadraceError, Refused
from headrace.exits import EXIT_DISK_FAILED, EXIT_PROBLEMS, EXIT_USAGE
from headrace.launch import Launch, become


def run(launch: Launch, opener: OpenEngine = open_engine) -> int:
    """Serve until told to stop; returns the exit code, after a line on stderr where it is not 0."""
    try:
        configuration = launch.read()
    except Refused as error:
        return _failed(str(error), EXIT_USAGE)
    try:
        serve(launch, configuration, opener=opener, start_over=become)
    except Fatal as error:
        return _failed(str(error), EXIT_DISK_FAILED)
    except Corrupt as error:
        if configuration.settings.storage.store:
            return _failed(str(error), EXIT_PROBLEMS)
        data = configuration.settings.storage.data
        return _failed(f"{error}; `headrace doctor {data}` examines the whole directory", EXIT_PROBLEMS)
    except HeadraceError as error:
        return _failed(str(error), EXIT_PROBLEMS)
    return 0


def _failed(message: str, code: int) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return code


@final
class _NoPandas(MetaPathFinder):
    """Has pyarrow do without pandas, which it imports to make an array of any list, in case that is one of pandas'.

    Where it is installed, as Spark wants it to be, that took the first reader of a queue in bulk 0.25 s, in which
    nobody else was served, and 55 MB of memory for good.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a broker does without pandas", name=fullname)


def _main() -> None:
    sys.meta_path.insert(0, _NoPandas())
    with os.fdopen(int(sys.argv.pop(1)), "rb") as pipe:  # written by `become`, nobody else has the other end
        launch = pickle.load(pipe)
    sys.exit(run(launch))


if __name__ == "__main__":
    _main()

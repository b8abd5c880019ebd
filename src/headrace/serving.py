"""The broker's own process: `headrace serve` becomes it once its arguments are read. What it does is in app.py.

The libraries behind the command line weigh as much as an idle broker (measured: 48 MB with them, 34 MB without), and
nobody needs them while it serves. The process id stays the same, so supervisors and ready files notice nothing.
"""

import os
import pickle
import sys
from typing import NoReturn

from headrace.app import OpenEngine, ServeSettings, open_engine, serve
from headrace.errors import Corrupt, Fatal, HeadraceError
from headrace.exits import EXIT_DISK_FAILED, EXIT_PROBLEMS


def become(settings: ServeSettings) -> NoReturn:
    """Replace this process by one that serves as it was told, and has loaded nothing else."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.write(writer, pickle.dumps(settings))
    os.close(writer)
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", "headrace.serving", str(reader), *sys.argv[1:]])


def run(settings: ServeSettings, opener: OpenEngine = open_engine) -> int:
    """Serve until told to stop; returns the exit code, after a line on stderr where it is not 0."""
    try:
        serve(settings, opener=opener)
    except Fatal as error:
        return _failed(str(error), EXIT_DISK_FAILED)
    except Corrupt as error:
        return _failed(f"{error}; `headrace doctor {settings.data}` examines the whole directory", EXIT_PROBLEMS)
    except HeadraceError as error:
        return _failed(str(error), EXIT_PROBLEMS)
    return 0


def _failed(message: str, code: int) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return code


def _main() -> None:
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:  # written by `become`, nobody else has the other end
        settings = pickle.load(pipe)
    sys.exit(run(settings))


if __name__ == "__main__":
    _main()

"""The arguments of `headrace serve`, their configuration, and the step into the broker's own process.

The command line loads this module, so it imports no room but the configuration's.
"""

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, final

from headrace.config.configuration import Configuration, Flags, load
from headrace.core.queue.configured import FILE_QUEUE
from headrace.process import python


@final
@dataclass(frozen=True)
class Launch:
    """The arguments of one start."""

    file: Path | None = None
    flags: Flags = field(default_factory=dict)
    ready_file: Path | None = None
    """The file that gets pid, data directory and ports once the broker serves."""
    sockets: tuple[tuple[str, int], ...] = ()
    """Open listeners that the process inherits: names and descriptors."""

    def read(self) -> Configuration:
        """Read the configuration as it is now. Raises Refused."""
        return load(FILE_QUEUE, self.file, os.environ, self.flags)


def become(launch: Launch) -> NoReturn:
    """Replace this process by the broker's, which loads nothing of the command line. The process id stays."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.write(writer, pickle.dumps(launch))
    os.close(writer)
    sys.stdout.flush()
    os.execv(sys.executable, python("-m", "headrace.app", str(reader), *sys.argv[1:]))

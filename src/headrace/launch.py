"""What `headrace serve` was asked for, the configuration that follows, and the way into the process that does it.

Part of what the command line loads: it knows no room but the configuration's.
"""

import os
import pickle
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, final

from headrace.children import python
from headrace.config.configuration import Configuration, Flags, load
from headrace.core.queue.configured import FILE_QUEUE


@final
@dataclass(frozen=True)
class Launch:
    """What `headrace serve` was asked for."""

    file: Path | None = None
    flags: Flags = field(default_factory=dict)
    ready_file: Path | None = None
    """Where to write pid, data directory and ports once it serves."""
    sockets: tuple[tuple[str, int], ...] = ()
    """Listeners that this process has already, by name, with their descriptors."""

    def read(self) -> Configuration:
        """The configuration as it is now. Raises Refused."""
        return load(FILE_QUEUE, self.file, os.environ, self.flags)


def become(launch: Launch) -> NoReturn:
    """Replace this process by one that serves as it was told, and has loaded nothing else."""
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    os.write(writer, pickle.dumps(launch))
    os.close(writer)
    sys.stdout.flush()
    os.execv(sys.executable, python("-m", "headrace.serving", str(reader), *sys.argv[1:]))

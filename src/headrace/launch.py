"""What `headrace serve` was asked for, and the configuration that follows from it. Nothing is opened here.

Part of what the command line loads: it knows no room but the configuration's.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from headrace.config.configuration import Configuration, Flags, load
from headrace.core.configured import FILE_QUEUE


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

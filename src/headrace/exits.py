"""What exit codes mean. Nothing is decided here."""

import os
from typing import Final

EXIT_PROBLEMS: Final = 1
EXIT_USAGE: Final = 2
EXIT_DISK_FAILED: Final = os.EX_IOERR  # 74
EXIT_STOP_TOO_LONG: Final = os.EX_TEMPFAIL  # 75

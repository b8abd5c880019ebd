"""Work beside the event loop: passwords take time to check. Which work, and who waits for it, is said elsewhere."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, final

from headrace.core.access.logins import Background, Result

_THREADS: Final = 2


@final
class Threads(Background):
    """A few threads for passwords, started when the first is checked."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, "passwords")
        task = loop.run_in_executor(self._pool, work)
        task.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.result()))

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_us / 1_000_000, call)

    def close(self) -> None:
        """Begin nothing more."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

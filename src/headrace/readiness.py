"""Whether what is published is taken, and why not: told to load balancers and to the log. No HTTP, no engine."""

import logging
from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock

_QUIET_US: Final = 1_500_000
"""How long all must be well before that is believed: what failed is tried again every second."""
_log: Final = logging.getLogger("headrace")


@final
class Readiness:
    """Why the broker takes no messages now, with a line in the log when that begins and one when it ends."""

    def __init__(self, look: Callable[[], str], clock: Clock) -> None:
        self._look = look
        """Says in a sentence why nothing can be published; "" when it can."""
        self._clock = clock
        self._reason = ""
        self._seen_us = 0
        """When the reason was last true."""

    def reason(self) -> str:
        """Why nothing can be published now, or could not a moment ago; "" when it can."""
        self.tick()
        return self._reason

    def tick(self) -> None:
        """Look whether something changed."""
        reason, now_us = self._look(), self._clock.monotonic_us()
        if reason:
            if not self._reason:
                _log.error("not ready, publishers are refused or wait: %s", reason)
            self._reason, self._seen_us = reason, now_us
        elif self._reason and now_us - self._seen_us >= _QUIET_US:
            _log.warning("ready again, publishing goes on; it was not because: %s", self._reason)
            self._reason = ""

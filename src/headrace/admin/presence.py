"""Who is on an HTTP connection: said in the log when somebody logs in on it, and when it ends. No requests."""

import logging
from typing import Final, final

SCOPE_KEY: Final = "headrace.presence"
"""Where a request has the presence of its connection, in its scope."""
_PROTOCOL: Final = "HTTP"
_log: Final = logging.getLogger("headrace.admin")


@final
class Presence:
    """One connection, and the user whose requests came on it last."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._user = ""

    def came(self, user: str) -> None:
        """A request of this user came; the first is told."""
        if user != self._user:
            self._user = user
            _log.info("connected", extra=self._about())

    def left(self) -> None:
        """The connection is over."""
        if self._user:
            _log.info("the connection is ended", extra=self._about())

    def _about(self) -> dict[str, str]:
        return {"connection": self._name, "protocol": _PROTOCOL, "user": self._user}

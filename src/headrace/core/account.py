"""A user who is here: its connections and channels, how fast it may publish. Nothing of this is stored."""

from collections.abc import Callable
from typing import Final, final

from headrace.core.users import User
from headrace.errors import TooLarge

_BURST_US: Final = 1_000_000


@final
class Account:
    """One user, shared by all its connections. What is changed about the user counts at once."""

    __slots__ = ("_free_at_us", "channels", "connections", "is_metered", "on_removed", "proof", "user")

    def __init__(self, user: User) -> None:
        self.user = user
        self.is_metered = False
        """Whether publishes are to be counted and measured at all."""
        self.connections = 0
        self.channels = 0
        self.proof = b""
        """The digest of the password that was found to be right; b"" before the first login."""
        self.on_removed: list[Callable[[], None]] = []
        """Called when there is no such user any more: its connections must end."""
        self._free_at_us = 0
        self.change(user)

    def change(self, user: User) -> None:
        """The user is stored anew."""
        self.user = user
        self.is_metered = user.limits.max_message_rate is not None or user.limits.max_message_bytes is not None

    @property
    def name(self) -> str:
        return self.user.name

    def connect(self) -> bool:
        """Count one more connection; False when the user has as many as it may have."""
        most = self.user.limits.max_connections
        if most is not None and self.connections >= most:
            return False
        self.connections += 1
        return True

    def disconnect(self) -> None:
        self.connections -= 1

    def open_channel(self) -> bool:
        """Count one more channel; False when the user has as many as it may have."""
        most = self.user.limits.max_channels
        if most is not None and self.channels >= most:
            return False
        self.channels += 1
        return True

    def close_channel(self) -> None:
        self.channels -= 1

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a message that the user may not send."""
        most = self.user.limits.max_message_bytes
        if most is not None and size > most:
            raise TooLarge(f"message size {size} is larger than the {most} bytes that user '{self.name}' may send")

    def spend(self, messages: int, now_us: int) -> int:
        """Count what was published; returns for how many microseconds the sender should not be heard.

        What was saved in one second may be spent at once.
        """
        rate = self.user.limits.max_message_rate
        if rate is None:
            return 0
        start_us = max(self._free_at_us, now_us - _BURST_US)
        self._free_at_us = start_us + messages * 1_000_000 // max(rate, 1)
        return max(0, self._free_at_us - now_us)

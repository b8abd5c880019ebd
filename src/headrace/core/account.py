"""A user who is here: its connections and channels, how fast it may publish. Nothing of this is stored."""

from collections.abc import Callable
from typing import Final, final

from headrace.core.rights import Rights
from headrace.core.scopes import Grants
from headrace.core.users import User
from headrace.errors import TooLarge, Unavailable

_BURST_US: Final = 1_000_000


@final
class Usage:
    """What one user has open and has sent, however it logged in."""

    __slots__ = ("channels", "connections", "free_at_us")

    def __init__(self) -> None:
        self.connections = 0
        self.channels = 0
        self.free_at_us = 0


@final
class Account:
    """One user, shared by all its connections. What is changed about the user counts at once.

    Who came with a token has an account for that token: it ends with it, and may have rights of its own.
    """

    __slots__ = (
        "busy",
        "expires_us",
        "grants",
        "is_metered",
        "on_removed",
        "open",
        "proof",
        "rights",
        "usage",
        "user",
    )

    def __init__(
        self, user: User, usage: Usage | None = None, grants: Grants | None = None, expires_us: int = 0
    ) -> None:
        self.user = user
        self.is_metered = False
        """Whether publishes are to be counted and measured at all."""
        self.usage = usage or Usage()
        self.open = 0
        """How many connections have this very account."""
        self.busy: set[Account] | None = None
        """Has this account in it while there are connections with it, where somebody wants to know."""
        self.grants = grants
        """What the token allows; None where the permissions that are stored count."""
        self.rights: dict[str, Rights] = {}
        """What the grants come to, by virtual host."""
        self.expires_us = expires_us
        """When its connections must end; 0 for never."""
        self.proof = b""
        """The digest of the password that was found to be right; b"" before the first login."""
        self.on_removed: dict[object, Callable[[str], None]] = {}
        """By connection, what is told why it must end: there is no such user any more, or its time is over."""
        self.change(user)

    def change(self, user: User) -> None:
        """The user is stored anew."""
        self.user = user
        self.is_metered = user.limits.max_message_rate is not None or user.limits.max_message_bytes is not None

    def end(self, why: str) -> None:
        """End all its connections."""
        for tell in list(self.on_removed.values()):
            tell(why)

    @property
    def name(self) -> str:
        return self.user.name

    @property
    def connections(self) -> int:
        """How many the user has, over all its accounts."""
        return self.usage.connections

    def connect(self) -> bool:
        """Count one more connection; False when the user has as many as it may have."""
        most = self.user.limits.max_connections
        if most is not None and self.usage.connections >= most:
            return False
        self.usage.connections += 1
        self.open += 1
        if self.busy is not None:
            self.busy.add(self)
        return True

    def disconnect(self) -> None:
        self.usage.connections -= 1
        self.open -= 1
        if self.busy is not None and not self.open:
            self.busy.discard(self)

    def hand_over(self, other: "Account", channels: int) -> None:
        """Have one connection with so many channels count for another account of the same user from now on."""
        self.disconnect()
        self.usage.channels -= channels
        other.usage.connections += 1
        other.usage.channels += channels
        other.open += 1
        if other.busy is not None:
            other.busy.add(other)

    def open_channel(self) -> bool:
        """Count one more channel; False when the user has as many as it may have."""
        most = self.user.limits.max_channels
        if most is not None and self.usage.channels >= most:
            return False
        self.usage.channels += 1
        return True

    def close_channel(self) -> None:
        self.usage.channels -= 1

    def check_size(self, size: int) -> None:
        """Raises TooLarge for a message that the user may not send."""
        most = self.user.limits.max_message_bytes
        if most is not None and size > most:
            raise TooLarge(f"message size {size} is larger than the {most} bytes that user '{self.name}' may send")

    def check_rate(self, messages: int, now_us: int) -> None:
        """Count what a client publishes that cannot be read from more slowly.

        Raises Unavailable when the user has published as much as it may for now.
        """
        wait_us = self.spend(0, now_us)
        if wait_us:
            raise Unavailable(f"user '{self.name}' publishes too fast; try again in {wait_us / 1e6:.1f} s")
        self.spend(messages, now_us)

    def spend(self, messages: int, now_us: int) -> int:
        """Count what was published; returns for how many microseconds the sender should not be heard.

        What was saved in one second may be spent at once.
        """
        rate = self.user.limits.max_message_rate
        if rate is None:
            return 0
        start_us = max(self.usage.free_at_us, now_us - _BURST_US)
        self.usage.free_at_us = start_us + messages * 1_000_000 // max(rate, 1)
        return max(0, self.usage.free_at_us - now_us)

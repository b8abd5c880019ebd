"""A session: who subscribes to what, from one connection to the next. Kept by sessions.py, routed to by pubsub.py."""

from typing import TYPE_CHECKING, Final, final

from headrace.core.envelope import Envelope
from headrace.core.subscription import Subscription
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.delivery import Consumer
    from headrace.core.queue import Queue
    from headrace.core.subscriber import Subscriber

FOREVER: Final = -1
"""The lifetime of a session that never ends by itself."""


@final
class Will:
    """What a session has published for it when its connection is lost, and how long that waits."""

    __slots__ = ("delay_s", "envelope", "expires_s")

    def __init__(self, envelope: Envelope, delay_s: int = 0, expires_s: int = 0) -> None:
        self.envelope = envelope
        self.delay_s = delay_s
        self.expires_s = expires_s
        """How long the message is good for once it is published; 0 for no end."""

    def message(self, now_us: int) -> Message:
        """What is published, as of now."""
        said = self.envelope.message
        expires_us = now_us + self.expires_s * 1_000_000 if self.expires_s else 0
        return Message(said.source, said.payload, now_us, said.properties, said.priority, expires_us)


@final
class Session:
    """What is known of one client, connected or not."""

    __slots__ = (
        "client_id",
        "completing",
        "consumer",
        "due_us",
        "is_stored",
        "left_us",
        "lifetime_s",
        "link",
        "queue",
        "sharing",
        "subscriptions",
        "taken",
        "user",
        "will",
    )

    def __init__(self, client_id: str, user: str = "") -> None:
        self.client_id = client_id
        self.user = user
        """Whose it is: to others it is as if it were not there."""
        self.lifetime_s = 0
        """How long it lives on without a connection: FOREVER, or 0 for not at all."""
        self.link: Subscriber | None = None
        """The connection, while there is one."""
        self.subscriptions: dict[str, Subscription] = {}
        self.queue: Queue | None = None
        """What waits for it; made when the first message does."""
        self.consumer: Consumer | None = None
        """The connection's, on that queue."""
        self.sharing: dict[str, Consumer] = {}
        """The connection's consumers on what it shares with others, by pattern."""
        self.will: Will | None = None
        self.left_us = 0
        """When it lost its connection; 0 while it has one."""
        self.due_us = 0
        """When it ends or its will is due, whichever is first; 0 when neither is."""
        self.is_stored = False
        """Whether storage knows of it."""
        self.taken: set[int] = set()
        """Numbers of messages that the client sent to be taken exactly once and did not finish with."""
        self.completing: set[int] = set()
        """Numbers of messages that the client has taken exactly once and did not finish with."""

    @property
    def is_kept(self) -> bool:
        """Whether what it should get surely is stored: it may have to wait for the next connection."""
        return self.lifetime_s != 0 or self.queue is not None

    @property
    def ends_us(self) -> int:
        """When it ends unless it is connected to before; 0 for never."""
        if not self.left_us or self.lifetime_s == FOREVER:
            return 0
        return self.left_us + self.lifetime_s * 1_000_000

    def __repr__(self) -> str:
        return f"Session({self.client_id!r}, {self.lifetime_s})"

"""The live end of a session, as a protocol brings it. Nothing is decided here: pubsub.py says who gets what."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

from headrace.core.delivery import Consumer
from headrace.core.subscription import Grant, Subscription
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.session import Session


@mypyc_attr(allow_interpreted_subclasses=True)
class Subscriber(ABC):
    """A connection that a session is attached to."""

    session: "Session | None"

    @abstractmethod
    def outlet(self, grant: Grant) -> "Outlet":
        """The way to all subscribers that get what this one gets under such a grant, in the same shape."""

    @abstractmethod
    def consumer(self, subscription: Subscription | None) -> Consumer:
        """A consumer for what waits in the session's log or, with a subscription, for the group that shares it."""

    @abstractmethod
    def replaced(self) -> None:
        """Another connection has the session now: say so and close."""

    @abstractmethod
    def restricted(self) -> None:
        """The user may not read any more what the session subscribed to: say so and close."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Outlet(ABC):
    """Puts a message into its shape once, for all subscribers that want it in that shape."""

    @abstractmethod
    def deliver(self, message: Message, assurance: int, retain: bool, subscribers: list[Subscriber]) -> None:
        """Send it on, as surely as `assurance` says but kept in memory only; who does not keep up may miss it."""

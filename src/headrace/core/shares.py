"""Shared subscriptions: sessions that divide the messages of a pattern among them. Who matches is in routes.py.

What is published surely waits in a queue of the broker's own, whose consumers are the connected members: a member that
goes away gives back what it did not acknowledge, and the others get it. The rest goes to one connected member directly.
"""

from typing import TYPE_CHECKING, Final, final

from headrace.core.definition import QueueDefinition
from headrace.core.session import Session
from headrace.core.subscriber import Outlet
from headrace.core.subscription import BEST_EFFORT, Subscription, merged, parse_share
from headrace.core.topics import TopicTree
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.inner import InnerQueues
    from headrace.core.queue import Queue
    from headrace.core.subscriber import Subscriber

PREFIX: Final = "$share/"


@final
class Share:
    """The members of one group that share one pattern."""

    __slots__ = ("_next", "members", "name", "pattern", "queue")

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self.pattern = pattern
        self.members: dict[Session, Subscription] = {}
        self.queue: Queue | None = None
        """What waits for any of them; made when the first message does."""
        self._next = 0

    def deliver(self, message: Message, retain: bool) -> bool:
        """Send what may be lost to one connected member after the other; False when none is connected."""
        connected = [subscription for session, subscription in self.members.items() if session.link is not None]
        if not connected:
            return False
        self._next += 1
        subscription = connected[self._next % len(connected)]
        link = subscription.session.link
        assert link is not None
        outlet: Outlet = link.outlet(merged([subscription]))
        outlet.deliver(message, BEST_EFFORT, retain and subscription.keeps_retain, [link])
        return True


@final
class Shares:
    """The shared subscriptions of one virtual host."""

    def __init__(self, tree: "TopicTree[Subscription | Share]", inner: "InnerQueues", limits: QueueDefinition) -> None:
        self._tree = tree
        self._inner = inner
        self._limits = limits
        self._by_name: dict[str, Share] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, subscription: Subscription) -> None:
        """Raises Refused when the pattern is no shared one."""
        name = subscription.pattern
        share = self._by_name.get(name)
        if share is None:
            _, pattern = parse_share(name)
            share = self._by_name[name] = Share(name, pattern)
            self._tree.add(pattern, share)
            if self._inner.exists(name):
                share.queue = self._inner.open(name, self._limits)
        share.members[subscription.session] = subscription
        link = subscription.session.link
        if link is not None:
            self._join(share, subscription, link)

    def remove(self, subscription: Subscription) -> None:
        """A member goes; with the last one goes what waits for them."""
        share = self._by_name[subscription.pattern]
        self._leave(subscription.session, subscription.pattern)
        del share.members[subscription.session]
        if share.members:
            return
        del self._by_name[share.name]
        self._tree.remove(share.pattern, share)
        if share.queue is not None:
            self._inner.drop(share.queue)

    def attach(self, session: Session, link: "Subscriber") -> None:
        """A member is connected: it gets its share of what waits."""
        for subscription in session.subscriptions.values():
            if subscription.is_shared:
                self._join(self._by_name[subscription.pattern], subscription, link)

    def detach(self, session: Session) -> None:
        """A member lost its connection: what it has not acknowledged goes to others."""
        for pattern in list(session.sharing):
            self._leave(session, pattern)

    def queue(self, share: Share) -> "Queue":
        """What waits for the members; made with the first message."""
        if share.queue is None:
            share.queue = self._inner.open(share.name, self._limits)
            for session, subscription in share.members.items():
                if session.link is not None:
                    self._join(share, subscription, session.link)
        return share.queue

    def _join(self, share: Share, subscription: Subscription, link: "Subscriber") -> None:
        self._leave(subscription.session, subscription.pattern)
        if share.queue is not None:
            consumer = link.consumer(subscription)
            subscription.session.sharing[subscription.pattern] = consumer
            self._inner.join(share.queue, consumer)

    def _leave(self, session: Session, pattern: str) -> None:
        consumer = session.sharing.pop(pattern, None)
        if consumer is not None:
            self._inner.leave(consumer)

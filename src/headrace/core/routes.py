"""From a topic to all that get its messages: queues, sessions that keep them, live subscribers. No sockets.

A route is worked out once per topic and kept until queues, subscriptions or connections change.
"""

from typing import TYPE_CHECKING, Final, final

from headrace.core.envelope import marked
from headrace.core.session import Session
from headrace.core.shares import Share
from headrace.core.subscriber import Outlet, Subscriber
from headrace.core.subscription import BEST_EFFORT, Grant, Subscription, merged
from headrace.core.topics import TopicTree
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_MAX_ROUTES: Final = 16_384


@final
class Audience:
    """Live subscribers that get a message in the same shape."""

    __slots__ = ("grant", "outlet", "subscribers")

    def __init__(self, grant: Grant, outlet: Outlet) -> None:
        self.grant = grant
        self.outlet = outlet
        self.subscribers: list[Subscriber] = []

    def deliver(self, message: Message, assurance: int, retain: bool, publisher: Session | None) -> int:
        """Send it to all of them; returns to how many."""
        grant = self.grant
        subscribers = self.subscribers
        if grant.no_echo and publisher is not None:
            subscribers = [subscriber for subscriber in subscribers if subscriber.session is not publisher]
        if subscribers:
            self.outlet.deliver(message, min(assurance, grant.assurance), retain and grant.keeps_retain, subscribers)
        return len(subscribers)


@final
class Keepers:
    """Sessions that keep a message in the same form."""

    __slots__ = ("grant", "sessions")

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.sessions: list[Session] = []

    def kept(self, message: Message, assurance: int, retain: bool) -> Message:
        grant = self.grant
        return marked(message, min(assurance, grant.assurance), retain and grant.keeps_retain, grant.identifiers)


@final
class Route:
    """Where the messages of one topic go."""

    __slots__ = ("everyone", "keepers", "live", "queues", "shares")

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        """Those that capture the topic, or are bound to the exchange that it is a key of."""
        self.everyone: list[Audience] = []
        """Everybody who is connected: for what need not arrive."""
        self.live: list[Audience] = []
        """For what should arrive: those of them whose session keeps nothing, or who do not ask for it to be sure."""
        self.keepers: list[Keepers] = []
        """The others, connected or not."""
        self.shares: list[Share] = []


@final
class Routes:
    """The subscriptions of one virtual host by pattern, and the routes that follow from them."""

    def __init__(self) -> None:
        self.tree: TopicTree[Subscription | Share] = TopicTree()
        self._routes: dict[str, Route] = {}

    def forget(self) -> None:
        """Something changed that routes depend on."""
        if self._routes:
            self._routes.clear()

    def of(self, topic: str) -> Route | None:
        """The route of a topic, if it is known."""
        return self._routes.get(topic)

    def build(self, topic: str, queues: "list[Queue]") -> Route:
        """Work a route out and keep it."""
        route = Route()
        route.queues = queues
        matching: dict[Session, list[Subscription]] = {}
        for found in self.tree.match(topic):
            if isinstance(found, Share):
                route.shares.append(found)
            else:
                matching.setdefault(found.session, []).append(found)
        everyone: dict[Outlet, Audience] = {}
        live: dict[Outlet, Audience] = {}
        keepers: dict[tuple[int, bool, bool, tuple[int, ...]], Keepers] = {}
        for session, subscriptions in matching.items():
            grant = merged(subscriptions)
            keeps = session.is_kept and grant.assurance != BEST_EFFORT
            if keeps:
                keepers.setdefault(grant.key, Keepers(grant)).sessions.append(session)
            link = session.link
            if link is not None:
                outlet = link.outlet(grant)
                for audiences in (everyone,) if keeps else (everyone, live):
                    audiences.setdefault(outlet, Audience(grant, outlet)).subscribers.append(link)
        route.everyone, route.live = list(everyone.values()), list(live.values())
        route.keepers = list(keepers.values())
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        self._routes[topic] = route
        return route

"""Plain topics to live subscribers, shared subscriptions and sessions. Sessions start in sessions.py.

A route is worked out once per topic and kept until queues, subscriptions or connections change.

What is published surely waits in a queue of the broker's own, whose consumers are the connected members: a member that
goes away gives back what it did not acknowledge, and the others get it. The rest goes to one connected member directly.
"""

import hashlib
from dataclasses import replace
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch
from headrace.core.pipeline import CommitPipeline
from headrace.core.pubsub.retained import Retained
from headrace.core.pubsub.session import (
    BEST_EFFORT,
    RETAINED_ALWAYS,
    RETAINED_IF_NEW,
    Bounds,
    Envelope,
    Grant,
    Outlet,
    Session,
    Subscriber,
    Subscription,
    marked,
    merged,
    parse_share,
)
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.entry import accept, accept_moved
from headrace.core.queue.queue import DEFAULT_GROUP, Queue, group_named
from headrace.core.queue.queues import INNER_PREFIXES, Queues
from headrace.core.routing.topics import TopicTree
from headrace.core.routing.topology import Topology, scoped, unscoped
from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Engine
from headrace.storage.group_state import WORK

if TYPE_CHECKING:
    from headrace.core.pubsub.session import Subscriber
    from headrace.core.queue.queue import Queue

_LEASE_MS: Final = 100 * 365 * 24 * 3_600_000
"""As long as it is connected, a session may take its time."""
_LONGEST: Final = 200


@final
class SessionQueues:
    """Makes, finds and drops them, and lets consumers in."""

    def __init__(self, engine: Engine, host: str, pipeline: CommitPipeline, clock: Clock, queues: Queues) -> None:
        self._host = host
        self._pipeline = pipeline
        self._clock = clock
        self._queues = queues
        self._left = {name for name in engine.logs() if is_inner(name) and unscoped(host, name) is not None}
        """Logs from before the start that nobody asked for yet."""

    def exists(self, name: str) -> bool:
        """Whether something waits there since before the start."""
        return scoped(self._host, _short(name)) in self._left

    def open(self, name: str, limits: QueueDefinition) -> Queue:
        """The queue of that name, new if need be."""
        definition = replace(limits, name=_short(name), lease_ms=_LEASE_MS)
        queue = self._queues.open_inner(definition)
        self._left.discard(queue.log.name)
        if queue.refusal is None:
            group_named(queue, self._pipeline.open(), DEFAULT_GROUP, WORK)
        return queue

    def drop(self, queue: Queue) -> None:
        """Forget what waits there."""
        self._queues.drop(queue)

    def drop_left(self, limits: QueueDefinition) -> None:
        """Drop what is left from before the start and nobody asked for: its session is gone."""
        for log in list(self._left):
            name = log.removeprefix(scoped(self._host, ""))
            self._queues.drop(self._queues.open_inner(replace(limits, name=name)))
        self._left.clear()

    def join(self, queue: Queue, consumer: Consumer) -> None:
        """Let a consumer have what waits. One that is damaged gives nothing."""
        if queue.refusal is not None:
            return
        group = group_named(queue, self._pipeline.open(), DEFAULT_GROUP, WORK)
        group.consumers.join(consumer)
        consumer.group = group
        self._pipeline.pump_soon(queue)

    def leave(self, consumer: Consumer) -> None:
        """What the consumer holds goes back in line."""
        group = consumer.group
        if group is not None and not group.queue.is_gone:
            group.queue.leave(self._pipeline.open(), consumer, self._clock.now_us())
            self._pipeline.pump_soon(group.queue)


def is_inner(log: str) -> bool:
    """Whether a log of that name is of a queue of the broker's own, in whichever virtual host."""
    return log.rpartition("\0")[2].startswith(INNER_PREFIXES)


def _short(name: str) -> str:
    """A name that storage takes: very long ones by their digest."""
    if len(name.encode()) <= _LONGEST:
        return name
    prefix = name[: name.index("/") + 1]
    return f"{prefix}#{hashlib.sha256(name.encode()).hexdigest()}"


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

    def __init__(
        self, tree: "TopicTree[Subscription | Share]", inner: "SessionQueues", limits: QueueDefinition
    ) -> None:
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


@final
class Sent:
    """What became of a message: to how many it goes, whether some of them keep it, and who refused it."""

    __slots__ = ("count", "is_stored", "refusal")

    def __init__(self) -> None:
        self.count = 0
        self.is_stored = False
        self.refusal: HeadraceError | None = None


@final
class PubSub:
    """The subscriptions of one virtual host, and the way of a message to them."""

    def __init__(self, topology: Topology, retained: Retained, inner: SessionQueues, bounds: Bounds) -> None:
        self._topology = topology
        self._inner = inner
        self._limits = bounds.session
        self._routes = Routes()
        self._shares = Shares(self._routes.tree, inner, bounds.session)
        self.retained = retained
        topology.on_change = self._routes.forget

    def __len__(self) -> int:
        """How many subscriptions there are; a shared one counts once."""
        return len(self._routes.tree)

    # -- subscribing -------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> bool:
        """Have the session get what matches, instead of what it asked for under the same pattern before.

        Returns whether it is to get the retained messages that match first. Raises Refused for a bad pattern.
        """
        session = subscription.session
        pattern = subscription.pattern
        if subscription.is_queue:
            session.subscriptions[pattern] = subscription
            return False
        former = session.subscriptions.get(pattern)
        if subscription.is_shared:
            self._shares.add(subscription)
        else:
            if former is not None:
                self._routes.tree.remove(pattern, former)
            self._routes.tree.add(pattern, subscription)
        session.subscriptions[pattern] = subscription
        self._routes.forget()
        wanted = subscription.retained
        is_wanted = wanted == RETAINED_ALWAYS or (wanted == RETAINED_IF_NEW and former is None)
        return is_wanted and not subscription.is_shared

    def unsubscribe(self, session: Session, pattern: str) -> Subscription | None:
        """Undo it; returns what was undone, None when there was nothing."""
        subscription = session.subscriptions.pop(pattern, None)
        if subscription is None or subscription.is_queue:
            return subscription
        if subscription.is_shared:
            self._shares.remove(subscription)
        else:
            self._routes.tree.remove(pattern, subscription)
        self._routes.forget()
        return subscription

    def restore(self, session: Session) -> None:
        """Take in a session that storage had, with what waits for it."""
        for subscription in session.subscriptions.values():
            if subscription.is_shared:
                self._shares.add(subscription)
            elif not subscription.is_queue:
                self._routes.tree.add(subscription.pattern, subscription)
        if self._inner.exists(_log_of(session)):
            session.queue = self._inner.open(_log_of(session), self._limits)
        self._routes.forget()

    def attach(self, session: Session) -> None:
        """The session is connected now: it gets what waits and what is published from now on."""
        link = session.link
        assert link is not None
        if session.queue is not None:
            session.consumer = link.consumer(None)
            self._inner.join(session.queue, session.consumer)
        if session.subscriptions:
            self._shares.attach(session, link)
            self._routes.forget()

    def detach(self, session: Session) -> None:
        """The session has no connection any more."""
        consumer, session.consumer = session.consumer, None
        if consumer is not None:
            self._inner.leave(consumer)
        if session.subscriptions:
            self._shares.detach(session)
            self._routes.forget()

    def end(self, session: Session) -> None:
        """The session is over: nothing of it stays."""
        for pattern in list(session.subscriptions):
            self.unsubscribe(session, pattern)
        queue, session.queue = session.queue, None
        if queue is not None:
            self._inner.drop(queue)

    def drop_left(self) -> None:
        """Everything that was stored is taken in: what still waits is for sessions that are gone."""
        self._inner.drop_left(self._limits)

    # -- publishing --------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> Route:
        """Where messages of a plain topic go."""
        return self._routes.of(topic) or self._routes.build(topic, self._topology.of_topic(topic))

    def send(
        self, batch: Batch, route: Route, message: Message, assurance: int, retain: bool, publisher: Session | None
    ) -> Sent:
        """Hand a message to all subscribers of its route, and stage it for the sessions that keep it."""
        sent = Sent()
        if retain:
            sent.is_stored = True
            try:
                self.retained.keep(batch, Envelope(message, assurance, True))
            except HeadraceError as error:
                sent.refusal = error.with_traceback(None)  # its frames hold the message
        sent.count += self.send_live(route, message, assurance, retain, publisher)
        for queue, kept in self.copies(route, message, assurance, retain, publisher):
            self._accept(batch, queue, kept, sent)
        return sent

    def send_live(
        self, route: Route, message: Message, assurance: int, retain: bool = False, publisher: Session | None = None
    ) -> int:
        """Hand a message to those who are connected and keep nothing; returns to how many."""
        count = 0
        if assurance != BEST_EFFORT:
            for audience in route.live:
                count += audience.deliver(message, assurance, retain, publisher)
            return count
        for audience in route.everyone:
            count += audience.deliver(message, assurance, retain, publisher)
        for share in route.shares:
            count += share.deliver(message, retain)
        return count

    def copies(
        self, route: Route, message: Message, assurance: int, retain: bool = False, publisher: Session | None = None
    ) -> "list[tuple[Queue, Message]]":
        """What is to be kept of a message, and where: with every session that keeps it, and for those who share it."""
        found: list[tuple[Queue, Message]] = []
        if assurance == BEST_EFFORT:
            return found
        for keepers in route.keepers:
            kept = keepers.kept(message, assurance, retain)
            no_echo = keepers.grant.no_echo
            found += [
                (self.queue(session), kept) for session in keepers.sessions if not (no_echo and session is publisher)
            ]
        for share in route.shares:
            found.append((self._shares.queue(share), marked(message, assurance, retain)))
        return found

    def announce(self, envelope: Envelope) -> None:
        """Hand what the broker says of itself to whoever is there, and to whoever comes later."""
        self.retained.keep_volatile(envelope)
        for audience in self.route(envelope.message.source.topic).everyone:
            audience.deliver(envelope.message, BEST_EFFORT, False, None)

    def keep(self, batch: Batch, session: Session, message: Message) -> None:
        """Have a message that is marked for this session wait for it."""
        self._accept(batch, self.queue(session), message, Sent())

    def hand_over(self, batch: Batch, session: Session, message: Message) -> None:
        """The same for one that waited for others too and is settled there in this very turn: it cannot be refused."""
        accept_moved(self.queue(session), batch, message, message.timestamp_us)

    def queue(self, session: Session) -> "Queue":
        """What waits for a session; made with the first message."""
        queue = session.queue
        if queue is None:
            queue = session.queue = self._inner.open(_log_of(session), self._limits)
            if session.link is not None:
                session.consumer = session.link.consumer(None)
                self._inner.join(queue, session.consumer)
        return queue

    def _accept(self, batch: Batch, queue: "Queue", message: Message, sent: Sent) -> None:
        sent.count += 1
        sent.is_stored = True
        try:
            accept(queue, batch, message, message.timestamp_us)
        except HeadraceError as error:
            sent.refusal = error.with_traceback(None)


def _log_of(session: Session) -> str:
    return f"$session/{session.client_id}"

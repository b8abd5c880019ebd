"""Plain topics to live subscribers, shared subscriptions and sessions. sessions.py begins and ends sessions.

A route is computed once per topic and cached until queues, subscriptions or connections change.

Messages that must arrive wait in queues of the broker's own, whose consumers are the connected members: a lost member's
unacknowledged messages go to the others. Messages that may be lost go to one connected member directly.
"""

import hashlib
from dataclasses import replace
from typing import Final, final

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
from headrace.core.queue.definition import INNER_PREFIXES, QueueDefinition
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.entry import accept, accept_moved
from headrace.core.queue.queue import DEFAULT_GROUP, Queue
from headrace.core.queue.queues import Queues
from headrace.core.routing.address import MAX_CACHED_KEY
from headrace.core.routing.topics import TopicTree
from headrace.core.routing.topology import Topology, scoped, unscoped
from headrace.errors import HeadraceError
from headrace.model import Message
from headrace.storage.api import Engine
from headrace.storage.group_state import WORK

_LEASE_MS: Final = 100 * 365 * 24 * 3_600_000
"""Lease of a session's claims: unlimited while it is connected."""
_LONGEST: Final = 200


@final
class SessionQueues:
    """The broker's own queues, one per session and one per shared subscription."""

    def __init__(self, engine: Engine, host: str, pipeline: CommitPipeline, clock: Clock, queues: Queues) -> None:
        self._host = host
        self._pipeline = pipeline
        self._clock = clock
        self._queues = queues
        self._left = {name for name in engine.logs() if is_inner(name) and unscoped(host, name) is not None}
        """Logs from before the start that no session has opened yet."""

    def exists(self, name: str) -> bool:
        """True if a log of this name is left from before the start."""
        return scoped(self._host, _short(name)) in self._left

    def open(self, name: str, limits: QueueDefinition) -> Queue:
        """Open the queue of this name, or create it."""
        definition = replace(limits, name=_short(name), lease_ms=_LEASE_MS)
        queue = self._queues.open_inner(definition)
        self._left.discard(queue.log.name)
        if queue.refusal is None:
            queue.open_group(self._pipeline.open(), DEFAULT_GROUP, WORK)
        return queue

    def drop(self, queue: Queue) -> None:
        """Delete the queue and its messages."""
        self._queues.drop(queue)

    def drop_left(self, limits: QueueDefinition) -> None:
        """Delete logs from before the start whose session is gone."""
        for log in list(self._left):
            name = log.removeprefix(scoped(self._host, ""))
            self._queues.drop(self._queues.open_inner(replace(limits, name=name)))
        self._left.clear()

    def join(self, queue: Queue, consumer: Consumer) -> None:
        """Add a consumer to a queue; a damaged queue delivers nothing."""
        if queue.refusal is not None:
            return
        group = queue.open_group(self._pipeline.open(), DEFAULT_GROUP, WORK)
        group.consumers.join(consumer)
        consumer.group = group
        self._pipeline.pump_soon(queue)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer; its claims return to the queue."""
        group = consumer.group
        if group is not None and not group.queue.is_gone:
            group.queue.leave(self._pipeline.open(), consumer, self._clock.now_us())
            self._pipeline.pump_soon(group.queue)


def is_inner(log: str) -> bool:
    """True for logs of the broker's own queues, in any virtual host."""
    return log.rpartition("\0")[2].startswith(INNER_PREFIXES)


def _short(name: str) -> str:
    """The name as storage takes it: very long names become a digest."""
    if len(name.encode()) <= _LONGEST:
        return name
    prefix = name[: name.index("/") + 1]
    return f"{prefix}#{hashlib.sha256(name.encode()).hexdigest()}"


@final
class Share:
    """One shared subscription: a group, its pattern and its members."""

    __slots__ = ("_next", "members", "name", "pattern", "queue")

    def __init__(self, name: str, pattern: str) -> None:
        self.name = name
        self.pattern = pattern
        self.members: dict[Session, Subscription] = {}
        self.queue: Queue | None = None
        """Waiting messages of the group; opened with the first one."""
        self._next = 0

    def deliver(self, message: Message, retain: bool) -> bool:
        """Send a message that may be lost to the next connected member; False if there is none."""
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

    def __init__(self, tree: TopicTree[Subscription | Share], inner: SessionQueues, limits: QueueDefinition) -> None:
        self._tree = tree
        self._inner = inner
        self._limits = limits
        self._by_name: dict[str, Share] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def add(self, subscription: Subscription) -> None:
        """Add a member, and its share if it is the first. Raises Refused for a pattern that is not shared."""
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
        """Remove a member; the last one takes the waiting messages with it."""
        share = self._by_name[subscription.pattern]
        self._leave(subscription.session, subscription.pattern)
        del share.members[subscription.session]
        if share.members:
            return
        del self._by_name[share.name]
        self._tree.remove(share.pattern, share)
        if share.queue is not None:
            self._inner.drop(share.queue)

    def attach(self, session: Session, link: Subscriber) -> None:
        """Let a connected member consume from its shares."""
        for subscription in session.subscriptions.values():
            if subscription.is_shared:
                self._join(self._by_name[subscription.pattern], subscription, link)

    def detach(self, session: Session) -> None:
        """Take a disconnected member out of its shares; its unacknowledged messages go to others."""
        for pattern in list(session.sharing):
            self._leave(session, pattern)

    def open_queue(self, share: Share) -> Queue:
        """Open the queue of a share and let its connected members in."""
        if share.queue is None:
            share.queue = self._inner.open(share.name, self._limits)
            for session, subscription in share.members.items():
                if session.link is not None:
                    self._join(share, subscription, session.link)
        return share.queue

    def _join(self, share: Share, subscription: Subscription, link: Subscriber) -> None:
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
    """Connected subscribers that get a message in the same shape."""

    __slots__ = ("grant", "outlet", "subscribers")

    def __init__(self, grant: Grant, outlet: Outlet) -> None:
        self.grant = grant
        self.outlet = outlet
        self.subscribers: list[Subscriber] = []

    def deliver(self, message: Message, assurance: int, retain: bool, publisher: Session | None) -> int:
        """Send a message to all of them; returns their number."""
        grant = self.grant
        subscribers = self.subscribers
        if grant.no_echo and publisher is not None:
            subscribers = [subscriber for subscriber in subscribers if subscriber.session is not publisher]
        if subscribers:
            self.outlet.deliver(message, min(assurance, grant.assurance), retain and grant.keeps_retain, subscribers)
        return len(subscribers)


@final
class StoredAudience:
    """Sessions that store a message in the same form."""

    __slots__ = ("grant", "sessions")

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.sessions: list[Session] = []

    def stored(self, message: Message, assurance: int, retain: bool) -> Message:
        grant = self.grant
        return marked(message, min(assurance, grant.assurance), retain and grant.keeps_retain, grant.identifiers)


@final
class Route:
    """Receivers of one topic."""

    __slots__ = ("everyone", "keepers", "live", "queues", "shares")

    def __init__(self) -> None:
        self.queues: list[Queue] = []
        """Queues that capture the topic, or are bound to it through `amq.topic`."""
        self.everyone: list[Audience] = []
        """All connected subscribers: for messages that may be lost."""
        self.live: list[Audience] = []
        """Connected subscribers without a stored copy: for messages that should arrive."""
        self.keepers: list[StoredAudience] = []
        """Sessions with a stored copy, connected or not."""
        self.shares: list[Share] = []


@final
class Sent:
    """Result of a publish: the number of receivers, whether any copy is stored, and a refusal."""

    __slots__ = ("count", "is_stored", "refusal")

    def __init__(self) -> None:
        self.count = 0
        self.is_stored = False
        self.refusal: HeadraceError | None = None


@final
class PubSub:
    """Plain publish and subscribe in one virtual host."""

    def __init__(self, topology: Topology, retained: Retained, inner: SessionQueues, bounds: Bounds) -> None:
        self._topology = topology
        self._inner = inner
        self._limits = bounds.session
        self._tree: TopicTree[Subscription | Share] = TopicTree()
        self._routes: dict[str, Route] = {}
        """Cached routes by topic."""
        self._shares = Shares(self._tree, inner, bounds.session)
        self.retained = retained
        topology.on_change = self._routes.clear

    def __len__(self) -> int:
        """Number of subscriptions; a shared one counts once."""
        return len(self._tree)

    # -- subscribing ---------------------------------------------------------------------------------------------------

    def subscribe(self, subscription: Subscription) -> bool:
        """Add a subscription, or replace the session's one of the same pattern.

        Returns True if the session gets matching retained messages first. Raises Refused for an invalid pattern.
        """
        session = subscription.session
        pattern = subscription.pattern
        former = session.subscriptions.get(pattern)
        if former is None:
            session.pattern_size += len(pattern)
        if subscription.is_queue:
            session.subscriptions[pattern] = subscription
            return False
        if subscription.is_shared:
            self._shares.add(subscription)
        else:
            if former is not None:
                self._tree.remove(pattern, former)
            self._tree.add(pattern, subscription)
        session.subscriptions[pattern] = subscription
        self._routes.clear()
        wanted = subscription.retained
        is_wanted = wanted == RETAINED_ALWAYS or (wanted == RETAINED_IF_NEW and former is None)
        return is_wanted and not subscription.is_shared

    def unsubscribe(self, session: Session, pattern: str) -> Subscription | None:
        """Remove a subscription; returns it, or None if there was none."""
        subscription = session.subscriptions.pop(pattern, None)
        if subscription is None:
            return None
        session.pattern_size -= len(pattern)
        if subscription.is_queue:
            return subscription
        if subscription.is_shared:
            self._shares.remove(subscription)
        else:
            self._tree.remove(pattern, subscription)
        self._routes.clear()
        return subscription

    def restore(self, session: Session) -> None:
        """Add a session from storage, with its waiting messages."""
        for subscription in session.subscriptions.values():
            if subscription.is_shared:
                self._shares.add(subscription)
            elif not subscription.is_queue:
                self._tree.add(subscription.pattern, subscription)
        if self._inner.exists(_log_of(session)):
            session.queue = self._inner.open(_log_of(session), self._limits)
        self._routes.clear()

    def attach(self, session: Session) -> None:
        """Deliver waiting and new messages to a session that is connected now."""
        link = session.link
        assert link is not None
        if session.queue is not None:
            session.consumer = link.consumer(None)
            self._inner.join(session.queue, session.consumer)
        if session.subscriptions:
            self._shares.attach(session, link)
            self._routes.clear()

    def detach(self, session: Session) -> None:
        """Stop deliveries to a session that lost its connection."""
        consumer, session.consumer = session.consumer, None
        if consumer is not None:
            self._inner.leave(consumer)
        if session.subscriptions:
            self._shares.detach(session)
            self._routes.clear()

    def end(self, session: Session) -> None:
        """Remove a session's subscriptions and waiting messages."""
        for pattern in list(session.subscriptions):
            self.unsubscribe(session, pattern)
        queue, session.queue = session.queue, None
        if queue is not None:
            self._inner.drop(queue)

    def drop_left(self) -> None:
        """Delete waiting messages of unknown sessions, after all stored sessions are restored."""
        self._inner.drop_left(self._limits)

    # -- publishing ----------------------------------------------------------------------------------------------------

    def route(self, topic: str) -> Route:
        """The route of a plain topic."""
        return self._routes.get(topic) or self._build_route(topic)

    def _build_route(self, topic: str) -> Route:
        """Compute a route and cache it."""
        route = Route()
        route.queues = self._topology.of_topic(topic)
        matching: dict[Session, list[Subscription]] = {}
        for found in self._tree.match(topic):
            if isinstance(found, Share):
                route.shares.append(found)
            else:
                matching.setdefault(found.session, []).append(found)
        everyone: dict[Outlet, Audience] = {}
        live: dict[Outlet, Audience] = {}
        keepers: dict[tuple[int, bool, bool, tuple[int, ...]], StoredAudience] = {}
        for session, subscriptions in matching.items():
            grant = merged(subscriptions)
            keeps = session.is_kept and grant.assurance != BEST_EFFORT
            if keeps:
                keepers.setdefault(grant.key, StoredAudience(grant)).sessions.append(session)
            link = session.link
            if link is not None:
                outlet = link.outlet(grant)
                for audiences in (everyone,) if keeps else (everyone, live):
                    audiences.setdefault(outlet, Audience(grant, outlet)).subscribers.append(link)
        route.everyone, route.live = list(everyone.values()), list(live.values())
        route.keepers = list(keepers.values())
        if len(self._routes) >= _MAX_ROUTES:
            self._routes.clear()
        if len(topic) <= MAX_CACHED_KEY:
            self._routes[topic] = route
        return route

    def send(
        self, batch: Batch, route: Route, message: Message, assurance: int, retain: bool, publisher: Session | None
    ) -> Sent:
        """Deliver a message to all subscribers of its route, and stage the copies to store."""
        sent = Sent()
        if retain:
            sent.is_stored = True
            try:
                self.retained.keep(batch, Envelope(message, assurance, True))
            except HeadraceError as error:
                sent.refusal = error.with_traceback(None)  # the traceback's frames hold the message
        sent.count += self.send_live(route, message, assurance, retain, publisher)
        for queue, kept in self.copies(route, message, assurance, retain, publisher):
            self._accept(batch, queue, kept, sent)
        return sent

    def send_live(
        self, route: Route, message: Message, assurance: int, retain: bool = False, publisher: Session | None = None
    ) -> int:
        """Deliver a message to connected subscribers without a stored copy; returns their number."""
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
    ) -> list[tuple[Queue, Message]]:
        """Copies to store and their queues: one per keeping session and one per share."""
        found: list[tuple[Queue, Message]] = []
        if assurance == BEST_EFFORT:
            return found
        for keepers in route.keepers:
            kept = keepers.stored(message, assurance, retain)
            no_echo = keepers.grant.no_echo
            found += [
                (self.open_queue(session), kept)
                for session in keepers.sessions
                if not (no_echo and session is publisher)
            ]
        for share in route.shares:
            found.append((self._shares.open_queue(share), marked(message, assurance, retain)))
        return found

    def announce(self, envelope: Envelope) -> None:
        """Deliver a message of the broker itself to connected subscribers, and retain it in memory."""
        self.retained.keep_volatile(envelope)
        for audience in self.route(envelope.message.source.topic).everyone:
            audience.deliver(envelope.message, BEST_EFFORT, False, None)

    def keep(self, batch: Batch, session: Session, message: Message) -> None:
        """Store a message that is marked for this session."""
        self._accept(batch, self.open_queue(session), message, Sent())

    def hand_over(self, batch: Batch, session: Session, message: Message) -> None:
        """Store a message that a shared queue settles in the same batch: it cannot be refused."""
        accept_moved(self.open_queue(session), batch, message, message.timestamp_us)

    def open_queue(self, session: Session) -> Queue:
        """The session's queue, opened with the first message."""
        queue = session.queue
        if queue is None:
            queue = session.queue = self._inner.open(_log_of(session), self._limits)
            if session.link is not None:
                session.consumer = session.link.consumer(None)
                self._inner.join(queue, session.consumer)
        return queue

    def _accept(self, batch: Batch, queue: Queue, message: Message, sent: Sent) -> None:
        sent.count += 1
        sent.is_stored = True
        try:
            accept(queue, batch, message, message.timestamp_us)
        except HeadraceError as error:
            sent.refusal = error.with_traceback(None)


def _log_of(session: Session) -> str:
    return f"$session/{session.client_id}"

"""Publish and subscribe: plain topics to live subscribers, to sessions that keep messages, and to retained messages.

No sessions begin or end here: see sessions.py. No queues of clients: publishing.py puts messages into those.
"""

from typing import TYPE_CHECKING, final

from headrace.core.bounds import Bounds
from headrace.core.entry import accept
from headrace.core.envelope import Envelope, marked
from headrace.core.inner import InnerQueues
from headrace.core.retained import Retained
from headrace.core.routes import Route, Routes
from headrace.core.session import Session
from headrace.core.shares import Shares
from headrace.core.subscription import (
    BEST_EFFORT,
    RETAINED_ALWAYS,
    RETAINED_IF_NEW,
    Subscription,
)
from headrace.core.topology import Topology
from headrace.core.turn import Turn
from headrace.errors import HeadraceError
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue import Queue


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

    def __init__(self, topology: Topology, retained: Retained, inner: InnerQueues, bounds: Bounds) -> None:
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
        self, turn: Turn, route: Route, message: Message, assurance: int, retain: bool, publisher: Session | None
    ) -> Sent:
        """Hand a message to all subscribers of its route, and stage it for the sessions that keep it."""
        sent = Sent()
        if retain:
            sent.is_stored = True
            try:
                self.retained.keep(turn, Envelope(message, assurance, True))
            except HeadraceError as error:
                sent.refusal = error
        sent.count += self.send_live(route, message, assurance, retain, publisher)
        for queue, kept in self.copies(route, message, assurance, retain, publisher):
            self._accept(turn, queue, kept, sent)
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

    def keep(self, turn: Turn, session: Session, message: Message) -> None:
        """Have a message that is marked for this session wait for it."""
        self._accept(turn, self.queue(session), message, Sent())

    def hand_over(self, turn: Turn, session: Session, message: Message) -> None:
        """The same for one that waited for others too and is settled there in this very turn: it cannot be refused."""
        turn.move(self.queue(session), message)

    def queue(self, session: Session) -> "Queue":
        """What waits for a session; made with the first message."""
        queue = session.queue
        if queue is None:
            queue = session.queue = self._inner.open(_log_of(session), self._limits)
            if session.link is not None:
                session.consumer = session.link.consumer(None)
                self._inner.join(queue, session.consumer)
        return queue

    def _accept(self, turn: Turn, queue: "Queue", message: Message, sent: Sent) -> None:
        sent.count += 1
        sent.is_stored = True
        try:
            accept(queue, turn, message, message.timestamp_us)
        except HeadraceError as error:
            sent.refusal = error


def _log_of(session: Session) -> str:
    return f"$session/{session.client_id}"

"""One virtual host of the broker: publish, consume, settle, declare: all that a protocol may call. No wire, no sockets.

Nothing here waits. Calls change what is in memory and stage what must be stored; once per turn of the event loop all
of it becomes one commit, and when that is safe, publishers are confirmed and consumers get what was published.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.config.groups import MAIN
from headrace.core.address import is_address
from headrace.core.administration import Administration
from headrace.core.bounds import DEFAULT_BOUNDS, Bounds
from headrace.core.browser import Browser, Show
from headrace.core.bulk import Bulk
from headrace.core.claims import Claims
from headrace.core.confirms import Confirm, ConfirmAll
from headrace.core.consuming import Consuming
from headrace.core.definition import QueueDefinition
from headrace.core.delivery import Consumer, Credit, Delivery
from headrace.core.envelope import Envelope
from headrace.core.exchange import Binding, Exchange
from headrace.core.flow import Flow
from headrace.core.glance import AT_A_TIME, glance_at_deliveries
from headrace.core.group import ACK, Group
from headrace.core.groups import Groups
from headrace.core.history import HISTORY_PREFIX, read_entry
from headrace.core.inner import InnerQueues
from headrace.core.kept import Kept
from headrace.core.ledger import Ledger
from headrace.core.line import Line, Schedule
from headrace.core.properties import Codecs
from headrace.core.publishing import Publishing
from headrace.core.pubsub import PubSub
from headrace.core.queue import Queue
from headrace.core.queues import Queues
from headrace.core.retained import Retained
from headrace.core.session import Session, Will
from headrace.core.session_store import SessionStore
from headrace.core.sessions import Sessions
from headrace.core.statistics import Statistics
from headrace.core.subscription import AT_LEAST_ONCE, BEST_EFFORT
from headrace.core.topics import quoted
from headrace.core.topology import DEFAULT_HOST, Topology, topic_of
from headrace.core.transaction import Publish
from headrace.core.work import WorkGroup
from headrace.errors import Refused
from headrace.model import Message, Source
from headrace.selector import Selector
from headrace.storage.api import Engine

_log: Final = logging.getLogger("headrace.core")


@final
class Broker:
    """All queues, exchanges and groups of one virtual host, over any engine."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        schedule: Schedule,
        host: str = DEFAULT_HOST,
        codecs: Codecs | None = None,
        flow: Flow | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        replication_group: str = MAIN,
    ) -> None:
        self._clock = clock
        self.codecs = codecs or Codecs()
        self.topology = Topology(host)
        self._flow = flow or Flow()
        self._line = Line(engine, clock, schedule, self._flow)
        self._queues = Queues(engine, clock, self._line, self.topology, self.codecs, replication_group)
        self.topology.load(engine)
        inner = InnerQueues(engine, host, self._line, clock, self._queues)
        self.pubsub = PubSub(self.topology, Retained(engine, host, bounds), inner, bounds)
        store = SessionStore(engine, host)
        self.sessions = Sessions(clock, self._line, self.pubsub, store, self._publish_will)
        self._consuming = Consuming(self._queues, self._line, clock)
        self._publishing = Publishing(self._queues, self.pubsub, self._line, clock)
        self.ledger = Ledger(engine, host)
        self.kept = Kept(engine, host, self._line)
        self.dead_letters = self._queues.dead_letters
        self.claims = Claims(self._line, self._queues, clock)
        self.groups = Groups(self._line, self._queues, clock)
        self.administration = Administration(engine, self._queues, self._line, clock)
        self.on_dissolved = self.administration.on_dissolved
        """By whose they are. Called when the virtual host is deleted: connections to it must end."""

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        confirm: Confirm | None = None,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
    ) -> int:
        """Send a message to the exchange and routing key of its source; returns how many queues it is meant for.

        0 says that it cannot be routed. `confirm` is called once it is safe in all of them, or with why it is not,
        in the order of the publishes. An address `$queue/...` on the default exchange goes where `publish_topic`
        sends it. Raises NotFound and AccessRefused for the exchange.
        """
        queues = self._publishing.route(message, headers, extra_keys)
        source = message.source
        if source.exchange and self.topology.reaches_subscribers(source.exchange, source.topic, headers, extra_keys):
            return self._publishing.stage(queues, message, confirm, self.pubsub.route(topic_of(source)))
        return self._publishing.stage(queues, message, confirm)

    def publish_all(
        self,
        messages: list[Message],
        confirm: ConfirmAll | None = None,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        straight_to: Queue | None = None,
    ) -> int:
        """The same for one message or many that differ in nothing but their payloads; one call may confirm several.

        All go to the same queues, so that is decided once, and limits are looked at where there are any. The list is
        the broker's from then on. Who passes the same `confirm` for what it publishes in a row is called once. Who
        knows what `straight_to` says of them passes that: with a key for each of many queues, looking for it took a
        twentieth of the time.
        """
        source = messages[0].source
        if straight_to is not None and not extra_keys and self._publishing.stage_to(straight_to, messages, confirm):
            return 1
        queues = self._publishing.route(messages[0], headers, extra_keys)
        is_heard = bool(source.exchange) and self.topology.reaches_subscribers(
            source.exchange, source.topic, headers, extra_keys
        )
        if not is_heard and self._publishing.stage_all(queues, messages, confirm):
            return len(queues)
        meant = 0
        for message in messages:
            meant = self.publish(message, _one_of(confirm), headers, extra_keys)
        return meant

    def straight_to(self, exchange: str, key: str) -> Queue | None:
        """The queue that messages with this key go to, and no other, until it is deleted; None where more decides."""
        return self.topology.direct.get(key) if not exchange else None

    def publish_topic(
        self,
        message: Message,
        confirm: Confirm | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        publisher: Session | None = None,
    ) -> int:
        """Send a message to every queue and every subscriber whose patterns match its topic; returns how many.

        A plain topic goes to subscribers, to the queues that capture it and through the exchange `amq.topic`, and
        stays with the topic if it is to be retained. An address `$queue/...` that nothing matches makes an ephemeral
        queue or, where no queue was ever declared, the landing queue `mqtt`. `confirm` is called once the message is
        safe wherever it is kept. Raises Refused for an address that names no queue or ends in a verb.
        """
        topic = message.source.topic
        if is_address(topic):
            return self._publishing.stage(self._publishing.route_topic(topic), message, confirm)
        route = self.pubsub.route(topic)
        if assurance == BEST_EFFORT and not (retain or route.queues or route.shares or confirm is not None):
            return sum([audience.deliver(message, assurance, retain, publisher) for audience in route.everyone])
        return self._publishing.stage(route.queues, message, confirm, route, assurance, retain, publisher)

    def announce(self, topic: str, payload: bytes) -> None:
        """Tell subscribers something of the broker itself; it stays with the topic, but is never stored."""
        message = Message(Source(topic), payload, self._clock.now_us())
        self.pubsub.announce(Envelope(message, BEST_EFFORT, True))

    def keep(self, session: Session, message: Message) -> None:
        """Have a message wait for a session that is marked for it: see envelope.py."""
        self.pubsub.keep(self._line.open(), session, message)

    def hand_over(self, delivery: Delivery, session: Session, message: Message) -> None:
        """Have a delivery of what several share be this session's alone: it waits for it, and for nobody else."""
        self.pubsub.hand_over(self._line.open(), session, message)
        self.settle(delivery, ACK)

    def _publish_will(self, will: Will) -> None:
        """Publish what a session left behind, as of now."""
        message = will.message(self._clock.now_us())
        try:
            self.publish_topic(message, None, will.envelope.assurance, will.envelope.retain)
        except Refused as error:
            _log.warning("the will for %s cannot be published: %s", quoted(message.source.topic), error)

    def transaction(
        self,
        publishes: Sequence[Publish],
        settlements: Sequence[tuple[Delivery, int]],
        confirm: Confirm | None = None,
    ) -> list[int]:
        """Publish and settle as one: all of it happens or nothing does, and `confirm` is told which.

        Returns for each publish how many queues it is meant for. Raises, before anything is done, what `publish` and
        `settle` raise, and Refused when a queue does not take a message. The caller collects what a transaction does
        until it commits; to roll back is to forget it.
        """
        return self._publishing.transaction(publishes, settlements, confirm)

    def bulk(self) -> Bulk:
        """Publish many encoded messages as one: add them to what is returned, then commit or undo it."""
        now_us = self._clock.now_us()
        return Bulk(self.topology, self._queues, self.pubsub, self.codecs, self._line, self.ledger, now_us)

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare(self, definition: QueueDefinition, owner: object = None, passive: bool = False) -> Queue:
        """Have a queue as defined; an empty name gets one from the server. Passive only asks whether it exists.

        Raises NotFound (passive), PreconditionFailed when it exists and differs, ResourceLocked when another
        connection has it for itself, AccessRefused for names the server keeps, Refused for another replication group,
        NotFound and PreconditionFailed for a source that is none.
        """
        return self._queues.declare(definition, owner, passive)

    def queue(self, name: str, owner: object = None) -> Queue:
        """Raises NotFound, ResourceLocked."""
        return self._queues.find(name, owner)

    def addressed(self, name: str, owner: object = None) -> Queue:
        """The queue that an address names; where there is none, an ephemeral one is made. That of dead letters is made
        as the first of them would make it. Raises NotFound for dead letters of no queue, ResourceLocked."""
        self._queues.addressed(name)
        return self._queues.find(name, owner)

    def delete(self, name: str, if_unused: bool = False, if_empty: bool = False, owner: object = None) -> int:
        """Remove a queue; returns how many messages it held. Raises NotFound, PreconditionFailed, ResourceLocked."""
        return self._queues.delete(name, if_unused, if_empty, owner)

    def purge(self, name: str, owner: object = None) -> int:
        """Drop all messages that wait in a queue; returns how many. Raises Refused for a stream, Corrupt."""
        queue = self._queues.usable(name, owner)
        if queue.definition.is_stream:
            raise Refused(f"queue '{name}' is a stream: what it drops is up to its retention")
        turn = self._line.open()
        count = queue.disposal.purge(turn)
        turn.is_promised = turn.is_promised or (count > 0 and queue.durable)
        return count

    def release_owner(self, owner: object) -> None:
        """A connection is gone: so are the queues it had for itself."""
        self._queues.release_owner(owner)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange, passive: bool = False) -> None:
        self.topology.declare_exchange(self._line.open(), exchange, passive)

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        self.topology.delete_exchange(self._line.open(), name, if_unused)

    def bind(self, binding: Binding, owner: object = None) -> None:
        """Raises NotFound, ResourceLocked, AccessRefused, PreconditionFailed."""
        if not binding.to_exchange:
            self._queues.find(binding.destination, owner)
        self.topology.bind(self._line.open(), binding)

    def unbind(self, binding: Binding, owner: object = None) -> None:
        """Raises NotFound for the exchange, ResourceLocked; a binding that is not there is no error."""
        queue = self.topology.queues.get(binding.destination)
        if queue is not None and not binding.to_exchange:
            self._queues.check_owner(queue, owner)
        self.topology.unbind(self._line.open(), binding)

    # -- consuming ---------------------------------------------------------------------------------------------------

    def consume(
        self,
        name: str,
        consumer: Consumer,
        group: str = "",
        key_filter: str = "",
        mode: int = 0,
        position: object = None,
        auto_commit: bool = True,
        exclusive: bool = False,
    ) -> Group:
        """Make a consumer a member of a group of a queue, from where it gets messages as its credit allows.

        Without a group, classic queues have one that all share; streams have one per consumer. With a filter, the
        group is `group@filter`, which has progress of its own. Without a mode it is the one that modes.py says.
        `position` (see parse_position) moves a stream group that nobody reads. Raises NotFound, ResourceLocked,
        AccessRefused (exclusive use), Refused (mode clash, bad position), Corrupt.
        """
        return self._consuming.join(name, consumer, group, key_filter, mode, position, auto_commit, exclusive)

    def cancel(self, consumer: Consumer, keep: bool = False) -> None:
        """A consumer leaves; what it holds goes back in line. An auto-delete queue goes with its last consumer.

        With `keep` it gets nothing more, but may still settle what it holds, until it is cancelled without.
        """
        self._consuming.leave(consumer, keep)

    def get(self, name: str, consumer: Consumer, group: str = "") -> Delivery | None:
        """One message for a consumer that asks for it, None when none waits.

        The consumer need not be a member, but all it takes is from one group; `cancel` gives back what it holds.
        Raises NotFound, ResourceLocked, AccessRefused (exclusive use), Refused (a stream, another group), Corrupt.
        """
        return self._consuming.take(name, consumer, group)

    def browse(
        self, name: str, show: Show, selector: Selector | None, ended: Callable[[], None], owner: object = None
    ) -> Browser:
        """Look at the messages of a queue without taking any, as many as `allow_browser` says.

        `ended` is called when the queue goes away. Raises NotFound, ResourceLocked, Corrupt.
        """
        return self._consuming.browse(name, show, selector, ended, owner)

    def allow_browser(self, browser: Browser, count: int) -> None:
        """Let a browser be shown `count` more messages and then no more; 0 pauses it."""
        browser.allowance = count
        self._line.pump_soon(browser.queue)

    def end_browser(self, browser: Browser) -> None:
        """It wants to see nothing more."""
        self._consuming.end_browser(browser)

    def reclaim(self, name: str, group: str, consumer: Consumer) -> list[Delivery]:
        """Have a consumer hold again what it held, by its name, when the broker was stopped; it gets nothing more.

        Nothing where the queue or the group is gone, or there is nothing to hold. Raises Corrupt.
        """
        return self._consuming.reclaim(name, group, consumer)

    def set_credit(self, consumer: Consumer, limit: int) -> None:
        """Let a consumer hold up to `limit` unsettled messages from now on; 0 means as many as there are."""
        consumer.change_limit(limit)
        self._has_room(consumer)

    def set_shared_credit(self, credit: Credit, limit: int) -> None:
        """Let all consumers that share this credit hold up to `limit` together; 0 means as many as there are."""
        credit.change(limit)

    def allow(self, consumer: Consumer, count: int) -> None:
        """Let a consumer get `count` more messages and then no more, whatever it settles; 0 pauses it."""
        consumer.allowance = count
        self._has_room(consumer)

    def _has_room(self, consumer: Consumer) -> None:
        consumer.wake()
        if consumer.group is not None:
            self._line.pump_soon(consumer.group.queue)

    def settle(self, delivery: Delivery, outcome: int = ACK) -> None:
        """End a delivery: ACK, NACK, REJECT or RELEASE. Raises Refused when it is not pending any more.

        When the queue is gone there is nothing to end, and that is no error.
        """
        group = delivery.group
        if group.queue.is_gone:
            delivery.consumer.release(delivery.offset)
            return
        now_us = self._clock.now_us()
        group.settle(self._line.turn, delivery.consumer, delivery.offset, outcome, now_us)
        if outcome != ACK:
            group.queue.wake_at(now_us)  # what comes back may have expired meanwhile
        if outcome == ACK and group.is_drained:
            self._line.settled()
        else:
            self._line.pump_soon(group.queue)

    def acknowledge(self, deliveries: list[Delivery]) -> None:
        """End many deliveries well, in their order; those that are not pending any more are passed over."""
        turn, now_us = self._line.turn, self._clock.now_us()
        at = glanced_to = 0
        end = len(deliveries)
        while at < end:
            consumer, group = deliveries[at].consumer, deliveries[at].group
            stop = at + 1
            while stop < end and deliveries[stop].consumer is consumer and deliveries[stop].group is group:
                stop += 1
            if stop < end and stop > glanced_to:
                glanced_to = stop + AT_A_TIME
                glance_at_deliveries(deliveries[stop:glanced_to])
            if group.queue.is_gone:
                for delivery in deliveries[at:stop]:
                    consumer.release(delivery.offset)
                at = stop
                continue
            if stop - at == 1:
                group.acknowledge_one(turn, consumer, deliveries[at], now_us)
            else:
                group.acknowledge(turn, consumer, deliveries[at:stop], now_us)
            at = stop
            if group.is_drained:
                self._line.settled()
            else:
                self._line.pump_soon(group.queue)

    def renew(self, delivery: Delivery, lease_ms: int) -> None:
        """Give a consumer more time for a delivery. Raises Refused when it is not pending any more."""
        if isinstance(delivery.group, WorkGroup):
            due_us = self._clock.now_us() + lease_ms * 1000
            delivery.group.renew(delivery.consumer, delivery.offset, due_us)

    @property
    def statistics(self) -> Statistics:
        """What was counted since the broker was opened."""
        return self._line.statistics

    def history(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, dict[str, object]]]:
        """How messages of a queue ended and who had claimed them, oldest first; nothing when that is not kept."""
        kept = self.topology.queues.get(HISTORY_PREFIX + name)
        return [(at, read_entry(message)) for at, message in kept.browse(offset, limit)] if kept is not None else []

    # -- turns and flow ----------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """Whether publishers must slow down."""
        return self._flow.blocked

    @property
    def is_held_up(self) -> bool:
        """Whether storage refuses what must be stored, so that publishers are refused until it takes it."""
        return self._line.retry_at_us > 0

    @property
    def on_flow(self) -> dict[object, Callable[[bool], None]]:
        """By whose they are. Called with True when publishers must slow down, and with False when they may go on."""
        return self._flow.listeners

    def when_safe(self, confirm: Confirm) -> None:
        """Have `confirm` called once everything that was called so far would survive a crash, or did not come to."""
        turn = self._line.open()
        turn.is_barrier = True
        turn.confirms.add(confirm)

    def when_kept(self, confirm: Confirm) -> bool:
        """Have `confirm` called once all that was declared, bound, deleted or purged would survive a crash, or did not
        come to; False, and no call, when there is nothing to wait for. It adds nothing to what is stored."""
        return self._line.when_kept(confirm)

    def when_entered(self, call: Callable[[], None]) -> bool:
        """Have this called once all that was published so far is in its queues, or did not come to, and was offered to
        their consumers; False, and no call, when there is nothing to wait for. It asks for no sync."""
        return self._line.when_entered(call)

    def after_delivery(self, name: str, call: Callable[[], None]) -> None:
        """Have this called once what is ready now in a queue was delivered to whoever has room."""
        self._line.after_pumps(self.topology.queues.get(name), call)

    def in_turn(self, confirm: Confirm) -> None:
        """Have `confirm` called after those of everything that was published so far; nothing else is waited for."""
        turn = self._line.open()
        turn.confirms.add(confirm, is_awaited=False)

    def at_flush(self, call: Callable[[], None]) -> None:
        """Have something called at the end of this turn, before what is ready is delivered."""
        self._line.at_flush(call)

    def flush(self) -> None:
        """Deliver what is ready and store what is staged; happens by itself once per turn of the event loop."""
        self._line.flush()

    def drain(self) -> None:
        """Store everything that is staged and wait for it; what cannot be stored now is left. For shutting down."""
        self._queues.assigner.rest()
        self._line.drain()

    def tick(self) -> int:
        """Do what has come due; returns when to call again, in microseconds, or 0 for when something changes."""
        now_us = self._clock.now_us()
        self._line.retry(now_us)
        ack_due_us = self._line.give_up(now_us)
        self._queues.on_time(now_us)
        self.sessions.on_time(now_us)
        if 0 < self.pubsub.retained.next_expiry_us <= now_us:
            self.pubsub.retained.expire(self._line.open(), now_us)
        dues = (
            ack_due_us,
            self._queues.timers.next_us,
            self._line.retry_at_us,
            self._line.held_until_us,
            self._line.release_at_us,
            self._queues.assigner.due_us,
            self.sessions.next_due_us,
            self.pubsub.retained.next_expiry_us,
        )
        return min([due_us for due_us in dues if due_us], default=0)


def _one_of(confirm: ConfirmAll | None) -> Confirm | None:
    return None if confirm is None else lambda error: confirm(1, error)

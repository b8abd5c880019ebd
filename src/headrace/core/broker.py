"""One virtual host: publish, consume, settle, declare, administer: all that a protocol may call. No sockets.

Nothing here waits. Calls change memory and fill the open batch. Once per turn of the event loop the batch is stored;
when it is visible consumers get its messages, and when it is durable publishers are confirmed.
"""

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, final

from headrace.clock import Clock
from headrace.config.replication import MAIN
from headrace.core.batch import Confirm, ConfirmAll
from headrace.core.feeds.feed import FedQueue
from headrace.core.flow import Flow, Intake, Statistics
from headrace.core.ledger import Ledger, ProtocolStore
from headrace.core.parameters import Parameters
from headrace.core.pipeline import CommitPipeline, Schedule, take_steps, together
from headrace.core.policies import Policy
from headrace.core.publishing import Bulk, Entries, Publishing
from headrace.core.pubsub.pubsub import PubSub, SessionQueues
from headrace.core.pubsub.retained import Retained
from headrace.core.pubsub.session import AT_LEAST_ONCE, BEST_EFFORT, DEFAULT_BOUNDS, Bounds, Envelope, Session, Will
from headrace.core.pubsub.sessions import Sessions, SessionStore
from headrace.core.queue.claims import Claims
from headrace.core.queue.definition import EPHEMERAL, HISTORY_PREFIX, RESUME, QueueDefinition, parse_position
from headrace.core.queue.dispatch import Consumer, Credit, Delivery
from headrace.core.queue.entry import expire_readable
from headrace.core.queue.group import ACK, Group, PendingEntry, mode_to_join
from headrace.core.queue.publishers import Publisher
from headrace.core.queue.queue import DEFAULT_GROUP, Browser, Onlooker, Queue, Show
from headrace.core.queue.queues import Queues
from headrace.core.queue.readers import Reader, ReaderGroups
from headrace.core.queue.stream import StreamGroup
from headrace.core.queue.work import WorkGroup
from headrace.core.routing.address import MAX_OFFSET, effective_group, is_address
from headrace.core.routing.delays import Later
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.topology import DEFAULT_HOST, Topology, topic_of, unscoped
from headrace.core.transaction import Publish
from headrace.errors import AccessRefused, Corrupt, NotFound, Refused
from headrace.model import Message, Source
from headrace.names import quoted
from headrace.selector import Selector
from headrace.storage.api import (
    BINDINGS,
    EXCHANGES,
    KEPT,
    PARAMETERS,
    PUBLISHERS,
    RETAINED,
    SESSIONS,
    TRANSACTIONS,
    Commit,
    Engine,
)
from headrace.storage.group_state import STREAM, WORK


@final
class Groups:
    """The groups of one virtual host, for administration. Each call names one queue and one group."""

    def __init__(self, pipeline: CommitPipeline, queues: Queues, clock: Clock) -> None:
        self._pipeline = pipeline
        self._queues = queues
        self._clock = clock

    def settle(self, name: str, group: str, offset: int, outcome: int) -> None:
        """End a delivery: ACK, NACK, REJECT or RELEASE. Raises NotFound, Refused when it is not pending any more."""
        members = self._settled_in(name, group, offset)
        consumer = members.holder(offset)
        if consumer is None and isinstance(members, StreamGroup) and members.was_read(offset):
            return  # settled already, as by PUBACK, or read without being held
        if consumer is None or consumer.group is not members:  # a transaction may hold it
            raise Refused(f"offset {offset} of queue {name!r} is not pending in group {group!r}")
        members.settle(self._pipeline.open(), consumer, offset, outcome, self._clock.now_us())
        self._pipeline.pump_soon(members.queue)

    def commit(self, name: str, group: str, offset: int) -> None:
        """Mark everything below `offset` as processed by a stream group. Raises Refused above its cursor."""
        members = self._stream(name, group, "acknowledge messages instead")
        members.commit(self._pipeline.open(), offset)
        self._pipeline.pump_soon(members.queue)

    def report(self, name: str, group: str, offset: int) -> None:
        """Record that an outside reader, such as a Spark query, has processed all below `offset`; makes the group.

        Raises NotFound, Refused when the group is a work group or has consumers, Corrupt.
        """
        queue = self._queues.usable(name, self._queues.topology.queue(name).owner)
        members = queue.open_group(self._pipeline.open(), group, STREAM)
        if not isinstance(members, StreamGroup) or len(members.consumers):
            raise Refused(f"group {group!r} of queue {name!r} has consumers of its own: use another name")
        members.seek(self._pipeline.open(), offset)
        if queue.definition.retention.keep_until_archived:
            queue.disposal.retain(self._pipeline.open(), self._clock.now_us())

    def seek(self, name: str, group: str, position: object) -> None:
        """Move a stream group to another position."""
        members = self._stream(name, group, "it cannot be moved")
        members.seek(self._pipeline.open(), members.queue.offset_at(parse_position(position, self._clock.now_us())))
        self._pipeline.pump_soon(members.queue)

    def delete(self, name: str, group: str) -> int:
        """Forget a group; returns how many messages it had not finished. Raises NotFound, Refused.

        A group with consumers stays. So do the default group of a work queue and the last group that settles its
        messages, as only their progress says which messages were acknowledged.
        """
        queue = self._queues.find(name)
        members = queue.groups.get(group)
        if members is None:
            raise NotFound(f"queue {name!r} has no group {group!r}")
        if isinstance(members, WorkGroup) and not queue.is_stream:
            _check_forgettable(queue, members)
        unfinished = members.lag
        batch = self._pipeline.open()
        queue.remove_group(batch, group)
        self._queues.pauses.forget(batch, members)
        return unfinished

    def pause(self, name: str, group: str, is_paused: bool = True) -> None:
        """Pause deliveries to a group, over restarts too, or go on. Consumers keep their messages."""
        members = self._find(name, group)
        if members.is_paused != is_paused:
            self._queues.pauses.set(self._pipeline.open(), members, is_paused)
            self._pipeline.pump_soon(members.queue)

    def pending(self, name: str, group: str = DEFAULT_GROUP) -> list[PendingEntry]:
        """Return the pending offsets of a group, with their consumers and ends. Raises NotFound, Corrupt."""
        return self._find(name, group).pending()

    def _settled_in(self, name: str, group: str, offset: int) -> Group:
        """Return the group of that name; without its filter if only one such group has the offset pending."""
        queue = self._queues.usable(name, self._queues.topology.queue(name).owner)
        named = _without_filter(queue, group)
        pending = [members for members in named if members.holder(offset) is not None]
        if len(named) > 1 and len(pending) != 1:
            names = ", ".join([repr(members.name) for members in named])
            raise Refused(f"group {group!r} of queue {name!r} may be any of {names}: name one of them")
        return (pending or named or [self._find(name, group)])[0]

    def _find(self, name: str, group: str) -> Group:
        members = self._queues.usable(name, self._queues.topology.queue(name).owner).groups.get(group)
        if members is None:
            raise NotFound(f"queue {name!r} has no group {group!r}")
        return members

    def _stream(self, name: str, group: str, advice: str) -> StreamGroup:
        queue = self._queues.usable(name, self._queues.topology.queue(name).owner)
        named = _without_filter(queue, group)
        members = named[0] if len(named) == 1 else self._find(name, group)
        if not isinstance(members, StreamGroup):
            raise Refused(f"group {group!r} of queue {name!r} is a work group: {advice}")
        return members


def _check_forgettable(queue: Queue, group: WorkGroup) -> None:
    """Raise Refused if deleting the group would deliver acknowledged or tried messages again as new ones."""
    state = group.state
    is_known = state.settled_count > 0 or state.has_pending or state.committed > queue.first_offset
    is_last = len(queue.work_groups()) == 1
    if group.name == DEFAULT_GROUP or (is_last and is_known):
        raise Refused(
            f"group {group.name!r} of queue {queue.name!r} cannot be forgotten: messages that it acknowledged would be "
            f"delivered again; purge or delete the queue instead"
        )


def _without_filter(queue: Queue, name: str) -> list[Group]:
    """Return the groups that a name without a filter may mean; none if a group has that very name."""
    if name in queue.groups:
        return []
    return [group for group in queue.groups.values() if group.name.partition("@")[0] == name]


_TABLES: Final = (EXCHANGES, BINDINGS, RETAINED, SESSIONS, TRANSACTIONS, KEPT, PUBLISHERS, PARAMETERS)
"""Tables in which the keys of a host begin with its name, besides its queues."""

_KEYS_AT_ONCE: Final = 1000


@final
class Administration:
    """One virtual host, for its configuration and for its deletion."""

    def __init__(
        self, engine: Engine, queues: Queues, pipeline: CommitPipeline, clock: Clock, parameters: Parameters
    ) -> None:
        self._engine = engine
        self._queues = queues
        self._pipeline = pipeline
        self._clock = clock
        self._parameters = parameters
        self.on_ended: dict[object, Callable[[str], None]] = {}
        """Calls by owner, with the reason why its connection must end."""

    def alter(self, definition: QueueDefinition, is_start: bool = False) -> None:
        """Change a queue to a definition of the same type and durability: see configured.py. Raises NotFound.

        Messages beyond its limits go. Priorities and single consumers change at a start only.
        """
        self._queues.alter(self._queues.find(definition.name), definition, is_start)

    def loss(self, definition: QueueDefinition) -> int:
        """Return how many messages would go at once if a queue became this. Raises NotFound, Corrupt."""
        governed = self._queues.governed(definition)
        return self._queues.usable(definition.name, None).disposal.loss(governed, self._clock.now_us())

    def put_policy(self, policy: Policy, applied: Callable[[], None]) -> None:
        """Create or replace a policy; `applied` is called when all queues and exchanges have it. Raises Refused."""
        self._parameters.put_policy(self._pipeline.open(), policy)
        self._govern(applied)

    def delete_policy(self, name: str, is_operator: bool, applied: Callable[[], None]) -> None:
        """Delete a policy; `applied` is called when no queue and exchange has it any more. Raises NotFound."""
        self._parameters.delete_policy(self._pipeline.open(), name, is_operator)
        self._govern(applied)

    def _govern(self, applied: Callable[[], None]) -> None:
        """Exchanges change at once, queues in steps."""
        self._queues.topology.govern_exchanges()
        take_steps(self._pipeline, together(self._queues.govern_all()), applied)

    def put_limits(self, limits: Mapping[str, int]) -> None:
        """Set limits of the virtual host, as `read_limits` gives them; a negative one lifts a limit."""
        self._parameters.put_limits(self._pipeline.open(), limits)

    def fed_queue(self, queue: Queue) -> FedQueue | None:
        """Return the progress of a queue in the stream that it is filled from; None if it is not."""
        return self._queues.assigner.of(queue)

    def limit(self, unwritten_bytes: int, memory_bytes: int, auto_commit_ms: int) -> None:
        """Set how much may be unwritten, and in memory queues, before publishers wait; and the auto-commit interval."""
        self._pipeline.flow.limit(unwritten_bytes, memory_bytes)
        self._queues.auto_commit_us = auto_commit_ms * 1000

    def dissolve(self, dissolved: Callable[[Commit], None]) -> None:
        """Delete the virtual host: end its connections and remove all its stored state.

        A large one goes in several commits. `dissolved` is called with the last of them, may add to it, and must call
        `end`.
        """
        why = f"vhost '{self._queues.topology.host}' is deleted"
        for tell in list(self.on_ended.values()):
            tell(why)
        take_steps(self._pipeline, self._remove_all(), lambda: dissolved(self._pipeline.open().durable))

    def _remove_all(self) -> Iterator[None]:
        yield from self._queues.drop_all()
        for table in _TABLES:
            for number, (key, _) in enumerate(list(self._engine.items(table)), 1):
                if unscoped(self._queues.topology.host, key.decode(errors="replace")) is not None:
                    self._pipeline.open().durable.delete(table, key)
                if number % _KEYS_AT_ONCE == 0:
                    yield
        for table, key in self._pipeline.staged_keys():
            self._pipeline.open().durable.delete(table, key)

    def end(self, confirm: Confirm, ended: Callable[[], None]) -> None:
        """Store the open batch, and nothing after it. `ended` is called when that is done, however long it takes;
        `confirm` hears of the first attempt."""
        batch = self._pipeline.open()
        batch.is_barrier = True
        batch.confirms.add(confirm)
        self._pipeline.end(ended)


_log: Final = logging.getLogger("headrace.core")
_HELD: Final = 1000
"""Most messages that a leaving consumer gives back in one step."""
_SETTLED_AT_ONCE: Final = 5
"""Deliveries settled in one step of very many. A hundred steps go into one batch."""


def _no_items(_: str) -> tuple[tuple[bytes, bytes], ...]:
    return ()


@final
class Broker:
    """All queues, exchanges and groups of one virtual host, over any engine."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        schedule: Schedule,
        host: str = DEFAULT_HOST,
        flow: Flow | None = None,
        bounds: Bounds = DEFAULT_BOUNDS,
        replication_group: str = MAIN,
        is_new: bool = False,
    ) -> None:
        """`is_new` says that nothing of this virtual host is stored, so that no table need be looked through for it."""
        self._clock = clock
        items = _no_items if is_new else engine.items
        self.parameters = Parameters(items, host)
        self.topology = Topology(host, self.parameters.policies.alternate_of)
        self._flow = flow or Flow()
        self._pipeline = CommitPipeline(engine, clock, schedule, self._flow)
        self._queues = Queues(engine, clock, self._pipeline, self.topology, replication_group, self.parameters, items)
        self.topology.load(items)
        inner = SessionQueues(engine, host, self._pipeline, clock, self._queues)
        self.pubsub = PubSub(self.topology, Retained(engine, host, bounds, items), inner, bounds)
        store = SessionStore(items, host)
        self.sessions = Sessions(clock, self._pipeline, self.pubsub, store, self._publish_will)
        self._publishing = Publishing(self._queues, self.pubsub, self._pipeline, clock)
        self.ledger = Ledger(engine, host)
        self.protocol_store = ProtocolStore(engine, host, self._pipeline)
        self.dead_letters = self._queues.dead_letters
        self.claims = Claims(self._pipeline, self._queues, clock)
        self.groups = Groups(self._pipeline, self._queues, clock)
        self.reader_groups = ReaderGroups()
        self.administration = Administration(engine, self._queues, self._pipeline, clock, self.parameters)
        self.on_ended = self.administration.on_ended

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        confirm: Confirm | None = None,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
    ) -> int:
        """Send a message to the exchange and routing key of its source; returns to how many queues it goes.

        0 means that it cannot be routed. `confirm` is called once it is durable in all of them, or with the error, in
        the order of the publishes. An address `$queue/...` on the default exchange goes where `publish_topic` sends it.
        Raises NotFound and AccessRefused for the exchange.
        """
        source, exchanges = message.source, self.topology.exchanges
        if exchanges.reads_messages:
            headers = exchanges.details(message, headers)
        queues = self._publishing.route(message, headers, extra_keys)
        later: Later | None = None
        if exchanges.reads_messages:
            later = exchanges.later(source.exchange, message, headers, extra_keys, self._clock.now_us())
        if source.exchange and self.topology.reaches_subscribers(source.exchange, source.topic, headers, extra_keys):
            return self._publishing.stage(queues, message, confirm, self.pubsub.route(topic_of(source)), later=later)
        return self._publishing.stage(queues, message, confirm, later=later)

    def publish_all(
        self,
        messages: list[Message],
        confirm: ConfirmAll | None = None,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
        straight_to: Queue | None = None,
    ) -> int:
        """Publish messages of one source and with the same headers, if those decide; one call may confirm several.

        All go to the same queues, so they are routed once, and limits are checked only where there are any. The broker
        owns the list from then on. Successive publishes with the same `confirm` get one call. A caller that knows the
        answer of `straight_to` passes it: with a key for each of many queues, the lookup took a twentieth of the time.
        """
        source = messages[0].source
        if straight_to is not None and not extra_keys and self._publishing.stage_all([straight_to], messages, confirm):
            return 1
        meant = 0
        if self.topology.exchanges.reads_messages and self.routes_each(source.exchange):
            for message in messages:
                meant = self.publish(message, _one_of(confirm), headers, extra_keys)
            return meant
        queues = self._publishing.route(messages[0], headers, extra_keys)
        is_heard = bool(source.exchange) and self.topology.reaches_subscribers(
            source.exchange, source.topic, headers, extra_keys
        )
        if not is_heard and self._publishing.stage_all(queues, messages, confirm):
            return len(queues)
        for message in messages:
            meant = self.publish(message, _one_of(confirm), headers, extra_keys)
        return meant

    def publish_each(
        self, messages: list[Message], straight_to: list[Queue | None], confirm: ConfirmAll | None = None
    ) -> list[int]:
        """Publish messages to one exchange, each with a key of its own; returns the places of those that go nowhere.

        Headers must not decide. `straight_to` has the answer of that method for each message, the default exchange only
        messages with one. Otherwise as `publish_all`. Raises NotFound and AccessRefused before anything is published.
        """
        exchange = messages[0].source.exchange
        if exchange:
            self.topology.exchanges.check_publish(exchange)
            if self.topology.may_reach_subscribers(exchange):
                one = _one_of(confirm)
                return [at for at, message in enumerate(messages) if not self.publish(message, one)]
        return self._publishing.stage_each(messages, straight_to, confirm)

    def publish_entries(self, queue: Queue, publisher: Publisher | None, entries: Entries, confirm: ConfirmAll) -> None:
        """Publish numbered messages to one queue; `confirm` is told of entries, in their order.

        Entries that the queue has of a named publisher are not stored again, and are confirmed with the others.
        """
        self._publishing.stage_entries(queue, publisher, entries, confirm)

    def publisher(self, queue: Queue, name: str) -> Publisher:
        """Return the publisher of that name, new if need be. Raises PreconditionFailed for an unusable name."""
        return self._queues.publishers.open(self._pipeline.open().durable, queue.name, name, self._clock.now_us())

    def tell_number(self, queue: Queue, name: str, tell: Callable[[int], None]) -> None:
        """Tell the last number of a publisher that the queue has, once that is durable; 0 for none."""
        publisher = self._queues.publishers.find(queue.name, name)
        if publisher is None:
            tell(0)
        else:
            most = publisher.last
            self.in_turn(lambda error: tell(max(0, publisher.settled_to(most))))

    def straight_to(self, exchange: str, key: str) -> Queue | None:
        """Return the one queue that messages with this key go to until it is deleted; None where more decides."""
        return self.topology.direct.get(key) if not exchange else None

    def routes_each(self, exchange: str) -> bool:
        """True if more than the key decides where a message to this exchange goes: its headers, say."""
        return bool(exchange) and self.topology.exchanges.routes_each(exchange)

    def publish_topic(
        self,
        message: Message,
        confirm: Confirm | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        publisher: Session | None = None,
    ) -> int:
        """Send a message to all queues and subscribers whose patterns match its topic; returns how many.

        A plain topic goes to subscribers, to queues that capture it and through the exchange `amq.topic`, and stays
        with the topic if `retain`. An address `$queue/...` that nothing matches makes an ephemeral queue or, where no
        queue was ever declared, the landing queue `mqtt`. `confirm` is called once the message is durable in all of
        them. Raises Refused for an address that names no queue or ends in a verb.
        """
        topic = message.source.topic
        if is_address(topic):
            return self._publishing.stage(self._publishing.route_topic(topic), message, confirm)
        route = self.pubsub.route(topic)
        if assurance == BEST_EFFORT and not (retain or route.queues or route.shares or confirm is not None):
            return sum([audience.deliver(message, assurance, retain, publisher) for audience in route.everyone])
        return self._publishing.stage(route.queues, message, confirm, route, assurance, retain, publisher)

    def announce(self, topic: str, payload: bytes) -> None:
        """Send news of the broker itself to subscribers; it is retained in memory and never stored."""
        message = Message(Source(topic), payload, self._clock.now_us())
        self.pubsub.announce(Envelope(message, BEST_EFFORT, True))

    def keep(self, session: Session, message: Message) -> None:
        """Queue a message for a session that is marked for it: see session.py."""
        self.pubsub.keep(self._pipeline.open(), session, message)

    def hand_over(self, delivery: Delivery, session: Session, message: Message) -> None:
        """Move a delivery of a shared subscription to the queue of one session."""
        self.pubsub.hand_over(self._pipeline.open(), session, message)
        self.settle(delivery, ACK)

    def _publish_will(self, will: Will) -> None:
        """Publish the will of a session, as of now."""
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
        `settle` raise, and Refused when a queue does not take a message. The caller collects publishes and settlements
        until it commits; to roll back, it drops them.
        """
        return self._publishing.transaction(publishes, settlements, confirm)

    def bulk(self) -> Bulk:
        """Return an empty bulk publish: add encoded messages to it, then commit or undo it."""
        now_us = self._clock.now_us()
        return Bulk(self.topology, self._queues, self.pubsub, self._pipeline, self.ledger, now_us)

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare(self, definition: QueueDefinition, owner: object = None, passive: bool = False) -> Queue:
        """Return a queue as defined: see Queues.declare."""
        return self._queues.declare(definition, owner, passive)

    def queue(self, name: str, owner: object = None) -> Queue:
        """Return a queue by name. Raises NotFound, ResourceLocked."""
        return self._queues.find(name, owner)

    def addressed(self, name: str, owner: object = None) -> Queue:
        """Return the queue that an address names, new if need be: see Queues.addressed. Raises ResourceLocked too."""
        self._queues.addressed(name)
        return self._queues.find(name, owner)

    def delete(self, name: str, if_unused: bool = False, if_empty: bool = False, owner: object = None) -> int:
        """Remove a queue; returns how many messages waited. Raises NotFound, PreconditionFailed, ResourceLocked."""
        return self._queues.delete(name, if_unused, if_empty, owner)

    def purge(self, name: str, owner: object = None) -> int:
        """Drop all waiting messages of a queue; returns how many. Raises Refused for a stream, Corrupt."""
        queue = self._queues.usable(name, owner)
        if queue.definition.is_stream:
            raise Refused(f"queue '{name}' is a stream: what it drops is up to its retention")
        batch = self._pipeline.open()
        count = queue.disposal.purge(batch)
        batch.is_promised = batch.is_promised or (count > 0 and queue.durable)
        return count

    def release_owner(self, owner: object) -> None:
        """Drop the exclusive queues of a connection that is gone."""
        self._queues.release_owner(owner)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange, passive: bool = False) -> None:
        self.topology.declare_exchange(self._pipeline.open(), exchange, passive)

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        self.topology.delete_exchange(self._pipeline.open(), name, if_unused)

    def bind(self, binding: Binding, owner: object = None) -> None:
        """Add a binding. Raises NotFound, ResourceLocked, AccessRefused, PreconditionFailed."""
        self.topology.exchanges.check_ends(binding)
        if not binding.to_exchange:
            self._queues.find(binding.destination, owner)
        self.topology.bind(self._pipeline.open(), binding)

    def unbind(self, binding: Binding, owner: object = None) -> None:
        """Remove a binding, if there is one. Raises NotFound for the exchange, ResourceLocked."""
        queue = self.topology.queues.get(binding.destination)
        if queue is not None and not binding.to_exchange and self.topology.exchanges.has(binding):
            self._queues.check_owner(queue, owner)
        self.topology.unbind(self._pipeline.open(), binding)

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
        group is `group@filter`, which has progress of its own. Without a mode `mode_to_join` decides.
        `position` (see parse_position) moves a stream group that nobody reads. Raises NotFound, ResourceLocked,
        AccessRefused (exclusive use), Refused (mode clash, bad position), Corrupt.
        """
        queue = self._queues.usable(name, consumer.owner)
        place = parse_position(position, self._clock.now_us())
        mode = mode or mode_to_join(queue, group)
        group = effective_group(group or (consumer.name if mode == STREAM else DEFAULT_GROUP), key_filter)
        batch = self._pipeline.open()
        members = queue.open_group(batch, group, mode, key_filter, auto_commit)
        if queue.definition.kind == EPHEMERAL:
            consumer.auto_ack = True
        if isinstance(members, StreamGroup):
            members.agree(auto_commit)
            members.select(consumer.selector, consumer.values)
            consumer.selector = None  # the readers of a stream have one position, and so one selector
        is_first = not len(members.consumers)
        others = members.consumers
        if (len(others) and (exclusive or others.exclusive)) or (exclusive and queue.definition.single_active):
            raise AccessRefused(f"queue '{name}' in vhost '{self.topology.host}' in exclusive use")
        others.join(consumer, exclusive)
        consumer.group = members
        queue.had_consumers = True
        queue.touch(self._clock.now_us())
        if isinstance(members, StreamGroup) and place[0] != RESUME and is_first:
            members.seek(batch, queue.offset_at(place))
        self._pipeline.pump_soon(queue)
        return members

    def cancel(self, consumer: Consumer, keep: bool = False) -> None:
        """Remove a consumer; its messages are ready again. An auto-delete queue goes with its last consumer.

        With `keep` it gets nothing more, but may still settle its messages, until it is cancelled without.
        """
        group = consumer.group
        if group is None:
            return
        queue = group.queue
        if keep and consumer.holding:
            group.consumers.leave(consumer)
            queue.touch(self._clock.now_us())
        else:
            queue.leave(self._pipeline.open(), consumer, self._clock.now_us())
            consumer.detach()
        if queue.definition.auto_delete and queue.had_consumers and not queue.consumers:
            self._queues.drop(queue)
        else:
            self._pipeline.pump_soon(queue)

    def give_back(self, consumer: Consumer) -> Iterator[None]:
        """Give back most messages of a silenced consumer that holds very many, in steps; `cancel` does the rest."""
        group = consumer.group
        if not isinstance(group, WorkGroup) or consumer.holding <= _HELD:
            return
        held = consumer.held()
        group.returning += 1
        try:
            for start in range(0, len(held), _SETTLED_AT_ONCE):
                if consumer.group is not group:
                    return  # the queue is gone
                part = held[start : start + _SETTLED_AT_ONCE]
                group.give_back(self._pipeline.open(), consumer, part, self._clock.now_us())
                self._pipeline.pump_soon(group.queue)
                yield
        finally:
            group.returning -= 1
            self._pipeline.pump_soon(group.queue)

    def in_steps(self, steps: Iterator[None]) -> None:
        """Do long work whose steps are short: a hundred steps now, and a hundred with each batch."""
        take_steps(self._pipeline, together(steps))

    def get(self, name: str, consumer: Consumer, group: str = "") -> Delivery | None:
        """Claim one message for a consumer that asks for it; returns None when none waits.

        The consumer need not be a member, but takes from one group only; `cancel` gives its messages back.
        Raises NotFound, ResourceLocked, AccessRefused (exclusive use), Refused (a stream, another group), Corrupt.
        """
        queue = self._queues.usable(name, consumer.owner)
        if queue.definition.is_stream:
            raise Refused(f"queue '{name}' is a stream: consume it, single messages cannot be taken from it")
        batch, now_us = self._pipeline.open(), self._clock.now_us()
        members = queue.open_group(batch, group or DEFAULT_GROUP, WORK)
        queue.touch(now_us)
        assert isinstance(members, WorkGroup)
        if consumer.group not in (None, members):
            raise Refused(f"consumer {consumer.name!r} takes from another group: one consumer serves one group")
        try:
            taken = members.take(batch, consumer, 1, MAX_OFFSET, now_us)
        except Corrupt as error:
            queue.refuse(error)
            raise
        if consumer.holding:
            consumer.group = members
        if taken:
            expire_readable(queue, batch, now_us)  # the message behind it may be too old to count
        return taken[0] if taken else None

    def browse(
        self, name: str, show: Show, selector: Selector | None, ended: Callable[[], None], owner: object = None
    ) -> Browser:
        """Show messages of a queue without claiming any, as many as `allow_browser` says.

        `ended` is called when the queue goes away. Raises NotFound, ResourceLocked, Corrupt.
        """
        queue = self._queues.usable(name, owner)
        browser = Browser(queue, show, selector, ended)
        queue.browsers += (browser,)
        queue.touch(self._clock.now_us())
        return browser

    def allow_browser(self, browser: Browser, count: int) -> None:
        """Show a browser `count` more messages and then no more; 0 pauses it."""
        browser.allowance = count
        self._pipeline.pump_soon(browser.queue)

    def follow(self, reader: Reader) -> None:
        """Let a reader read its stream from now on; `end_browser` ends that."""
        queue = reader.queue
        queue.browsers += (reader,)
        queue.touch(self._clock.now_us())
        self._pipeline.pump_soon(queue)

    def read_on(self, reader: Reader) -> None:
        """Let a reader read on that has room again."""
        self._pipeline.pump_soon(reader.queue)

    def end_browser(self, browser: Onlooker) -> None:
        """Show a browser nothing more."""
        queue = browser.queue
        queue.browsers = tuple([other for other in queue.browsers if other is not browser])

    def set_credit(self, consumer: Consumer, limit: int) -> None:
        """Let a consumer hold up to `limit` unsettled messages from now on. 0 = unlimited."""
        consumer.change_limit(limit)
        self._has_room(consumer)

    def set_shared_credit(self, credit: Credit, limit: int) -> None:
        """Let all consumers that share this credit hold up to `limit` together. 0 = unlimited."""
        credit.change(limit)

    def allow(self, consumer: Consumer, count: int) -> None:
        """Let a consumer get `count` more messages and then no more, whatever it settles. 0 pauses it."""
        consumer.allowance = count
        self._has_room(consumer)

    def _has_room(self, consumer: Consumer) -> None:
        consumer.wake()
        if consumer.group is not None:
            self._pipeline.pump_soon(consumer.group.queue)

    def settle(self, delivery: Delivery, outcome: int = ACK) -> None:
        """End a delivery: ACK, NACK, REJECT or RELEASE. Raises Refused when it is not pending any more.

        A deleted queue is no error.
        """
        group = delivery.group
        if group.queue.is_gone:
            delivery.consumer.release(delivery.offset)
            return
        now_us = self._clock.now_us()
        group.settle(self._pipeline.batch, delivery.consumer, delivery.offset, outcome, now_us)
        if outcome != ACK:
            group.queue.wake_at(now_us)  # it may have expired meanwhile
        if outcome == ACK and group.is_drained:
            self._pipeline.settled()
        else:
            self._pipeline.pump_soon(group.queue)

    def settle_all(self, deliveries: list[Delivery], outcome: int) -> Iterator[None]:
        """End many deliveries in their order, some hundred per batch; settled ones are passed over.

        Returns the steps that are left. A caller that removes the consumer runs them first, as a leaving consumer gives
        its messages back.
        """
        steps = self._settle_each(deliveries, outcome)
        take_steps(self._pipeline, together(steps))
        return steps

    def _settle_each(self, deliveries: list[Delivery], outcome: int) -> Iterator[None]:
        groups = [group for group in {each.group: None for each in deliveries} if isinstance(group, WorkGroup)]
        for group in groups:
            group.returning += 1
        try:
            for number, delivery in enumerate(deliveries, 1):
                with suppress(Refused):
                    self.settle(delivery, outcome)
                if number % _SETTLED_AT_ONCE == 0:
                    yield
        finally:
            for group in groups:
                group.returning -= 1
                self._pipeline.pump_soon(group.queue)

    def acknowledge(self, deliveries: list[Delivery]) -> None:
        """Acknowledge many deliveries in their order; settled ones are passed over."""
        batch, now_us = self._pipeline.batch, self._clock.now_us()
        at = 0
        end = len(deliveries)
        while at < end:
            consumer, group = deliveries[at].consumer, deliveries[at].group
            stop = at + 1
            while stop < end and deliveries[stop].consumer is consumer and deliveries[stop].group is group:
                stop += 1
            if group.queue.is_gone:
                for delivery in deliveries[at:stop]:
                    consumer.release(delivery.offset)
                at = stop
                continue
            group.acknowledge(batch, deliveries, at, stop, now_us)
            at = stop
            if group.is_drained:
                self._pipeline.settled()
            else:
                self._pipeline.pump_soon(group.queue)

    def renew(self, delivery: Delivery, lease_ms: int) -> None:
        """Extend the lease of a delivery. Raises Refused when it is not pending any more."""
        if isinstance(delivery.group, WorkGroup):
            due_us = self._clock.now_us() + lease_ms * 1000
            delivery.group.held_by(delivery.consumer, delivery.offset)
            delivery.group.renew(delivery.consumer, [delivery.offset], due_us)

    @property
    def statistics(self) -> Statistics:
        """Counters since the broker was opened."""
        return self._pipeline.statistics

    def history(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, dict[str, object]]]:
        """Return records of how messages ended and who claimed them, oldest first; none if the queue has no history."""
        kept = self.topology.queues.get(HISTORY_PREFIX + name)
        return (
            [(at, json.loads(message.payload)) for at, message in kept.browse(offset, limit)]
            if kept is not None
            else []
        )

    # -- batches and flow --------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> bool:
        """True if publishers must slow down."""
        return self._flow.blocked

    def check_memory(self) -> None:
        """Raise Unavailable while memory queues are full: for publishers that cannot be slowed down."""
        self._flow.check_memory()

    @property
    def intake(self) -> Intake:
        """Bytes that connections hold and have not published."""
        return self._flow.intake

    @property
    def is_held_up(self) -> bool:
        """True if storage fails, so that publishers are refused until a retry succeeds."""
        return self._pipeline.retry_at_us > 0

    @property
    def sent_us(self) -> int:
        """The monotonic time when the oldest commit that is not durable was sent; 0 for none."""
        return self._pipeline.sent_us

    @property
    def on_flow(self) -> dict[object, Callable[[bool], None]]:
        """Calls by owner, made with True when publishers must slow down, and with False when they may go on."""
        return self._flow.listeners

    @property
    def batch_number(self) -> int:
        """The number of the open batch. One `when_safe` covers all calls of one batch."""
        return self._pipeline.batch.number

    def when_safe(self, confirm: Confirm) -> None:
        """Call `confirm` once the effect of all calls so far is durable, or with the error."""
        batch = self._pipeline.open()
        batch.is_barrier = True
        batch.confirms.add(confirm)

    def when_kept(self, confirm: Confirm) -> bool:
        """Call `confirm` once all declarations, bindings, deletions and purges so far are durable, or with the error.

        Returns False, and does not call, when there is nothing to wait for. Adds nothing to the batch.
        """
        return self._pipeline.when_kept(confirm)

    def when_entered(self, call: Callable[[], None]) -> bool:
        """Call this once all messages published so far are visible or failed, and were offered to consumers.

        Returns False, and does not call, when there is nothing to wait for. Asks for no sync.
        """
        return self._pipeline.when_entered(call)

    def after_delivery(self, name: str, call: Callable[[], None]) -> None:
        """Call this once the ready messages of a queue were delivered to consumers that have room."""
        self._pipeline.after_pumps(self.topology.queues.get(name), call)

    def in_turn(self, confirm: Confirm) -> None:
        """Call `confirm` after the confirms of all publishes so far, without waiting for the disk."""
        batch = self._pipeline.open()
        batch.confirms.add(confirm, is_awaited=False)

    def at_flush(self, call: Callable[[], None]) -> None:
        """Call this when the open batch is flushed, before deliveries."""
        self._pipeline.at_flush(call)

    def flush(self) -> None:
        """Deliver ready messages and store the open batch; happens by itself once per turn of the event loop."""
        self._pipeline.flush()

    def drain(self) -> None:
        """Store all batches and wait until they are durable, unless storage fails. For shutting down."""
        self._queues.assigner.rest()
        self._pipeline.drain()

    def _end_hoarder(self, least_bytes: int) -> None:
        """End the client whose exclusive queues without consumers hold most, if that is enough to be blamed."""
        owner, size_bytes = self._queues.hoarder() if least_bytes else (None, 0)
        if size_bytes >= max(least_bytes, 1) and owner in self.on_ended:
            self.on_ended[owner](
                f"its exclusive queues hold {size_bytes:,} bytes that nobody consumes, and others need the memory"
            )

    def tick(self) -> int:
        """Run due work; returns when to call again, in microseconds; 0 for when something changes."""
        now_us = self._clock.now_us()
        self._pipeline.retry(now_us)
        self._flow.tick(now_us)
        self._end_hoarder(self._flow.blamed_bytes(now_us))
        ack_due_us = self._pipeline.give_up(now_us)
        self._queues.on_time(now_us)
        self.sessions.on_time(now_us)
        if 0 < self.pubsub.retained.next_expiry_us <= now_us:
            self.pubsub.retained.expire(self._pipeline.open(), now_us)
        dues = (
            ack_due_us,
            self._queues.timers.next_us,
            self._pipeline.retry_at_us,
            self._pipeline.held_until_us,
            self._pipeline.release_at_us,
            self._queues.assigner.due_us,
            self.sessions.next_due_us,
            self.pubsub.retained.next_expiry_us,
        )
        return min([due_us for due_us in dues if due_us], default=0)


def _one_of(confirm: ConfirmAll | None) -> Confirm | None:
    return None if confirm is None else lambda error: confirm(1, error)

"""One virtual host of the broker: publish, consume, settle, declare: all that a protocol may call. No wire, no sockets.

Nothing here waits. Calls change what is in memory and stage what must be stored; once per turn of the event loop all
of it becomes one commit, and when that is safe, publishers are confirmed and consumers get what was published.
"""

import heapq
import json
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.address import DEAD_LETTER_PREFIX, effective_group, is_address
from headrace.core.dead_letter import Death, add_death, add_queue_history, is_cycle
from headrace.core.definition import (
    CLASSIC,
    EPHEMERAL,
    MAX_NAME_BYTES,
    STREAM,
    QueueDefinition,
    Retention,
)
from headrace.core.delivery import Consumer, Credit, Delivery
from headrace.core.exchange import Binding, Exchange
from headrace.core.group import ACK, Group, PendingEntry
from headrace.core.properties import Codecs, Properties
from headrace.core.queue import DEFAULT_GROUP, Queue
from headrace.core.stream import FIRST, NEXT, RESUME, StreamGroup, parse_position
from headrace.core.topology import DEFAULT_HOST, Topology, scoped, unscoped
from headrace.core.turn import Confirm, Turn
from headrace.core.work import WorkGroup
from headrace.errors import (
    AccessRefused,
    Corrupt,
    HeadraceError,
    NotFound,
    PreconditionFailed,
    Refused,
    ResourceLocked,
    Unavailable,
)
from headrace.model import Message, Source
from headrace.storage.api import QUEUES, Commit, Engine
from headrace.storage.group_state import STREAM as STREAM_MODE
from headrace.storage.group_state import WORK as WORK_MODE
from headrace.storage.memory import MemoryEngine

_log: Final = logging.getLogger("headrace.core")

LANDING_QUEUE: Final = "mqtt"
GENERATED_PREFIX: Final = "amq.gen-"
HISTORY_PREFIX: Final = "$history/"
HIGH_WATER_BYTES: Final = 64 << 20
LOW_WATER_BYTES: Final = 32 << 20
_RETRY_US: Final = 1_000_000

Schedule = Callable[[Callable[[], None]], None]
"""Have something called soon, in the thread that owns the broker, never at once."""


@final
class Broker:
    """All queues, exchanges and groups of one virtual host, over any engine."""

    def __init__(
        self, engine: Engine, clock: Clock, schedule: Schedule, host: str = DEFAULT_HOST, codecs: Codecs | None = None
    ) -> None:
        self._engine = engine
        self._memory = MemoryEngine()
        self._clock = clock
        self._schedule = schedule
        self._host = host
        self.codecs = codecs or Codecs()
        self.topology = Topology(host)
        self._turn = Turn()
        self._scheduled = False
        self._pumps: dict[Queue, None] = {}
        self._timers: list[tuple[int, int, Queue]] = []
        self._timer_count = 0
        self._retry_at_us = 0
        self.blocked = False
        self.on_flow: list[Callable[[bool], None]] = []
        """Called with True when publishers must slow down, and with False when they may go on."""
        self._load()

    # -- publishing --------------------------------------------------------------------------------------------------

    def publish(
        self,
        message: Message,
        confirm: Confirm | None = None,
        headers: Mapping[str, object] | None = None,
        extra_keys: Sequence[str] = (),
    ) -> int:
        """Send a message to the exchange and routing key of its source; returns how many queues take it.

        `confirm` is called once it is safe in all of them, or with why it is not. An address `$queue/...` on the
        default exchange goes where `publish_topic` sends it. Raises NotFound and AccessRefused for the exchange.
        """
        source = message.source
        if not source.exchange and is_address(source.topic):
            return self.publish_topic(message, confirm)
        if source.exchange:
            self.topology.exchanges.check_publish(source.exchange)
        return self._publish(
            self.topology.of_exchange(source.exchange, source.topic, headers, extra_keys), message, confirm
        )

    def publish_topic(self, message: Message, confirm: Confirm | None = None) -> int:
        """Send a message to every queue whose patterns match its topic; returns how many take it.

        An address `$queue/...` that nothing matches makes an ephemeral queue, or, where no queue was ever declared,
        the landing queue `mqtt`. Raises Refused for an address that names no queue or ends in a verb.
        """
        topic = message.source.topic
        queues = self.topology.of_topic(topic)
        if not queues and is_address(topic):
            queues = [self._landing_queue(topic)]
        return self._publish(queues, message, confirm)

    def _publish(self, queues: list[Queue], message: Message, confirm: Confirm | None) -> int:
        now_us = self._clock.now_us()
        turn = self._open_turn()
        taken = 0
        refusal: HeadraceError | None = None
        for queue in queues:
            if queue.selector is not None and not queue.admits(message):
                continue
            try:
                queue.accept(turn, message, now_us)
                taken += 1
            except HeadraceError as error:
                refusal = error
        if confirm is not None:
            turn.confirms.append(confirm if refusal is None else _with(confirm, refusal))
        if self._engine.staged_bytes > HIGH_WATER_BYTES and not self.blocked:
            self._set_blocked(True)
        return taken

    def _landing_queue(self, topic: str) -> Queue:
        name = self.topology.name_for(topic)
        if any(queue.definition.kind != EPHEMERAL and not queue.owner for queue in self.topology.queues.values()):
            return self.declare(QueueDefinition(name, EPHEMERAL, durable=False))
        return self.declare(QueueDefinition(LANDING_QUEUE, topics=("$queue/#",), reserved=True))

    # -- queues ------------------------------------------------------------------------------------------------------

    def declare(self, definition: QueueDefinition, owner: object = None, passive: bool = False) -> Queue:
        """Have a queue as defined; an empty name gets one from the server. Passive only asks whether it exists.

        Raises NotFound (passive), PreconditionFailed when it exists and differs, ResourceLocked when another
        connection has it for itself, AccessRefused for names the server keeps.
        """
        name = definition.name
        existing = self.topology.queues.get(name)
        if existing is not None:
            self.check_owner(existing, owner)
            if not passive:
                existing.definition.check_equivalent(definition)
                existing.touch(self._clock.now_us())
            return existing
        if passive:
            raise NotFound(f"no queue '{name}' in vhost '{self._host}'")
        if not name:
            name = GENERATED_PREFIX + secrets.token_urlsafe(16)
            definition = _renamed(definition, name)
        elif name.startswith("amq."):
            raise AccessRefused(f"queue name '{name}' contains reserved prefix 'amq.*'")
        if len(name.encode()) > MAX_NAME_BYTES or "\0" in name:
            raise PreconditionFailed(f"queue name {name[:64]!r} must have at most {MAX_NAME_BYTES} bytes and no U+0000")
        queue = self._create(definition)
        queue.owner = owner if definition.exclusive else None
        if queue.durable:
            turn = self._open_turn()
            value = json.dumps(definition.to_json(), ensure_ascii=False, separators=(",", ":")).encode()
            turn.durable.put(QUEUES, scoped(self._host, name).encode(), value)
        return queue

    def queue(self, name: str, owner: object = None) -> Queue:
        """Raises NotFound, ResourceLocked."""
        queue = self.topology.queue(name)
        self.check_owner(queue, owner)
        return queue

    def check_owner(self, queue: Queue, owner: object) -> None:
        """Raises ResourceLocked when another connection has the queue for itself."""
        if queue.definition.exclusive and queue.owner is not owner:
            raise ResourceLocked(f"cannot obtain exclusive access to locked queue '{queue.name}'")

    def delete(self, name: str, if_unused: bool = False, if_empty: bool = False, owner: object = None) -> int:
        """Remove a queue; returns how many messages it held. Raises NotFound, PreconditionFailed, ResourceLocked."""
        queue = self.queue(name, owner)
        if if_unused and queue.consumers:
            raise PreconditionFailed(f"queue '{name}' in use")
        if if_empty and queue.messages:
            raise PreconditionFailed(f"queue '{name}' not empty")
        count = queue.messages
        self.drop_queue(self._open_turn(), queue)
        return count

    def purge(self, name: str, owner: object = None) -> int:
        """Drop all messages that wait in a queue; returns how many."""
        return self.queue(name, owner).purge(self._open_turn())

    def drop_queue(self, turn: Turn, queue: Queue) -> None:
        """Take a queue away, with its messages, groups and bindings; its consumers are told."""
        queue.deleted = True
        self._pumps.pop(queue, None)
        turn = self._open_turn()
        turn.published.pop(queue, None)
        for group in queue.groups.values():
            consumers = list(group.consumers)
            group.close()
            for consumer in consumers:
                if consumer.cancelled is not None:
                    consumer.cancelled()
        self.topology.remove(turn, queue)
        turn.commit_for(queue).drop(queue.log.name)
        turn.touched.discard(queue)
        if queue.durable:
            turn.durable.delete(QUEUES, scoped(self._host, queue.name).encode())

    def release_owner(self, owner: object) -> None:
        """A connection is gone: so are the queues it had for itself."""
        for queue in list(self.topology.queues.values()):
            if queue.owner is owner and queue.definition.exclusive:
                self.drop_queue(self._open_turn(), queue)

    # -- exchanges ---------------------------------------------------------------------------------------------------

    def declare_exchange(self, exchange: Exchange, passive: bool = False) -> None:
        self.topology.declare_exchange(self._open_turn(), exchange, passive)

    def delete_exchange(self, name: str, if_unused: bool = False) -> None:
        self.topology.delete_exchange(self._open_turn(), name, if_unused)

    def bind(self, binding: Binding) -> None:
        self.topology.bind(self._open_turn(), binding)

    def unbind(self, binding: Binding) -> None:
        self.topology.unbind(self._open_turn(), binding)

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
        group is `group@filter`, which has progress of its own. Without a mode it is that of the queue's type.
        `position` (see parse_position) moves a stream group that nobody reads. Raises NotFound, ResourceLocked,
        AccessRefused (exclusive use), Refused (mode clash, bad position), Corrupt.
        """
        queue = self.queue(name, consumer.owner)
        if queue.refusal is not None:
            raise queue.refusal
        place = parse_position(position)
        is_stream = queue.definition.kind == STREAM
        mode = mode or (STREAM_MODE if is_stream else WORK_MODE)
        group = effective_group(group or (consumer.name if mode == STREAM_MODE else DEFAULT_GROUP), key_filter)
        turn = self._open_turn()
        members = queue.group(turn, group, mode, key_filter, auto_commit)
        if queue.definition.kind == EPHEMERAL:
            consumer.auto_ack = True
        if isinstance(members, StreamGroup):
            members.agree(auto_commit)
        is_first = not len(members.consumers)
        members.consumers.join(consumer, exclusive)
        consumer.group = members
        queue.had_consumers = True
        queue.touch(self._clock.now_us())
        if isinstance(members, StreamGroup) and place[0] != RESUME and is_first:
            members.seek(turn, _offset_at(queue, place))
        self.pump_soon(queue)
        return members

    def cancel(self, consumer: Consumer, keep: bool = False) -> None:
        """A consumer leaves; what it holds goes back in line. An auto-delete queue goes with its last consumer.

        With `keep` it gets nothing more, but may still settle what it holds, until it is cancelled without.
        """
        group = consumer.group
        if group is None:
            return
        queue = group.queue
        if keep and consumer.held:
            group.consumers.leave(consumer)
            queue.touch(self._clock.now_us())
        else:
            queue.leave(self._open_turn(), consumer, self._clock.now_us())
        if queue.definition.auto_delete and queue.had_consumers and not queue.consumers:
            self.drop_queue(self._open_turn(), queue)
        else:
            self.pump_soon(queue)

    def get(self, name: str, consumer: Consumer, group: str = "") -> Delivery | None:
        """One message for a consumer that asks for it, None when none waits.

        The consumer need not be a member, but all it takes is from one group; `cancel` gives back what it holds.
        Raises NotFound, ResourceLocked, AccessRefused (exclusive use), Refused (a stream, another group), Corrupt.
        """
        queue = self.queue(name, consumer.owner)
        if queue.refusal is not None:
            raise queue.refusal
        if queue.definition.kind == STREAM:
            raise Refused(f"queue '{name}' is a stream: consume it, single messages cannot be taken from it")
        turn = self._open_turn()
        members = queue.group(turn, group or DEFAULT_GROUP, WORK_MODE)
        queue.touch(self._clock.now_us())
        assert isinstance(members, WorkGroup)
        if consumer.group not in (None, members):
            raise Refused(f"consumer {consumer.name!r} takes from another group: one consumer serves one group")
        delivery = members.take(turn, consumer, self._clock.now_us())
        if consumer.held:
            consumer.group = members
        return delivery

    def set_credit(self, consumer: Consumer, limit: int) -> None:
        """Let a consumer hold up to `limit` unsettled messages from now on; 0 means as many as there are."""
        consumer.credit.change(limit)
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
            self.pump_soon(consumer.group.queue)

    def settle(self, delivery: Delivery, outcome: int = ACK) -> None:
        """End a delivery: ACK, NACK, REJECT or RELEASE. Raises Refused when it is not pending any more."""
        delivery.group.settle(self._open_turn(), delivery.consumer, delivery.offset, outcome, self._clock.now_us())
        self.pump_soon(delivery.group.queue)

    def settle_offset(self, name: str, group: str, offset: int, outcome: int) -> None:
        """The same by queue, group and offset, for clients that name a delivery rather than hold it."""
        members = self._group(name, group)
        consumer = members.holder(offset)
        if consumer is None:
            raise Refused(f"offset {offset} of queue {name!r} is not pending in group {group!r}")
        members.settle(self._open_turn(), consumer, offset, outcome, self._clock.now_us())
        self.pump_soon(members.queue)

    def renew(self, delivery: Delivery, lease_ms: int) -> None:
        """Give a consumer more time for a delivery. Raises Refused when it is not pending any more."""
        if isinstance(delivery.group, WorkGroup):
            due_us = self._clock.now_us() + lease_ms * 1000
            delivery.group.renew(delivery.consumer, delivery.offset, due_us)

    def commit_offset(self, name: str, group: str, offset: int) -> None:
        """Everything below `offset` is processed by a stream group. Raises Refused above its cursor."""
        members = self._group(name, group)
        if not isinstance(members, StreamGroup):
            raise Refused(f"group {group!r} of queue {name!r} is a work group: acknowledge messages instead")
        members.commit(self._open_turn(), offset)

    def seek(self, name: str, group: str, position: object) -> None:
        """Have a stream group go on reading elsewhere."""
        members = self._group(name, group)
        if not isinstance(members, StreamGroup):
            raise Refused(f"group {group!r} of queue {name!r} is a work group: it cannot be moved")
        members.seek(self._open_turn(), _offset_at(members.queue, parse_position(position)))
        self.pump_soon(members.queue)

    def delete_group(self, name: str, group: str) -> None:
        """Forget a group. Raises Refused while it has consumers."""
        self.queue(name).remove_group(self._open_turn(), group)

    def pending(self, name: str, group: str = DEFAULT_GROUP) -> list[PendingEntry]:
        """What a group has delivered and not settled: who holds which offset until when. Raises NotFound."""
        return self._group(name, group).pending()

    def _group(self, name: str, group: str) -> Group:
        members = self.topology.queue(name).groups.get(group)
        if members is None:
            raise NotFound(f"queue {name!r} has no group {group!r}")
        return members

    # -- dead letters ------------------------------------------------------------------------------------------------

    def dead_letter(
        self,
        turn: Turn,
        queue: Queue,
        message: Message,
        group: str,
        offset: int,
        attempts: int,
        reason: str,
        now_us: int,
    ) -> None:
        """Move a message that a queue gave up to where its dead letters go; dropped when that is nowhere."""
        definition = queue.definition
        if definition.dead_letter_exchange is None and not definition.dead_letter_queue:
            return
        properties = self.codecs.decode(message)
        death = Death(queue.name, reason, group, attempts, offset, now_us)
        add_death(properties, message, death)
        if definition.dead_letter_exchange is None:
            add_queue_history(properties, message, death)
            grave = self._dead_letter_queue(definition.dead_letter_queue)
            turn.move(grave, self._reborn(message, properties, message.source.exchange, message.source.topic, now_us))
            return
        key = message.source.topic if definition.dead_letter_key is None else definition.dead_letter_key
        letter = self._reborn(message, properties, definition.dead_letter_exchange, key, now_us)
        try:
            targets = self.topology.of_exchange(definition.dead_letter_exchange, key, properties.headers, ())
        except NotFound:
            return  # as RabbitMQ does: the exchange may come later, the message does not wait for it
        for target in targets:
            if not is_cycle(properties, target.name):
                turn.move(target, target.stamped(letter, now_us))

    def _dead_letter_queue(self, name: str) -> Queue:
        existing = self.topology.queues.get(name)
        return existing if existing is not None else self.declare(QueueDefinition(name, CLASSIC))

    def _reborn(self, message: Message, properties: Properties, exchange: str, key: str, now_us: int) -> Message:
        """The message as it goes on: with its history, without its own time to live."""
        old = message.source
        source = Source(key, exchange, old.client_id, old.protocol, old.encoding)
        raw = self.codecs.encode(old.encoding, properties)
        return Message(source, message.payload, now_us, raw, message.priority)

    def redrive(self, name: str, limit: int = 1 << 30) -> int:
        """Send the dead letters of a `$dlq/` queue back to the queues they came from; returns how many went."""
        grave = self.queue(name)
        turn = self._open_turn()
        members = grave.group(turn, DEFAULT_GROUP, WORK_MODE)
        assert isinstance(members, WorkGroup)
        mover = Consumer("redrive", _ignore, auto_ack=True)
        now_us = self._clock.now_us()
        moved = 0
        while moved < limit and (delivery := members.take(turn, mover, now_us)) is not None:
            properties = self.codecs.decode(delivery.message)
            origin = self.topology.queues.get(str(properties.headers.get("_dlq_original_queue", "")))
            if origin is None:
                turn.move(grave, delivery.message)
                limit -= 1
                continue
            for header in [name for name in properties.headers if name.startswith(("_dlq_", "x-death"))]:
                del properties.headers[header]
            old = delivery.message.source
            turn.move(origin, self._reborn(delivery.message, properties, old.exchange, old.topic, now_us))
            moved += 1
        return moved

    def dead_letters(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, Message, Properties]]:
        """Dead letters of a queue, oldest first, without taking them."""
        grave = self.queue(DEAD_LETTER_PREFIX + name if not name.startswith(DEAD_LETTER_PREFIX) else name)
        start = max(offset, grave.first_offset)
        messages = grave.log.read(start, limit)
        return [(at, message, self.codecs.decode(message)) for at, message in enumerate(messages, start)]

    def history_of(self, turn: Turn, queue: Queue) -> Queue:
        """The stream in which it is kept how this queue's messages ended."""
        name = HISTORY_PREFIX + queue.name
        existing = self.topology.queues.get(name)
        if existing is not None:
            return existing
        return self.declare(QueueDefinition(name, STREAM, retention=Retention(max_age_ms=queue.definition.history_ms)))

    # -- transactions ------------------------------------------------------------------------------------------------

    def transaction(
        self,
        publishes: Sequence[tuple[Message, Mapping[str, object] | None]],
        settlements: Sequence[tuple[Delivery, int]],
    ) -> None:
        """Publish and settle as one: all of it goes into one commit. Raises before anything is done if it cannot be.

        The caller collects what a transaction does until it commits; to roll back is to forget it.
        """
        for message, _ in publishes:
            if message.source.exchange:
                self.topology.exchanges.check_publish(message.source.exchange)
        for delivery, _ in settlements:
            if delivery.offset not in delivery.consumer.held:
                raise Refused(f"offset {delivery.offset} of {delivery.group.queue.name!r} is not pending any more")
        for message, headers in publishes:
            self.publish(message, headers=headers)
        for delivery, outcome in settlements:
            self.settle(delivery, outcome)

    # -- turns -------------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Deliver what is ready and commit what is staged. Called once per turn of the event loop."""
        self._scheduled = False
        now_us = self._clock.now_us()
        pumps, self._pumps = self._pumps, {}
        for queue in pumps:
            if not queue.deleted:
                queue.pump(self._open_turn(), now_us)
        turn, self._turn = self._turn, Turn()
        for queue in turn.touched:
            if not queue.deleted:
                queue.trim(turn)
        for part in (turn.published, turn.moved):
            for queue, messages in part.items():
                turn.commit_for(queue).append(queue.log.name, messages)
        if turn.durable.is_empty:
            self._committed(turn, None)
            return
        try:
            self._engine.commit(turn.durable, lambda error: self._committed(turn, error), turn.is_awaited)
        except HeadraceError as error:
            self._committed(turn, error)

    def _committed(self, turn: Turn, error: HeadraceError | None) -> None:
        """The turn is safe, or it is not."""
        if error is None and not turn.memory.is_empty:
            self._memory.commit(turn.memory, _no_error)
            self._memory.sync()
        for confirm in turn.confirms:
            confirm(error)
        for queue, messages in turn.published.items():
            queue.staged -= len(messages)
        if error is not None:
            self._failed(turn, error)
            return
        now_us = self._clock.now_us()
        for part in (turn.published, turn.moved):
            for queue, messages in part.items():
                if not queue.deleted:
                    queue.appended(self._open_turn(), messages, now_us)
                    self.pump_soon(queue)
        if self.blocked and self._engine.staged_bytes < LOW_WATER_BYTES:
            self._set_blocked(False)

    def _failed(self, turn: Turn, error: HeadraceError) -> None:
        """What clients published is refused; what was settled or moved must not be forgotten."""
        if isinstance(error, Corrupt):
            self._find_damage(turn)
        if isinstance(error, Unavailable | Corrupt):
            self._turn.absorb(turn)
            self._retry_at_us = self._clock.now_us() + _RETRY_US

    def _find_damage(self, turn: Turn) -> None:
        queues = {*turn.published, *turn.moved, *turn.touched}
        for queue in queues:
            probe = Commit()
            probe.append(queue.log.name, [])
            try:
                self._engine.commit(probe, _no_error)
            except Corrupt as error:
                queue.refuse(error)
                turn.moved.pop(queue, None)
                turn.durable.steps = [step for step in turn.durable.steps if step.log != queue.log.name]

    def tick(self) -> int:
        """Do what has come due; returns when to call again, in microseconds, or 0 for when something changes."""
        now_us = self._clock.now_us()
        if self._retry_at_us and now_us >= self._retry_at_us:
            self._retry_at_us = 0
            self._open_turn()
        while self._timers and self._timers[0][0] <= now_us:
            _, _, queue = heapq.heappop(self._timers)
            if not queue.deleted:
                queue.on_time(self._open_turn(), now_us)
                self.pump_soon(queue)
        return self._timers[0][0] if self._timers else 0

    def wake_queue_at(self, queue: Queue, time_us: int) -> None:
        self._timer_count += 1
        heapq.heappush(self._timers, (time_us, self._timer_count, queue))

    def report_damage(self, queue: Queue, error: Corrupt) -> None:
        _log.error("the queue %r is refused: %s", queue.name, error)

    def pump_soon(self, queue: Queue) -> None:
        """Deliver what this queue has in the next turn."""
        self._pumps[queue] = None
        self._open_turn()

    def _open_turn(self) -> Turn:
        """The turn that the present call belongs to; it is committed soon."""
        if not self._scheduled:
            self._scheduled = True
            self._schedule(self.flush)
        return self._turn

    def _set_blocked(self, blocked: bool) -> None:
        self.blocked = blocked
        for tell in self.on_flow:
            tell(blocked)

    # -- opening -----------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        for key, value in self._engine.items(QUEUES):
            if unscoped(self._host, key.decode()) is not None:
                self._create(QueueDefinition.from_json(json.loads(value)))
        self.topology.load(self._engine)

    def _create(self, definition: QueueDefinition) -> Queue:
        engine: Engine = self._engine if definition.durable and not definition.exclusive else self._memory
        log = engine.log(scoped(self._host, definition.name))
        queue = Queue(self, definition, log, self.codecs, self._clock.now_us())
        self.topology.add(queue)
        return queue


def _offset_at(queue: Queue, place: tuple[str, int]) -> int:
    kind, value = place
    if kind == FIRST:
        return queue.first_offset
    if kind == NEXT:
        return queue.log.next_offset
    return queue.log.find(value) if kind == "timestamp" else value


def _renamed(definition: QueueDefinition, name: str) -> QueueDefinition:
    values = dict(vars(definition))
    values["name"] = name
    return QueueDefinition(**values)


def _with(confirm: Confirm, refusal: HeadraceError) -> Confirm:
    return lambda error: confirm(refusal if error is None else error)


def _ignore(deliveries: list[Delivery]) -> None:
    return


def _no_error(error: HeadraceError | None) -> None:
    if error is not None:
        raise error

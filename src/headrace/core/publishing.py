"""Routing of messages to queues: single ones, encoded rows in bulk, and the replacement of a stream's messages.

Queues let messages in themselves: see core/queue/entry.py. Rows are routed by their sources: a block whose messages all
go to the same queues is stored as it is. Only filters, exchanges that go by more than the key, and subscribers look at
single messages.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch, Confirm, ConfirmAll
from headrace.core.feeds.feed import is_cursor
from headrace.core.ledger import Advance, Ledger
from headrace.core.pipeline import CommitPipeline
from headrace.core.pubsub.pubsub import PubSub, Route
from headrace.core.pubsub.session import AT_LEAST_ONCE, Session
from headrace.core.queue.dispatch import Delivery
from headrace.core.queue.entry import (
    accept,
    accept_again,
    accept_all,
    accept_counted,
    accept_rows,
    check_entry,
    takes_all,
)
from headrace.core.queue.publishers import Publisher
from headrace.core.queue.queue import Queue
from headrace.core.queue.queues import Queues
from headrace.core.queue.stream import StreamGroup
from headrace.core.routing.address import is_address, parse_address
from headrace.core.routing.delays import Later
from headrace.core.routing.topology import Topology, topic_of
from headrace.core.transaction import Publish, Transaction
from headrace.errors import HeadraceError, PreconditionFailed, Refused, Unavailable
from headrace.model import Message, Source
from headrace.names import MAX_TOPIC_BYTES, check_topic, quoted
from headrace.storage.api import Commit, Encoded
from headrace.wire.encodings import decode_headers

_TAIL_MESSAGES: Final = 100_000
_TAIL_BYTES: Final = 64 << 20
"""Bounds of the messages that were published meanwhile: they are stored once more, behind the replacement."""


@final
class Replacement:
    """The replacement of all messages of a stream below an offset by others."""

    def __init__(self, queue: Queue, before: int) -> None:
        """Raises Refused for a queue that is no durable stream."""
        if not queue.definition.is_stream or not queue.durable:
            raise Refused(f"queue {queue.name!r} is no durable stream: only what such a one has can be replaced")
        self._queue = queue
        self._before = before
        self._end = 0
        self._new_end = 0
        self._caught_up: list[StreamGroup] = []

    def hold(self, batch: Batch, is_held: bool = True) -> None:
        """Stop the queues that are fed from the stream until the replacement has ended, or let them go on."""
        feed = self._queue.feed
        if feed is None:
            return
        if is_held:
            feed.hold(batch)
        else:
            feed.is_held = False
            self._queue.grown()

    def add_to(self, commit: Commit) -> None:
        """Truncate the stream, and append the messages published meanwhile behind those of the commit.

        Raises PreconditionFailed when a group still needs truncated messages, or too many were published meanwhile.
        """
        queue, log = self._queue, self._queue.log
        if queue.is_gone:
            raise Refused(f"queue {queue.name!r} was deleted")
        end = log.next_offset
        if queue.disposal.retention_floor(queue.definition.retention) < end:
            raise PreconditionFailed(f"a work group or an archive still needs messages of stream {queue.name!r}")
        if not queue.first_offset <= self._before <= end or end - self._before > _TAIL_MESSAGES:
            raise PreconditionFailed(
                f"stream {queue.name!r} begins at {queue.first_offset} and ends at {end} now, too far from the offset "
                f"{self._before} that was said; read it again"
            )
        tail = log.read(self._before, end - self._before, _TAIL_BYTES)
        if len(tail) < end - self._before:
            raise PreconditionFailed(f"too much was published to stream {queue.name!r} meanwhile; read it again")
        if tail:
            accept_again(queue, commit, tail)
        commit.truncate(log.name, end)
        self._end = end
        self._new_end = end + sum([append.count for append in commit.appends if append.log == log.name])
        for name, state in log.groups.items():
            if is_cursor(name) and state.committed >= end:
                commit.commit_offset(log.name, name, self._new_end)
        self._caught_up = [
            group for group in queue.groups.values() if isinstance(group, StreamGroup) and group.state.committed >= end
        ]

    def happened(self, batch: Batch) -> None:
        """Move readers after the commit: those that had read everything go on behind it, the others at its start."""
        self._queue.truncated(batch, self._end)
        if self._queue.feed is not None:
            self._queue.feed.replaced(self._end, self._new_end)
        for group in self._caught_up:
            if self._queue.groups.get(group.name) is group:
                group.seek(batch, self._queue.log.next_offset)


TO_QUEUE: Final = "queue"
TO_EXCHANGE: Final = "exchange"
TO_TOPIC: Final = "topic"


@final
class Bulk:
    """One write in bulk: rows are added piece by piece, then all of them are stored or none."""

    def __init__(
        self,
        topology: Topology,
        queues: Queues,
        pubsub: PubSub,
        pipeline: CommitPipeline,
        ledger: Ledger,
        now_us: int,
    ) -> None:
        self._topology = topology
        self._queues = queues
        self._pubsub = pubsub
        self._pipeline = pipeline
        self._ledger = ledger
        self._now_us = now_us
        self._batch = Batch()
        self._replacement: Replacement | None = None
        self.rows = 0
        self.unrouted = 0
        """The number of messages without a queue and a subscriber."""

    def add(self, kind: str, name: str, rows: Encoded) -> None:
        """Add messages for a queue, an exchange or topics. Raises like publishing; the caller must `undo` then."""
        self.rows += rows.count
        if kind == TO_QUEUE:
            accept_rows(self._queues.find(name), self._batch, rows, self._now_us)
            return
        if kind == TO_EXCHANGE:
            self._topology.exchanges.check_publish(name)
            if self._topology.exchanges.routes_each(name):
                self._add_each(name, rows)
                return
        routes = [self._route(kind, name, source) for source in rows.sources()]
        index = rows.source_index()
        if index is None:
            self._send(routes[0], rows)
            return
        if all([route.queues == routes[0].queues and not _has_audience(route) for route in routes]):
            self._send(routes[0], rows)
            return
        for number, route in enumerate(routes):
            self._send(route, rows.take([row for row, source in enumerate(index) if source == number]))

    def replace(self, name: str, before: int) -> None:
        """Replace all messages of a stream below the offset `before` by the added ones, in one commit.

        Later messages stay, behind them. Raises NotFound, and Refused for other queues.
        """
        self._replacement = Replacement(self._queues.find(name), before)
        self._batch.before_commit = self._replacement.add_to

    def commit(
        self, transaction: str, sequence: int, confirm: Confirm, before: int = 0, advance: Advance | None = None
    ) -> None:
        """Store everything with the transaction's id, after earlier calls; `confirm` is told how it ended.

        `before` messages of it are stored already; `advance` says how far it is then, if more follows.
        """
        self._ledger.note(self._batch, transaction, sequence, before + self.rows, self._now_us, advance)

        def done(error: HeadraceError | None) -> None:
            self._ledger.settle(transaction)
            if self._replacement is not None:
                if error is None:
                    self._replacement.happened(self._pipeline.open())
                self._replacement.hold(self._pipeline.open(), False)
            confirm(error)

        self._batch.done = done
        if self._replacement is not None:
            self._replacement.hold(self._pipeline.open())
        self._pipeline.append(self._batch)

    def undo(self) -> None:
        """Forget everything that was added."""
        self._batch.unstage()
        self._batch = Batch()

    # -- routing -----------------------------------------------------------------------------------------------------

    def _route(self, kind: str, name: str, source: Source) -> Route:
        route = Route()
        if kind == TO_EXCHANGE:
            route.queues = self._topology.of_exchange(name, source.topic, None, ())
            if self._topology.reaches_subscribers(name, source.topic, None, ()):
                readers = self._pubsub.route(topic_of(source))
                route.live, route.keepers, route.shares = readers.live, readers.keepers, readers.shares
        elif is_address(source.topic):
            route.queues = self._topology.of_topic(source.topic) or [self._queues.landing(source.topic)]
        elif kind == TO_TOPIC:
            check_topic(source.topic)
            return self._pubsub.route(source.topic)
        else:
            raise Refused(f"messages are written to a queue, an exchange or a topic, not to a {kind}")
        return route

    def _add_each(self, exchange: str, rows: Encoded) -> None:
        chosen: dict[Queue, list[int]] = {}
        exchanges = self._topology.exchanges
        for row, message in enumerate(rows.messages(0, rows.count)):
            headers: Mapping[str, object] | None = decode_headers(message.source.encoding, message.properties)
            if exchanges.reads_messages:
                headers = exchanges.details(message, headers)
            key = message.source.topic
            queues = self._topology.of_exchange(exchange, key, headers, ())
            later = exchanges.later(exchange, message, headers, (), self._now_us) if exchanges.reads_messages else None
            if self._topology.reaches_subscribers(exchange, key, headers, ()):
                route = self._pubsub.route(topic_of(message.source))
                self._pubsub.send(self._batch, route, message, AT_LEAST_ONCE, False, None)
                self.unrouted += not (queues or _has_audience(route))
            else:
                self.unrouted += not queues
            for queue in queues:
                if later is not None and later.is_for(queue.name):
                    accept(queue, self._batch, later.message, self._now_us)
                else:
                    chosen.setdefault(queue, []).append(row)
        for queue, numbers in chosen.items():
            accept_rows(queue, self._batch, _only(rows, numbers), self._now_us)

    def _send(self, route: Route, rows: Encoded) -> None:
        for queue in route.queues:
            accept_rows(queue, self._batch, rows, self._now_us)
        if _has_audience(route):
            for message in rows.messages(0, rows.count):
                self._pubsub.send(self._batch, route, message, AT_LEAST_ONCE, False, None)
        elif not route.queues:
            self.unrouted += rows.count


def _only(rows: Encoded, numbers: list[int]) -> Encoded:
    return rows if len(numbers) == rows.count else rows.take(numbers)


def _has_audience(route: Route) -> bool:
    return bool(route.live or route.keepers or route.shares)


_SHORT_TOPIC_CHARACTERS: Final = MAX_TOPIC_BYTES // 4  # four bytes each at most: these fit without a look


@final
class Entries:
    """Messages that a publisher numbers; an entry is one message or several that share a number."""

    __slots__ = ("counts", "messages", "numbers")

    def __init__(self, numbers: list[int], messages: list[Message], counts: list[int] | None = None) -> None:
        self.numbers = numbers
        """The number of each entry."""
        self.messages = messages
        """The messages of all entries, in order."""
        self.counts = counts
        """The number of messages of each entry; None if each has one."""


@final
class Publishing:
    """Routes messages of one virtual host and adds them to its open batch."""

    def __init__(self, queues: Queues, pubsub: PubSub, pipeline: CommitPipeline, clock: Clock) -> None:
        self._topology = queues.topology
        self._queues = queues
        self._pubsub = pubsub
        self._pipeline = pipeline
        self._clock = clock

    def route(self, message: Message, headers: Mapping[str, object] | None, extra_keys: Sequence[str]) -> list[Queue]:
        """The queues of a message by its source. Raises NotFound, AccessRefused, Refused."""
        source = message.source
        if not source.exchange:
            queue = self._topology.direct.get(source.topic) if not extra_keys else None
            if queue is not None:
                return [queue]
            if is_address(source.topic):
                return self.route_topic(source.topic)
        else:
            self._topology.exchanges.check_publish(source.exchange)
        return self._topology.of_exchange(source.exchange, source.topic, headers, extra_keys)

    def route_topic(self, topic: str) -> list[Queue]:
        """The queues whose patterns match; an address without a match gets a new one. Raises Refused."""
        if not is_address(topic):
            return self._topology.of_topic(topic)
        if "/$" in topic and parse_address(topic).verb:
            raise Refused(f"{quoted(topic)} ends in a verb: it settles messages and cannot be published to")
        return self._topology.of_topic(topic) or [self._queues.landing(topic)]

    def stage_all(self, queues: list[Queue], messages: list[Message], confirm: ConfirmAll | None) -> bool:
        """Publish messages with one source, if all queues take all of them; else do nothing.

        Raises Refused for messages that no log can hold.
        """
        _check_storable(messages[0])
        largest = size_bytes = 0
        for message in messages:
            size = len(message.payload)
            size_bytes += size
            largest = max(largest, size)
        for queue in queues:
            if largest > queue.takes_bytes and not takes_all(queue, len(messages), largest, size_bytes):
                return False
        pipeline = self._pipeline
        batch = pipeline.open()
        is_synced = False
        for queue in queues:
            is_synced = is_synced or queue.is_synced
            taken = messages if queue is queues[-1] else list(messages)
            if queue.takes_bytes < 0:
                accept_counted(queue, batch, taken, size_bytes, self._clock.now_us())
            else:
                accept_all(queue, batch, taken, size_bytes)
            if queue.ack_timeout_us and confirm is not None:
                batch.wait_until(self._clock.now_us() + queue.ack_timeout_us)
        if confirm is not None:
            batch.confirms.add_all(confirm, len(messages), is_synced)
        if batch.size_bytes + pipeline.waiting_bytes > pipeline.flow.high_bytes:
            pipeline.update_flow()
        return True

    def stage_each(
        self, messages: list[Message], straight_to: list[Queue | None], confirm: ConfirmAll | None
    ) -> list[int]:
        """Publish messages to one exchange by their keys alone; returns the places of those that go nowhere.

        Raises Refused for a message that no log can hold.
        """
        now_us = self._clock.now_us()
        pipeline = self._pipeline
        batch = pipeline.open()
        unrouted: list[int] = []
        count = 0
        is_synced = False
        for at, message in enumerate(messages):
            _check_storable(message)
            source, queue = message.source, straight_to[at]
            queues = (
                [queue] if queue is not None else self._topology.of_exchange(source.exchange, source.topic, None, ())
            )
            refusal: HeadraceError | None = None
            is_meant = False
            for queue in queues:
                try:
                    if not accept(queue, batch, message, now_us):
                        continue
                except HeadraceError as error:
                    refusal = error.with_traceback(None)  # its frames hold the message, and would be in a cycle
                is_meant = True
                is_synced = is_synced or queue.is_synced
                if queue.ack_timeout_us and confirm is not None:
                    batch.wait_until(now_us + queue.ack_timeout_us)
            if not is_meant:
                unrouted.append(at)
            count += 1
            if refusal is not None and confirm is not None:
                if count > 1:
                    batch.confirms.add_all(confirm, count - 1, is_synced)
                batch.confirms.add(_with(_one_entry(confirm), refusal), is_synced)
                count = 0
        if confirm is not None and count:
            batch.confirms.add_all(confirm, count, is_synced)
        if batch.size_bytes + pipeline.waiting_bytes > pipeline.flow.high_bytes:
            pipeline.update_flow()
        return unrouted

    def stage_entries(
        self,
        queue: Queue,
        publisher: Publisher | None,
        entries: Entries,
        confirm: ConfirmAll,
    ) -> None:
        """Publish entries to one queue: see `Broker.publish_entries`."""
        batch = self._pipeline.open()
        known = None
        if publisher is not None:
            known = publisher.known(entries.numbers)
            if known is not None and publisher.must_wait(publisher in batch.numbered, entries.numbers):
                error = Unavailable("earlier messages of the publisher are on their way; send it again")
                self._refuse_entries(batch, publisher, entries, known, confirm, error)
                return
        if known is None and self.stage_all([queue], entries.messages, None):
            if publisher is not None:
                _take_numbers(publisher, batch, entries.numbers)
            batch.confirms.add_all(confirm, len(entries.numbers), queue.is_synced)
            if queue.ack_timeout_us:
                batch.wait_until(self._clock.now_us() + queue.ack_timeout_us)
            return
        at = 0
        for index, number in enumerate(entries.numbers):
            count = 1 if entries.counts is None else entries.counts[index]
            messages = entries.messages[at : at + count]
            at += count
            if known is not None and known[index]:
                batch.confirms.add_all(confirm, 1, queue.is_synced)
            else:
                self._stage_entry(batch, queue, publisher, number, messages, confirm)

    def _stage_entry(
        self,
        batch: Batch,
        queue: Queue,
        publisher: Publisher | None,
        number: int,
        messages: list[Message],
        confirm: ConfirmAll,
    ) -> None:
        """Publish one entry: all of its messages enter the queue, or it is refused."""
        now_us = self._clock.now_us()
        try:
            check_entry(queue, messages)
            for message in messages:
                _check_storable(message)
                accept(queue, batch, message, now_us)
        except HeadraceError as error:
            if publisher is not None:
                publisher.refuse_one(number)
            batch.confirms.add(_with(_one_entry(confirm), error.with_traceback(None)), False)
            return
        if publisher is not None:
            batch.note_numbers(publisher, number, number + 1)
        batch.confirms.add_all(confirm, 1, queue.is_synced)
        if queue.ack_timeout_us:
            batch.wait_until(now_us + queue.ack_timeout_us)
        if batch.size_bytes + self._pipeline.waiting_bytes > self._pipeline.flow.high_bytes:
            self._pipeline.update_flow()

    def _refuse_entries(
        self,
        batch: Batch,
        publisher: Publisher,
        entries: Entries,
        known: list[bool],
        confirm: ConfirmAll,
        error: HeadraceError,
    ) -> None:
        for index, number in enumerate(entries.numbers):
            if not known[index]:
                publisher.refuse_one(number)
            batch.confirms.add(_with(_one_entry(confirm), error), False)

    def stage(
        self,
        queues: list[Queue],
        message: Message,
        confirm: Confirm | None,
        route: Route | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        publisher: Session | None = None,
        later: Later | None = None,
    ) -> int:
        """Publish a message to queues and to the subscribers of a route; returns how many it is meant for.

        Some of the queues may get it `later`. `confirm` is told when a queue refused it. Raises Refused for a message
        that no log can hold.
        """
        _check_storable(message)
        now_us = self._clock.now_us() if queues else 0
        pipeline = self._pipeline
        batch = pipeline.open()
        meant = 0
        is_synced = False
        refusal: HeadraceError | None = None
        for queue in queues:
            try:
                entering = message if later is None or not later.is_for(queue.name) else later.message
                if not accept(queue, batch, entering, now_us):
                    continue
            except HeadraceError as error:
                refusal = error.with_traceback(None)  # its frames hold the message, and would be in a cycle
            meant += 1
            is_synced = is_synced or queue.is_synced
            if queue.ack_timeout_us and confirm is not None:
                batch.wait_until(now_us + queue.ack_timeout_us)
        if route is not None:
            sent = self._pubsub.send(batch, route, message, assurance, retain, publisher)
            meant += sent.count
            is_synced = is_synced or sent.is_stored
            refusal = refusal or sent.refusal
        if confirm is not None:
            batch.confirms.add(confirm if refusal is None else _with(confirm, refusal), is_synced)
        if batch.size_bytes + pipeline.waiting_bytes > pipeline.flow.high_bytes:
            pipeline.update_flow()
        return meant

    def transaction(
        self, publishes: Sequence[Publish], settlements: Sequence[tuple[Delivery, int]], confirm: Confirm | None
    ) -> list[int]:
        """Store publishes and settlements as one; returns for each publish how many queues it is meant for."""
        routed = [self._routed(publish) for publish in publishes]
        topics = [(to.route, to.message) for to in routed if to.route is not None]

        def stored(error: HeadraceError | None) -> None:
            for route, message in topics if error is None else []:
                self._pubsub.send_live(route, message, AT_LEAST_ONCE)
            if confirm is not None:
                confirm(error)

        transaction = Transaction(self._queues, self._pipeline, self._clock.now_us(), stored)
        try:
            for delivery, outcome in settlements:
                transaction.settle(delivery, outcome)
            counts = [sum([transaction.publish([queue], to.entering(queue)) for queue in to.queues]) for to in routed]
            for route, message in topics:
                for queue, kept in self._pubsub.copies(route, message, AT_LEAST_ONCE):
                    transaction.publish([queue], kept)
        except HeadraceError:
            transaction.undo()
            raise
        transaction.send()
        return counts

    def _routed(self, publish: Publish) -> "_Routed":
        """Where a message of a transaction goes. Raises like `route`."""
        message = publish.message
        source = message.source
        if publish.is_topic:
            found = _Routed(message, self.route_topic(source.topic))
            found.route = None if is_address(source.topic) else self._pubsub.route(source.topic)
            return found
        headers, keys = publish.headers, publish.extra_keys
        exchanges = self._topology.exchanges
        if exchanges.reads_messages:
            headers = exchanges.details(message, headers)
        found = _Routed(message, self.route(message, headers, keys))
        if exchanges.reads_messages:
            found.later = exchanges.later(source.exchange, message, headers, keys, self._clock.now_us())
        if self._topology.reaches_subscribers(source.exchange, source.topic, headers, keys):
            found.route = self._pubsub.route(topic_of(source))
        return found


@final
class _Routed:
    """A message of a transaction with its ways."""

    __slots__ = ("later", "message", "queues", "route")

    def __init__(self, message: Message, queues: list[Queue]) -> None:
        self.message = message
        self.queues = queues
        self.later: Later | None = None
        self.route: Route | None = None
        """Its subscribers; None if it reaches none."""

    def entering(self, queue: Queue) -> Message:
        """The message as a queue gets it."""
        return self.message if self.later is None or not self.later.is_for(queue.name) else self.later.message


def _check_storable(message: Message) -> None:
    """Raises Refused for a message that no log can hold: it would spoil the batch for all its publishers."""
    source = message.source
    if source.stored and 0 <= message.priority <= 255:
        return  # the source was stored before: its topic need not be read from memory again
    topic = source.topic
    is_long = len(topic) > _SHORT_TOPIC_CHARACTERS and len(topic.encode()) > MAX_TOPIC_BYTES
    if is_long or not 0 <= message.priority <= 255:
        raise Refused(
            f"a message with priority {message.priority} and a topic of {len(topic)} characters cannot "
            f"be stored: priorities go from 0 to 255, topics have {MAX_TOPIC_BYTES} bytes at most"
        )


def _take_numbers(publisher: Publisher, batch: Batch, numbers: list[int]) -> None:
    """Note growing numbers as taken, neighbours together."""
    start = stop = numbers[0]
    for number in numbers:
        if number != stop:
            batch.note_numbers(publisher, start, stop)
            start = number
        stop = number + 1
    batch.note_numbers(publisher, start, stop)


def _one_entry(confirm: ConfirmAll) -> Confirm:
    return lambda error: confirm(1, error)


def _with(confirm: Confirm, refusal: HeadraceError) -> Confirm:
    return lambda error: confirm(refusal if error is None else error)

"""The way of messages into queues and to subscribers: which are meant, and what is staged for them. No commits.

Who may publish is publisher.py's, what a queue takes is entry.py's, and what becomes of a turn is line.py's.
"""

from collections.abc import Mapping, Sequence
from typing import Final, final

from headrace.clock import Clock
from headrace.core.address import is_address, parse_address
from headrace.core.confirms import Confirm, ConfirmAll
from headrace.core.delivery import Delivery
from headrace.core.entry import accept
from headrace.core.line import Line
from headrace.core.pubsub import PubSub
from headrace.core.queue import Queue
from headrace.core.queues import Queues
from headrace.core.routes import Route
from headrace.core.session import Session
from headrace.core.subscription import AT_LEAST_ONCE
from headrace.core.topics import MAX_TOPIC_BYTES, quoted
from headrace.core.topology import topic_of
from headrace.core.transaction import Publish, Transaction
from headrace.errors import HeadraceError, Refused
from headrace.model import Message

_SHORT_TOPIC_CHARACTERS: Final = MAX_TOPIC_BYTES // 4  # four bytes each at most: these fit without a look


@final
class Publishing:
    """Routes messages of one virtual host and stages them in its line."""

    def __init__(self, queues: Queues, pubsub: PubSub, line: Line, clock: Clock) -> None:
        self._topology = queues.topology
        self._queues = queues
        self._pubsub = pubsub
        self._line = line
        self._clock = clock

    def route(self, message: Message, headers: Mapping[str, object] | None, extra_keys: Sequence[str]) -> list[Queue]:
        """The queues that a message is meant for by its source. Raises NotFound, AccessRefused, Refused."""
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
        """The queues whose patterns match; one is made for an address that none does. Raises Refused."""
        if not is_address(topic):
            return self._topology.of_topic(topic)
        if "/$" in topic and parse_address(topic).verb:
            raise Refused(f"{quoted(topic)} ends in a verb: it settles messages and cannot be published to")
        return self._topology.of_topic(topic) or [self._queues.landing(topic)]

    def stage_all(self, queues: list[Queue], messages: list[Message], confirm: ConfirmAll | None) -> bool:
        """Whether all queues take all messages without a look at each; nothing is done where they do not."""
        if len(queues) == 1:
            return self.stage_to(queues[0], messages, confirm)
        largest, size_bytes = _sizes(messages)
        for queue in queues:
            if not queue.takes_all(largest):
                return False
        is_synced = False
        for queue in queues:
            is_synced = is_synced or queue.is_synced
            self._stage_to(queue, list(messages), size_bytes, confirm is not None)
        self._staged(confirm, len(messages), is_synced)
        return True

    def stage_to(self, queue: Queue, messages: list[Message], confirm: ConfirmAll | None) -> bool:
        """The same for one queue."""
        largest, size_bytes = _sizes(messages)
        if not queue.takes_all(largest):
            return False
        self._stage_to(queue, messages, size_bytes, confirm is not None)
        self._staged(confirm, len(messages), queue.is_synced)
        return True

    def _stage_to(self, queue: Queue, messages: list[Message], size_bytes: int, is_awaited: bool) -> None:
        turn = self._line.open()
        turn.publish_all(queue, messages, size_bytes)
        if queue.ack_timeout_us and is_awaited:
            turn.wait_until(self._clock.now_us() + queue.ack_timeout_us)

    def _staged(self, confirm: ConfirmAll | None, count: int, is_synced: bool) -> None:
        line = self._line
        turn = line.open()
        if confirm is not None:
            turn.confirms.add_all(confirm, count, is_synced)
        if turn.size_bytes + line.waiting_bytes > line.flow.high_bytes:
            line.look()

    def stage(
        self,
        queues: list[Queue],
        message: Message,
        confirm: Confirm | None,
        route: Route | None = None,
        assurance: int = AT_LEAST_ONCE,
        retain: bool = False,
        publisher: Session | None = None,
    ) -> int:
        """Have these queues get a message, and the subscribers of a route; returns how many take it or should have.

        `confirm` is told when a queue refused it. Raises Refused for what cannot be stored anywhere.
        """
        _check_storable(message)
        now_us = self._clock.now_us()
        line = self._line
        turn = line.open()
        meant = 0
        is_synced = False
        refusal: HeadraceError | None = None
        for queue in queues:
            if queue.selector is not None and not queue.admits(message):
                continue
            meant += 1
            is_synced = is_synced or queue.is_synced
            if queue.ack_timeout_us and confirm is not None:
                turn.wait_until(now_us + queue.ack_timeout_us)
            try:
                accept(queue, turn, message, now_us)
            except HeadraceError as error:
                refusal = error
        if route is not None:
            sent = self._pubsub.send(turn, route, message, assurance, retain, publisher)
            meant += sent.count
            is_synced = is_synced or sent.is_stored
            refusal = refusal or sent.refusal
        if confirm is not None:
            turn.confirms.add(confirm if refusal is None else _with(confirm, refusal), is_synced)
        if turn.size_bytes + line.waiting_bytes > line.flow.high_bytes:
            line.look()
        return meant

    def transaction(
        self, publishes: Sequence[Publish], settlements: Sequence[tuple[Delivery, int]], confirm: Confirm | None
    ) -> list[int]:
        """Stage publishes and settlements as one; returns for each publish how many queues it is meant for."""
        topics = [
            (route, publish.message) for publish in publishes if (route := self._subscribers(publish)) is not None
        ]

        def stored(error: HeadraceError | None) -> None:
            for route, message in topics if error is None else []:
                self._pubsub.send_live(route, message, AT_LEAST_ONCE)
            if confirm is not None:
                confirm(error)

        transaction = Transaction(self._queues, self._line, self._clock.now_us(), stored)
        routes = [
            self.route_topic(publish.message.source.topic)
            if publish.is_topic
            else self.route(publish.message, publish.headers, publish.extra_keys)
            for publish in publishes
        ]
        try:
            for delivery, outcome in settlements:
                transaction.settle(delivery, outcome)
            counts = [
                transaction.publish(queues, publish.message) for queues, publish in zip(routes, publishes, strict=True)
            ]
            for route, message in topics:
                for queue, kept in self._pubsub.copies(route, message, AT_LEAST_ONCE):
                    transaction.publish([queue], kept)
        except HeadraceError:
            transaction.undo()
            raise
        transaction.send()
        return counts

    def _subscribers(self, publish: Publish) -> Route | None:
        """Where a message of a transaction goes besides queues: None for one that subscribers do not get."""
        source = publish.message.source
        if publish.is_topic:
            return None if is_address(source.topic) else self._pubsub.route(source.topic)
        reaches = self._topology.reaches_subscribers(source.exchange, source.topic, publish.headers, publish.extra_keys)
        return self._pubsub.route(topic_of(source)) if reaches else None


def _sizes(messages: list[Message]) -> tuple[int, int]:
    """The longest payload of messages with one source, and all of them. Raises Refused for what no log can hold."""
    _check_storable(messages[0])
    largest = size_bytes = 0
    for message in messages:
        size = len(message.payload)
        size_bytes += size
        largest = max(largest, size)
    return largest, size_bytes


def _check_storable(message: Message) -> None:
    """Raises Refused for what no log can hold: it would spoil the turn for all who publish in it."""
    source = message.source
    if source.stored and 0 <= message.priority <= 255:
        return  # others were stored before: with a topic for each queue of many, this is where it would be looked at
    topic = source.topic
    is_long = len(topic) > _SHORT_TOPIC_CHARACTERS and len(topic.encode()) > MAX_TOPIC_BYTES
    if is_long or not 0 <= message.priority <= 255:
        raise Refused(
            f"a message with priority {message.priority} and a topic of {len(topic)} characters cannot "
            f"be stored: priorities go from 0 to 255, topics have {MAX_TOPIC_BYTES} bytes at most"
        )


def _with(confirm: Confirm, refusal: HeadraceError) -> Confirm:
    return lambda error: confirm(refusal if error is None else error)

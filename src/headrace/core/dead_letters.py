"""Where messages go that were given up: moved, listed, sent back. The history they carry is in dead_letter.py."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.address import dead_letter_origin, dead_letter_queue, is_address
from headrace.core.dead_letter import Death, add_death, add_queue_history, birth_of, forget_deaths, is_cycle, routes_of
from headrace.core.definition import QueueDefinition
from headrace.core.entry import stamped
from headrace.core.line import Line
from headrace.core.properties import Codecs, Properties
from headrace.core.queue import DEFAULT_GROUP, Queue
from headrace.core.readers import group_named
from headrace.core.turn import Turn
from headrace.errors import NotFound, Refused
from headrace.model import Message, Source
from headrace.storage.group_state import WORK

if TYPE_CHECKING:
    from headrace.core.queues import Queues

_log: Final = logging.getLogger("headrace.core")
REDRIVE_BYTES: Final = 64 << 20
"""How much one re-drive takes at most: it is one commit."""


@final
class DeadLetters:
    """Moves given-up messages to dead-letter queues, and back."""

    def __init__(self, queues: "Queues", codecs: Codecs, line: Line, clock: Clock) -> None:
        self._queues = queues
        self._codecs = codecs
        self._line = line
        self._clock = clock

    def move(self, turn: Turn, queue: Queue, message: Message, death: Death) -> None:
        """Send a message to where this queue's dead letters go; it is dropped when that is nowhere."""
        definition = queue.definition
        try:
            properties = self._codecs.decode(message)
        except Refused as error:
            _log.warning("a dead letter of queue %r goes without its history: %s", queue.name, error)
            properties = None
        if properties is not None:
            add_death(properties, message, death)
        exchange, key = message.source.exchange, message.source.topic
        if definition.dead_letter_exchange is None:
            if properties is not None:
                add_queue_history(properties, message, death)
            targets = self.graves(turn, definition)
        else:
            exchange = definition.dead_letter_exchange
            extra_keys = routes_of(properties)
            if definition.dead_letter_key is not None:
                key, extra_keys = definition.dead_letter_key, []
                if properties is not None:
                    properties.headers.pop("CC", None)
            targets = self._routed(exchange, key, extra_keys, properties)
        letter = self._reborn(message, properties, exchange, key, death.time_us)
        for target in targets:
            # A damaged queue takes nothing; RabbitMQ drops what would go round for ever.
            if target.refusal is None and not (properties is not None and is_cycle(properties, target.name)):
                turn.move(target, stamped(target, letter, death.time_us))

    def _routed(self, exchange: str, key: str, extra_keys: list[str], properties: Properties | None) -> list[Queue]:
        headers = properties.headers if properties is not None else None
        try:
            return self._queues.topology.of_exchange(exchange, key, headers, extra_keys)
        except NotFound:
            return []  # as RabbitMQ does: the exchange may come later, the message does not wait for it

    def graves(self, turn: Turn, definition: QueueDefinition) -> list[Queue]:
        """The queues that take dead letters which no exchange routes; made if there is none."""
        name = definition.dead_letter_queue
        topology = self._queues.topology
        if is_address(name):
            found = topology.of_topic(name)
            if found:
                return found
            name = topology.name_for(name)
        existing = topology.queues.get(name)
        if existing is None:
            existing = self._queues.create(turn, QueueDefinition(name, durable=definition.is_stored))
        return [existing]

    def _reborn(self, message: Message, properties: Properties | None, exchange: str, key: str, now_us: int) -> Message:
        """The message as it goes on: with its history, without its own time to live."""
        old = message.source
        source = Source(key, exchange, old.client_id, old.protocol, old.encoding)
        raw = message.properties if properties is None else self._codecs.encode(old.encoding, properties)
        return Message(source, message.payload, now_us, raw, message.priority)

    def list(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, Message, Properties]]:
        """Dead letters of a queue, oldest first, without taking them. Raises NotFound, Corrupt."""
        letters = self.grave_of(name).browse(offset, limit)
        return [(at, message, self._codecs.decode(message)) for at, message in letters]

    def grave_of(self, name: str) -> Queue:
        """The queue that holds the dead letters of the queue named, or that is named itself. Raises NotFound."""
        queues = self._queues.topology.queues
        own = queues.get(dead_letter_queue(name))
        if not dead_letter_origin(name) and own is not None:
            return own
        queue = self._queues.topology.queue(name)
        if queue.definition.dead_letter_queue in queues:
            return queues[queue.definition.dead_letter_queue]
        return queue

    def redrive(self, name: str, limit: int = 10_000, start: int = 0) -> int:
        """Send dead letters of a queue back to where they died, in order and in one commit; returns how many went.

        Those whose queue is gone stay. More than 64 MiB or the limit needs another call; `start` is the first offset
        that is looked at. Raises NotFound, Corrupt.
        """
        turn, now_us, grave = self._line.open(), self._clock.now_us(), self.grave_of(name)
        return self._each(
            turn, grave, limit, start, lambda at, letter: self._send_back(turn, grave, at, letter, now_us)
        )

    def transfer(self, name: str, target: str, limit: int = 10_000, start: int = 0) -> int:
        """Send what waits in a queue to another queue, as it is, in order and in one commit; returns how many went.

        The same bounds. Raises NotFound, Refused for a stream, Corrupt.
        """
        queue, to = self._queues.usable(name, None), self._queues.usable(target, None)
        if queue.definition.is_stream or to is queue:
            raise Refused(
                f"messages cannot be moved from queue {name!r} to queue {target!r}: "
                f"{'a stream keeps what it has' if to is not queue else 'they are there already'}"
            )
        turn, now_us = self._line.open(), self._clock.now_us()

        def send(offset: int, message: Message) -> bool:
            if not _take_out(turn, queue, offset):
                return False
            turn.move(to, stamped(to, message, now_us))
            return True

        return self._each(turn, queue, limit, start, send)

    def purge(self, name: str) -> int:
        """Drop the dead letters of a queue; returns how many. Raises NotFound."""
        return self.grave_of(name).disposal.purge(self._line.open())

    def _each(self, turn: Turn, queue: Queue, limit: int, start: int, send: Callable[[int, Message], bool]) -> int:
        """Send messages of a queue off, up to both bounds; returns how many went."""
        if not queue.work_groups():
            group_named(queue, turn, DEFAULT_GROUP, WORK)
        size = moved = 0
        while moved < limit and size < REDRIVE_BYTES and (letters := queue.browse(start, min(limit - moved, 256))):
            for offset, letter in letters:
                start = offset + 1
                if send(offset, letter):
                    moved += 1
                    size += len(letter.payload)
        return moved

    def _send_back(self, turn: Turn, grave: Queue, offset: int, letter: Message, now_us: int) -> bool:
        properties = self._codecs.decode(letter)
        name, exchange, key = birth_of(properties, letter)
        origin = self._queues.topology.queues.get(name)
        if origin is None or origin is grave or origin.refusal is not None or not _take_out(turn, grave, offset):
            return False
        forget_deaths(properties)
        turn.move(origin, stamped(origin, self._reborn(letter, properties, exchange, key, now_us), now_us))
        return True


def _take_out(turn: Turn, queue: Queue, offset: int) -> bool:
    """Have no group deliver a message any more; False when a consumer has it right now."""
    groups = queue.work_groups()
    before = [group.ready for group in groups]
    for group in groups:
        group.drop(turn, offset)
    return before != [group.ready for group in groups]

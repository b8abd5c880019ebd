"""Where messages go that were given up: moved, found, sent back. The history they carry is in history.py."""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch
from headrace.core.pipeline import CommitPipeline
from headrace.core.properties import Codecs, Properties
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import BROWSE_BYTES, Found
from headrace.core.queue.entry import accept_moved
from headrace.core.queue.history import (
    Death,
    add_death,
    add_queue_history,
    birth_of,
    forget_deaths,
    is_cycle,
    is_dead_elsewhere,
    routes_of,
)
from headrace.core.queue.queue import DEFAULT_GROUP, Queue, group_named
from headrace.core.routing.address import MAX_OFFSET, dead_letter_origin, dead_letter_queue, is_address
from headrace.errors import Corrupt, NotFound, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.group_state import WORK

if TYPE_CHECKING:
    from headrace.core.queue.queues import Queues

_log: Final = logging.getLogger("headrace.core")
REDRIVE_BYTES: Final = 64 << 20
"""How much one re-drive takes at most."""
LOOKS: Final = 10_000
"""How many messages one call looks at; whoever has the loop next should not wait for a whole backlog."""
_READ_BYTES: Final = 4 << 20
"""How much is read at once; many messages of this size take 5 ms."""

_Found = list[Found]
Letters = tuple[_Found, int | None]
"""Messages with their offsets, and the offset from which on there may be more; None at the end."""


@final
class DeadLetters:
    """Moves given-up messages to dead-letter queues, and back."""

    def __init__(self, queues: "Queues", codecs: Codecs, pipeline: CommitPipeline, clock: Clock) -> None:
        self._queues = queues
        self._codecs = codecs
        self._pipeline = pipeline
        self._clock = clock

    def move(self, batch: Batch, queue: Queue, message: Message, death: Death) -> None:
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
            targets = self.graves(batch, definition)
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
                accept_moved(target, batch, letter, death.time_us)
                if properties is not None and is_dead_elsewhere(properties, target.name):
                    target.letters_end = -1

    def _routed(self, exchange: str, key: str, extra_keys: list[str], properties: Properties | None) -> list[Queue]:
        headers = properties.headers if properties is not None else None
        try:
            return self._queues.topology.of_exchange(exchange, key, headers, extra_keys)
        except NotFound:
            return []  # as RabbitMQ does: the exchange may come later, the message does not wait for it

    def graves(self, batch: Batch, definition: QueueDefinition) -> list[Queue]:
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
            existing = self._queues.create(batch, QueueDefinition(name, durable=definition.is_stored))
        return [existing]

    def _reborn(self, message: Message, properties: Properties | None, exchange: str, key: str, now_us: int) -> Message:
        """The message as it goes on: with its history, without its own time to live."""
        old = message.source
        source = Source(key, exchange, old.client_id, old.protocol, old.encoding)
        raw = message.properties if properties is None else self._codecs.encode(old.encoding, properties)
        return Message(source, message.payload, now_us, raw, message.priority)

    # -- which queues hold them ----------------------------------------------------------------------------------------

    def grave_of(self, name: str, is_exact: bool = False) -> "Grave | None":
        """Where the dead letters of the queue named are, or those in it if it holds some; None when there are none.

        With `is_exact` only those in the queue named. Raises NotFound when there is no such queue, or when an exchange
        sends the dead letters to several.
        """
        queues = self._queues.topology.queues
        if not is_exact and not dead_letter_origin(name):
            own = queues.get(dead_letter_queue(name))
            if own is not None:
                return Grave(own)
        queue = self._queues.topology.queue(name)
        if is_exact or dead_letter_origin(name):
            return Grave(queue)
        target = queues.get(queue.definition.dead_letter_queue)
        if target is not None and target is not queue:
            return Grave(target, name)
        if self.holds_letters(queue) or any([each.definition.dead_letter_queue == name for each in queues.values()]):
            return Grave(queue)
        return self._behind_exchange(queue)

    def _behind_exchange(self, queue: Queue) -> "Grave | None":
        """The queue to which an exchange sends the dead letters of this one. Raises NotFound when there are several."""
        exchange, key = queue.definition.dead_letter_exchange, queue.definition.dead_letter_key
        if exchange is None:
            return None
        topology = self._queues.topology
        if key is not None:
            found = self._routed(exchange, key, [], None)
        else:
            names = {each.destination for each in topology.exchanges.bindings_from(exchange) if not each.to_exchange}
            found = [topology.queues[each] for each in names if each in topology.queues]
        holders = [each for each in found if each is not queue and self.holds_letters(each)]
        if len(holders) > 1:
            raise NotFound(
                f"dead letters of queue '{queue.name}' go through exchange '{exchange}' to "
                f"{', '.join(sorted([repr(each.name) for each in holders]))}: name the queue that holds them"
            )
        return Grave(holders[0], queue.name) if holders else None

    def holds_letters(self, queue: Queue) -> bool:
        """Whether dead letters wait in a queue: by its name, or by `x-death` in its messages.

        A queue is known once a dead letter is moved into it. After a restart the oldest message tells.
        """
        if dead_letter_origin(queue.name):
            return True
        if queue.is_gone or not queue.messages:
            return False
        if queue.letters_end < 0:
            queue.letters_end = queue.log.next_offset
        head = queue.first_offset if queue.is_stream else queue.head()
        if head < queue.letters_end:
            return True
        if head != queue.looked_at:
            queue.looked_at = head
            if any([self._is_letter(queue, "", message) for message in _oldest(queue, head, 1)]):
                queue.letters_end = head + 1
        return head < queue.letters_end

    def origin_in(self, queue: Queue) -> str:
        """The queue in which the oldest dead letter of a queue died; "" when that is not known."""
        origin = dead_letter_origin(queue.name)
        if origin or queue.is_gone:
            return origin
        for letter in _oldest(queue, queue.first_offset if queue.is_stream else queue.head(), 1):
            return self._died_in(letter)
        return ""

    def _died_in(self, message: Message) -> str:
        """The queue in which a message died last; "" for one that never did."""
        try:
            return birth_of(self._codecs.decode(message), message)[0]
        except Refused:
            return ""

    def _is_letter(self, queue: Queue, origin: str, message: Message) -> bool:
        """Whether a message in this queue is a dead letter of another: one that came back to where it died is none."""
        try:
            properties = self._codecs.decode(message)
        except Refused:
            return False
        if origin:
            return birth_of(properties, message)[0] == origin
        return is_dead_elsewhere(properties, queue.name)

    def _is_meant(self, grave: "Grave", message: Message) -> bool:
        return grave.is_whole or self._is_letter(grave.queue, grave.origin, message)

    # -- what is done with them ----------------------------------------------------------------------------------------

    def list(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, Message, Properties]]:
        """Dead letters of a queue, oldest first, without taking them. Raises NotFound, Corrupt."""
        grave = self.grave_of(name)
        if grave is None:
            return []
        found = self.browse(grave, offset, limit, looks=max(limit, LOOKS))[0]
        return [(at, message, self._codecs.decode(message)) for at, message in found]

    def browse(
        self, grave: "Grave", offset: int, limit: int, max_bytes: int = BROWSE_BYTES, looks: int = LOOKS
    ) -> Letters:
        """Dead letters from an offset on, and where to go on: None at the end. Raises Corrupt.

        There may be more when none is found: a call looks at a bounded number of messages.
        """
        found: _Found = []
        while looks > 0 and len(found) < limit and max_bytes > 0:
            part = grave.queue.browse(offset, min(limit - len(found), looks, 256), max_bytes)
            if not part:
                return found, None
            offset = part[-1][0] + 1
            looks -= len(part)
            meant = [(at, message) for at, message in part if self._is_meant(grave, message)]
            max_bytes -= sum([len(message.payload) + len(message.properties) for _, message in meant])
            found += meant
        return found, offset

    def redrive(self, name: str, limit: int = 10_000, start: int = 0) -> int:
        """Send dead letters of a queue back to where they died, in order and in one commit; returns how many went.

        Those whose queue is gone stay. More than 64 MiB, 10,000 messages or the limit needs another call; `start` is
        the first offset that is looked at. Raises NotFound, Refused for a stream, Corrupt.
        """
        grave = self.grave_of(name)
        return 0 if grave is None else self.send_back(grave, limit, start).messages

    def send_back(
        self,
        grave: "Grave",
        limit: int,
        start: int,
        stop: int = MAX_OFFSET,
        may: Callable[[str], bool] | None = None,
        max_bytes: int = REDRIVE_BYTES,
        looks: int = LOOKS,
    ) -> "Moved":
        """The same for offsets below `stop`, and only to queues with a name for which `may` is true."""
        queue = self._emptied(grave)
        batch, now_us = self._pipeline.open(), self._clock.now_us()

        def send(at: int, letter: Message) -> bool:
            return self._send_back(batch, queue, at, letter, now_us, may)

        return self._each(batch, grave, limit, start, send, stop, max_bytes, looks)

    def transfer(self, name: str, target: str, limit: int = 10_000, start: int = 0) -> int:
        """Send what waits in a queue to another queue, as it is, in order and in one commit; returns how many went.

        The same bounds. Raises NotFound, Refused for a stream, Corrupt.
        """
        return self.hand_on(Grave(self._queues.usable(name, None), is_whole=True), target, limit, start).messages

    def hand_on(
        self,
        grave: "Grave",
        target: str,
        limit: int,
        start: int,
        stop: int = MAX_OFFSET,
        max_bytes: int = REDRIVE_BYTES,
        looks: int = LOOKS,
    ) -> "Moved":
        """The same for dead letters, at offsets below `stop`."""
        queue, to = self._emptied(grave), self._queues.usable(target, None)
        if to is queue:
            raise Refused(f"messages cannot be moved from queue {queue.name!r} to itself: they are there already")
        batch, now_us = self._pipeline.open(), self._clock.now_us()

        def send(offset: int, message: Message) -> bool:
            if not _take_out(batch, queue, offset):
                return False
            accept_moved(to, batch, message, now_us)
            return True

        return self._each(batch, grave, limit, start, send, stop, max_bytes, looks)

    def purge(self, name: str) -> int:
        """Drop the dead letters of a queue; returns how many. Raises NotFound, Refused for a stream, Corrupt."""
        grave = self.grave_of(name)
        if grave is None:
            return 0
        dropped, at = 0, 0
        while True:
            done = self.drop(grave, at)
            dropped += done.messages
            if done.next is None:
                return dropped
            at = done.next

    def drop(self, grave: "Grave", start: int = 0, stop: int = MAX_OFFSET, looks: int = LOOKS) -> "Moved":
        """Drop dead letters: all in a queue that has nothing else, or the next of those among other messages."""
        queue = self._emptied(grave)
        batch = self._pipeline.open()
        batch.is_promised = batch.is_promised or queue.durable
        if grave.is_whole:
            return Moved(queue.disposal.purge(batch), None)

        def drop(offset: int, message: Message) -> bool:
            if not _take_out(batch, queue, offset):
                return False
            queue.settled(message)
            return True

        return self._each(batch, grave, LOOKS, start, drop, stop, REDRIVE_BYTES, looks)

    def _emptied(self, grave: "Grave") -> Queue:
        """The queue out of which messages are about to go.

        Raises NotFound, also when there is another of this name by now, Refused for a stream, Corrupt, ResourceLocked.
        """
        queue = self._queues.usable(grave.queue.name, None)
        if queue is not grave.queue:
            raise NotFound(f"queue {queue.name!r} was deleted and declared again meanwhile")
        if queue.is_stream:
            raise Refused(
                f"nothing is taken out of queue {queue.name!r}: a stream keeps what it has, until retention drops it"
            )
        return queue

    def _each(
        self,
        batch: Batch,
        grave: "Grave",
        limit: int,
        start: int,
        send: Callable[[int, Message], bool],
        stop: int,
        max_bytes: int,
        looks: int,
    ) -> "Moved":
        """Send messages of a queue off, up to all bounds."""
        queue = grave.queue
        if not queue.work_groups():
            group_named(queue, batch, DEFAULT_GROUP, WORK)
        done = Moved(0, None)
        while done.messages < limit and done.size_bytes < max_bytes and done.looks < looks:
            most = min(limit - done.messages, looks - done.looks, 256)
            letters = queue.browse(start, most, min(max_bytes - done.size_bytes, _READ_BYTES))
            if not letters:
                return done
            for offset, letter in letters:
                if offset >= stop:
                    return done
                start = offset + 1
                done.looks += 1
                if self._is_meant(grave, letter) and send(offset, letter):
                    queue.unschedule(letter)
                    done.messages += 1
                    done.size_bytes += len(letter.payload)
        if start < min(stop, queue.log.next_offset):
            done.next = start
        return done

    def _send_back(
        self, batch: Batch, grave: Queue, offset: int, letter: Message, now_us: int, may: Callable[[str], bool] | None
    ) -> bool:
        properties = self._codecs.decode(letter)
        name, exchange, key = birth_of(properties, letter)
        origin = self._queues.topology.queues.get(name)
        if origin is None or origin is grave or origin.refusal is not None or (may is not None and not may(name)):
            return False
        if not _take_out(batch, grave, offset):
            return False
        forget_deaths(properties)
        accept_moved(origin, batch, self._reborn(letter, properties, exchange, key, now_us), now_us)
        return True


@final
class Grave:
    """Dead letters in a queue: all of its messages, or those among them that died elsewhere."""

    __slots__ = ("is_whole", "origin", "queue")

    def __init__(self, queue: Queue, origin: str = "", is_whole: bool = False) -> None:
        self.queue = queue
        self.origin = origin
        """Only what died in this queue is meant; "" for all."""
        self.is_whole = is_whole or (not origin and bool(dead_letter_origin(queue.name)))
        """Whether every message is meant."""


@final
class Moved:
    """How many messages went, and from which offset on there may be more; None when there are none."""

    __slots__ = ("looks", "messages", "next", "size_bytes")

    def __init__(self, messages: int, next: int | None) -> None:  # noqa: A002
        self.messages = messages
        self.next = next
        self.size_bytes = 0
        """How many bytes of payload they had."""
        self.looks = 0
        """How many messages were looked at."""


def _oldest(queue: Queue, head: int, most: int) -> list[Message]:
    """The oldest messages of a queue; none where they cannot be read now."""
    try:
        return [message for _, message in queue.browse(head, most)]
    except (Corrupt, Unavailable):
        return []


def _take_out(batch: Batch, queue: Queue, offset: int) -> bool:
    """Have no group deliver a message any more; False when a consumer has it right now."""
    groups = queue.work_groups()
    before = [group.ready for group in groups]
    for group in groups:
        group.drop(batch, offset)
    return before != [group.ready for group in groups]

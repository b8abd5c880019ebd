"""Dead letters: moved, found, sent back, and the history in their headers. No decision to give up: see work.py."""

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, final

from headrace.clock import Clock
from headrace.core.batch import Batch
from headrace.core.pipeline import CommitPipeline
from headrace.core.queue.definition import QueueDefinition
from headrace.core.queue.dispatch import Found
from headrace.core.queue.entry import accept_moved
from headrace.core.queue.group import REJECTED, Death
from headrace.core.queue.queue import BROWSE_BYTES, DEFAULT_GROUP, Queue
from headrace.core.routing.address import MAX_OFFSET, dead_letter_origin, dead_letter_queue, is_address
from headrace.core.routing.delays import Later
from headrace.errors import Corrupt, NotFound, Refused, Unavailable
from headrace.model import Message, Source
from headrace.storage.group_state import WORK
from headrace.wire.encodings import encode_properties, properties_of
from headrace.wire.properties import Properties

if TYPE_CHECKING:
    from headrace.core.queue.queues import Queues

_log: Final = logging.getLogger("headrace.core")
REDRIVE_BYTES: Final = 64 << 20
"""Most payload bytes of one re-drive."""
LOOKS: Final = 10_000
"""Messages that one call looks at, so that a long backlog does not hold up the event loop."""
_READ_BYTES: Final = 4 << 20
"""Bytes read at once: small messages of this size in all take 5 ms."""
_DEATH_HEADERS: Final = ("_dlq_", "x-death", "x-first-death-", "x-last-death-")

_Found = list[Found]
Letters = tuple[_Found, int | None]
"""Messages with their offsets, and the offset to go on from; None at the end."""

# -- the history in a dead letter's headers ----------------------------------------------------------------------------


def add_death(properties: Properties, message: Message, death: Death) -> None:
    """Write the death into the headers: one entry per queue and reason, the latest first, with a count."""
    headers = properties.headers
    entry: dict[str, object] = {
        "count": 1,
        "reason": death.reason,
        "queue": death.queue,
        "time": datetime.fromtimestamp(death.time_us // 1_000_000, UTC),
        "exchange": message.source.exchange,
        "routing-keys": [message.source.topic, *routes_of(properties)],
    }
    if properties.expiration:
        entry["original-expiration"] = properties.expiration
        properties.expiration = ""  # or it would expire again where it goes
    others: list[object] = []
    for former in _deaths(headers):
        if former.get("queue") == death.queue and former.get("reason") == death.reason:
            count = former.get("count")
            entry = {**former, "count": (count if isinstance(count, int) else 0) + 1}
        else:
            others.append(former)
    headers["x-death"] = [entry, *others]
    headers.setdefault("x-first-death-queue", death.queue)
    headers.setdefault("x-first-death-reason", death.reason)
    headers.setdefault("x-first-death-exchange", message.source.exchange)
    headers["x-last-death-queue"] = death.queue
    headers["x-last-death-reason"] = death.reason
    headers["x-last-death-exchange"] = message.source.exchange


def add_queue_history(properties: Properties, message: Message, death: Death) -> None:
    """Write the origin of a message into the headers, for `$dlq/` queues: re-driving needs it."""
    moved_at = datetime.fromtimestamp(death.time_us / 1_000_000, UTC).isoformat().replace("+00:00", "Z")
    properties.headers.update(
        {
            "_dlq_original_queue": death.queue,
            "_dlq_original_topic": message.source.topic,
            "_dlq_original_id": f"{death.queue}:{death.offset}",
            "_dlq_group": death.group,
            "_dlq_delivery_count": death.attempts,
            "_dlq_moved_at": moved_at,
            "_dlq_reason": death.reason,
        }
    )


def routes_of(properties: Properties | None) -> list[str]:
    """Return the further routing keys a message was published with."""
    keys = properties.headers.get("CC") if properties is not None else None
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def birth_of(properties: Properties, letter: Message) -> tuple[str, str, str]:
    """Return the queue a dead letter died in last, and the exchange and key it was published with."""
    headers = properties.headers
    queue = headers.get("_dlq_original_queue")
    if isinstance(queue, str):
        return queue, letter.source.exchange, str(headers.get("_dlq_original_topic", letter.source.topic))
    for entry in _deaths(headers):
        keys = entry.get("routing-keys")
        key = keys[0] if isinstance(keys, list) and keys else letter.source.topic
        return str(entry.get("queue", "")), str(entry.get("exchange", "")), str(key)
    return "", "", ""


def forget_deaths(properties: Properties) -> None:
    """Remove the history of a message that goes back to its queue."""
    for name in [name for name in properties.headers if name.startswith(_DEATH_HEADERS)]:
        del properties.headers[name]


def is_cycle(properties: Properties, target: str) -> bool:
    """Return whether a move to this queue closes a cycle without a rejection: the message would go round for ever."""
    for entry in _deaths(properties.headers):
        if entry.get("reason") == REJECTED:
            return False
        if entry.get("queue") == target:
            return True
    return False


def is_dead_elsewhere(properties: Properties, queue: str) -> bool:
    """Return whether a message in this queue died in another, and never in this one."""
    deaths = _deaths(properties.headers)
    return bool(deaths) and all([entry.get("queue") != queue for entry in deaths])


def _deaths(headers: dict[str, object]) -> list[dict[str, object]]:
    found = headers.get("x-death")
    if isinstance(found, str):  # MQTT headers are strings
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


# -- dead letters of one virtual host ----------------------------------------------------------------------------------


@final
class DeadLetters:
    """Moves given-up messages to dead-letter queues, and back."""

    def __init__(self, queues: "Queues", pipeline: CommitPipeline, clock: Clock) -> None:
        self._queues = queues
        self._pipeline = pipeline
        self._clock = clock

    def move(self, batch: Batch, queue: Queue, message: Message, death: Death) -> None:
        """Send a message to the dead letters of this queue; it is dropped where there are none."""
        definition = queue.definition
        try:
            properties = properties_of(message)
        except Refused as error:
            _log.warning("a dead letter of queue %r goes without its history: %s", queue.name, error)
            properties = None
        if properties is not None:
            add_death(properties, message, death)
        exchange, key = message.source.exchange, message.source.topic
        later: Later | None = None
        if definition.dead_letter_exchange is None:
            if properties is not None:
                add_queue_history(properties, message, death)
            targets = self.graves(batch, definition)
            letter = self._reborn(message, properties, exchange, key, death.time_us)
        else:
            exchange = definition.dead_letter_exchange
            extra_keys = routes_of(properties)
            if definition.dead_letter_key is not None:
                key, extra_keys = definition.dead_letter_key, []
                if properties is not None:
                    properties.headers.pop("CC", None)
            letter = self._reborn(message, properties, exchange, key, death.time_us)
            targets, later = self._ways(letter, extra_keys, properties)
        for target in targets:
            # A damaged queue takes nothing; RabbitMQ drops messages that would go round for ever.
            if target.refusal is None and not (properties is not None and is_cycle(properties, target.name)):
                entering = letter if later is None or not later.is_for(target.name) else later.message
                accept_moved(target, batch, entering, death.time_us)
                if properties is not None and is_dead_elsewhere(properties, target.name):
                    target.letters_end = -1

    def _ways(
        self, letter: Message, extra_keys: list[str], properties: Properties | None
    ) -> tuple[list[Queue], Later | None]:
        """Return the queues of a letter by its source, and the letter for those that get it later."""
        exchanges, source = self._queues.topology.exchanges, letter.source
        headers: Mapping[str, object] | None = properties.headers if properties is not None else None
        if not exchanges.reads_messages:
            return self._routed(source.exchange, source.topic, extra_keys, headers), None
        headers = exchanges.details(letter, headers)
        targets = self._routed(source.exchange, source.topic, extra_keys, headers)
        return targets, exchanges.later(source.exchange, letter, headers, extra_keys, letter.timestamp_us)

    def _routed(
        self, exchange: str, key: str, extra_keys: list[str], headers: Mapping[str, object] | None
    ) -> list[Queue]:
        try:
            return self._queues.topology.of_exchange(exchange, key, headers, extra_keys)
        except NotFound:
            return []  # as in RabbitMQ: the message does not wait for the exchange

    def graves(self, batch: Batch, definition: QueueDefinition) -> list[Queue]:
        """Return the queues for dead letters that no exchange routes; one is made if there is none."""
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
        """Return the message with its history and without its own time to live."""
        old = message.source
        source = Source(key, exchange, old.client_id, old.protocol, old.encoding)
        raw = message.properties if properties is None else encode_properties(old.encoding, properties)
        return Message(source, message.payload, now_us, raw, message.priority)

    # -- where they are ----------------------------------------------------------------------------------------

    def grave_of(self, name: str, is_exact: bool = False) -> "Grave | None":
        """Return the place of a queue's dead letters, or of the letters in it if it holds some; None for neither.

        With `is_exact` only letters in the queue named count. Raises NotFound when there is no such queue, or when an
        exchange sends the dead letters to several.
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
        """Return the queue to which an exchange sends this queue's dead letters. Raises NotFound for several."""
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
        """Return whether dead letters wait in a queue: by its name, or by `x-death` in its messages.

        A queue is marked when a dead letter is moved into it. After a restart the oldest message is examined.
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
        """Return the queue in which the oldest dead letter of a queue died; "" if unknown."""
        origin = dead_letter_origin(queue.name)
        if origin or queue.is_gone:
            return origin
        for letter in _oldest(queue, queue.first_offset if queue.is_stream else queue.head(), 1):
            return self._died_in(letter)
        return ""

    def _died_in(self, message: Message) -> str:
        """Return the queue in which a message died last; "" if it never did."""
        try:
            return birth_of(properties_of(message), message)[0]
        except Refused:
            return ""

    def _is_letter(self, queue: Queue, origin: str, message: Message) -> bool:
        """Return whether a message is a dead letter of another queue. A message that came back is none."""
        try:
            properties = properties_of(message)
        except Refused:
            return False
        if origin:
            return birth_of(properties, message)[0] == origin
        return is_dead_elsewhere(properties, queue.name)

    def _is_meant(self, grave: "Grave", message: Message) -> bool:
        return grave.is_whole or self._is_letter(grave.queue, grave.origin, message)

    # -- actions ----------------------------------------------------------------------------------------

    def list(self, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, Message, Properties]]:
        """Return dead letters of a queue with their offsets and properties, oldest first."""
        grave = self.grave_of(name)
        if grave is None:
            return []
        found, _ = self.browse(grave, offset, limit, looks=max(limit, LOOKS))
        return [(at, message, properties_of(message)) for at, message in found]

    def redrive(self, name: str, limit: int = 10_000, start: int = 0) -> int:
        """Send dead letters of a queue back to it; returns how many."""
        grave = self.grave_of(name)
        return 0 if grave is None else self.send_back(grave, limit, start).messages

    def transfer(self, name: str, target: str, limit: int = 10_000, start: int = 0) -> int:
        """Send all messages of a queue to another; returns how many. Raises NotFound, Refused."""
        return self.hand_on(Grave(self._queues.find(name), is_whole=True), target, limit, start).messages

    def purge(self, name: str) -> int:
        """Drop the dead letters of a queue; returns how many."""
        grave = self.grave_of(name)
        dropped, at = 0, 0
        while grave is not None:
            done = self.drop(grave, at)
            dropped += done.messages
            if done.next is None:
                break
            at = done.next
        return dropped

    def browse(
        self, grave: "Grave", offset: int, limit: int, max_bytes: int = BROWSE_BYTES, looks: int = LOOKS
    ) -> Letters:
        """Return dead letters from an offset on, and the offset to go on from. Raises Corrupt.

        A call looks at a bounded number of messages, so there may be more when none is found.
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
        """Send dead letters back to the queues they died in, in order and in one commit.

        Letters whose queue is gone, or for whose queue's name `may` is false, stay. `start` and `stop` bound the
        offsets; the other limits ask for another call. Raises NotFound, Refused for a stream, Corrupt.
        """
        queue = self._emptied(grave)
        batch, now_us = self._pipeline.open(), self._clock.now_us()

        def send(at: int, letter: Message) -> bool:
            return self._send_back(batch, queue, at, letter, now_us, may)

        return self._each(batch, grave, limit, start, send, stop, max_bytes, looks)

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
        """Send messages to another queue unchanged, in order and in one commit, within the same limits.

        Raises NotFound, Refused for a stream, Corrupt.
        """
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

    def drop(self, grave: "Grave", start: int = 0, stop: int = MAX_OFFSET, looks: int = LOOKS) -> "Moved":
        """Drop dead letters: all of a queue without other messages in one call, else as many as one call looks at."""
        queue = self._emptied(grave)
        batch = self._pipeline.open()
        batch.is_promised = batch.is_promised or queue.durable
        if grave.is_whole and start <= queue.log.first_offset and stop >= queue.log.next_offset:
            return Moved(queue.disposal.purge(batch), None)

        def drop(offset: int, message: Message) -> bool:
            if not _take_out(batch, queue, offset):
                return False
            queue.settled(message)
            return True

        return self._each(batch, grave, LOOKS, start, drop, stop, REDRIVE_BYTES, looks)

    def _emptied(self, grave: "Grave") -> Queue:
        """Return the queue that messages are taken out of.

        Raises NotFound, also for another queue of this name, Refused for a stream, Corrupt, ResourceLocked.
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
        """Call `send` for the letters of a queue, up to all bounds."""
        queue = grave.queue
        if not queue.work_groups():
            queue.open_group(batch, DEFAULT_GROUP, WORK)
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
        properties = properties_of(letter)
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
    """Dead letters in a queue: all of its messages, or the ones that died elsewhere."""

    __slots__ = ("is_whole", "origin", "queue")

    def __init__(self, queue: Queue, origin: str = "", is_whole: bool = False) -> None:
        self.queue = queue
        self.origin = origin
        """The queue they died in; "" for any."""
        self.is_whole = is_whole or (not origin and bool(dead_letter_origin(queue.name)))
        """True if every message counts."""


@final
class Moved:
    """The result of one call: how many messages went, and the offset to go on from, None at the end."""

    __slots__ = ("looks", "messages", "next", "size_bytes")

    def __init__(self, messages: int, next: int | None) -> None:  # noqa: A002
        self.messages = messages
        self.next = next
        self.size_bytes = 0
        """Payload bytes of these messages."""
        self.looks = 0
        """Number of messages looked at."""


def _oldest(queue: Queue, head: int, most: int) -> list[Message]:
    """Return the oldest messages of a queue; none if they cannot be read now."""
    try:
        return [message for _, message in queue.browse(head, most)]
    except (Corrupt, Unavailable):
        return []


def _take_out(batch: Batch, queue: Queue, offset: int) -> bool:
    """Drop a message from all groups; returns False when a consumer has it right now."""
    groups = queue.work_groups()
    before = [group.ready for group in groups]
    for group in groups:
        group.drop(batch, offset)
    return before != [group.ready for group in groups]

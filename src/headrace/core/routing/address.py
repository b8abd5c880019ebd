"""Names with a meaning: queue addresses, groups, dead-letter queues, message ids. No lookups."""

from typing import Final, final

from headrace.errors import Refused
from headrace.names import quoted

QUEUE_PREFIX: Final = "$queue/"
DEAD_LETTER_PREFIX: Final = "$dlq/"
ADDRESS_PREFIXES: Final = (QUEUE_PREFIX, DEAD_LETTER_PREFIX)
MAX_OFFSET: Final = 2**63 - 1
MAX_CACHED_KEY: Final = 255
"""Longest topic or key whose route is remembered: only the number of routes is bounded besides."""

ACK: Final = "ack"
NACK: Final = "nack"
REJECT: Final = "reject"
COMMIT: Final = "commit"
_VERBS: Final = {"$" + verb: verb for verb in (ACK, NACK, REJECT, COMMIT)}


@final
class Address:
    """Target of a message, a subscription or a settlement: `$queue/<queue>/<key>/$<verb>`.

    The key is a routing key, or a subscription's filter; it is "" at the root. The verb is "" for messages. A
    dead-letter queue is `$queue/$dlq/<queue>`; for reading, `$dlq/<queue>` is enough.
    """

    __slots__ = ("key", "queue", "verb")

    def __init__(self, queue: str, key: str = "", verb: str = "") -> None:
        self.queue = queue
        self.key = key
        self.verb = verb

    def __repr__(self) -> str:
        return f"Address({self.queue!r}, {self.key!r}, {self.verb!r})"


def is_address(topic: str) -> bool:
    """True if the topic addresses queues and not plain publish and subscribe."""
    return topic.startswith(QUEUE_PREFIX)


def is_read_address(pattern: str) -> bool:
    """True if a subscription or settlement addresses a queue, dead-letter queues included."""
    return pattern.startswith(ADDRESS_PREFIXES)


def parse_address(topic: str) -> Address:
    """Parse a queue address. `$queue/orders/` is the root, as `$queue/orders` is.

    Raises Refused when it is none, names no queue, or has a verb before its end.
    """
    if not is_read_address(topic):
        raise Refused(f"{quoted(topic)} is no queue address: those are $queue/<name> or $queue/<name>/<key>")
    rest = topic.removeprefix(QUEUE_PREFIX)
    grave = DEAD_LETTER_PREFIX if rest.startswith(DEAD_LETTER_PREFIX) else ""
    queue, _, key = rest[len(grave) :].partition("/")
    queue = grave + queue
    if not is_addressable(queue):
        raise Refused(_why_not_addressable(topic, queue))
    if "$" not in key:
        return Address(queue, key)
    levels = key.split("/")
    verb = _VERBS.get(levels[-1], "")
    if verb:
        levels.pop()
    for number, level in enumerate(levels, 3):
        if level in _VERBS:
            raise Refused(f"{quoted(topic)} has {level!r} in level {number}: a verb must be the last level")
    return Address(queue, "/".join(levels), verb)


def is_addressable(queue: str) -> bool:
    """True if `$queue/<queue>` can name this queue; other protocols allow more names."""
    name = queue.removeprefix(DEAD_LETTER_PREFIX)
    if not name or name in _VERBS or queue == DEAD_LETTER_PREFIX[:-1]:
        return False
    return not ("/" in name or "+" in name or "#" in name or "\0" in name)


def _why_not_addressable(topic: str, queue: str) -> str:
    if queue.startswith(DEAD_LETTER_PREFIX[:-1]):
        return f"{quoted(topic)} names no queue: the level after '$dlq' must be a queue's name, without wildcards"
    if not queue:
        return f"{quoted(topic)} names no queue: the level after '$queue' is empty"
    if queue in _VERBS:
        return f"{quoted(topic)} names no queue: {queue!r} follows a name, as in $queue/orders/{queue}"
    return f"{quoted(topic)} names no queue: the level after '$queue' must be a name, without wildcards"


def queue_topic(queue: str, key: str = "") -> str:
    """The address as a topic: `$queue/<queue>` or `$queue/<queue>/<key>`."""
    return f"{QUEUE_PREFIX}{queue}/{key}" if key else QUEUE_PREFIX + queue


def queue_pattern(queue: str) -> str:
    """Pattern of an addressable queue besides those of its definition: `$queue/<queue>/#`."""
    return f"{QUEUE_PREFIX}{queue}/#"


def effective_group(group: str, key_filter: str) -> str:
    """Id of a group's stored progress: `group`, or `group@filter` with a filter."""
    return f"{group}@{key_filter}" if key_filter else group


def group_of_client(client_id: str) -> str:
    """The group that numbered clients share: `workers` for `workers-1`; the whole id if `-` comes first."""
    return client_id.partition("-")[0] or client_id


def dead_letter_queue(queue: str) -> str:
    """Default name of a queue's dead-letter queue."""
    return DEAD_LETTER_PREFIX + queue


def dead_letter_origin(name: str) -> str:
    """The queue whose dead letters are in `$dlq/<queue>`; "" for any other name."""
    return name[len(DEAD_LETTER_PREFIX) :] if name.startswith(DEAD_LETTER_PREFIX) else ""


def format_message_id(queue: str, offset: int) -> str:
    """Id of a delivery, which its settlement names."""
    return f"{queue}:{offset}"


def parse_message_id(text: str) -> tuple[str, int]:
    """Queue and offset of a message id; the queue is "" for a bare offset. Raises Refused for other texts."""
    queue, colon, digits = text.rpartition(":")  # queue names may contain ':'
    if not (digits.isascii() and digits.isdigit()) or (colon and not queue):
        raise Refused(f"message id {quoted(text)} is neither <queue>:<offset> nor an offset")
    # Nineteen digits hold every offset; longer texts are not converted.
    offset = int(digits) if len(digits) <= 19 else MAX_OFFSET + 1
    if offset > MAX_OFFSET:
        raise Refused(f"message id {quoted(text)} has an offset above {MAX_OFFSET}")
    return queue, offset

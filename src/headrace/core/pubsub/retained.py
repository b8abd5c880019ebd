"""Retained messages: the last one of each topic, in the engine's keyed state.

The engine holds the messages; this module holds the topics and the messages not yet stored.
"""

import heapq
import logging
from collections.abc import Iterator
from typing import Final, final

from headrace.core.batch import Batch
from headrace.core.pubsub.session import DEFAULT_BOUNDS, Bounds, Envelope, decode_envelope, encode_envelope
from headrace.errors import Corrupt, HeadraceError, Refused
from headrace.storage.api import RETAINED, Engine, Items

_SEPARATOR: Final = "\0"
_log: Final = logging.getLogger("headrace.core")

_EXPIRED_AT_ONCE: Final = 200


@final
class _Level:
    """The topics with the same first levels: whether one ends here, and the next levels."""

    __slots__ = ("below", "is_topic")

    def __init__(self) -> None:
        self.below: dict[str, _Level] = {}
        self.is_topic = False


@final
class Retained:
    """The retained messages of one virtual host."""

    def __init__(self, engine: Engine, host: str, bounds: Bounds = DEFAULT_BOUNDS, items: Items | None = None) -> None:
        self._engine = engine
        self._prefix = (host + _SEPARATOR).encode()
        self._bounds = bounds
        self._sizes: dict[str, int] = {}
        """Size of the retained message, by topic."""
        self._root = _Level()
        self._staged: dict[str, Envelope] = {}
        """Messages not yet durable."""
        self._own: dict[str, Envelope] = {}
        """The broker's own messages, which are never stored."""
        self._expiries: list[tuple[int, str]] = []
        self.size_bytes = 0
        self._load(items or engine.items)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def stored(self) -> int:
        """Number of retained messages of clients."""
        return len(self._sizes) - len(self._own)

    def _load(self, items: Items) -> None:
        for key, value in items(RETAINED):
            if not key.startswith(self._prefix):
                continue
            topic = key[len(self._prefix) :].decode()
            try:
                expires_us = decode_envelope(value, f"the retained message of {topic!r}").message.expires_us
            except Corrupt as error:
                _log.error("a retained message is left out: %s", error)
                continue
            self._add(topic, len(value), expires_us)

    # -- keeping -------------------------------------------------------------------------------------------------------

    def keep(self, batch: Batch, envelope: Envelope) -> None:
        """Retain a message for its topic; an empty payload clears the topic.

        Raises Refused when the limits of number or size are reached.
        """
        topic = envelope.message.source.topic
        if not envelope.message.payload:
            self.clear(batch, topic)
            return
        value = encode_envelope(envelope)
        self._check_room(topic, len(value))
        batch.durable.put(RETAINED, self._key(topic), value)
        self._staged[topic] = envelope
        self._add(topic, len(value), envelope.message.expires_us)
        batch.confirms.add(_Stored(self._staged, topic, envelope))

    def keep_volatile(self, envelope: Envelope) -> None:
        """Retain a message of the broker itself, in memory only."""
        topic = envelope.message.source.topic
        self._own[topic] = envelope
        self._add(topic, 0, 0)

    def clear(self, batch: Batch, topic: str) -> None:
        """Remove the topic's message."""
        size = self._sizes.pop(topic, None)
        if size is None:
            return
        self.size_bytes -= size
        self._staged.pop(topic, None)
        batch.durable.delete(RETAINED, self._key(topic))
        self._prune(topic)

    def expire(self, batch: Batch, now_us: int) -> None:
        """Clear expired messages, a bounded number per call."""
        for _ in range(_EXPIRED_AT_ONCE):
            if not self._expiries or self._expiries[0][0] > now_us:
                return
            topic = heapq.heappop(self._expiries)[1]
            envelope = self._find(topic)
            if envelope is not None and 0 < envelope.message.expires_us <= now_us:
                self.clear(batch, topic)

    @property
    def next_expiry_us(self) -> int:
        """Time of the next expiry; 0 = never."""
        return self._expiries[0][0] if self._expiries else 0

    # -- finding -------------------------------------------------------------------------------------------------------

    def get(self, topic: str, now_us: int) -> Envelope | None:
        """The topic's message; None if there is none or it has expired."""
        envelope = self._find(topic)
        if envelope is None or 0 < envelope.message.expires_us <= now_us:
            return None
        return envelope

    def match(self, pattern: str) -> Iterator[str]:
        """Topics with a message that the pattern matches. Messages may come and go between two of them."""
        if "+" not in pattern and "#" not in pattern:
            if pattern in self._sizes:
                yield pattern
            return
        levels = pattern.split("/")
        if levels[0] == "#":
            yield from _topics_below("", self._root, is_first=True)
            return
        waiting = [("", self._root, _names(self._root, levels[0], True))]
        while waiting:
            path, node, names = waiting[-1]
            name = next(names, None)
            if name is None:
                waiting.pop()
                continue
            below = node.below.get(name)
            if below is None:
                continue
            path = f"{path}/{name}"
            number = len(waiting)
            if number == len(levels):
                if below.is_topic:
                    yield path[1:]
            elif levels[number] == "#":
                if below.is_topic:
                    yield path[1:]
                yield from _topics_below(path, below)
            else:
                waiting.append((path, below, _names(below, levels[number], False)))

    def _find(self, topic: str) -> Envelope | None:
        if topic not in self._sizes:
            return None
        envelope = self._staged.get(topic) or self._own.get(topic)
        if envelope is not None:
            return envelope
        value = self._engine.get(RETAINED, self._key(topic))
        return decode_envelope(value, f"the retained message of {topic!r}") if value is not None else None

    # -- topics and sizes ----------------------------------------------------------------------------------------------

    def _key(self, topic: str) -> bytes:
        return self._prefix + topic.encode()

    def _check_room(self, topic: str, size: int) -> None:
        old, bounds = self._sizes.get(topic), self._bounds
        is_one_more = old is None and self.stored >= bounds.retained_messages
        if is_one_more or self.size_bytes + size - (old or 0) > bounds.retained_bytes:
            most = f"{bounds.retained_messages} and {bounds.retained_bytes} at most"
            raise Refused(
                f"the message for {topic[:64]!r} cannot be retained: {self.stored} messages with "
                f"{self.size_bytes} bytes are, {most}; clear some"
            )

    def _add(self, topic: str, size: int, expires_us: int) -> None:
        old = self._sizes.get(topic)
        self.size_bytes += size - (old or 0)
        self._sizes[topic] = size
        if expires_us:
            heapq.heappush(self._expiries, (expires_us, topic))
            if len(self._expiries) > 2 * len(self._sizes) + 1024:
                self._sweep()
        if old is not None:
            return
        node = self._root
        for level in topic.split("/"):
            below = node.below.get(level)
            if below is None:
                below = node.below[level] = _Level()
            node = below
        node.is_topic = True

    def _sweep(self) -> None:
        """Remove expiries of replaced messages, to one entry per message."""
        dues = {topic: due_us for due_us, topic in sorted(self._expiries)}
        self._expiries = [(due_us, topic) for topic, due_us in dues.items() if topic in self._sizes]
        heapq.heapify(self._expiries)

    def _prune(self, topic: str) -> None:
        levels = topic.split("/")
        path: list[_Level] = [self._root]
        for level in levels:
            path.append(path[-1].below[level])
        path[-1].is_topic = False
        while levels and not path[-1].is_topic and not path[-1].below:
            path.pop()
            del path[-1].below[levels.pop()]


@final
class _Stored:
    """Callback of a durable retained message: the engine has it now. A class, because a closure costs more."""

    __slots__ = ("_envelope", "_staged", "_topic")

    def __init__(self, staged: dict[str, Envelope], topic: str, envelope: Envelope) -> None:
        self._staged = staged
        self._topic = topic
        self._envelope = envelope

    def __call__(self, error: HeadraceError | None) -> None:
        if error is None and self._staged.get(self._topic) is self._envelope:
            del self._staged[self._topic]


def _names(node: _Level, level: str, is_first: bool) -> Iterator[str]:
    """The next levels below this one that one level of a pattern matches, as they are now."""
    if level != "+":
        return iter([level])
    if is_first:
        return iter([name for name in node.below if not name.startswith("$")])  # MQTT 5 [4.7.2]
    return iter(list(node.below))


def _topics_below(path: str, node: _Level, is_first: bool = False) -> Iterator[str]:
    """All topics below this node. A loop, because topics may have thousands of levels."""
    waiting = [(path, node, _names(node, "+", is_first))]
    while waiting:
        path, node, names = waiting[-1]
        name = next(names, None)
        if name is None:
            waiting.pop()
            continue
        below = node.below.get(name)
        if below is None:
            continue
        path = f"{path}/{name}"
        if below.is_topic:
            yield path[1:]
        if below.below:
            waiting.append((path, below, _names(below, "+", False)))

"""Messages of a stream given to the queues that want them, until it is enough for one step. Nothing is stored here."""

import logging
from typing import TYPE_CHECKING, Final, final

from headrace.core.entry import stamped, takes
from headrace.core.follower import LEAST_PACE, Follower
from headrace.core.properties import Codecs, MessageRow
from headrace.core.turn import Copied
from headrace.errors import Refused
from headrace.model import Message
from headrace.selector import Selector

if TYPE_CHECKING:
    from headrace.core.queue import Queue

_log: Final = logging.getLogger("headrace.core")


@final
class Assignment:
    """One step of queues that are equally far. Whoever cannot take a message stays behind at it; the others go on."""

    def __init__(
        self, source: "Queue", cohort: list[Follower], start: int, codecs: Codecs, now_us: int, most_bytes: int
    ) -> None:
        self.at = start
        """The next message."""
        self.start = start
        self.copies: dict[Follower, Copied] = {}
        self.left: dict[Follower, None] = {}
        """Those who stay behind: what they are at is their position."""
        self.size_bytes = 0
        self._source = source
        self._active = cohort
        self._codecs = codecs
        self._now_us = now_us
        self._most_bytes = most_bytes

    @property
    def is_full(self) -> bool:
        """Whether it is enough."""
        return not self._active or (bool(self.copies) and self.size_bytes >= self._most_bytes)

    def give(self, message: Message) -> None:
        """Have everybody get the next message who wants it; one whose time is over is for nobody."""
        if not message.expires_us or message.expires_us > self._now_us:
            row = MessageRow(message, self._codecs)
            before = len(self.left)
            for follower in self._active:
                selector = follower.queue.selector
                if selector is None or _fits(selector, row):
                    self._hand(follower, message)
            if len(self.left) > before:
                self._active = [follower for follower in self._active if follower not in self.left]
        self.at += 1

    def _hand(self, follower: Follower, message: Message) -> None:
        queue = follower.queue
        size = len(message.payload) + len(message.properties)
        if len(message.payload) > queue.definition.max_message_bytes:
            follower.oversized += 1
            _log.warning(
                "queue %r does not get offset %d of stream %r: %d bytes are too large for it, %d at most",
                queue.name,
                self.at,
                self._source.name,
                len(message.payload),
                queue.definition.max_message_bytes,
            )
            return
        if self.copies and self.size_bytes + size > self._most_bytes:
            self._leave(follower)
            return
        if queue.refusal is not None or not takes(queue, message):
            follower.is_waiting = True
            follower.pace = max(LEAST_PACE, self.at - self.start)
            self._leave(follower)
            return
        copied = self.copies.get(follower)
        if copied is None:
            copied = self.copies[follower] = Copied(queue, self._source.log.name)
        copied.add(self.at, stamped(queue, message, self._now_us))
        self.size_bytes += size

    def _leave(self, follower: Follower) -> None:
        follower.position = self.at
        self.left[follower] = None


def _fits(selector: Selector, row: MessageRow) -> bool:
    """As Queue.fits, over properties that are decoded once for all queues."""
    try:
        return selector.matches(row)
    except Refused:
        return False

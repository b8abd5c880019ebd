"""Deliveries that storage does not know of yet. Who holds what is in leases.py; nothing is decided here.

That a message is with a consumer is stored so that it counts as an attempt if the broker dies. Most are acknowledged
before that could matter, and their claim need not be stored at all: with a message in each of ten thousand queues, and
consumers that are 4,000 messages behind, that was a third of what a message cost.
"""

from typing import Final, final

from headrace.core.delivery import Delivery
from headrace.storage.api import Commit

STORED_AFTER_US: Final = 400_000
"""How old a delivery is, at least, when its claim is stored along with something else; at most it is twice as old, and
so safe within a second, as settlements are. Where there is nothing else to store, it does not wait for that."""
_SWEPT_AFTER: Final = 256
"""From how many on those that are settled are let go: their messages would else stay in memory."""


@final
class Given:
    """What consumers of durable queues got lately."""

    __slots__ = ("_fresh", "_older", "_since_us", "_swept_after")

    def __init__(self) -> None:
        self._older: list[Delivery] = []
        self._fresh: list[Delivery] = []
        """Those that came since `_since_us`."""
        self._since_us = 0
        self._swept_after = _SWEPT_AFTER

    @property
    def is_empty(self) -> bool:
        return not (self._fresh or self._older)

    def add(self, deliveries: list[Delivery]) -> None:
        """These are with a consumer from now on."""
        for delivery in deliveries:
            self._fresh.append(delivery)
        if len(self._fresh) > self._swept_after:
            self._fresh = [delivery for delivery in self._fresh if delivery.is_held]
            self._swept_after = max(_SWEPT_AFTER, 2 * len(self._fresh))

    def store(self, commit: Commit, now_us: int) -> None:
        """Have those that are old enough and still held go into a commit."""
        if now_us >= self._since_us + STORED_AFTER_US:
            self._store_older(commit)
            self._since_us = now_us

    def store_all(self, commit: Commit) -> None:
        """The same for all that are held."""
        self._store_older(commit)
        self._store_older(commit)

    def _store_older(self, commit: Commit) -> None:
        for delivery in self._older:
            if delivery.is_held:
                store_claim(commit, delivery)
        self._older, self._fresh = self._fresh, []


def store_claim(commit: Commit, delivery: Delivery) -> None:
    """Have a commit say that this is with its consumer, unless storage knows."""
    if not delivery.is_claimed:
        delivery.is_claimed = True
        group, offset = delivery.group, delivery.offset
        commit.claim(group.queue.log.name, group.name, offset, offset + 1, delivery.consumer.name, delivery.due_us)

"""What was delivered and settled, and storage does not know of yet. Who holds what is in leases.py.

That a message is with a consumer is stored so that it counts as an attempt if the broker dies. Most are acknowledged
before that could matter, and their claim need not be stored at all: with a message in each of ten thousand queues, and
consumers that are 4,000 messages behind, that was a third of what a message cost.

That it is settled is stored so that it does not come back, and nobody waits for that. With a message in each of many
queues, a step for each of them would cost as much as the message: it waits until it is one for several.
"""

from typing import TYPE_CHECKING, Final, final

from headrace.core.delivery import Delivery
from headrace.storage.api import Commit

if TYPE_CHECKING:
    from headrace.core.work import WorkGroup

STORED_AFTER_US: Final = 400_000
"""How old a delivery is, at least, when its claim is stored along with something else; at most it is twice as old, and
so safe within a second, as settlements are. Where there is nothing else to store, it does not wait for that."""
_FEW_GROUPS: Final = 256
"""Up to how many groups have their settlements stored with the next commit, whatever they are."""
_WORTH_A_STEP: Final = 8
"""How many settled messages of a group do not wait for more, however many groups there are. Those that are fewer wait
for STORED_AFTER_US."""
_SWEPT_AFTER: Final = 256
"""From how many on those that are settled are let go: their messages would else stay in memory."""


@final
class Given:
    """What consumers of durable queues got lately, and what they were done with."""

    __slots__ = ("_fresh", "_older", "_settled", "_since_us", "_swept_after")

    def __init__(self) -> None:
        self._older: list[Delivery] = []
        self._fresh: list[Delivery] = []
        """Those that came since `_since_us`."""
        self._since_us = 0
        self._swept_after = _SWEPT_AFTER
        self._settled: list[WorkGroup] = []
        """Those that settled what storage does not know of, the longest ago first."""

    @property
    def is_empty(self) -> bool:
        return not (self._fresh or self._older or self._settled)

    def add(self, deliveries: list[Delivery]) -> None:
        """These are with a consumer from now on."""
        for delivery in deliveries:
            self._fresh.append(delivery)
        if len(self._fresh) > self._swept_after:
            self._fresh = [delivery for delivery in self._fresh if delivery.is_held]
            self._swept_after = max(_SWEPT_AFTER, 2 * len(self._fresh))

    @property
    def has_many_settled(self) -> bool:
        """Whether so many groups settled something that it may take a while until all of it is stored."""
        return len(self._settled) > _FEW_GROUPS

    def add_settled(self, group: "WorkGroup") -> None:
        """This group is done with messages, and is not in here yet."""
        self._settled.append(group)

    def store(self, commit: Commit, now_us: int) -> None:
        """Have what is old enough, and still so, go into a commit, and settlements too that are worth a step."""
        if not _is_fresh(self._since_us, now_us):
            self._store_older(commit)
            self._since_us = now_us
        if not self.has_many_settled:
            self.store_settled(commit)
            return
        count = 0
        for group in self._settled:
            if group.unstored < _WORTH_A_STEP and _is_fresh(group.unstored_since_us, now_us):
                break
            count += 1
        self._store_settled(commit, count)

    def store_all(self, commit: Commit) -> None:
        """The same for all there is."""
        self._store_older(commit)
        self._store_older(commit)
        self.store_settled(commit)

    def store_settled(self, commit: Commit) -> None:
        """The same for all settlements."""
        self._store_settled(commit, len(self._settled))

    def _store_settled(self, commit: Commit, count: int) -> None:
        for group in self._settled[:count]:
            group.store_settled(commit)
        del self._settled[:count]

    def _store_older(self, commit: Commit) -> None:
        for delivery in self._older:
            if delivery.is_held:
                store_claim(commit, delivery)
        self._older, self._fresh = self._fresh, []


def _is_fresh(since_us: int, now_us: int) -> bool:
    """Whether what is so since then may wait; not if the clock was set back meanwhile."""
    return 0 <= now_us - since_us < STORED_AFTER_US


def store_claim(commit: Commit, delivery: Delivery) -> None:
    """Have a commit say that this is with its consumer, unless storage knows."""
    if not delivery.is_claimed:
        delivery.is_claimed = True
        group, offset = delivery.group, delivery.offset
        commit.claim(group.queue.log.name, group.name, offset, offset + 1, delivery.consumer.name, delivery.due_us)

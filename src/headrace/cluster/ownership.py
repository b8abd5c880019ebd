"""Who owns the store now, as far as this node knows, and who wants to hear of changes. It is learned in lease.py."""

from collections.abc import Callable
from typing import final

from headrace.clock import Clock
from headrace.cluster.node import Node

Changed = Callable[[], None]


@final
class Ownership:
    """The owner of one replication group. Read it at any time in the event loop; it never waits for the store."""

    def __init__(self, me: Node, secret: bytes, clock: Clock) -> None:
        self.me = me
        self.secret = secret
        """What only those know who can read the store: nodes prove to each other with it that they belong together."""
        self.owner: Node | None = None
        """Who owns it, as far as is known; None while nobody does, or while the last owner's lease has run out."""
        self.epoch = 0
        """Rises with every change of owner."""
        self._clock = clock
        self._until_us = 0
        self._watchers: list[Changed] = []

    @property
    def mine(self) -> bool:
        """Whether this node owns it right now: false the moment that its lease runs out, whatever else happens."""
        return self.owner is self.me and self._clock.monotonic_us() < self._until_us

    def watch(self, changed: Changed) -> None:
        """Have this called after every change of `owner` or `epoch`."""
        self._watchers.append(changed)

    def renewed(self, until_us: int) -> None:
        """It stays this node's until then, on the monotonic clock."""
        self._until_us = until_us

    def became(self, owner: Node | None, epoch: int, until_us: int = 0) -> None:
        """Somebody else owns it now, or nobody; with `me` as the owner, until then, or as it was renewed."""
        if until_us:
            self._until_us = until_us
        if owner == self.owner and epoch == self.epoch:
            return
        self.owner, self.epoch = owner, epoch
        for changed in list(self._watchers):
            changed()

"""Holds a lease, or waits for one, step by step. The thread that takes the steps is in membership.py.

An owner writes the next number every third of its lease. A node that sees no new number for the length of the lease, by
its own monotonic clock, writes the next number itself. The owner counts from the start of its last write, so its lease
ends before any other node's wait does; no two clocks have to agree.
"""

import logging
from collections.abc import Callable
from typing import Final, final

from headrace.clock import Clock
from headrace.cluster.lease import (
    EPOCHS,
    EXPIRY,
    HELD,
    LEASES,
    NEW,
    RELEASE,
    RELEASED,
    Lease,
    Node,
    Records,
    Takeover,
    decode_lease,
    epoch_name,
    lease_name,
    numbers,
)
from headrace.cluster.status import Ownership
from headrace.errors import Unavailable

_log: Final = logging.getLogger("headrace.cluster")

_RENEWALS: Final = 3
"""Renewals of the owner per lease."""
_LOOKS: Final = 5
"""Checks of the other nodes per lease."""
_LOOK_SECONDS: Final = 1.0
"""Longest pause between two checks, because a lease may be released at any time."""
_MARGIN: Final = 10
"""The owner's lease ends earlier by one part in ten, because clocks differ in speed."""
_KEPT_LEASES: Final = 8
_KEPT_EPOCHS: Final = 100

Tell = Callable[[Callable[[], None]], None]
"""Calls a function in the event loop's thread."""


@final
class LeaseKeeper:
    """Keeps `ownership` up to date. Changes of owner reach it in the event loop's thread, renewals at once."""

    def __init__(self, records: Records, ownership: Ownership, duration_ms: int, clock: Clock, tell: Tell) -> None:
        self._records = records
        self._ownership = ownership
        self._me: Node = ownership.me
        self._duration_ms = duration_ms
        self._clock = clock
        self._tell = tell
        self._number = 0
        """Highest number seen."""
        self._seen: Lease | None = None
        self._seen_us = clock.monotonic_us()
        self._holds = False
        self._until_us = 0
        self._covered_until_us = 0
        """Until then no other node can have written a number, by any clock."""
        self._patient_until_us = 0
        self._is_unwanted = False
        self._stepped_us = 0
        self._outdated: list[int] = []
        self._has_taken = False

    @property
    def pause_seconds(self) -> float:
        """Pause before the next step; steps are a fixed time apart, from start to start."""
        seconds = self._duration_ms / 1000
        wanted = seconds / _RENEWALS if self._holds else min(seconds / _LOOKS, _LOOK_SECONDS)
        return max(0.0, wanted - (self._clock.monotonic_us() - self._stepped_us) / 1_000_000)

    def give_back(self) -> None:
        """Release the lease with the next step and do not take it again for one lease. Callable from any thread."""
        self._is_unwanted = True

    def step(self) -> None:
        """Renew the lease, or try to take it. Raises Unavailable and Corrupt; then try again."""
        self._stepped_us = self._clock.monotonic_us()
        if self._is_unwanted:
            self._is_unwanted = False
            self._patient_until_us = self._clock.monotonic_us() + self._duration_ms * 1000
            self.release()
        elif self._holds:
            self._renew()
        else:
            self._look()

    def release(self) -> None:
        """Release a held lease, so that no node waits for its end. Raises Unavailable."""
        if self._holds and self._seen is not None:
            self._holds = False
            self._ownership.renewed(0)
            try:
                self._make(self._seen.epoch, RELEASED)
            finally:
                self._covered_until_us = 0

    # -- waiting -------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look for new leases; take over if the last one has expired or was released."""
        if self._seen is None:
            self._look_for_all()
        while self._read(self._number + 1):
            pass
        if self._cause() == EXPIRY:
            self._look_for_all()  # the owner may be further, with the next number already removed
        cause = self._cause()
        if cause and self._clock.monotonic_us() >= self._patient_until_us:
            self._take(cause)
        elif cause == EXPIRY:
            self._publish(None)

    def _look_for_all(self) -> None:
        found = numbers(self._records.names(LEASES))
        if found and found[-1] > self._number:
            self._read(found[-1])

    def _read(self, number: int) -> bool:
        """Read the lease of this number; False if there is none."""
        name = lease_name(number)
        data = self._records.get(name)
        if data is None:
            return False
        lease = decode_lease(data, self._records.where(name))
        self._number, self._seen, self._seen_us = number, lease, self._clock.monotonic_us()
        # An own lease that is not held is left from an attempt whose answer was lost.
        self._publish(lease.node if lease.state == HELD and lease.node != self._me else None)
        return True

    def _publish(self, owner: Node | None) -> None:
        """Publish the owner; ignored while this node holds the lease and knows better."""
        if not self._holds:
            epoch = 0 if self._seen is None else self._seen.epoch
            self._tell(lambda: self._ownership.became(owner, epoch))

    def _cause(self) -> str:
        """Cause for a takeover now; "" if there is none."""
        lease = self._seen
        if lease is None:
            return NEW
        if lease.state == RELEASED:
            return RELEASE
        return EXPIRY if self._clock.monotonic_us() - self._seen_us >= lease.duration_ms * 1000 else ""

    def _take(self, cause: str) -> None:
        started_us = self._clock.monotonic_us()
        epoch = 1 if self._seen is None else self._seen.epoch + 1
        if not self._make(epoch, HELD):
            return
        takeover = Takeover(epoch, self._me, self._clock.now_us(), cause)
        if not self._records.create(epoch_name(epoch), takeover.encode()):
            raise Unavailable(f"{self._records.where(epoch_name(epoch))} is there already: the lease was tampered with")
        self._holds = self._has_taken = True
        self._extend(started_us)
        _log.info("this node has the lease of the store, in epoch %d (%s)", epoch, cause)
        self._tell(lambda: self._ownership.became(self._me, epoch))

    # -- holding -------------------------------------------------------------------------------------------------------

    def _renew(self) -> None:
        started_us = self._clock.monotonic_us()
        assert self._seen is not None
        epoch = self._seen.epoch
        if started_us >= self._until_us:
            self._lose("it could not be renewed in time")
        elif self._make(epoch, HELD):
            self._extend(started_us)
            if self._number > _KEPT_LEASES:
                self._outdated.append(self._number - _KEPT_LEASES)
        elif self._seen.node != self._me or self._seen.epoch != epoch:
            self._lose(f"node {self._seen.node.name!r} has taken it")

    def _extend(self, started_us: int) -> None:
        self._until_us = started_us + self._duration_ms * (1000 - 1000 // _MARGIN)
        self._covered_until_us = self._until_us
        self._ownership.renewed(self._until_us)

    def _lose(self, why: str) -> None:
        self._holds = False
        self._covered_until_us = 0
        self._ownership.renewed(0)
        _log.warning("the lease of the store is lost: %s", why)
        lease = self._seen
        self._publish(lease.node if lease is not None and lease.node != self._me else None)

    def _make(self, epoch: int, state: str) -> bool:
        """Write the next number; True if this node wrote it and it is the highest."""
        lease = Lease(self._number + 1, epoch, self._me, self._duration_ms, self._clock.now_us(), state)
        if not self._records.create(lease_name(lease.number), lease.encode()):
            self._look_for_all()
            return False
        # A node that slept can write a number again that was removed long ago, so the highest number counts. While the
        # previous lease covered every clock, no other node could write or remove one.
        if self._clock.monotonic_us() >= self._covered_until_us:
            found = numbers(self._records.names(LEASES))
            self._outdated = [each for each in found if each <= lease.number - _KEPT_LEASES]
            if found[-1:] != [lease.number]:
                self._records.delete(lease_name(lease.number))
                self._look_for_all()
                return False
        self._number, self._seen, self._seen_us = lease.number, lease, self._clock.monotonic_us()
        return True

    def tidy(self) -> None:
        """Remove old leases and epochs. Raises Unavailable; then the next call removes them."""
        if not self._holds:
            return
        while self._outdated:
            self._records.delete(lease_name(self._outdated[0]))
            del self._outdated[0]
        if self._has_taken:
            for old in numbers(self._records.names(EPOCHS))[:-_KEPT_EPOCHS]:
                self._records.delete(epoch_name(old))
            self._has_taken = False

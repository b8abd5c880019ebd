"""Flow control and statistics: bytes under way, in memory and in unfinished messages. No sockets.

All these bytes together are bounded. Above a watermark, the connection that began first goes on and others with large
parts wait. A connection that sends nothing more, or holds too much, is ended. Connections bring the calls to do so.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, final

from headrace.config.settings import LimitSettings
from headrace.errors import HeadraceError, Unavailable

COMMIT_BOUNDS_US: Final = (100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000)


@final
class Histogram:
    """The number of durations between each two bounds."""

    __slots__ = ("bounds_us", "counts", "sum_us")

    def __init__(self, bounds_us: tuple[int, ...]) -> None:
        self.bounds_us = bounds_us
        self.counts = [0] * (len(bounds_us) + 1)
        """One count for each bound, of durations up to it and above the one before, and one for the rest."""
        self.sum_us = 0

    def add(self, duration_us: int) -> None:
        self.counts[bisect_left(self.bounds_us, duration_us)] += 1
        self.sum_us += duration_us

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile_us(self, share: float, before: "list[int] | None" = None) -> int:
        """The bound below which this share of the durations lies, since the counts were as in `before`."""
        counts = self.counts if before is None else [now - then for now, then in zip(self.counts, before, strict=True)]
        wanted = share * sum(counts)
        seen = 0
        for bound_us, count in zip(self.bounds_us, counts, strict=False):
            seen += count
            if seen >= wanted:
                return bound_us if sum(counts) else 0
        return self.bounds_us[-1]


SERVED_AT_ONCE: Final = 2048
"""Messages that are delivered or looked at for a filter in one turn of the event loop. A selector takes up to 8 us."""


@final
class Statistics:
    """The counters of one virtual host since it was opened. They only grow."""

    __slots__ = ("_round_end", "commits", "dead_letters", "delivered", "passed", "redelivered", "stored")

    def __init__(self) -> None:
        self.commits = Histogram(COMMIT_BOUNDS_US)
        """Durations of commits, from sending them to storage until they were durable."""
        self.stored = 0
        """Messages that entered a queue; a message in five queues counts five times."""
        self.delivered = 0
        """Deliveries to consumers."""
        self.redelivered = 0
        self.passed = 0
        """Messages that readers looked at and did not get: their filters do not match."""
        self._round_end = 0
        self.dead_letters: dict[str, int] = {}
        """Messages given up, by reason, with or without a queue that took them."""

    def begin_round(self) -> None:
        """Begin a round of deliveries."""
        self._round_end = self.delivered + self.passed + SERVED_AT_ONCE

    @property
    def is_round_over(self) -> bool:
        """True if the other queues, groups and readers wait for the next round."""
        return self.delivered + self.passed >= self._round_end

    def died(self, reason: str) -> None:
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1


_LEAST_BYTES: Final = 32 << 20
"""A budget below this would not take the messages that clients commonly send."""
MAX_MESSAGE_BYTES: Final = 128 << 20
_SMALL_BYTES: Final = 64 << 10
"""A connection that holds no more than this need not wait: small messages overtake large ones."""
_READ_BYTES: Final = 256 << 10
"""The most that a connection brings with one read."""
_PATIENCE_US: Final = 5_000_000
_STUCK_US: Final = 10_000_000
"""Time without progress in memory after which the broker ends a client that fills it."""
_BLAMED_SHARE: Final = 16
"""A client is to blame from this part of the memory on."""


@final
class Holding:
    """The bytes that one connection holds."""

    __slots__ = ("has_moved", "is_paused", "pause", "refuse", "size_bytes")

    def __init__(self, pause: Callable[[bool], None], refuse: Callable[[HeadraceError], None]) -> None:
        self.pause = pause
        """Stops reading from the connection with True, and goes on with False."""
        self.refuse = refuse
        """Ends the connection, which releases everything it holds."""
        self.size_bytes = 0
        self.is_paused = False
        self.has_moved = False
        """True if it changed since the last check of all holdings."""


@final
class Intake:
    """The bytes that all connections hold, and the choice of those that wait."""

    def __init__(self, memory_bytes: int) -> None:
        self.size_bytes = 0
        self._holdings: dict[Holding, None] = {}
        """In the order in which they began."""
        self._paused = 0
        self._due_us = 0
        self.most_bytes = 0
        self._high_bytes = 0
        self.limit(memory_bytes)

    def limit(self, memory_bytes: int) -> None:
        """Take a quarter of the memory that queues may have."""
        self.most_bytes = max(memory_bytes // 4, _LEAST_BYTES)
        self._high_bytes = self.most_bytes // 2

    @property
    def largest_bytes(self) -> int:
        """The size of the largest accepted message."""
        return min(self._high_bytes, MAX_MESSAGE_BYTES)

    def note(self, holding: Holding, size_bytes: int) -> None:
        """Note how much a connection holds now."""
        grown = size_bytes - holding.size_bytes
        if not grown:
            return
        self.size_bytes += grown
        holding.size_bytes = size_bytes
        holding.has_moved = True
        if size_bytes:
            self._holdings[holding] = None
        else:
            self._holdings.pop(holding, None)
            self._pause(holding, False)
        if grown > 0:
            if self.size_bytes > self._high_bytes:
                self._restrain(holding)
        elif self.size_bytes <= self._high_bytes:
            self._release()
        else:
            self._let_first_go_on()

    def borrow(self, size_bytes: int) -> bool:
        """Take memory for a request that is answered soon; False if there is none. `give_back` must follow."""
        if self.size_bytes + size_bytes > self.most_bytes:
            return False
        self.size_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        self.size_bytes -= size_bytes
        if self.size_bytes <= self._high_bytes:
            self._release()

    def tick(self, now_us: int) -> None:
        """End connections that began a message and send nothing more, while others wait for the memory."""
        if self.size_bytes <= self._high_bytes:
            self.rest()
            self._release()
        elif not self._due_us:
            self._look_through(False, now_us)
        elif now_us >= self._due_us:
            self._look_through(True, now_us)

    def rest(self) -> None:
        """Blame no connection for its silence: none is read from, for another reason."""
        self._due_us = 0

    def _look_through(self, ends_silent: bool, now_us: int) -> None:
        self._due_us = now_us + _PATIENCE_US
        for holding in list(self._holdings):
            if ends_silent and not holding.has_moved and not holding.is_paused and holding.size_bytes:
                holding.refuse(
                    Unavailable(
                        f"nothing came of {holding.size_bytes} bytes that are not published yet for "
                        f"{_PATIENCE_US // 1_000_000} s, and others need the memory"
                    )
                )
            holding.has_moved = False

    def _restrain(self, holding: Holding) -> None:
        """Pause the connection that brought more, or end one if there is too much."""
        first = next(iter(self._holdings))
        if self.size_bytes > self.most_bytes:
            largest = max(self._holdings, key=lambda each: 0 if each is first else each.size_bytes)
            if largest is first or largest.size_bytes <= _SMALL_BYTES:
                largest = first
            largest.refuse(
                Unavailable(
                    f"{largest.size_bytes} bytes of messages that are not whole or not committed are too many; all "
                    f"connections together may hold {self.most_bytes} (a quarter of limits.memory_bytes)"
                )
            )
        elif holding is not first and holding.size_bytes > _SMALL_BYTES:
            self._pause(holding, True)

    def _let_first_go_on(self) -> None:
        for first in self._holdings:
            self._pause(first, False)
            return

    def _release(self) -> None:
        """Let as many connections go on as there is room for one read of each."""
        if not self._paused:
            return
        room = max(1, (self._high_bytes - self.size_bytes) // _READ_BYTES)
        for holding in [holding for holding in self._holdings if holding.is_paused][:room]:
            self._pause(holding, False)

    def _pause(self, holding: Holding, is_paused: bool) -> None:
        if holding.is_paused is not is_paused:
            holding.is_paused = is_paused
            holding.has_moved = True
            self._paused += 1 if is_paused else -1
            holding.pause(is_paused)


_LIMITS: Final = LimitSettings()
HIGH_BYTES: Final = _LIMITS.unwritten_bytes
LOW_BYTES: Final = HIGH_BYTES // 2
MEMORY_HIGH_BYTES: Final = _LIMITS.memory_bytes
MEMORY_LOW_BYTES: Final = MEMORY_HIGH_BYTES // 4 * 3


@final
class Flow:
    """Stops publishers above a high watermark and lets them go on below a low one.

    All virtual hosts share one: the bytes that they have under way together are bounded.
    """

    def __init__(
        self,
        high_bytes: int = HIGH_BYTES,
        low_bytes: int = LOW_BYTES,
        memory_high_bytes: int = MEMORY_HIGH_BYTES,
        memory_low_bytes: int = MEMORY_LOW_BYTES,
    ) -> None:
        self.high_bytes = high_bytes
        self.low_bytes = low_bytes
        self.memory_high_bytes = memory_high_bytes
        self.memory_low_bytes = memory_low_bytes
        self.blocked = False
        self.intake = Intake(memory_high_bytes)
        """The bytes of messages that are not published yet: they take memory too."""
        self._shares: dict[object, tuple[int, int]] = {}
        self._waiting_bytes = 0
        self._memory_bytes = 0
        self._least_bytes = 0
        self._moved_us = 0
        """The time at which queues in memory were last seen to shrink, while publishers wait for them."""
        self._held: set[object] = set()
        self.listeners: dict[object, Callable[[bool], None]] = {}
        """Callbacks by their owner: called with True when publishers must stop, and with False when they may go on."""

    def limit(self, high_bytes: int, memory_high_bytes: int) -> None:
        """Set other watermarks and decide anew: while all publishers wait, nothing else leads to a decision."""
        self.high_bytes = high_bytes
        self.low_bytes = high_bytes // 2
        self.memory_high_bytes = memory_high_bytes
        self.memory_low_bytes = memory_high_bytes // 4 * 3
        self.intake.limit(memory_high_bytes)
        self._decide()

    @property
    def is_out_of_memory(self) -> bool:
        """True if publishers wait for queues in memory."""
        return self.blocked and self._memory_bytes >= self.memory_low_bytes

    def check_memory(self) -> None:
        """Raises Unavailable while queues in memory are full, for publishers that cannot be paused."""
        if self.is_out_of_memory:
            raise Unavailable("queues in memory hold as much as limits.memory_bytes allows; try again later")

    def tick(self, now_us: int) -> None:
        """Check the connections that hold memory."""
        if self.blocked:
            self.intake.rest()
        else:
            self.intake.tick(now_us)

    def blamed_bytes(self, now_us: int) -> int:
        """The least bytes of a client that is to blame because queues in memory have not shrunk; 0 if nobody is.

        A client whose connection is paused cannot even be seen to leave.
        """
        if not self.is_out_of_memory:
            self._moved_us = 0
        elif not self._moved_us or self._memory_bytes < self._least_bytes:
            self._moved_us, self._least_bytes = now_us, self._memory_bytes
        elif now_us - self._moved_us >= _STUCK_US:
            return self.memory_high_bytes // _BLAMED_SHARE
        return 0

    def hold(self, host: object, is_held: bool) -> None:
        """Stop publishers while storage takes nothing from this host, or let them go on."""
        (self._held.add if is_held else self._held.discard)(host)

    def forget(self, host: object) -> None:
        """Forget a deleted host with all its bytes."""
        self.hold(host, False)
        self.update(host, 0, 0)
        self._shares.pop(host, None)

    def update(self, host: object, waiting_bytes: int, memory_bytes: int) -> None:
        """Decide anew by the bytes of this host that wait for the disk and those of its queues in memory."""
        share = (waiting_bytes, memory_bytes)
        before = self._shares.get(host, (0, 0))
        if share == before and not (self.blocked or self._held or self._memory_bytes):
            return  # nothing changed
        waiting_before, memory_before = before
        self._shares[host] = share
        self._waiting_bytes += waiting_bytes - waiting_before
        self._memory_bytes += memory_bytes - memory_before
        self._decide()

    def _decide(self) -> None:
        memory_bytes = self._memory_bytes
        if memory_bytes:
            memory_bytes += self.intake.size_bytes
        if self._held:
            blocked = True
        elif self.blocked:
            blocked = self._waiting_bytes >= self.low_bytes or memory_bytes >= self.memory_low_bytes
        else:
            blocked = self._waiting_bytes > self.high_bytes or memory_bytes > self.memory_high_bytes
        if blocked != self.blocked:
            self.blocked = blocked
            for tell in list(self.listeners.values()):
                tell(blocked)

"""The publishing side of a connection: when to send how much, and what was confirmed. How it is encoded: subclasses."""

import time
from abc import ABC, abstractmethod
from collections import deque
from typing import Final

from bench.compare.counters import Counters
from bench.compare.histogram import Histogram
from bench.compare.load import Job
from bench.compare.payload import Batch, Frames, Piece, make_body
from bench.compare.shape import Ring, Sample, samples
from bench.compare.wire import Wire

_TURNS: Final = 16
_LONG_US: Final = 100_000
_SHORT_US: Final = 500
_NO_LIMIT: Final = 1 << 62


def now_us() -> int:
    return time.monotonic_ns() // 1000


class Publisher(ABC):
    """Sends pieces of a batch as long as the window of unconfirmed messages and the consumers allow it."""

    is_confirmed = True
    """True if the broker answers each publish; a subclass may say otherwise."""

    def __init__(self, wire: Wire, job: Job, number: int, counters: Counters) -> None:
        load = job.load
        self.wire = wire
        self.job = job
        self.number = number
        self.sent = 0
        self.confirmed = 0
        self.refused = 0
        self.is_done = False
        self.latency = Histogram()
        self.batch = self._make_batch()
        self._counters = counters
        self._window = load.window if self.is_confirmed else _NO_LIMIT
        self._limit = -(-job.step.messages // load.publishers) or _NO_LIMIT
        self._interval_us = 1_000_000 * load.publishers // load.rate if load.rate else 0
        self._ahead = load.ahead if job.step.mode == "flow" else 0
        self._first = job.firsts[number] if job.firsts else 0
        self._next_piece = 0
        self._cycles = 0
        self._unsent: memoryview | None = None
        self.answers = bytearray()
        self._is_over = False
        self._waiting: deque[tuple[int, int]] = deque()
        self._next_us = self._deadline_us = 0

    # -- what a protocol says ----------------------------------------------------------------------------------------

    @abstractmethod
    def encode(self, body: bytes, route: int, sample: Sample | None = None) -> bytes:
        """A message as it is sent, to the queue or with the routing key of this number, with what a sample adds."""

    @abstractmethod
    def read(self) -> None:
        """Take what the broker says and count what it confirms; what it is to be told goes into `answers`."""

    @abstractmethod
    def filled(self, piece: Piece) -> None:
        """Add the numbers that the protocol itself has in a message; `sent` is how many went before."""

    def room(self) -> int:
        """Number of further messages that the broker has said it takes; the window holds besides."""
        return _NO_LIMIT

    def farewell(self) -> bytes:
        """Without confirms: what the broker answers once it has taken everything before it."""
        return b""

    # -- what all do -------------------------------------------------------------------------------------------------

    def _make_batch(self) -> Frames:
        load = self.job.load
        if load.shape:
            ring = samples(load.shape, load.size, self.number, load.publishers)
            routes = load.routes()
            frames = [self.encode(each.body(self.number), slot % routes, each) for slot, each in enumerate(ring)]
            return Ring(frames, self.number, self.at_once())
        lanes = load.lanes
        first_lane = self.number * lanes
        if lanes > 1:
            frames = [self.encode(make_body(load.size, first_lane + route), route) for route in range(lanes)]
        else:
            keys = load.routes()
            body = make_body(load.size, first_lane)
            pieces = max(1, keys // self.at_once())
            count = 1 if keys == 1 else pieces * self.at_once()
            frames = [self.encode(body, route % keys) for route in range(count)]
        return Batch(frames, lanes, self.at_once(), load.in_row if lanes > 1 else 1)

    def at_once(self) -> int:
        """Number of messages in one piece: a power of two, so that no low byte of a number overflows in it."""
        load = self.job.load
        return 1 if load.rate else 1 << (min(load.at_once, max(1, load.window // 2)).bit_length() - 1)

    @property
    def sent_per_lane(self) -> int:
        return self.sent // self.job.load.lanes

    @property
    def has_output(self) -> bool:
        return self._unsent is not None or bool(self.answers)

    def start(self) -> None:
        self.wire.run()
        self._next_us = now_us()
        self._deadline_us = self._next_us + int(self.job.seconds * 1_000_000)

    def pump(self) -> int:
        """Send what may be sent; returns after how many microseconds to call again, unless something comes before."""
        for _ in range(_TURNS):
            if self.answers and self._unsent is None:  # never into the middle of a message
                self._unsent = memoryview(bytes(self.answers))
                self.answers.clear()
            if self._unsent is not None and not self._flush():
                return _LONG_US
            if self._is_over:
                self.is_done = self.is_done or (self.is_confirmed and self.confirmed >= self.sent)
                return _LONG_US
            now = now_us()
            if (not self._next_piece or self.job.load.lanes == 1) and self._has_ended(now):
                self._end()
                continue
            piece = self.batch.pieces[self._next_piece]
            delay = self._delay_us(piece, now)
            if delay:
                return delay
            self._send(piece, now)
        return 0

    def _has_ended(self, now: int) -> bool:
        if self._limit != _NO_LIMIT:
            return self.sent >= self._limit
        return self.sent > 0 and now >= self._deadline_us

    def _end(self) -> None:
        self._is_over = True
        if not self.is_confirmed:
            self._unsent = memoryview(self.farewell())

    def _delay_us(self, piece: Piece, now: int) -> int:
        if self.sent - self.confirmed + piece.count > self._window or piece.count > self.room():
            return _LONG_US
        if self._interval_us:
            if now < self._next_us:
                return self._next_us - now
            self._next_us += self._interval_us
        return _SHORT_US if self._ahead and not self._has_room() else 0

    def _has_room(self) -> bool:
        counters = self._counters
        received = counters.received_by_least if self.job.load.fans_out else counters.received
        return counters.published - received < self._ahead

    def _send(self, piece: Piece, now: int) -> None:
        is_laned = self.job.load.lanes > 1
        number = self._cycles * self.batch.repeats if is_laned else self.sent
        self.batch.fill(piece, self._first + number, now)
        self.filled(piece)
        self._next_piece += 1
        if self._next_piece == len(self.batch.pieces):
            self._next_piece = 0
            self._cycles += 1
        self.sent += piece.count
        self._counters.add_published(piece.count)
        if self.is_confirmed:
            self._waiting.append((self.sent, now))
        self._unsent = piece.view

    def _flush(self) -> bool:
        assert self._unsent is not None
        self._unsent = self._unsent[self.wire.offer(self._unsent) :]
        if not self._unsent:
            self._unsent = None
        return self._unsent is None

    def note_confirmed(self) -> None:
        """To be called when `confirmed` has grown."""
        now = now_us()
        while self._waiting and self._waiting[0][0] <= self.confirmed:
            self.latency.add(now - self._waiting.popleft()[1], self.batch.pieces[0].count)

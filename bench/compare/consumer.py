"""The receiving side of a connection: takes deliveries column by column and checks them. Their shape: subclasses."""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from dataclasses import dataclass
from typing import Final

from bench.compare.histogram import Histogram
from bench.compare.ledger import Ledger
from bench.compare.load import Job, Wrong
from bench.compare.payload import FILLER, HEAD_BYTES, MAGIC, SEQUENCE_AT, TIME_AT
from bench.compare.publisher import now_us
from bench.compare.wire import Wire

_BUFFER_BYTES: Final = 1 << 20


class Consumer(ABC):
    """Reads into one buffer and keeps a ledger."""

    def __init__(self, wire: Wire, job: Job, number: int) -> None:
        self.wire = wire
        self.job = job
        self.number = number
        self.ledger = Ledger(job.load.is_exclusive, job.taken, job.load.lanes)
        self.latency = Histogram()
        self.last_us = 0
        self.output = bytearray()
        self.buffer = bytearray(max(_BUFFER_BYTES, 4 * job.load.size))
        self.end = 0
        self._view = memoryview(self.buffer)

    @abstractmethod
    def subscribe(self) -> None:
        """Ask for messages."""

    @abstractmethod
    def digest(self) -> int:
        """Take all whole deliveries of the buffer; returns how many of its bytes are done with."""

    def begin(self) -> None:
        """Subscribe; what came already is taken too."""
        self.subscribe()
        self.wire.run()
        self.end = len(self.wire.rest)
        self.buffer[: self.end] = self.wire.rest
        self.wire.rest = b""
        self._digest()

    def read(self) -> None:
        size = self.wire.take_into(self._view[self.end :])
        if size:
            self.end += size
            self._digest()

    def _digest(self) -> None:
        done = self.digest()
        rest = self.end - done
        if done and rest:
            self.buffer[:rest] = self.buffer[done : self.end]
        self.end = rest

    def flush(self) -> None:
        with memoryview(self.output) as view:
            taken = self.wire.offer(view)
        del self.output[:taken]

    def finish(self) -> None:
        """Wait until the broker has taken every acknowledgement."""
        self.wire.wait()
        self.wire.send(self.output)
        self.output.clear()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a delivery: its size, where the body begins, and bytes that are the same in all of them."""

    stride: int
    body: int
    fixed: tuple[tuple[int, int], ...]


class ColumnConsumer(Consumer):
    """For protocols whose deliveries mostly have the same size: the first is parsed, the others are compared to it."""

    def __init__(self, wire: Wire, job: Job, number: int) -> None:
        super().__init__(wire, job, number)
        self.layout = Layout(0, 0, ())
        self._filler = bytes((FILLER,)) * (job.load.size - HEAD_BYTES)

    @abstractmethod
    def learn(self, at: int) -> Layout | None:
        """The layout of the delivery that begins here; None when it is not all there yet. Raises Wrong."""

    @abstractmethod
    def skip(self, at: int) -> int:
        """The size of something that begins here and is no delivery; 0 when it is one or not all there."""

    @abstractmethod
    def acknowledge(self, at: int, count: int) -> None:
        """Answer so many deliveries of the layout, from here."""

    def digest(self) -> int:
        at, now = 0, now_us()
        while at < self.end:
            count = self._fitting(at)
            if count:
                self._take(at, count, now)
                at += count * self.layout.stride
                continue
            size = self.skip(at)
            if size:
                at += size
                continue
            layout = self.learn(at)
            if layout is None:
                break
            self.layout = self._with_body(layout)
            if not self._fitting(at):
                raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        return at

    def _with_body(self, layout: Layout) -> Layout:
        fixed = list(layout.fixed) + [(layout.body + at, value) for at, value in enumerate(MAGIC)]
        if self._filler:
            fixed.append((layout.body + self.job.load.size - 1, FILLER))
        return Layout(layout.stride, layout.body, tuple(fixed))

    def _fitting(self, at: int) -> int:
        """How many deliveries from here have the layout."""
        stride = self.layout.stride
        count = (self.end - at) // stride if stride else 0
        for offset, value in self.layout.fixed if count else ():
            column = self.buffer[at + offset : at + count * stride : stride]
            if column.count(value) != count:
                count = next(number for number, found in enumerate(column) if found != value)
                if not count:
                    break
        return count

    def _column(self, at: int, count: int, width: int) -> bytearray:
        """Numbers of so many bytes, little endian, widened to eight."""
        stride = self.layout.stride
        numbers = bytearray(8 * count)
        for byte in range(width):
            numbers[byte::8] = self.buffer[at + byte : at + byte + (count - 1) * stride + 1 : stride]
        return numbers

    def _take(self, at: int, count: int, now: int) -> None:
        body = at + self.layout.body
        self.ledger.add(self._column(body + SEQUENCE_AT, count, 8))
        if self.buffer[body + HEAD_BYTES : body + self.job.load.size] != self._filler:  # one of them, as a sample
            raise Wrong(f"message {self.ledger.count} of a consumer has another body than was sent")
        if self.job.is_timed:
            times = array("Q")
            times.frombytes(self._column(body + TIME_AT, count, 6))
            for sent_us, number in Counter(times).items():
                self.latency.add(now - sent_us, number)
        self.acknowledge(at, count)
        self.last_us = now

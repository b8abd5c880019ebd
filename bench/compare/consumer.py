"""The receiving side of a connection: takes deliveries and checks them. Their bytes: subclasses."""

from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bench.compare.histogram import Histogram
from bench.compare.ledger import Ledger
from bench.compare.load import Job, Wrong
from bench.compare.payload import FILLER, HEAD_BYTES, LANE_SHIFT, MAGIC, SEQUENCE_AT, TIME_AT
from bench.compare.publisher import now_us
from bench.compare.shape import Sample, digits, samples
from bench.compare.wire import Wire

_BUFFER_BYTES: Final = 1 << 20


class Found(NamedTuple):
    """The end of a frame, and both ends of its body; no body if it is no delivery."""

    end: int
    body: int = 0
    body_end: int = 0


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
        self._rings: dict[int, Sequence[Sample]] = {}

    @abstractmethod
    def subscribe(self) -> None:
        """Ask for messages."""

    @abstractmethod
    def digest_alike(self) -> int:
        """Take all whole deliveries of the buffer, which are identical; returns how many of its bytes are done with."""

    @abstractmethod
    def single(self, at: int) -> "Found | None":
        """Read the delivery that begins here, and note what `answer` needs; None if it is incomplete. Raises Wrong."""

    @abstractmethod
    def answer(self, count: int) -> None:
        """Acknowledge so many deliveries, the last that `single` found."""

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
        done = self._one_by_one() if self.job.load.shape else self.digest_alike()
        rest = self.end - done
        if done and rest:
            self.buffer[:rest] = self.buffer[done : self.end]
        self.end = rest

    def _one_by_one(self) -> int:
        """Take deliveries that differ, each by itself; returns how many bytes are done with."""
        at, now, buffer = 0, now_us(), self.buffer
        keys, times = bytearray(), Counter[bytes]()
        while (found := self.single(at)) is not None:
            if found.body:
                self._check(at, found.body, found.body_end)
                keys += buffer[found.body + SEQUENCE_AT : found.body + TIME_AT]
                times[bytes(buffer[found.body + TIME_AT : found.body + HEAD_BYTES])] += 1
            at = found.end
        if keys:
            self.ledger.add(keys)
            self.enter_times(times, now)
            self.answer(len(keys) // 8)
            self.last_us = now
        return at

    def _check(self, at: int, body: int, end: int) -> None:
        """A body must be the one that was sent with its number; ids and trace must be in front of it."""
        buffer = self.buffer
        key = int.from_bytes(buffer[body + SEQUENCE_AT : body + TIME_AT], "little")
        lane = key >> LANE_SHIFT
        number = key - (lane << LANE_SHIFT)
        ring = self._rings.get(lane) or self._ring(lane)
        first = self.job.taken[lane] if self.job.taken else 0
        sample = ring[(number - first) % len(ring)]
        if (
            not buffer.startswith(MAGIC, body, end)
            or end - body != sample.size
            or not buffer.startswith(sample.tail, body + HEAD_BYTES)
        ):
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        is_mixed = self.job.load.shape == "mixed"
        if buffer.find(digits(number), at, body) < 0 or (is_mixed and buffer.find(sample.trace.encode(), at, body) < 0):
            self.ledger.stripped += 1

    def _ring(self, lane: int) -> Sequence[Sample]:
        load = self.job.load
        if lane >= load.publishers:
            raise Wrong(f"message {self.ledger.count + 1} of a consumer has a body that was never sent")
        self._rings[lane] = samples(load.shape, load.size, lane, load.publishers)
        return self._rings[lane]

    def enter_times(self, times: "Counter[bytes]", now: int) -> None:
        if self.job.is_timed:
            for sent, number in times.items():
                self.latency.add(now - int.from_bytes(sent, "little"), number)

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
    """Layout of a delivery: its size, the start of the body, and the bytes that are the same in all of them."""

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

    def digest_alike(self) -> int:
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
        """Number of deliveries from here that have the layout."""
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

"""Messages that are held in memory, under a budget: new ones, and those read from the store. No reading, no storing."""

from bisect import bisect_right
from collections import OrderedDict
from typing import Final, final

from headrace.model import Message

MERGE_ROWS: Final = 256
"""A run of fewer messages takes later ones in, so that many small commits do not make many small chunks."""
_MESSAGE_BYTES: Final = 250
"""What a message costs in memory besides its payload and its metadata, which has its properties once more."""


@final
class Chunk:
    """A run of one log's messages, with their ids and metadata."""

    __slots__ = ("base", "ids", "messages", "metadata", "shelf", "size", "stack")

    def __init__(
        self, shelf: "Shelf", base: int, ids: list[int], metadata: list[bytes], messages: list[Message]
    ) -> None:
        self.shelf = shelf
        self.stack: Stack | None = None
        self.base = base
        self.ids = ids
        self.metadata = metadata
        self.messages = messages
        self.size = _size(metadata, messages)

    @property
    def next(self) -> int:
        return self.base + len(self.messages)

    def extend(self, ids: list[int], metadata: list[bytes], messages: list[Message]) -> None:
        """Take more in at the end."""
        self.ids += ids
        self.metadata += metadata
        self.messages += messages
        self._resize(self.size + _size(metadata, messages))

    def cut(self, stop: int) -> None:
        """Forget everything from this offset on."""
        count = max(0, stop - self.base)
        del self.ids[count:], self.metadata[count:], self.messages[count:]
        self._resize(_size(self.metadata, self.messages))

    def _resize(self, size: int) -> None:
        if self.stack is not None:
            self.stack.bytes += size - self.size
        self.size = size


@final
class Shelf:
    """The chunks of one log, in order and without overlaps, but with gaps."""

    __slots__ = ("chunks", "stored")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.stored = 0
        """Everything below is in the store, and so can be forgotten here."""

    def find(self, offset: int) -> Chunk | None:
        """The chunk that has this offset."""
        at = bisect_right(self.chunks, offset, key=_base_of) - 1
        return self.chunks[at] if at >= 0 and offset < self.chunks[at].next else None

    def next_base(self, offset: int, otherwise: int) -> int:
        """Where the next chunk behind this offset begins."""
        at = bisect_right(self.chunks, offset, key=_base_of)
        return self.chunks[at].base if at < len(self.chunks) else otherwise

    def add(self, chunk: Chunk, stack: "Stack") -> None:
        self.chunks.insert(bisect_right(self.chunks, chunk.base, key=_base_of), chunk)
        stack.add(chunk)

    def append(self, base: int, ids: list[int], metadata: list[bytes], messages: list[Message], stack: "Stack") -> None:
        """Add new messages at the end."""
        last = self.chunks[-1] if self.chunks else None
        if last is not None and last.next == base and last.stack is stack and len(last.messages) < MERGE_ROWS:
            last.extend(ids, metadata, messages)
            stack.trim()
        else:
            self.add(Chunk(self, base, ids, metadata, messages), stack)

    def drop_below(self, offset: int) -> None:
        """Forget chunks of which nothing is left."""
        gone = 0
        while gone < len(self.chunks) and self.chunks[gone].next <= offset:
            _take_off(self.chunks[gone])
            gone += 1
        del self.chunks[:gone]

    def cut(self, offset: int) -> None:
        """Forget everything from this offset on: it was not stored."""
        while self.chunks and self.chunks[-1].base >= offset:
            _take_off(self.chunks.pop())
        if self.chunks and self.chunks[-1].next > offset:
            self.chunks[-1].cut(offset)

    def forget(self, chunk: Chunk) -> None:
        at = bisect_right(self.chunks, chunk.base, key=_base_of) - 1
        del self.chunks[at]


@final
class Stack:
    """The chunks of all logs that share a budget: the oldest, or the longest unused, goes first."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.order: OrderedDict[Chunk, None] = OrderedDict()

    def add(self, chunk: Chunk) -> None:
        chunk.stack = self
        self.order[chunk] = None
        self.bytes += chunk.size
        self.trim()

    def touch(self, chunk: Chunk) -> None:
        self.order.move_to_end(chunk)

    def trim(self) -> None:
        """Forget chunks until the rest is within the budget, but none that is the only copy, and never the last."""
        while self.bytes > self.max_bytes and len(self.order) > 1:
            oldest = next(iter(self.order))
            if oldest.next > oldest.shelf.stored:
                return
            oldest.shelf.forget(oldest)
            _take_off(oldest)


def _take_off(chunk: Chunk) -> None:
    stack = chunk.stack
    if stack is not None:
        del stack.order[chunk]
        stack.bytes -= chunk.size
        chunk.stack = None


def _base_of(chunk: Chunk) -> int:
    return chunk.base


def _size(metadata: list[bytes], messages: list[Message]) -> int:
    payloads = sum([len(message.payload) + len(message.properties) for message in messages])
    return payloads + sum([len(about) for about in metadata]) + _MESSAGE_BYTES * len(messages)

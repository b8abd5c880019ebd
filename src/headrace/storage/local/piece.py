"""What the tail of a log is made of: runs of messages, or of rows that are encoded already. Knows no logs."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from headrace.model import Message
from headrace.storage.local.block import Block
from headrace.storage.local.block_decoding import decode_messages

MESSAGE_BYTES: Final = 160
"""What a message object costs in memory besides its payload and properties."""

MERGE_ROWS: Final = 256
"""Runs of at least this many messages keep their encoded block, which goes to the segment as it is; smaller ones are
kept as messages and encoded together, so that many small commits still make large blocks."""


@final
@mypyc_attr(acyclic=True)
class Piece:
    """A run of the tail: messages, or rows of an encoded block."""

    __slots__ = ("base", "block", "messages", "next", "size", "start")

    def __init__(
        self, base: int, count: int, size: int, messages: list[Message], block: Block | None, start: int
    ) -> None:
        self.base = base
        self.next = base + count
        self.messages = messages
        self.block = block
        self.start = start
        self.size = size

    def shorten(self, first: int, least: int) -> int:
        """Forget messages below `first` if they are as many as that; returns how many bytes of memory that gives back.

        With many logs most of what is in memory would else be messages that everybody is done with.
        """
        gone = first - self.base
        count = self.next - self.base
        if gone < least or self.block is not None:
            return 0
        freed = self.size * gone // count
        del self.messages[:gone]
        self.base = first
        self.size -= freed
        return freed

    def read(self, start: int, stop: int) -> list[Message]:
        """The messages of these offsets."""
        if self.block is None:
            if stop - start == 1:
                return [self.messages[start - self.base]]  # a hundred instructions less than a slice
            return self.messages[start - self.base : stop - self.base]
        first = self.start - self.base
        return decode_messages(self.block, start + first, stop + first)


@final
class Memory:
    """How many bytes the tails of all logs take together."""

    __slots__ = ("tail_bytes",)

    def __init__(self) -> None:
        self.tail_bytes = 0

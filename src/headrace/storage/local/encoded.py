"""Messages as the blocks they are stored in: made once, outside the event loop, and appended as they are. No files."""

from array import array
from collections.abc import Sequence
from itertools import pairwise
from typing import final

from headrace.model import Message, Source
from headrace.storage.api import Encoded
from headrace.storage.local.block import EXPIRES, NOT_BEFORE, Block
from headrace.storage.local.block_columns import cut_block
from headrace.storage.local.block_decoding import decode_messages
from headrace.storage.local.block_encoding import encode_block


@final
class EncodedBlock(Encoded):
    """The messages of one block, and what has to be known of them before they are stored."""

    def __init__(self, block: Block, largest_bytes: int, first_expiry_us: int) -> None:
        self.block = block
        self.count = block.count
        self.payload_bytes = block.payload_bytes
        self.largest_bytes = largest_bytes
        self.first_expiry_us = first_expiry_us

    def sources(self) -> list[Source]:
        return self.block.sources()

    def source_index(self) -> Sequence[int] | None:
        return self.block.source_index()

    def messages(self, start: int, stop: int) -> list[Message]:
        return decode_messages(self.block, start, stop)

    def take(self, rows: Sequence[int]) -> Encoded:
        messages = decode_messages(self.block, 0, self.count)
        return encoded(encode_block(0, [messages[row] for row in rows]))

    def expiring(self, ttl_us: int, now_us: int) -> Encoded:
        block = self.block
        limits = array("q", [now_us + ttl_us]) * self.count
        if block.columns & NOT_BEFORE:
            due = block.not_before(0, self.count)
            limits = array("q", [max(now_us, time_us) + ttl_us for time_us in due])
        if block.columns & EXPIRES:
            own = block.expires(0, self.count)
            limits = array("q", [min(limit, at) if at else limit for limit, at in zip(limits, own, strict=True)])
        return EncodedBlock(block.with_expiry(limits), self.largest_bytes, min(limits))


@final
class EncodedRows(Encoded):
    """Messages for one log among the rows of a block that has those of others too."""

    def __init__(
        self, block: Block, start: int, count: int, payload_bytes: int, largest_bytes: int, first_expiry_us: int
    ) -> None:
        self.block = block
        self.start = start
        self.count = count
        self.payload_bytes = payload_bytes
        self.largest_bytes = largest_bytes
        self.first_expiry_us = first_expiry_us

    def alone(self) -> EncodedBlock:
        """The same in a block of their own."""
        rows = cut_block(self.block, self.start, self.start + self.count, 0)
        return EncodedBlock(rows, self.largest_bytes, self.first_expiry_us)

    def sources(self) -> list[Source]:
        return self.alone().sources()

    def source_index(self) -> Sequence[int] | None:
        return self.alone().source_index()

    def messages(self, start: int, stop: int) -> list[Message]:
        return decode_messages(self.block, self.start + start, self.start + stop)

    def take(self, rows: Sequence[int]) -> Encoded:
        return self.alone().take(rows)

    def expiring(self, ttl_us: int, now_us: int) -> Encoded:
        return self.alone().expiring(ttl_us, now_us)


def encoded(block: Block) -> EncodedBlock:
    """The messages of a block, with what has to be known of them."""
    bounds = block.payload_bounds()
    largest = max([stop - start for start, stop in pairwise(bounds)])
    expiries = [time_us for time_us in block.expires(0, block.count) if time_us]
    return EncodedBlock(block, largest, min(expiries, default=0))

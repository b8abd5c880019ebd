"""Numbers that are never given twice: OpenData's sequence blocks. No I/O: the caller stores the block it is given.

SeqBlock   base u64 | size u64, both big-endian: everything below base + size may be in use
"""

import struct
from typing import Final, final

from headrace.errors import Corrupt

BLOCK_SIZE: Final = 4096
_BLOCK: Final = struct.Struct(">QQ")


def encode_block(base: int, size: int) -> bytes:
    return _BLOCK.pack(base, size)


def decode_block(data: bytes, where: str) -> tuple[int, int]:
    """Base and size. Raises Corrupt."""
    if len(data) != _BLOCK.size:
        raise Corrupt(where, 0, f"a sequence block has {_BLOCK.size} bytes, not {len(data)}")
    base, size = _BLOCK.unpack(data)
    if base + size > 1 << 63:
        raise Corrupt(where, 0, f"the block of {size} numbers from {base} on is beyond the end of all numbers")
    return base, size


@final
class Sequence:
    """Gives numbers out. `record` is the block to store together with whatever uses them; None when it is stored."""

    def __init__(self, stored: bytes | None, where: str) -> None:
        """Go on behind the stored block: what is left of it may be in use. Raises Corrupt."""
        base, size = decode_block(stored, where) if stored is not None else (0, 0)
        self._next = base + size
        self._end = base + size
        self.record: bytes | None = None

    def allocate(self, count: int) -> int:
        """The first of `count` numbers in a row."""
        first = self._next
        self._next += count
        if self._next > self._end:
            size = max(self._next - self._end, BLOCK_SIZE)
            self.record = encode_block(self._end, size)
            self._end += size
        return first

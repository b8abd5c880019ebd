"""Bodies that come in parts (RFC 7959, Block1), put together within bounds. No answers."""

from typing import Final, final

from headrace.errors import ProtocolError
from headrace.protocols.coap.codec import BAD_REQUEST, ENTITY_INCOMPLETE, ENTITY_TOO_LARGE, Block

MAX_BODY_BYTES: Final = 1 << 20
_MAX_BODIES: Final = 64
_PATIENCE_US: Final = 60_000_000
_LARGEST_EXPONENT: Final = 6


@final
class _Body:
    __slots__ = ("data", "seen_us")

    def __init__(self) -> None:
        self.data = bytearray()
        self.seen_us = 0


@final
class Blocks:
    """Incomplete bodies, by sender and path."""

    def __init__(self) -> None:
        self._bodies: dict[object, _Body] = {}

    def add(self, key: object, block: Block, part: bytes, now_us: int) -> bytes | None:
        """Add a part; returns the body after its last part, else None. Raises ProtocolError."""
        number, more, exponent = block
        size = 16 << exponent
        if exponent > _LARGEST_EXPONENT or len(part) > size or (more and len(part) != size):
            raise ProtocolError(BAD_REQUEST, f"a part of {len(part)} bytes is not of the size that it says")
        body = self._bodies.pop(key, None) if number else _Body()
        if body is None or len(body.data) != number * size:
            raise ProtocolError(ENTITY_INCOMPLETE, "the part before this one is missing: begin again")
        if len(body.data) + len(part) > MAX_BODY_BYTES:
            raise ProtocolError(ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY_BYTES} bytes")
        body.data += part
        if not more:
            self._bodies.pop(key, None)
            return bytes(body.data)
        self._forget(now_us)
        body.seen_us = now_us
        self._bodies.pop(key, None)
        self._bodies[key] = body  # at the end, so that the oldest is the first
        return None

    def _forget(self, now_us: int) -> None:
        """Drop bodies without progress, and the oldest if there are too many."""
        while self._bodies:
            oldest = next(iter(self._bodies))
            if len(self._bodies) < _MAX_BODIES and self._bodies[oldest].seen_us > now_us - _PATIENCE_US:
                return
            del self._bodies[oldest]

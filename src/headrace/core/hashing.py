"""The exchange that shares messages out by their key: all of one key to one queue, whichever it is. The other kinds
are in routers.py.
"""

import math
from collections.abc import Collection, Mapping
from hashlib import blake2b
from typing import Final, final

from headrace.core.exchange import Binding, Exchange
from headrace.core.routers import Router
from headrace.errors import PreconditionFailed

HASH_HEADER: Final = "hash-header"
_HASH_PROPERTY: Final = "hash-property"
_BYTES: Final = 6  # as much as a float holds exactly
_RANGE: Final = float(1 << 8 * _BYTES)
_MAX_WEIGHT: Final = 1_000_000


def hashed_header(exchange: Exchange) -> str:
    """The header whose value is hashed, "" for the routing key. Raises PreconditionFailed for what makes no sense."""
    if _HASH_PROPERTY in exchange.arguments:
        raise PreconditionFailed(
            f"invalid arg '{_HASH_PROPERTY}' for exchange '{exchange.name}': "
            f"only the routing key and headers ('{HASH_HEADER}') are hashed"
        )
    header = exchange.arguments.get(HASH_HEADER, "")
    if not isinstance(header, str):
        raise PreconditionFailed(
            f"invalid arg '{HASH_HEADER}' for exchange '{exchange.name}': expected a header's name, received {header!r}"
        )
    return header


@final
class HashRouter(Router):
    """One binding for each key, as many keys for each binding as its weight says: its own key, a whole number.

    The binding that scores highest for a key has it (rendezvous hashing), so a binding that comes or goes moves only
    the keys that it gets or had, and the same bindings give the same answer after every restart.
    """

    __slots__ = ("_header", "_weights")

    def __init__(self, header: str) -> None:
        self._header = header
        self._weights: dict[Binding, tuple[bytes, int]] = {}
        """What makes a binding's score its own, and its weight."""

    def add(self, binding: Binding) -> None:
        kind = "exchange" if binding.to_exchange else "queue"
        self._weights[binding] = (f"{kind} {binding.destination}\0".encode(), _weight(binding))

    def remove(self, binding: Binding) -> None:
        del self._weights[binding]

    def match(self, key: str, headers: Mapping[str, object] | None) -> Collection[Binding]:
        hashed = (str(headers.get(self._header, "")) if headers else "") if self._header else key
        wanted = hashed.encode(errors="surrogateescape")
        best: Binding | None = None
        highest = -1.0
        for binding, (name, weight) in self._weights.items():
            digest = blake2b(name + wanted, digest_size=_BYTES).digest()
            score = -weight / math.log((int.from_bytes(digest, "big") + 0.5) / _RANGE)
            if score > highest:
                best, highest = binding, score
        return () if best is None else (best,)


def _weight(binding: Binding) -> int:
    text = binding.key
    weight = int(text) if text.isascii() and text.isdecimal() and len(text) <= 7 else 0
    if not 1 <= weight <= _MAX_WEIGHT:
        raise PreconditionFailed(
            f"invalid routing key '{text[:40]}' for binding of '{binding.destination}' to exchange '{binding.source}': "
            f"it is the binding's weight there, a number from 1 to {_MAX_WEIGHT}"
        )
    return weight

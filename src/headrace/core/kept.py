"""What a protocol must find again after a restart, under keys of its own. What it means is the protocol's affair."""

from typing import Final, final

from headrace.core.line import Line
from headrace.storage.api import KEPT, Engine

_SEPARATOR: Final = b"\0"


@final
class Kept:
    """The keys and values of one virtual host; what is said of them is stored with everything else of the turn."""

    def __init__(self, engine: Engine, host: str, line: Line) -> None:
        self._engine = engine
        self._prefix = host.encode() + _SEPARATOR
        self._line = line

    def items(self) -> list[tuple[bytes, bytes]]:
        """All that was stored, in order of the keys."""
        start = len(self._prefix)
        return sorted([(key[start:], value) for key, value in self._engine.items(KEPT) if key.startswith(self._prefix)])

    def put(self, key: bytes, value: bytes) -> None:
        self._line.open().define(KEPT, self._prefix + key, value)

    def delete(self, key: bytes) -> None:
        self._line.open().durable.delete(KEPT, self._prefix + key)

    def prove(self, key: bytes) -> None:
        """Have a key stored, without a value, if what was just published is: both, or neither."""
        self._line.open().proofs.append(self._prefix + key)

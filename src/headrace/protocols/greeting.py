"""Which AMQP a client speaks: its first eight bytes tell, and the connection is handed over to that protocol."""

from collections.abc import Callable
from typing import Final, final

from headrace.net.connection import Wire
from headrace.net.handler import Handler

_HEADER_BYTES: Final = 8
_START: Final = b"AMQP"


@final
class AmqpGreeting(Handler):
    """Waits for the protocol header. What is none of version 1.0 is answered by the other version, as it sees fit."""

    def __init__(self, make_091: Callable[[], Handler], make_10: Callable[[], Handler]) -> None:
        self._make_091 = make_091
        self._make_10 = make_10
        self._wire: Wire | None = None
        self._data = b""

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        data = self._data + data
        self._data = data
        is_amqp = data[:4] == _START[: len(data)]
        if self._wire is None or (is_amqp and len(data) < _HEADER_BYTES):
            return
        handler = self._make_10() if is_amqp10(data) else self._make_091()
        self._wire.hand_over(handler)
        handler.opened(self._wire)
        handler.feed(data)

    def hold_output(self, is_held: bool) -> None:
        return  # nothing was sent yet

    def beat(self) -> None:
        return  # nothing was agreed yet

    def stop(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None


def is_amqp10(start: bytes) -> bool:
    """Whether what a client says first is the protocol header of version 1.0."""
    return len(start) >= _HEADER_BYTES and start.startswith(_START) and start[4] in (0, 2, 3) and start[5] == 1

"""Choice of a client's protocol: its first bytes tell, and the connection is handed over to that protocol."""

from collections.abc import Callable, Sequence
from typing import Final, final

from headrace.net.connection import Wire
from headrace.net.handler import Handler

Recognise = Callable[[bytes], bool | None]
"""True for a client of the protocol, False for another one, None while the bytes are too few to tell."""

_HEADER_BYTES: Final = 8
_START: Final = b"AMQP"


def anything(start: bytes) -> bool | None:
    """Recognise every client: for the protocol that is asked last, which refuses strangers in its own words."""
    return True


def recognise_amqp10(start: bytes) -> bool | None:
    """Recognise the protocol header of AMQP 1.0, plain or with SASL or TLS."""
    if start[:4] != _START[: len(start)]:
        return False
    if len(start) < _HEADER_BYTES:
        return None
    return start[4] in (0, 2, 3) and start[5] == 1


@final
class Greeting(Handler):
    """Waits until the first protocol in a row recognises the client. The last one must recognise everybody."""

    def __init__(self, choices: Sequence[tuple[Recognise, Callable[[], Handler]]]) -> None:
        self._choices = choices
        self._wire: Wire | None = None
        self._data = b""

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def feed(self, data: bytes) -> None:
        self._data += data
        for recognise, make in self._choices:
            verdict = recognise(self._data)
            if verdict is None:
                return
            if verdict:
                self._hand_over(make)
                return

    def _hand_over(self, make: Callable[[], Handler]) -> None:
        if self._wire is not None:
            handler = make()
            self._wire.hand_over(handler)
            handler.opened(self._wire)
            handler.feed(self._data)

    def hold_output(self, is_held: bool) -> None:
        return  # nothing was sent yet

    def beat(self) -> None:
        return  # nothing was agreed yet

    def stop(self) -> None:
        if self._wire is not None:
            self._wire.close()

    def lost(self) -> None:
        self._wire = None

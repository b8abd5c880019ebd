"""Ordered output of one channel or session; answers that promise something wait until it is durable. No frames."""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from headrace.core.broker import Broker
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.net.connection import Wire


def _nothing(*_: object) -> None:
    return


@final
class Answers:
    """The output of a channel or session. An answer that waits holds up all output after it."""

    __slots__ = ("_broker", "_changed", "_failed", "_held", "_output", "_wire")

    def __init__(
        self, wire: "Wire", broker: Broker, changed: Callable[[], None], failed: Callable[[HeadraceError], None]
    ) -> None:
        """`changed` runs when waiting begins and when it is over, `failed` if a declaration cannot be stored."""
        self._wire = wire
        self._output = wire.output
        self._broker = broker
        self._changed = changed
        self._failed = failed
        self._held: list[list[bytes]] = []
        """Output that waits, in parts that each wait for other declarations."""

    @property
    def is_waiting(self) -> bool:
        """True while output waits: deliveries should not be sent now."""
        return bool(self._held)

    def send(self, data: bytes) -> None:
        """Send data behind all earlier output."""
        if self._held:
            self._held[-1].append(data)
            self._wire.withhold(len(data))
        else:
            self._output.send(data)

    def parts(self) -> list[bytes]:
        """The list for output in pieces; a call of `sent` must follow."""
        return self._held[-1] if self._held else self._output.parts

    def sent(self, size_bytes: int) -> None:
        """Count the bytes that were added to `parts`."""
        if self._held:
            self._wire.withhold(size_bytes)
        else:
            self._output.sent(size_bytes)

    def hold(self) -> None:
        """Hold output from now on until all earlier declarations are durable."""
        if self._broker.when_kept(self._kept):
            self._held.append([])
            if len(self._held) == 1:
                self._changed()

    def detach(self) -> None:
        """Tell the channel or session nothing more, as it has ended: no reference cycle is left."""
        self._changed = self._failed = _nothing

    def drop(self) -> None:
        """Drop all output that waits."""
        while self._held:
            self._take()

    def _kept(self, error: HeadraceError | None) -> None:
        if not self._held:
            return  # dropped meanwhile
        if error is not None:
            self._failed(error)
            return
        self._output.send(self._take())
        if not self._held:
            self._changed()

    def _take(self) -> bytes:
        data = b"".join(self._held.pop(0))
        self._wire.withhold(-len(data))
        return data

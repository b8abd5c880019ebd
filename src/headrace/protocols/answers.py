"""What one channel or session is sent, in order; what promises something waits until it is kept. No frames here."""

from collections.abc import Callable
from typing import TYPE_CHECKING, final

from headrace.core.broker import Broker
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.net.connection import Wire


@final
class Answers:
    """The way out to a client. An answer that waits holds up all that is sent after it, so that order is kept."""

    __slots__ = ("_broker", "_changed", "_failed", "_held", "_output", "_wire")

    def __init__(
        self, wire: "Wire", broker: Broker, changed: Callable[[], None], failed: Callable[[HeadraceError], None]
    ) -> None:
        """`changed` is called when waiting begins and when it is over, `failed` when what was promised is not kept."""
        self._wire = wire
        self._output = wire.output
        self._broker = broker
        self._changed = changed
        self._failed = failed
        self._held: list[list[bytes]] = []
        """What waits, in parts that each wait for something of their own."""

    @property
    def is_waiting(self) -> bool:
        """Whether what is sent now is written later: nothing that can wait should be sent."""
        return bool(self._held)

    def send(self, data: bytes) -> None:
        """Have this written after all that was sent before."""
        self.parts().append(data)
        self.sent(len(data))

    def parts(self) -> list[bytes]:
        """Where something is put that is sent in pieces; `sent` must follow."""
        return self._held[-1] if self._held else self._output.parts

    def sent(self, size_bytes: int) -> None:
        """So many bytes were put there."""
        if self._held:
            self._wire.withhold(size_bytes)
        else:
            self._output.sent(size_bytes)

    def hold(self) -> None:
        """Have what is sent from now on wait until all that was declared so far would survive a crash."""
        if self._broker.when_kept(self._kept):
            self._held.append([])
            if len(self._held) == 1:
                self._changed()

    def drop(self) -> None:
        """What waits is not wanted any more."""
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

"""One link of a session, whichever way its messages go: names, handles, detaching. See incoming.py and outgoing.py."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, ProtocolError
from headrace.protocols.amqp10.conditions import error_for
from headrace.protocols.amqp10.frames import STOLEN
from headrace.protocols.amqp10.performatives import Attach, Detach, Disposition, Flow

if TYPE_CHECKING:
    from headrace.protocols.amqp10.session import Session


class Link(ABC):
    """An attached link. `is_over` once it was detached by either side."""

    def __init__(self, session: "Session", attach: Attach) -> None:
        self.session = session
        self.peer = session.peer
        self.name = attach.name
        self.key = (session.peer.container_id, attach.name)
        """What it is found again by when it is resumed."""
        self.handle = attach.handle
        self.attach = attach
        self.is_over = False

    @abstractmethod
    def flow(self, flow: Flow) -> None:
        """The peer says what credit there is, or asks."""

    @abstractmethod
    def settle(self, number: int, disposition: Disposition) -> None:
        """The peer says what has become of a delivery."""

    @abstractmethod
    def end(self, is_closed: bool) -> None:
        """The peer detached the link, for good or perhaps to resume it; nothing is sent any more."""

    @abstractmethod
    def abandon(self) -> None:
        """We detached the link: what is unsettled goes back, what outlives links stays."""

    def steal(self) -> None:
        """Another link takes over: detach this one from this side, so that the other can resume it."""
        if self._detach(ProtocolError(STOLEN, f"the link {self.name[:64]!r} was attached again")):
            self.end(False)

    def refresh(self) -> None:
        """The peer or its session can take more again, or cannot."""
        return

    def detach(self, error: HeadraceError | None) -> None:
        """Detach the link from this side; it cannot be resumed."""
        if self._detach(error):
            self.abandon()

    def _detach(self, error: HeadraceError | None) -> bool:
        if self.is_over:
            return False
        detach = Detach(self.handle, True, None if error is None else error_for(error))
        self.session.send(detach.encode())
        self.session.forget(self)
        self.is_over = True
        return True

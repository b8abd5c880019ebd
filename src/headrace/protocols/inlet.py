"""The input of one connection, for all protocols: pauses, its memory, and the wait for its login. No bytes."""

from collections.abc import Callable
from typing import Generic, TypeVar, final

from headrace.core.access.access import Access
from headrace.core.access.logins import Admit, Login
from headrace.core.client import Client
from headrace.core.flow import Holding, Intake
from headrace.errors import HeadraceError
from headrace.net.connection import BY_BROKER, BY_INTAKE, Wire

Event = TypeVar("Event")


@final
class LoginGate(Generic[Event]):
    """The check of a login. Input is paused meanwhile, and events that were read with it wait."""

    __slots__ = ("_access", "_held", "is_shut")

    def __init__(self, access: Access) -> None:
        self._access = access
        self._held: list[Event] = []
        self.is_shut = False
        """True while a login is checked."""

    def check(self, wire: Wire, login: Login, admit: Admit) -> None:
        """Check a login; `admit` calls `open` first. A login that is known is answered at once."""
        self.is_shut = True
        self._access.login(login, admit)
        if self.is_shut:
            wire.pause_reading(BY_BROKER)

    def hold(self, events: list[Event]) -> None:
        """Let events wait for the login."""
        self._held += events

    def open(self, wire: Wire | None) -> list[Event]:
        """End the check; returns the events that waited, unless the connection ended meanwhile."""
        was_shut, self.is_shut = self.is_shut, False
        held, self._held = self._held, []
        if not was_shut or wire is None or wire.is_closing:
            return []
        wire.resume_reading(BY_BROKER)
        return held

    def drop(self) -> None:
        """Forget all events that wait."""
        self._held = []


def _nothing(_: object) -> None:
    return


@final
class Inlet:
    """Pauses reading while the broker, the memory of all connections or the user's rate asks for it."""

    __slots__ = ("_holding", "_intake", "wire")

    def __init__(self, intake: Intake, refuse: Callable[[HeadraceError], None]) -> None:
        self.wire: Wire | None = None
        """None until the connection is open."""
        self._intake = intake
        self._holding = Holding(self._pause_by_intake, refuse)

    def note(self, size_bytes: int) -> None:
        """Report the memory of messages that are not published yet. A connection that holds too much is refused."""
        if size_bytes != self._holding.size_bytes:
            self._intake.note(self._holding, size_bytes)

    def end(self) -> None:
        """Hold nothing any more, and forget the connection, which has ended: no reference cycle is left."""
        self.note(0)
        self._holding.pause = self._holding.refuse = _nothing
        self.wire = None

    def meter(self, client: Client, monotonic_us: int) -> None:
        """Charge the user for its messages. Above the user's limit, nothing is read for a while."""
        pause_us = client.meter(monotonic_us)
        if pause_us and self.wire is not None:
            self.wire.pause_for(pause_us / 1_000_000)

    def pause_by_broker(self, is_paused: bool) -> None:
        """Read nothing while the broker has more in hand than it can write."""
        self._pause(BY_BROKER, is_paused)

    def _pause_by_intake(self, is_paused: bool) -> None:
        self._pause(BY_INTAKE, is_paused)

    def _pause(self, why: int, is_paused: bool) -> None:
        if self.wire is None:
            return
        if is_paused:
            self.wire.pause_reading(why)
        else:
            self.wire.resume_reading(why)

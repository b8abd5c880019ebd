"""While a login is checked, nothing is read, and events that were read with it wait for its end."""

from collections.abc import Callable
from typing import cast

from headrace.core.access.access import Access
from headrace.core.access.logins import Account, Background, Login, Result
from headrace.core.access.users import GUEST
from headrace.core.hosts import Hosts
from headrace.net.connection import BY_BROKER, Wire
from headrace.protocols.inlet import LoginGate
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.wires import FakeWire


class Later(Background):
    """Does work when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        self.waiting.append(lambda: done(work()))

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        self.waiting.append(call)

    def finish(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class PausedWire(FakeWire):
    """A wire that notes why it is paused."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[int] = set()

    def pause_reading(self, why: int) -> None:
        self.paused.add(why)

    def resume_reading(self, why: int) -> None:
        self.paused.discard(why)


class Entrance:
    """A connection that logs in as guest."""

    def __init__(self) -> None:
        house, engine = House(), MemoryEngine()
        self.background = Later()
        access = Access(engine, house.clock, self.background, Hosts(engine, lambda name, is_new: house.broker))
        self.gate: LoginGate[str] = LoginGate(access)
        self.wire = PausedWire()
        self.taken: list[str] = []
        self.accounts: list[str] = []

    def log_in(self, password: str = GUEST) -> None:
        login = Login(GUEST, password.encode(), "127.0.0.1", True)
        self.gate.check(cast("Wire", self.wire), login, self._admitted)

    def _admitted(self, account: Account | None) -> None:
        self.taken += self.gate.open(cast("Wire", self.wire))
        self.accounts.append("" if account is None else account.name)


def test_events_wait_for_the_login_and_reading_is_paused_meanwhile() -> None:
    entrance = Entrance()

    entrance.log_in()
    assert (entrance.gate.is_shut, entrance.wire.paused) == (True, {BY_BROKER})
    entrance.gate.hold(["a", "b"])
    entrance.gate.hold(["c"])
    assert entrance.taken == []
    entrance.background.finish()

    assert entrance.taken == ["a", "b", "c"]
    assert entrance.accounts == [GUEST]
    assert (entrance.gate.is_shut, entrance.wire.paused) == (False, set())


def test_a_login_that_was_right_before_pauses_nothing() -> None:
    entrance = Entrance()
    entrance.log_in()
    entrance.background.finish()

    entrance.log_in()

    assert entrance.accounts == [GUEST, GUEST]
    assert (entrance.gate.is_shut, entrance.wire.paused) == (False, set())


def test_nothing_waits_any_more_for_a_connection_that_ends_while_its_login_is_checked() -> None:
    dropped, closing = Entrance(), Entrance()
    for entrance in (dropped, closing):
        entrance.log_in()
        entrance.gate.hold(["a"])

    dropped.gate.drop()
    closing.wire.close()
    for entrance in (dropped, closing):
        entrance.background.finish()

    assert dropped.taken == closing.taken == []
    assert not closing.gate.is_shut

"""Memory of unpublished messages of all connections: bounded together, with one connection that can always go on."""

from headrace.core.flow import Holding, Intake
from headrace.errors import HeadraceError

_MIB = 1 << 20


class Client:
    """A connection that does what it is told."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._is_paused = False
        self.refused: HeadraceError | None = None
        self.holding = Holding(self._pause, self._refuse)

    def is_paused(self) -> bool:
        return self._is_paused

    def hold(self, mib: float) -> None:
        self._intake.note(self.holding, round(mib * _MIB))

    def _pause(self, is_paused: bool) -> None:
        self._is_paused = is_paused

    def _refuse(self, error: HeadraceError) -> None:
        self.refused = error
        self.hold(0)


def _clients(count: int) -> tuple[Intake, list[Client]]:
    """Together they may hold 256 MiB; from 128 MiB on that is much."""
    intake = Intake(1 << 30)
    return intake, [Client(intake) for _ in range(count)]


def test_who_began_first_goes_on_and_others_wait_until_there_is_room() -> None:
    _, (first, second, third) = _clients(3)
    first.hold(60)
    second.hold(60)
    third.hold(20)
    assert third.is_paused()
    second.hold(61)
    assert second.is_paused()
    first.hold(100)
    assert not first.is_paused()

    first.hold(0)

    assert not second.is_paused()
    assert not third.is_paused()


def test_small_messages_pass_beside_large_ones() -> None:
    _, (large, small) = _clients(2)
    large.hold(150)

    small.hold(0.01)

    assert not small.is_paused()


def test_when_the_first_is_done_the_next_goes_on_though_there_is_still_much() -> None:
    _, (first, second, third) = _clients(3)
    first.hold(10)
    second.hold(100)
    third.hold(90)
    second.hold(101)
    assert second.is_paused()

    first.hold(0)

    assert not second.is_paused()
    assert third.is_paused()


def test_the_largest_of_the_others_is_ended_where_there_is_too_much() -> None:
    intake, (first, second, third) = _clients(3)
    second.hold(1)
    first.hold(100)
    third.hold(90)

    second.hold(120)

    assert first.refused is not None
    assert "limits.memory_bytes" in str(first.refused)
    assert second.refused is None
    assert intake.size_bytes == 210 * _MIB


def test_one_that_holds_too_much_by_itself_is_ended() -> None:
    intake, (only, small) = _clients(2)
    only.hold(250)
    small.hold(0.01)

    only.hold(257)

    assert only.refused is not None
    assert small.refused is None
    assert intake.size_bytes == small.holding.size_bytes


def test_those_who_send_nothing_are_ended_while_others_wait() -> None:
    intake, (silent, waiting, busy) = _clients(3)
    silent.hold(100)
    busy.hold(10)
    waiting.hold(50)
    assert waiting.is_paused()
    intake.tick(1)

    busy.hold(11)
    intake.tick(6_000_000)

    assert silent.refused is not None
    assert "nothing came" in str(silent.refused)
    assert busy.refused is None
    assert waiting.refused is None
    assert not waiting.is_paused()


def test_nobody_is_ended_for_silence_while_there_is_room() -> None:
    intake, (silent,) = _clients(1)
    silent.hold(100)

    for seconds in range(0, 100, 6):
        intake.tick(seconds * 1_000_000)

    assert silent.refused is None


def test_what_requests_borrow_is_part_of_it() -> None:
    intake, (client,) = _clients(1)
    assert intake.borrow(200 * _MIB)
    assert not intake.borrow(57 * _MIB)
    client.hold(50)

    intake.give_back(200 * _MIB)

    assert intake.size_bytes == 50 * _MIB


def test_the_largest_message_fits_beside_others() -> None:
    intake = Intake(1 << 30)
    assert intake.largest_bytes == 128 * _MIB
    intake.limit(64 * _MIB)
    assert (intake.most_bytes, intake.largest_bytes) == (32 * _MIB, 16 * _MIB)

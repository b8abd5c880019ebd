"""Output leaves in the turn of the work that it comes of, in parts where they are large."""

from collections.abc import Callable

from headrace.net.output import LoopTurn, Output


def _nothing() -> None:
    return


class Loop:
    """Calls in turns, as an event loop does."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.errors: list[Exception] = []
        self.turn = LoopTurn(self.due.append, self.errors.append)

    def step(self) -> None:
        due, self.due[:] = list(self.due), []
        for call in due:
            call()


def test_output_leaves_in_the_turn_of_its_work_and_work_of_work_in_the_next() -> None:
    loop, done = Loop(), list[str]()

    def work() -> None:
        done.append("work")
        loop.turn.add_output(lambda: done.append("output"))
        loop.turn.add(lambda: done.append("more work"))

    loop.turn.add(work)
    loop.step()
    assert done == ["work", "output"]

    loop.step()
    assert done == ["work", "output", "more work"]
    assert not loop.due


def test_output_without_work_leaves_in_the_next_turn_with_the_output_that_it_brings() -> None:
    loop, done = Loop(), list[str]()
    loop.turn.add_output(lambda: loop.turn.add_output(lambda: done.append("output")))
    loop.turn.add_output(lambda: done.append("first"))
    assert len(loop.due) == 1

    loop.step()

    assert done == ["first", "output"]


def test_what_comes_last_follows_the_output_of_the_turn_and_its_own_output_leaves_with_it() -> None:
    loop, done = Loop(), list[str]()

    def last() -> None:
        done.append("last")
        loop.turn.add_output(lambda: done.append("output of the last"))
        loop.turn.add_last(lambda: done.append("last of the next"))

    def work() -> None:
        loop.turn.add_last(last)
        loop.turn.add_output(lambda: done.append("output"))

    loop.turn.add(work)
    loop.step()
    assert done == ["output", "last", "output of the last"]

    loop.step()
    assert done[3:] == ["last of the next"]
    assert not loop.due


def test_a_call_that_fails_stops_no_other() -> None:
    loop, done = Loop(), list[str]()
    error = ValueError("a bug")

    def fail() -> None:
        raise error

    loop.turn.add(fail)
    loop.turn.add(lambda: done.append("work"))
    loop.turn.add_output(fail)
    loop.turn.add_output(lambda: done.append("output"))
    loop.step()

    assert done == ["work", "output"]
    assert loop.errors == [error, error]


def test_large_parts_are_taken_as_they_are() -> None:
    output = Output(1 << 20, _nothing, _nothing)
    large = bytes(64 << 10)
    for part in (b"head", large, b"tail"):
        output.send(part)

    assert output.is_bulky
    assert output.take_parts()[1] is large
    assert not output.size_bytes


def test_small_parts_are_put_together() -> None:
    output = Output(1 << 20, _nothing, _nothing)
    for part in (b"small", b" and ", bytes(1000)):
        output.send(part)

    assert not output.is_bulky
    assert output.take() == b"small and " + bytes(1000)

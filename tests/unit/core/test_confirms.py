"""Confirms of a batch: their order and their outcome."""

from collections.abc import Callable

from headrace.core.batch import Confirms
from headrace.errors import HeadraceError, Unavailable

Told = list[tuple[str, int, HeadraceError | None]]


def row(told: Told, name: str) -> Callable[[int, HeadraceError | None], None]:
    return lambda count, error: told.append((name, count, error))


def one(told: Told, name: str) -> Callable[[HeadraceError | None], None]:
    return lambda error: told.append((name, 1, error))


def test_a_row_of_publishes_is_told_of_in_one_call_and_others_in_their_order() -> None:
    told: Told = []
    confirms = Confirms()
    first, second = row(told, "first"), row(told, "second")

    confirms.add_all(first, 1, False)
    confirms.add_all(first, 3, False)
    confirms.add_all(second, 1, False)
    confirms.add_all(first, 1, False)
    confirms.add(one(told, "alone"))
    confirms.add_all(first, 2, False)
    confirms.tell(None)

    assert told == [("first", 4, None), ("second", 1, None), ("first", 1, None), ("alone", 1, None), ("first", 2, None)]


def test_nobody_is_told_twice() -> None:
    told: Told = []
    confirms = Confirms()
    error = Unavailable("the disk is full")
    tell = row(told, "row")

    confirms.add_all(tell, 2, True)
    confirms.tell(error)
    assert not confirms.waiting
    confirms.tell(None)
    confirms.add_all(tell, 1, True)
    confirms.tell(None)

    assert told == [("row", 2, error), ("row", 1, None)]


def test_one_who_waits_for_the_disk_makes_the_whole_turn_awaited() -> None:
    told: Told = []
    confirms = Confirms()
    tell = row(told, "row")
    seen = [confirms.is_awaited]

    confirms.add(one(told, "not"), is_awaited=False)
    confirms.add_all(tell, 1, False)
    seen.append(confirms.is_awaited)
    confirms.add_all(tell, 1, True)
    seen.append(confirms.is_awaited)
    confirms.tell(None)
    seen.append(confirms.is_awaited)

    assert seen == [False, False, True, False]


def test_those_behind_others_are_told_right_after_them_and_once() -> None:
    told: Told = []
    first, later, last = Confirms(), Confirms(), Confirms()
    error = Unavailable("the disk is full")
    for confirms, name in ((first, "first"), (later, "later"), (last, "last")):
        confirms.add(one(told, name))

    first.tell_behind(later, error)
    first.tell_behind(last, None)
    assert told == []
    first.tell(None)
    first.tell(None)

    assert told == [("first", 1, None), ("later", 1, error), ("last", 1, None)]

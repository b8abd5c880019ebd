"""Random programs of AMQP 0-9-1 operations, here and on RabbitMQ; and the program that compares them."""

import pytest

from tests.differential.amqp_programs import Programs, Step
from tests.differential.comparison import Difference, compare, explained, shorten
from tests.differential.trial import KINDS, PAGE, Kind, trial

PROGRAMS = 200
INSTALLED = [kind for kind in KINDS if kind.peer.find() is not None]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: str(kind.peer.name))
def test_random_programs_show_what_the_peer_shows(kind: Kind) -> None:
    with trial(kind) as running:
        for seed in range(PROGRAMS):
            finding = running.check(seed)
            assert finding is None, str(finding)


def test_a_seed_gives_the_same_program() -> None:
    assert Programs(7).program() == Programs(7).program()
    assert Programs(7).program() != Programs(8).program()


def test_the_first_difference_counts() -> None:
    theirs = [["a"], ["b", "same"], ["c"]]
    ours = [["a"], ["x", "same"], ["y"]]

    assert compare(["one", "two", "three"], theirs, ours) == Difference(1, "two", ("b",), ("x",))
    assert compare(["one", "two", "three"], theirs, theirs) is None


def test_the_same_lines_in_another_order_are_a_difference() -> None:
    found = compare(["one"], [["a", "b"]], [["b", "a"]])

    assert found == Difference(0, "one", ("a", "b"), ("b", "a"))


def test_a_row_of_the_docs_explains_what_it_names_and_nothing_else() -> None:
    rows = explained(PAGE, "AMQP 0-9-1")
    step = "1/1 queue.delete queue='Q1' if_unused=False if_empty=True"
    known = Difference(3, step, ("1/1 Queue.DeleteOk",), ("1/1 Channel.Close ... not empty",))
    others = [
        Difference(3, step, ("1/1 Queue.DeleteOk",), ()),
        Difference(3, step.replace("True", "False"), known.theirs, known.ours),
        Difference(3, step, ("1/1 Basic.GetEmpty",), known.ours),
    ]

    assert any(row.covers(known) for row in rows)
    assert not [each for each in others if any(row.covers(each) for row in rows)]


def test_a_program_is_shortened_to_what_shows_the_difference() -> None:
    program = [Step(name, (1, 1)) for name in ("a", "b", "c", "d")]

    shorter = shorten(program, lambda steps: {"b", "d"} <= {step.name for step in steps})

    assert [step.name for step in shorter] == ["b", "d"]

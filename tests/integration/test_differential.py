"""Random programs of AMQP 0-9-1 operations, here and on RabbitMQ; and the program that compares them."""

import pytest

from tests.differential.amqp_programs import CLASSIC, QUORUM, STREAM, Programs, Step
from tests.differential.comparison import Difference, compare, explained, shorten
from tests.differential.trial import KINDS, PAGE, Kind, trial

PROGRAMS = {"AMQP 0-9-1": 200}
_FEW = 40
"""RabbitMQ takes a second for a program with quorum queues or streams."""
INSTALLED = [kind for kind in KINDS if kind.peer.find() is not None]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", INSTALLED, ids=lambda kind: f"{kind.name}-{kind.peer.name}")
def test_random_programs_show_what_the_peer_shows(kind: Kind) -> None:
    with trial(kind) as running:
        for seed in range(PROGRAMS.get(kind.name, _FEW)):
            finding = running.check(seed)
            assert finding is None, str(finding)


@pytest.mark.parametrize("kind", [CLASSIC, QUORUM, STREAM])
def test_a_seed_gives_the_same_program(kind: str) -> None:
    assert Programs(7, kind).program() == Programs(7, kind).program()
    assert Programs(7, kind).program() != Programs(8, kind).program()


@pytest.mark.parametrize("kind", [QUORUM, STREAM])
def test_programs_are_about_queues_of_their_type(kind: str) -> None:
    steps = [step for seed in range(20) for step in Programs(seed, kind).program()[:1]]

    assert {step.fields["arguments"]["x-queue-type"] for step in steps} == {kind}


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

"""What a client is told would survive a power loss by then: every answer of every protocol, while syncs are held back.

An answer that is new in the code and has no decision in tests/answers fails here.
"""

from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.answers import amqp091, amqp10, coap, embedded, http, mqtt, stomp, streams
from tests.answers.decisions import NotPromised, Place, Synced

PROTOCOLS: list[ModuleType] = [amqp091, amqp10, mqtt, stomp, streams, coap, http, embedded]


def _named(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2]


_SYNCED = [
    pytest.param(decision, id=f"{_named(module)}: {name}")
    for module in PROTOCOLS
    for name, decision in module.ANSWERS.items()
    if isinstance(decision, Synced)
]
_UNSYNCED = [
    pytest.param(decision, id=f"{_named(module)}: {name}")
    for module in PROTOCOLS
    for name, decision in module.ANSWERS.items()
    if isinstance(decision, NotPromised) and decision.prepare is not None
]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("place"))
    yield place
    place.close()


@pytest.fixture
def place(running: Place) -> Iterator[Place]:
    yield running
    running.tidy()


@pytest.mark.parametrize("module", PROTOCOLS, ids=_named)
def test_of_every_answer_it_is_decided_whether_it_is_synced_before_it_is_sent(module: ModuleType) -> None:
    decided = {name.partition(" of ")[0] for name in module.ANSWERS}

    assert module.in_the_code() - decided == set(), "answers without a decision: see tests/answers"
    assert decided - module.in_the_code() == set(), "decisions on what is answered no more"
    for decision in module.ANSWERS.values():
        assert isinstance(decision, Synced) or len(decision.why.split()) > 3


@pytest.mark.parametrize("decision", _SYNCED)
def test_an_answer_with_a_promise_waits_for_the_sync(place: Place, decision: Synced) -> None:
    request = decision.prepare(place)

    assert place.is_synced_first(request), "the answer came before anything was synced"


@pytest.mark.parametrize("decision", _UNSYNCED)
def test_an_answer_without_a_promise_waits_for_no_sync(place: Place, decision: NotPromised) -> None:
    assert decision.prepare is not None
    request = decision.prepare(place)

    assert place.comes_unsynced(request)

"""Answers of AMQP 1.0 that promise durable state wait for it, in order. Other sessions do not wait."""

import pytest

from headrace.errors import Unavailable
from headrace.protocols.amqp10.codec import Event
from headrace.protocols.amqp10.frames import RECEIVER_SECOND
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    NEVER,
    UNSETTLED_STATE,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Transfer,
)
from headrace.wire.amqp10 import Head
from headrace.wire.types import Map
from tests.amqp10_client import body, credit, receiver, sender, transfer
from tests.amqp10_harness import Caller, Office, only
from tests.refusing_engine import RefusingEngine


@pytest.fixture
def engine() -> RefusingEngine:
    return RefusingEngine()


@pytest.fixture
def caller(engine: RefusingEngine) -> Caller:
    office = Office(engine)
    made = office.connect()
    office.house.run()
    engine.is_closed_door = True
    return made


def _kinds(events: list[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def _opened(engine: RefusingEngine, caller: Caller) -> list[str]:
    engine.open_door()
    return _kinds(caller.heard())


def _new_queue(name: str = "new", handle: int = 0) -> Attach:
    attach = sender("s", name, handle)
    assert attach.target is not None
    attach.target.capabilities = ["queue"]
    return attach


def _subscription() -> Attach:
    attach = receiver("r", "news/today")
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = UNSETTLED_STATE, NEVER
    return attach


def test_a_link_whose_queue_is_made_for_it_is_there_once_the_queue_is_kept(
    engine: RefusingEngine, caller: Caller
) -> None:
    assert caller.say(_new_queue()) == []
    assert _opened(engine, caller) == ["Attach", "Flow"]


def test_a_durable_subscription_is_there_once_it_is_kept_and_gone_once_that_is(
    engine: RefusingEngine, caller: Caller
) -> None:
    assert caller.say(_subscription()) == []
    assert _opened(engine, caller) == ["Attach"]
    engine.is_closed_door = True
    assert caller.say(Detach(0, True)) == []
    assert _opened(engine, caller) == ["Detach"]


def test_a_link_to_what_is_there_does_not_wait(engine: RefusingEngine, caller: Caller) -> None:
    assert _kinds(caller.say(sender("s", "q"))) == ["Attach", "Flow"]


def test_what_follows_in_the_session_waits_in_order_and_another_session_does_not(
    engine: RefusingEngine, caller: Caller
) -> None:
    caller.say(receiver("r", "q", 7), credit(7, 10))
    other = Begin(None, 0, 1000, 1000)
    other.channel = 1

    assert caller.say(_new_queue()) == []
    assert caller.say(transfer(0, body("x"))) == []
    assert _kinds(caller.say(other)) == ["Begin"]

    assert _opened(engine, caller) == ["Attach", "Flow", "Disposition"]


def test_deliveries_wait_as_long_as_answers_do(engine: RefusingEngine, caller: Caller) -> None:
    engine.open_door()
    caller.say(receiver("r", "q", 7), credit(7, 10))
    engine.is_closed_door = True
    caller.say(_new_queue("n"))
    caller.say(sender("t", "q", 3), transfer(0, body("x"), 3))

    events = _opened(engine, caller)

    assert events.index("Attach") < events.index("Transfer")


def test_a_declaration_that_cannot_be_stored_ends_the_session_with_the_reason(
    engine: RefusingEngine, caller: Caller
) -> None:
    engine.failure, engine.fails_all = Unavailable("the store is away"), True
    (end,) = only(End, caller.say(_new_queue()))
    assert end.error is not None
    assert "the store is away" in str(end.error.description)


def _request(operation: str) -> bytes:
    head = Head()
    head.properties = ["1", None, None, None, "$me"]
    head.application = Map([("operation", operation), ("type", "queue"), ("name", "managed")])
    return head.encode() + body(Map([]))


@pytest.mark.parametrize(("is_away", "status"), [(False, b"created"), (True, b"the store is away")])
def test_management_answers_once_what_was_asked_for_is_kept(
    engine: RefusingEngine, caller: Caller, is_away: bool, status: bytes
) -> None:
    engine.open_door()
    caller.say(sender("m", "$management", 1), receiver("m", "$management", 2), credit(2, 10))
    engine.is_closed_door = True
    assert caller.say(transfer(0, _request("CREATE"), 1)) == []
    if is_away:
        engine.failure, engine.fails_all = Unavailable("the store is away"), True

    engine.open_door()
    events = caller.heard()

    (reply,) = only(Transfer, events)
    assert status in reply.payload
    assert len(only(Disposition, events)) == 1


def test_a_receiver_that_settles_second_hears_of_each_outcome_once_that_one_is_stored(
    engine: RefusingEngine, caller: Caller
) -> None:
    engine.open_door()
    attach = receiver("r", "q")
    attach.receiver_settles = RECEIVER_SECOND
    caller.say(sender("s", "q", 1), transfer(0, body("first"), 1), transfer(1, body("second"), 1))
    first, second = only(Transfer, caller.say(attach, credit(0, 2)))
    engine.is_closed_door = True
    assert caller.say(Disposition(0, True, first.id, first.id, False, ACCEPTED)) == []
    assert caller.say(Disposition(0, True, second.id, second.id, False, ACCEPTED)) == []

    engine.open_door()
    engine.is_closed_door = True
    (told,) = only(Disposition, caller.heard())
    assert (told.first, told.last, told.settled) == (first.id, first.id, True)

    engine.open_door()
    (told,) = only(Disposition, caller.heard())
    assert (told.first, told.last, told.settled) == (second.id, second.id, True)

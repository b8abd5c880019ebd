"""Refusals, bounds and durable state of a connection of AMQP 1.0, seen in its frames."""

from headrace.core.access.permissions import Permission
from headrace.core.access.users import Limits
from headrace.core.queue.definition import QueueDefinition
from headrace.errors import HeadraceError
from headrace.protocols.amqp10.frames import LINK_CREDIT, RECEIVER_SECOND
from headrace.protocols.amqp10.performatives import (
    ACCEPTED,
    NEVER,
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declared,
    Detach,
    Disposition,
    End,
    Flow,
    Rejected,
    Transactional,
    Transfer,
)
from headrace.wire.amqp10 import Head
from headrace.wire.amqp10_values import encode_value
from headrace.wire.types import Described, ULong
from tests.amqp10_client import body, credit, receiver, sender, transfer
from tests.amqp10_harness import Caller, Office, only


def _well(error: HeadraceError | None) -> None:
    assert error is None


def _permit(office: Office, configure: str, write: str, read: str) -> None:
    office.access.put_permission(Permission("guest", "/", configure, write, read), _well)


def _condition(events: list[object]) -> str:
    (error,) = [event.error for event in events if isinstance(event, Detach | End | Close)]
    return "" if error is None else error.condition


# -- rights ----------------------------------------------------------------------------------------------------------


def test_who_may_not_read_a_queue_is_not_attached_to_it() -> None:
    office = Office()
    _permit(office, "", ".*", "^other$")

    events = office.connect().say(receiver("r", "q"))

    assert _condition(list(events)) == "amqp:unauthorized-access"


def test_who_may_not_write_hears_so_for_each_message() -> None:
    office = Office()
    _permit(office, "", "^other$", ".*")

    (told,) = only(Disposition, office.connect().say(sender("s", "q"), transfer(0, body("x"))))

    assert isinstance(told.state, Rejected)
    assert told.state.error is not None
    assert told.state.error.condition == "amqp:unauthorized-access"
    assert office.house.broker.queue("q").messages == 0


def test_a_message_that_is_too_large_for_its_queue_is_rejected_by_the_name_the_specification_has_for_it() -> None:
    office = Office()
    office.house.broker.declare(QueueDefinition("narrow", max_message_bytes=10))

    (told,) = only(Disposition, office.connect().say(sender("s", "narrow"), transfer(0, body("x" * 100))))

    assert isinstance(told.state, Rejected)
    assert told.state.error is not None
    assert told.state.error.condition == "amqp:link:message-size-exceeded"


def test_who_may_not_configure_gets_no_queue_made() -> None:
    office = Office()
    _permit(office, "", ".*", ".*")
    attach = sender("s", "new")
    assert attach.target is not None
    attach.target.capabilities = ["queue"]

    assert _condition(list(office.connect().say(attach))) == "amqp:unauthorized-access"
    assert "new" not in office.house.broker.topology.queues


def test_a_user_has_no_more_sessions_than_it_may_have() -> None:
    office = Office()
    office.access.set_limits("guest", Limits(max_channels=1), _well)
    more = Begin(None, 0, 1, 1)
    more.channel = 1

    events = office.connect().say(more)

    assert _condition(list(events)) == "amqp:resource-limit-exceeded"


def test_a_message_larger_than_the_user_may_send_is_rejected() -> None:
    office = Office()
    office.access.set_limits("guest", Limits(max_message_bytes=10), _well)

    (told,) = only(Disposition, office.connect().say(sender("s", "q"), transfer(0, body("x" * 50))))

    assert isinstance(told.state, Rejected)
    assert told.state.error is not None
    assert told.state.error.condition == "amqp:link:message-size-exceeded"


def test_a_user_that_is_removed_is_disconnected() -> None:
    office = Office()
    caller = office.connect()
    caller.heard()
    office.access.delete_user("guest", _well)

    assert _condition(list(caller.heard())) == "amqp:connection:forced"


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_sender_that_never_settles_gets_no_more_credit_until_it_does() -> None:
    office = Office()
    caller = office.connect()
    attach = sender("s", "q")
    attach.receiver_settles = RECEIVER_SECOND
    given = 0
    sent = 0
    events = caller.say(attach)
    while flows := [flow for flow in only(Flow, events) if flow.link_credit]:
        given = (flows[-1].delivery_count or 0) + LINK_CREDIT
        events = []
        while sent < given:
            events += caller.say(transfer(sent, b"\x00\x53\x75\xa0\x00", tag=sent.to_bytes(4)))
            sent += 1
    events = caller.say(Disposition(0, False, 0, sent - 1, True, ACCEPTED))

    assert sent < 12_000
    assert only(Flow, events)


def _coordinated(caller: Caller) -> bytes:
    attach = Attach("c", 9, False)
    attach.target = Coordinator([])
    declare = b"\x00\x53\x77" + encode_value(Described(ULong(0x31), []))
    (told,) = only(Disposition, caller.say(attach, transfer(0, declare, handle=9)))
    assert isinstance(told.state, Declared)
    return told.state.transaction


def _discharge(name: bytes, fail: bool) -> bytes:
    return b"\x00\x53\x77" + encode_value(Described(ULong(0x32), [name, fail]))


def test_a_transaction_settles_what_it_took_when_it_is_committed() -> None:
    office = Office()
    office.house.publish("q", "one", "two")
    caller = office.connect()
    name = _coordinated(caller)
    caller.say(receiver("r", "q"), credit(0, 2))
    caller.say(Disposition(0, True, 0, 0, False, Transactional(name, ACCEPTED)))
    assert office.house.broker.queue("q").unsettled == 2

    events = caller.say(transfer(1, _discharge(name, False), handle=9))

    told = {event.is_receiver: event for event in only(Disposition, events)}
    assert isinstance(told[True].state, Accepted)
    assert (told[False].first, told[False].settled) == (0, True)
    assert office.house.broker.queue("q").unsettled == 1


def test_an_unknown_transaction_is_rejected() -> None:
    caller = Office().connect()
    _coordinated(caller)

    (told,) = only(Disposition, caller.say(transfer(1, _discharge(b"none", False), handle=9)))

    assert isinstance(told.state, Rejected)
    assert told.state.error is not None
    assert told.state.error.condition == "amqp:transaction:unknown-id"


def test_an_open_transaction_ends_with_its_connection() -> None:
    office = Office()
    office.house.publish("q", "one")
    caller = office.connect()
    name = _coordinated(caller)
    caller.say(receiver("r", "q"), credit(0, 1), sender("s", "q", 1))
    caller.say(
        Disposition(0, True, 0, 0, True, Transactional(name, ACCEPTED)),
        transfer(1, body("new"), handle=1, state=Transactional(name)),
    )
    caller.lose()

    assert office.house.broker.queue("q").messages == 1
    assert office.house.consume("q").payloads == ["one"]


# -- state that outlives a link --------------------------------------------------------------------------------------


def _durable() -> Attach:
    attach = receiver("sub", "news/#")
    assert attach.source is not None
    attach.source.durable = 2
    attach.source.expiry_policy = NEVER
    return attach


def test_a_durable_subscription_that_is_stolen_keeps_its_queue_and_its_messages() -> None:
    office = Office()
    caller = office.connect("laptop")
    again = _durable()
    again.handle = 1
    caller.say(_durable())
    office.house.publish_topic("news/today", "one")

    events = caller.say(again, credit(1, 5))

    assert _condition([event for event in events if isinstance(event, Detach)]) == "amqp:link:stolen"
    assert [piece.handle for piece in only(Transfer, events)] == [1]


def test_a_subscription_goes_with_its_connection_unless_it_is_to_stay() -> None:
    office = Office()
    caller = office.connect("laptop")
    caller.say(_durable(), receiver("other", "news/#", 1))
    assert len(office.house.broker.topology.queues) == 3
    caller.lose()

    assert sorted(office.house.broker.topology.queues) == ["laptop:sub", "q"]


def test_a_durable_subscription_is_looked_up_without_a_source_and_ended_by_closing() -> None:
    office = Office()
    office.connect("laptop").say(_durable())
    caller = office.connect("laptop")
    lookup = Attach("sub", 0, True)
    (answer,) = only(Attach, caller.say(lookup))
    assert answer.source is not None
    assert (answer.source.durable, answer.source.expiry_policy) == (2, NEVER)
    caller.say(Detach(0, True))

    assert "laptop:sub" not in office.house.broker.topology.queues
    assert _condition([event for event in caller.say(lookup) if isinstance(event, Detach)]) == "amqp:not-found"


def test_a_subscription_is_kept_for_its_timeout_and_not_longer() -> None:
    office = Office()
    caller = office.connect("laptop")
    attach = receiver("sub", "news/#")
    assert attach.source is not None
    attach.source.timeout = 30
    caller.say(attach)
    caller.lose()
    office.house.publish_topic("news/today", "one")
    office.house.advance(29)
    caller = office.connect("laptop")
    assert len(only(Transfer, caller.say(attach, credit(0, 1)))) == 1
    caller.lose()
    office.house.advance(31)

    assert sorted(office.house.broker.topology.queues) == ["q"]


def test_a_link_that_may_come_back_gives_back_what_was_unsettled() -> None:
    office = Office()
    office.house.publish("q", "one")
    caller = office.connect()
    attach = receiver("r", "q")
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = 2, NEVER
    caller.say(attach, credit(0, 1))
    assert office.house.broker.queue("q").unsettled == 1
    caller.lose()

    assert office.house.broker.queue("q").unsettled == 0
    assert office.house.consume("q").payloads == ["one"]


def test_a_durable_source_goes_with_its_queue() -> None:
    office = Office()
    caller = office.connect()
    attach = receiver("r", "q")
    assert attach.source is not None
    attach.source.durable, attach.source.expiry_policy = 1, NEVER
    caller.say(attach)
    assert len(office.house.broker.protocol_store.items()) == 1
    office.house.broker.delete("q")

    assert _condition([event for event in caller.heard() if isinstance(event, Detach)]) == "amqp:resource-deleted"
    assert office.house.broker.protocol_store.items() == []


def test_a_virtual_host_that_goes_takes_its_connections_along() -> None:
    office = Office()
    caller = office.connect()
    caller.heard()
    office.house.broker.administration.dissolve(lambda _: None)

    assert _condition(list(caller.heard())) == "amqp:connection:forced"


def test_drain_ends_though_another_queue_has_more() -> None:
    office = Office()
    office.house.broker.declare(QueueDefinition("busy"))
    office.house.publish("busy", *[str(number) for number in range(50)])
    caller = office.connect()
    caller.say(receiver("b", "busy", 1), credit(1, 10), receiver("r", "q"))

    events = caller.say(credit(0, 5, next_incoming_id=10, drain=True))

    (drained,) = [flow for flow in only(Flow, events) if flow.handle == 0]
    assert (drained.delivery_count, drained.link_credit) == (5, 0)


# -- users -----------------------------------------------------------------------------------------------------------


def _signed(user: str, text: str) -> bytes:
    head = Head()
    head.properties = [None, user.encode()]
    return head.encode() + body(text)


def test_a_message_that_names_another_user_is_rejected_except_of_impersonators() -> None:
    office = Office()
    caller = office.connect()
    caller.say(sender("s", "q"))

    told = only(Disposition, caller.say(transfer(0, _signed("guest", "mine")), transfer(1, _signed("ann", "not mine"))))
    assert [type(each.state) for each in told] == [Accepted, Rejected]
    assert isinstance(told[1].state, Rejected)
    assert told[1].state.error is not None
    assert told[1].state.error.condition == "amqp:unauthorized-access"

    office.access.put_user("guest", None, ["impersonator"], _well)
    (told_later,) = only(Disposition, caller.say(transfer(2, _signed("ann", "in the name of"))))
    assert isinstance(told_later.state, Accepted)

    office.access.put_user("guest", None, [], _well)
    (told_last,) = only(Disposition, caller.say(transfer(3, _signed("ann", "not any more"))))
    assert isinstance(told_last.state, Rejected)
    assert office.house.broker.queue("q").messages == 2

"""Transfers and dispositions that come in one read are handled together, with the outcome that each has alone."""

from headrace.core.access.permissions import Permission
from headrace.core.queue.definition import QueueDefinition
from headrace.errors import HeadraceError
from headrace.protocols.amqp10.performatives import ACCEPTED, Accepted, Disposition, Flow, Rejected, Released, Transfer
from headrace.wire.amqp10 import Head
from headrace.wire.types import UByte, UInt
from tests.amqp10_client import body, credit, receiver, sender, transfer
from tests.amqp10_harness import Caller, Office, only


def _well(error: HeadraceError | None) -> None:
    assert error is None


def _headed(text: str, header: list[object]) -> bytes:
    head = Head()
    head.header = header
    return head.encode() + body(text)


def _outcomes(events: list[Disposition]) -> list[tuple[int, int, str]]:
    return [(event.first, event.last, type(event.state).__name__) for event in events]


def test_messages_of_one_read_are_stored_in_order_whatever_their_heads_decide() -> None:
    office = Office()
    inbox = office.house.consume("q", "reader")
    caller = office.connect()
    caller.say(sender("one", "q", 0), sender("two", "q", 1))

    told = caller.say_at_once(
        transfer(0, body("0")),
        transfer(1, _headed("1", [True, UByte(9)])),
        transfer(2, _headed("2", [True, None, UInt(60_000)])),
        transfer(3, body("3"), 1),
        transfer(4, body("4"), 1, settled=True),
        transfer(5, body("5"), 0),
    )

    assert inbox.payloads == ["0", "1", "2", "3", "4", "5"]
    assert [delivery.message.priority for delivery in inbox.got] == [4, 9, 4, 4, 4, 4]
    assert [bool(delivery.message.expires_us) for delivery in inbox.got] == [False, False, True, False, False, False]
    settled = {
        number for event in only(Disposition, told) for number in range(event.first, event.last + 1) if event.settled
    }
    assert settled == {0, 1, 2, 3, 5}


def test_each_message_of_a_row_hears_what_became_of_it() -> None:
    office = Office()
    office.house.broker.declare(QueueDefinition("small", max_message_bytes=10))
    caller = office.connect()
    caller.say(sender("s", "small"), sender("nowhere", "/exchanges/amq.direct/key", 1))

    told = caller.say_at_once(
        transfer(0, body("a")), transfer(1, body("b" * 20)), transfer(2, body("c")), transfer(3, body("d"), 1)
    )

    assert _outcomes(only(Disposition, told)) == [
        (0, 0, Accepted.__name__),
        (1, 1, Rejected.__name__),
        (2, 2, Accepted.__name__),
        (3, 3, Released.__name__),
    ]


def test_messages_before_one_that_ends_its_link_are_published() -> None:
    office = Office()
    inbox = office.house.consume("q", "reader")
    caller = office.connect()
    caller.say(sender("s", "q"))

    caller.say_at_once(transfer(0, body("0")), transfer(1, body("1")), transfer(-1, body("no number")))

    assert inbox.payloads == ["0", "1"]


def test_rights_that_go_hold_for_the_next_row() -> None:
    office = Office()
    caller = office.connect()
    caller.say(sender("s", "q"))
    office.access.put_permission(Permission("guest", "/", "", "^other$", ".*"), _well)

    told = caller.say_at_once(transfer(0, body("0")), transfer(1, body("1")))

    assert _outcomes(only(Disposition, told)) == [(0, 0, Rejected.__name__), (1, 1, Rejected.__name__)]
    assert office.house.broker.queue("q").messages == 0


def _accepted(number: int) -> Disposition:
    return Disposition(0, True, number, number, True, ACCEPTED)


def _with_deliveries(office: Office, count: int) -> tuple[Caller, list[Transfer]]:
    office.house.publish("q", *[str(number) for number in range(count)])
    caller = office.connect()
    return caller, only(Transfer, caller.say(receiver("r", "q"), credit(0, count)))


def test_dispositions_of_neighbours_settle_what_they_name_and_no_more() -> None:
    office = Office()
    caller, deliveries = _with_deliveries(office, 10)
    numbers = [delivery.id for delivery in deliveries]

    caller.say_at_once(*[_accepted(number) for number in (*numbers[:3], *numbers[4:7])], _accepted(numbers[0]))
    queue = office.house.broker.queue("q")

    assert queue.unsettled == 4
    caller.break_off()
    office.house.run()
    assert office.house.consume("q", "other").payloads == ["3", "7", "8", "9"]


def test_a_question_between_dispositions_is_answered_in_its_place() -> None:
    office = Office()
    caller, deliveries = _with_deliveries(office, 2)
    question = credit(0, 5, echo=True)
    question.delivery_count = 2

    answers = caller.say_at_once(_accepted(deliveries[0].id), question, _accepted(deliveries[1].id))

    assert len(only(Flow, answers)) == 1
    assert office.house.broker.queue("q").unsettled == 0

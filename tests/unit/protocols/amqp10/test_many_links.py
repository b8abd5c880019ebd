"""Connections with very many links or unsettled deliveries end a bounded part of them in each turn."""

from headrace.core.pipeline import AT_ONCE
from headrace.protocols.amqp10.performatives import Begin, Detach
from tests.amqp10_client import credit, receiver
from tests.amqp10_harness import Caller, Office, only
from tests.unit.core.test_steps import most_per_turn

COUNT = 3 * AT_ONCE


def many(office: Office) -> Caller:
    caller = office.connect()
    for number in range(COUNT):
        attach = receiver(f"r{number}", "q")
        attach.handle = number
        caller.say(attach)
    return caller


def test_a_connection_with_very_many_links_ends_a_bounded_number_in_each_turn() -> None:
    office = Office()
    caller = many(office)
    queue = office.house.broker.queue("q")
    assert queue.consumers == COUNT

    caller.break_off()

    assert queue.consumers == COUNT - AT_ONCE
    assert most_per_turn(office.house, lambda: queue.consumers) <= AT_ONCE
    assert queue.consumers == 0


def test_links_of_a_connection_that_is_gone_get_nothing_more_while_they_end() -> None:
    office = Office()
    caller = many(office)
    for number in range(COUNT):
        caller.say(credit(number, 10))
    other = office.house.consume("q", "other")

    caller.break_off()
    office.house.publish("q", *[str(number) for number in range(COUNT)])

    assert other.payloads == [str(number) for number in range(COUNT)]
    assert not any(delivery.redelivered for delivery in other.got)


def test_a_link_with_very_much_unsettled_gives_it_back_in_steps_and_in_order() -> None:
    office = Office()
    office.house.publish("q", *[str(number) for number in range(3000)])
    caller = office.connect()
    begin, attach, allow = Begin(None, 0, 5000, 5000), receiver("r", "q"), credit(0, 3000)
    begin.channel = attach.channel = allow.channel = 1
    allow.incoming_window = 5000
    caller.say(begin, attach, allow)
    queue = office.house.broker.queue("q")
    assert queue.unsettled == 3000

    caller.break_off()

    assert queue.unsettled == 2500
    assert most_per_turn(office.house, lambda: queue.unsettled) <= 500
    assert office.house.consume("q", "other").payloads == [str(number) for number in range(3000)]


def test_a_name_can_be_used_again_by_a_link_after_its_link_was_detached() -> None:
    office = Office()
    caller = office.connect()
    caller.say(receiver("r", "q"))
    caller.say(Detach(0, True))
    again = receiver("r", "q")
    again.handle = 1

    events = caller.say(again)

    assert not only(Detach, events)
    assert office.house.broker.queue("q").consumers == 1

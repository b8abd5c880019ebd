"""What holds for a message to a topic, whichever way it came."""

import pytest

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Permission, Rights, TopicPermission
from headrace.core.access.users import Limits, User
from headrace.core.client import Client
from headrace.core.queue.definition import QueueDefinition
from headrace.errors import AccessRefused, HeadraceError, Refused, TooLarge, Unavailable
from headrace.model import NATIVE
from tests.house import House


def publisher(house: House, write: str = ".*", topics: str | None = None, limits: Limits | None = None) -> Client:
    rights = Rights("ann", "/")
    bounds = {} if topics is None else {"amq.topic": TopicPermission("ann", "/", "amq.topic", topics, ".*")}
    rights.grant(Permission("ann", "/", "", write, ""), bounds)
    account = Account(User("ann", limits=limits or Limits()))
    return Client(house.broker, account, rights, "client-1", "http", NATIVE)


def test_a_message_to_a_queue_is_confirmed_once_it_is_stored() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders", durable=True))
    confirmed: list[HeadraceError | None] = []

    taken = publisher(house).publish_topic("$queue/orders/eu", b"1", house.clock.now_us(), confirm=confirmed.append)
    assert (taken, confirmed) == (1, [])
    house.run()

    assert confirmed == [None]
    (delivery,) = house.consume("orders").got
    source = delivery.message.source
    assert (source.topic, source.client_id, source.protocol) == ("$queue/orders/eu", "client-1", "http")


def test_a_message_runs_out_when_its_expiry_says() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders", durable=True))
    writer = publisher(house)
    for expiry in (5, 50, None):
        writer.publish_topic("$queue/orders", str(expiry).encode(), house.clock.now_us(), expiry_seconds=expiry)
    house.run()

    house.advance(10)

    assert house.consume("orders").payloads == ["50", "None"]


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "nul\0", "$queue/", "$queue/orders/$ack"])
def test_what_is_no_topic_is_refused(topic: str) -> None:
    house = House()

    with pytest.raises(Refused):
        publisher(house).publish_topic(topic, b"", house.clock.now_us())


@pytest.mark.parametrize("topic", ["$SYS/broker/uptime", "$share/group/a", "$dlq/orders", "$"])
def test_topics_of_the_server_are_not_published_to(topic: str) -> None:
    house = House()

    with pytest.raises(AccessRefused, match="the server's"):
        publisher(house).publish_topic(topic, b"", house.clock.now_us())


def test_a_user_publishes_where_it_may_write() -> None:
    house = House()
    writer = publisher(house, "^(amq.topic|orders)$", r"^plant\.")
    now_us = house.clock.now_us()

    writer.publish_topic("plant/1", b"", now_us)
    writer.publish_topic("$queue/orders/eu", b"", now_us)
    for topic in ("office/1", "$queue/invoices"):
        with pytest.raises(AccessRefused):
            writer.publish_topic(topic, b"", now_us)


def test_rights_that_are_taken_away_count_for_topics_that_were_published_to_before() -> None:
    house = House()
    rights = Rights("ann", "/")
    rights.grant(Permission("ann", "/", "", ".*", ""), {})
    writer = Client(house.broker, Account(User("ann")), rights, "c", "http", NATIVE)
    writer.publish_topic("plant/1", b"", house.clock.now_us())

    rights.grant(None, {})

    with pytest.raises(AccessRefused):
        writer.publish_topic("plant/1", b"", house.clock.now_us())


def test_a_message_larger_than_the_user_may_send_is_refused() -> None:
    house = House()
    writer = publisher(house, limits=Limits(max_message_bytes=10))

    writer.publish_topic("a", b"x" * 10, house.clock.now_us())
    with pytest.raises(TooLarge):
        writer.publish_topic("a", b"x" * 11, house.clock.now_us())


def test_a_user_that_publishes_too_fast_is_told_so_and_may_go_on_later() -> None:
    house = House()
    writer = publisher(house, limits=Limits(max_message_rate=10))

    for _ in range(11):
        writer.check_rate(house.clock.monotonic_us())
    with pytest.raises(Unavailable, match="too fast"):
        writer.check_rate(house.clock.monotonic_us())
    house.advance(1)
    writer.check_rate(house.clock.monotonic_us())


def test_any_number_of_topics_can_be_published_to() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders", durable=True))
    writer = publisher(house)

    for number in range(1000):
        writer.publish_topic(f"$queue/orders/{number}", b"", house.clock.now_us())
    house.run()

    topics = [delivery.message.source.topic for delivery in house.consume("orders").got]
    assert topics == [f"$queue/orders/{number}" for number in range(1000)]

"""One connection of any protocol: topics, flow, rate, rights, and the meaning of subscriptions."""

import pytest

from headrace.core.access.logins import Account
from headrace.core.access.permissions import Permission, Rights, TopicPermission
from headrace.core.access.users import Limits, User
from headrace.core.client import Client, ConsumeRequest, insider
from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.core.queue.dispatch import Consumer
from headrace.core.queue.queue import DEFAULT_GROUP
from headrace.errors import AccessRefused, HeadraceError, PreconditionFailed, Refused, TooLarge, Unavailable
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


# -- connections -------------------------------------------------------------------------------------------------------


def test_a_user_has_no_more_connections_than_it_may_have() -> None:
    house = House()
    first = publisher(house, limits=Limits(max_connections=1))
    second = Client(house.broker, first.account, first.rights, "client-2", "http", NATIVE)

    assert first.connect(lambda _: None, lambda _: None)
    assert not second.connect(lambda _: None, lambda _: None)
    first.leave()
    first.leave()

    assert second.connect(lambda _: None, lambda _: None)
    assert first.account.connections == 1


def test_only_publishers_are_told_to_wait_and_each_change_once() -> None:
    house = House()
    told: list[bool] = []
    client = publisher(house)
    client.connect(told.append, lambda _: None)
    assert client not in house.broker.on_flow

    client.begin_publishing()
    for is_blocked in (True, True, False):
        house.broker.on_flow[client](is_blocked)
    client.leave()

    assert told == [True, False]
    assert client not in house.broker.on_flow


def test_a_connection_learns_why_it_must_end() -> None:
    house = House()
    told: list[str] = []
    client = publisher(house)
    client.connect(lambda _: None, told.append)

    client.account.end("user 'ann' is deleted")
    for end in list(house.broker.on_ended.values()):
        end("vhost '/' is deleted")

    assert told == ["user 'ann' is deleted", "vhost '/' is deleted"]


def test_exclusive_queues_go_with_their_connection() -> None:
    house = House()
    client = publisher(house)
    client.connect(lambda _: None, lambda _: None)
    house.broker.declare(QueueDefinition("mine", durable=False, exclusive=True), client.owner)

    client.leave()
    house.run()

    assert "mine" not in house.broker.topology.queues


def test_a_renewed_login_takes_the_place_of_the_former_one() -> None:
    house = House()
    told: list[str] = []
    changed: list[str] = []
    client = publisher(house)
    former = client.account
    client.connect(lambda _: None, told.append, lambda: changed.append("rights"))
    account, rights = Account(User("ann")), Rights("ann", "/")

    client.renew(account, rights, 0)
    former.end("gone")
    account.end("the token expired")
    rights.tell()

    assert (told, changed) == (["the token expired"], ["rights"])
    assert (former.connections, account.connections) == (0, 1)


def test_messages_are_charged_to_the_user_since_the_last_call() -> None:
    house = House()
    client = publisher(house, limits=Limits(max_message_rate=10))
    client.published = 30

    assert client.meter(0) > 0
    assert client.published == 0


# -- what a subscription means -----------------------------------------------------------------------------------------


def reader(house: House, read: str = ".*") -> Client:
    rights = Rights("ann", "/")
    rights.grant(Permission("ann", "/", "", "", read), {})
    return Client(house.broker, Account(User("ann")), rights, "client-1", "http", NATIVE)


def test_a_queue_without_a_group_is_read_in_the_group_that_all_share() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders"))

    plan = reader(house).resolve(ConsumeRequest("orders"))

    assert (plan.queue.name, plan.group, plan.key_filter) == ("orders", DEFAULT_GROUP, "")
    assert (plan.is_stream, plan.is_addressed, plan.forgets_group) == (False, False, False)


def test_an_address_names_a_queue_and_a_filter_and_makes_the_queue() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders"))

    plan = reader(house).resolve(ConsumeRequest("$queue/new/eu/#", True, "billing"))

    assert (plan.queue.name, plan.group, plan.key_filter) == ("new", "billing", "eu/#")
    assert plan.is_addressed


def test_a_queue_is_read_by_users_who_may_only() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders"))
    client = reader(house, "^orders$")
    plan = client.resolve(ConsumeRequest("orders"))
    for request in (ConsumeRequest("bills"), ConsumeRequest("$queue/bills", True)):
        with pytest.raises(AccessRefused):
            client.resolve(request)
    assert client.may_read(plan)

    client.rights.grant(None, {})

    assert not client.may_read(plan)


def test_a_stream_reader_without_a_group_has_its_own_and_shares_it_with_nobody() -> None:
    house = House()
    house.broker.declare(QueueDefinition("s", STREAM))
    client = reader(house)
    request = ConsumeRequest("s")
    request.own_group = "tag"

    first = client.resolve(request)
    consumer = Consumer("first", lambda _: None)
    client.consume(first, consumer)
    second = client.resolve(request)

    assert first.is_stream
    assert (first.group, first.forgets_group) == ("tag", False)
    assert second.group.startswith("tag-")
    assert second.forgets_group


def test_a_group_that_is_made_for_one_consumer_goes_with_it() -> None:
    house = House()
    queue = house.broker.declare(QueueDefinition("s", STREAM))
    client = reader(house)
    request = ConsumeRequest("s")
    request.own_group, request.forgets_own_group = "tag", True
    plan, consumer = client.resolve(request), Consumer("c", lambda _: None)
    client.consume(plan, consumer)
    assert "tag" in queue.groups

    client.cancel(plan, consumer)

    assert "tag" not in queue.groups


def test_a_member_that_comes_back_keeps_the_mode_of_its_group() -> None:
    house = House()
    house.broker.declare(QueueDefinition("s", STREAM))
    client = reader(house)
    request = ConsumeRequest("$queue/s", True, "billing")
    request.mode = "work"
    client.consume(client.resolve(request), Consumer("c", lambda _: None))

    back = ConsumeRequest("$queue/s", True, "billing")
    back.is_return = True

    assert not client.resolve(back).is_stream


def test_a_program_with_the_broker_inside_may_read_everything() -> None:
    house = House()
    house.broker.declare(QueueDefinition("orders"))

    assert insider(house.broker, "embedded").resolve(ConsumeRequest("orders")).queue.name == "orders"


def test_a_message_names_its_user_or_nobody_unless_the_user_may_impersonate() -> None:
    house = House()
    writer = publisher(house)

    writer.check_user_id("")
    writer.check_user_id("ann")
    with pytest.raises(PreconditionFailed, match="user_id property set to 'bob' but authenticated user was 'ann'"):
        writer.check_user_id("bob")

    writer.account.change(User("ann", tags=("impersonator",)))
    writer.check_user_id("bob")


def test_a_message_to_an_exchange_is_decided_on_by_rights_size_rate_and_flow() -> None:
    house = House()
    writer = publisher(house, "^(amq.direct|orders|amq.default)$", limits=Limits(max_message_bytes=10))
    waits: list[bool] = []
    writer.connect(waits.append, lambda _: None)

    writer.check_publish("amq.direct", "key", 10)
    writer.check_publish("", "$queue/orders", 10)
    for exchange, key, size, error in (
        ("amq.fanout", "key", 1, AccessRefused),
        ("", "$queue/invoices", 1, AccessRefused),
        ("", "$queue/orders/$ack/x/", 1, Refused),
        ("amq.direct", "key", 11, TooLarge),
    ):
        with pytest.raises(error):
            writer.check_publish(exchange, key, size)

    assert writer.published == 6
    assert list(house.broker.on_flow) == [writer]


def test_keys_are_checked_for_each_message_once_a_topic_permission_exists() -> None:
    house = House()
    writer = publisher(house)
    writer.check_publish("amq.topic", "office.1", 1)

    bound = TopicPermission("ann", "/", "amq.topic", r"^plant\.", ".*")
    writer.rights.grant(Permission("ann", "/", "", ".*", ""), {"amq.topic": bound})

    writer.check_publish("amq.topic", "plant.1", 1)
    for _ in range(2):
        with pytest.raises(AccessRefused):
            writer.check_publish("amq.topic", "office.1", 1)


def test_a_queue_is_declared_by_users_who_may_configure_it_and_belongs_to_the_connection() -> None:
    house = House()
    client = publisher(house)
    client.connect(lambda _: None, lambda _: None)
    with pytest.raises(AccessRefused):
        client.declare(QueueDefinition("own", exclusive=True))

    client.rights.grant(Permission("ann", "/", "^own$", "", ""), {})
    client.declare(QueueDefinition("own", exclusive=True))
    client.leave()

    assert "own" not in house.broker.topology.queues

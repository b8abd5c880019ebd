"""Routes of messages: addresses, patterns, capture, the landing queue, exchanges, filters."""

import pytest

from headrace.core.queue.definition import EPHEMERAL, QueueDefinition, declared
from headrace.core.routing.exchange import Binding
from headrace.core.routing.topology import scoped, unscoped
from headrace.errors import AccessRefused, NotFound, Refused
from tests.house import House
from tests.unit.core.conftest import World


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


# -- addresses ---------------------------------------------------------------------------------------------------------


def test_an_address_reaches_the_queue_it_names_with_and_without_a_key(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))

    assert house.publish_topic("$queue/orders", "root") == 1
    assert house.publish_topic("$queue/orders/eu/images", "key") == 1

    assert texts(house, "orders") == ["root", "key"]


def test_an_address_reaches_every_queue_whose_pattern_matches(house: House) -> None:
    house.broker.declare(QueueDefinition("orders"))
    house.broker.declare(QueueDefinition("audit", topics=("$queue/+/eu", "$queue/orders/#")))
    house.broker.declare(QueueDefinition("images", topics=("$queue/orders/images",)))

    assert house.publish_topic("$queue/orders/eu", "a") == 2

    assert [texts(house, queue) for queue in ("orders", "audit", "images")] == [["a"], ["a"], []]


def test_an_address_on_the_default_exchange_is_an_address(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))

    house.publish("$queue/orders/eu", "a")

    assert texts(house, "orders") == ["a"]


@pytest.mark.parametrize("topic", ["$queue/", "$queue//key", "$queue/$ack", "$queue/q/$ack/more"])
def test_an_address_that_names_no_queue_is_refused(house: House, topic: str) -> None:
    with pytest.raises(Refused):
        house.publish_topic(topic, "a")

    assert house.broker.topology.queues == {}


@pytest.mark.parametrize("topic", ["$queue/q/$ack", "$queue/q/key/$nack", "$queue/q/$reject", "$queue/q/$commit"])
def test_an_address_with_a_verb_is_no_place_for_messages(house: House, topic: str) -> None:
    house.broker.declare(declared("q"))

    with pytest.raises(Refused, match="verb"):
        house.publish_topic(topic, "a")


def test_an_address_that_nothing_matches_makes_an_ephemeral_queue_of_its_name(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))

    assert house.publish_topic("$queue/new/key", "a") == 1

    queue = house.broker.queue("new")
    assert (queue.definition.kind, texts(house, "new")) == (EPHEMERAL, ["a"])
    assert house.publish_topic("$queue/new/other", "b") == 1
    assert texts(house, "new") == ["a", "b"]


def test_an_automatic_queue_goes_five_minutes_after_its_last_consumer(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))
    house.publish_topic("$queue/new", "a")
    inbox = house.consume("new")
    house.advance(600)
    house.broker.cancel(inbox.consumer)

    house.advance(299)
    assert "new" in house.broker.topology.queues
    house.advance(2)

    assert "new" not in house.broker.topology.queues


def test_an_automatic_queue_that_nobody_ever_reads_goes_too(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))
    house.publish_topic("$queue/new", "a")

    house.advance(301)

    assert "new" not in house.broker.topology.queues


# -- the landing queue -------------------------------------------------------------------------------------------------


def test_while_no_queue_was_declared_addresses_land_in_the_queue_mqtt(world: World) -> None:
    world.house.publish_topic("$queue/orders/eu", "a")
    world.house.publish_topic("$queue/images", "b")

    house = world.restart()
    house.publish_topic("$queue/more", "c")

    assert texts(house, "mqtt") == ["a", "b", "c"]
    assert list(house.broker.topology.queues) == ["mqtt"]


def test_once_a_queue_is_declared_nothing_more_lands_in_the_queue_mqtt(house: House) -> None:
    house.publish_topic("$queue/orders", "landed")

    house.broker.declare(declared("orders", durable=True))
    house.publish_topic("$queue/orders", "declared")
    house.publish_topic("$queue/images", "automatic")

    assert [texts(house, queue) for queue in ("mqtt", "orders", "images")] == [["landed"], ["declared"], ["automatic"]]


def test_a_queue_that_was_declared_and_deleted_still_counts_as_declared(house: House) -> None:
    house.broker.declare(declared("orders", durable=True))
    house.broker.delete("orders")

    house.publish_topic("$queue/images", "a")

    assert list(house.broker.topology.queues) == ["images"]


def test_a_connections_own_queue_does_not_count_as_declared(house: House) -> None:
    house.broker.declare(declared("", exclusive=True), owner=house)

    house.publish_topic("$queue/orders", "a")

    assert texts(house, "mqtt") == ["a"]


def test_a_reserved_queue_gets_what_no_other_queue_matches(house: House) -> None:
    house.broker.declare(QueueDefinition("spare", topics=("$queue/#",), reserved=True))
    house.broker.declare(QueueDefinition("orders"))

    house.publish_topic("$queue/orders", "a")
    house.publish_topic("$queue/images", "b")

    assert (texts(house, "orders"), texts(house, "spare")) == (["a"], ["b"])


# -- plain topics ------------------------------------------------------------------------------------------------------


def test_a_plain_topic_goes_to_queues_that_capture_it_and_to_no_others(house: House) -> None:
    house.broker.declare(QueueDefinition("readings", topics=("sensors/#",), capture=True))
    house.broker.declare(QueueDefinition("quiet", topics=("sensors/#",)))

    assert house.publish_topic("sensors/1/temperature", "20") == 1

    assert (texts(house, "readings"), texts(house, "quiet")) == (["20"], [])


def test_a_plain_topic_that_nobody_captures_makes_no_queue(house: House) -> None:
    assert house.publish_topic("sensors/1", "20") == 0
    assert house.broker.topology.queues == {}


def test_a_pattern_for_everything_does_not_capture_addresses(house: House) -> None:
    house.broker.declare(QueueDefinition("all", topics=("#",), capture=True))
    house.broker.declare(QueueDefinition("orders"))

    house.publish_topic("$queue/orders", "a")

    assert texts(house, "all") == []


def test_a_plain_topic_is_routed_through_amq_topic_with_its_levels_as_words(house: House) -> None:
    house.broker.declare(declared("q", durable=True))
    house.bind("amq.topic", "q", "sensors.*.temperature")

    assert house.publish_topic("sensors/1/temperature", "20") == 1
    assert house.publish_topic("sensors/1/humidity", "60") == 0

    assert texts(house, "q") == ["20"]


def test_a_queue_that_captures_a_topic_and_is_bound_to_it_gets_one_copy(house: House) -> None:
    house.broker.declare(QueueDefinition("q", topics=("a/b",), capture=True))
    house.bind("amq.topic", "q", "a.b")

    assert house.publish_topic("a/b", "once") == 1
    assert texts(house, "q") == ["once"]


# -- exchanges ---------------------------------------------------------------------------------------------------------


def test_a_message_without_a_route_is_confirmed_and_reported_as_unroutable(house: House) -> None:
    house.exchange("events", "direct")
    confirmed: list[object] = []

    assert house.broker.publish(house.message("a", "nobody"), confirmed.append) == 0
    assert house.broker.publish(house.message("a", "nobody", "events"), confirmed.append) == 0
    house.run()

    assert confirmed == [None, None]


def test_a_message_that_every_queue_refuses_is_routable_and_not_confirmed(house: House) -> None:
    house.broker.declare(QueueDefinition("q", max_message_bytes=1))
    confirmed: list[object] = []

    assert house.broker.publish(house.message("long", "q"), confirmed.append) == 1
    house.run()

    assert isinstance(confirmed[0], Refused)


def test_one_queue_that_refuses_makes_the_confirm_negative_and_the_others_keep_the_message(house: House) -> None:
    house.exchange("events", "fanout")
    for name, size in (("small", 1), ("large", 100)):
        house.broker.declare(QueueDefinition(name, max_message_bytes=size))
        house.bind("events", name)

    (error,) = house.publish("", "long", exchange="events")

    assert isinstance(error, Refused)
    assert (texts(house, "small"), texts(house, "large")) == ([], ["long"])


def test_what_an_exchange_cannot_route_goes_to_its_alternate(house: House) -> None:
    house.broker.declare(declared("rest", durable=True))
    house.exchange("unrouted", "fanout")
    house.exchange("events", "direct", arguments={"alternate-exchange": "unrouted"})
    house.bind("unrouted", "rest")

    house.publish("nobody", "a", exchange="events")

    assert texts(house, "rest") == ["a"]


def test_publishing_to_an_exchange_that_is_not_there_or_internal_is_refused(house: House) -> None:
    house.exchange("inner", "fanout", internal=True)

    with pytest.raises(NotFound):
        house.publish("k", "a", exchange="missing")
    with pytest.raises(AccessRefused):
        house.publish("k", "a", exchange="inner")


def test_further_routing_keys_count_too(house: House) -> None:
    for name in "abc":
        house.broker.declare(declared(name, durable=True))

    assert house.broker.publish(house.message("x", "a"), extra_keys=["b", "a", "nobody"]) == 2


def test_binding_a_queue_that_is_not_there_is_refused(house: House) -> None:
    house.exchange("events", "fanout")

    with pytest.raises(NotFound, match="no queue 'q'"):
        house.broker.bind(Binding("events", "q"))


# -- filter expressions ------------------------------------------------------------------------------------------------


def test_a_queue_with_a_filter_takes_what_satisfies_it(world: World) -> None:
    world.house.broker.declare(QueueDefinition("eu", topics=("$queue/orders/#",), filter="region = 'eu' AND total > 5"))
    house = world.restart()

    for region, total in (("eu", 10), ("us", 10), ("eu", 1)):
        house.publish("$queue/orders/new", f"{region}{total}", headers={"region": region, "total": total})

    assert texts(house, "eu") == ["eu10"]


def test_a_message_that_a_filter_keeps_out_is_unroutable_there(house: House) -> None:
    house.broker.declare(QueueDefinition("eu", filter="region = 'eu'"))

    assert house.broker.publish(house.message("a", "eu")) == 0


def test_a_message_whose_properties_cannot_be_read_satisfies_no_filter(house: House) -> None:
    house.broker.declare(QueueDefinition("q", filter="a IS NULL"))
    message = house.message("a", "q")
    message.properties = b"{"

    assert house.broker.publish(message) == 0


# -- names in storage --------------------------------------------------------------------------------------------------


def test_names_are_kept_apart_by_virtual_host() -> None:
    assert scoped("/", "q") == "q"
    assert unscoped("/", "q") == "q"
    assert unscoped("/", scoped("two", "q")) is None
    assert unscoped("two", scoped("two", "q")) == "q"
    assert unscoped("two", scoped("twofold", "q")) is None
    assert unscoped("two", "q") is None

"""Messages that were given up: the way to the dead letters, and back."""

import pytest

from headrace.core.queue.definition import QueueDefinition, Retry, declared
from headrace.core.queue.group import ACK, NACK, REJECT
from headrace.errors import NotFound, Refused
from headrace.model import Message, Source
from headrace.wire.encodings import properties_of
from tests.house import House
from tests.unit.core.conftest import World


def texts(house: House, queue: str) -> list[str]:
    return [message.payload.decode() for _, message in house.broker.queue(queue).browse(0, 1000)]


def reject_all(house: House, queue: str) -> None:
    inbox = house.consume(queue)
    house.settle(REJECT, *inbox.take())
    house.broker.cancel(inbox.consumer)
    house.run()


def with_exchange(house: House, key: str | None = None) -> None:
    """A queue `work` whose dead letters go through the topic exchange `dlx`."""
    house.exchange("dlx", "topic")
    arguments: dict[str, object] = {"x-dead-letter-exchange": "dlx"}
    if key is not None:
        arguments["x-dead-letter-routing-key"] = key
    house.broker.declare(declared("work", durable=True, arguments=arguments))
    for name, pattern in (("dead", "#"), ("dead-orders", "orders.*")):
        house.broker.declare(declared(name, durable=True))
        house.bind("dlx", name, pattern)


# -- moving ------------------------------------------------------------------------------------------------------------


def test_a_rejected_message_goes_through_the_exchange_with_its_own_key(world: World) -> None:
    with_exchange(world.house)
    world.house.exchange("events", "fanout")
    world.house.bind("events", "work")
    world.house.publish("orders.eu", "a", exchange="events")

    reject_all(world.house, "work")

    house = world.restart()
    assert [texts(house, queue) for queue in ("work", "dead", "dead-orders")] == [[], ["a"], ["a"]]
    ((_, message),) = house.broker.queue("dead").browse(0, 1)
    assert (message.source.exchange, message.source.topic) == ("dlx", "orders.eu")


def test_a_dead_letter_key_takes_the_place_of_the_messages_own(house: House) -> None:
    with_exchange(house, key="other.key")
    house.broker.publish(house.message("a", "work", headers={"CC": ["orders.cc"]}), extra_keys=["orders.cc"])
    house.run()

    reject_all(house, "work")

    ((_, message),) = house.broker.queue("dead").browse(0, 1)
    assert (message.source.topic, texts(house, "dead-orders")) == ("other.key", [])
    assert "CC" not in properties_of(message).headers


def test_without_a_dead_letter_key_further_keys_route_the_dead_letter_too(house: House) -> None:
    with_exchange(house)
    house.publish("work", "a", headers={"CC": ["orders.cc"]})

    reject_all(house, "work")

    assert texts(house, "dead-orders") == ["a"]


def test_a_dead_letter_without_an_exchange_that_exists_is_dropped(house: House) -> None:
    house.broker.declare(declared("q", durable=True, arguments={"x-dead-letter-exchange": "missing"}))
    house.publish("q", "a")

    reject_all(house, "q")

    assert house.broker.queue("q").messages == 0


def test_a_message_that_failed_too_often_is_a_dead_letter_with_its_history(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("jobs", retry=Retry(1, 1000, 1000), dead_letter_queue="$dlq/jobs"))
    inbox = house.consume("jobs", group="workers")
    house.publish("$queue/jobs/eu", "poison")
    for _ in range(2):
        house.settle(NACK, *inbox.take())
        house.advance(2)

    ((_, message, properties),) = world.restart().broker.dead_letters.list("jobs")

    assert (message.payload, message.source.topic) == (b"poison", "$queue/jobs/eu")
    headers = properties.headers
    assert (headers["_dlq_original_queue"], headers["_dlq_group"]) == ("jobs", "workers")
    assert (headers["_dlq_delivery_count"], headers["_dlq_reason"]) == (2, "delivery_limit")
    assert headers["_dlq_original_id"] == "jobs:0"


def test_a_configured_dead_letter_topic_that_is_an_address_is_routed(house: House) -> None:
    house.broker.declare(QueueDefinition("failed"))
    house.broker.declare(QueueDefinition("audit", topics=("$queue/failed/#",)))
    house.broker.declare(QueueDefinition("jobs", dead_letter_queue="$queue/failed/jobs"))
    house.publish("jobs", "a")

    reject_all(house, "jobs")

    assert (texts(house, "failed"), texts(house, "audit")) == (["a"], ["a"])


def test_dead_letters_of_a_queue_with_the_longest_name_have_a_place(house: House) -> None:
    name = "x" * 255
    house.broker.declare(QueueDefinition(name, dead_letter_queue="$dlq/" + name))
    house.publish(name, "a")

    reject_all(house, name)

    assert texts(house, "$dlq/" + name) == ["a"]


def test_a_message_whose_properties_cannot_be_read_is_moved_as_it_is(house: House) -> None:
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    house.broker.publish(Message(Source("q", encoding=9), b"a", house.clock.now_us(), b"raw"))
    house.run()

    reject_all(house, "q")

    ((_, message),) = house.broker.queue("$dlq/q").browse(0, 1)
    assert (message.payload, message.properties) == (b"a", b"raw")


def test_a_dead_letter_has_the_time_to_live_of_its_new_queue_and_not_its_own(house: House) -> None:
    house.broker.declare(declared("dead", durable=True, arguments={"x-message-ttl": 60_000}))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    house.publish("q", "a", expires_us=house.clock.now_us() + 1_000_000)

    house.advance(2)
    assert texts(house, "dead") == ["a"]
    house.advance(61)

    assert texts(house, "dead") == []


def circle(house: House) -> None:
    """Two queues that send what expires to each other."""
    for name, other in (("a", "b"), ("b", "a")):
        arguments = {"x-message-ttl": 1000, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": other}
        house.broker.declare(declared(name, durable=True, arguments=arguments))


def test_a_message_that_would_go_round_for_ever_is_dropped(house: House) -> None:
    circle(house)
    house.publish("a", "round")

    house.advance(2)
    assert texts(house, "b") == ["round"]
    house.advance(2)

    assert (texts(house, "a"), texts(house, "b")) == ([], [])


def test_a_circle_in_which_somebody_rejects_goes_on(house: House) -> None:
    circle(house)
    house.publish("a", "round")

    for _ in range(3):
        house.advance(2)
        reject_all(house, "b")
        assert texts(house, "a") == ["round"]

    ((_, message),) = house.broker.queue("a").browse(0, 1)
    deaths = properties_of(message).headers["x-death"]
    assert isinstance(deaths, list)
    assert [(death["queue"], death["count"]) for death in deaths] == [("b", 3), ("a", 3)]


def test_a_queue_can_be_its_own_dead_letter_queue_for_what_is_rejected(house: House) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    house.broker.declare(declared("q", durable=True, arguments=arguments))
    house.publish("q", "a")

    reject_all(house, "q")

    assert texts(house, "q") == ["a"]


def test_a_transient_queues_dead_letters_are_kept_in_a_durable_queue(world: World) -> None:
    world.house.broker.declare(declared("dead", durable=True))
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    world.house.broker.declare(declared("q", arguments=arguments))
    world.house.publish("q", "a")

    reject_all(world.house, "q")

    assert texts(world.restart(), "dead") == ["a"]


def test_a_dead_letter_queue_deleted_in_the_same_turn_is_made_anew_with_the_letter(world: World) -> None:
    house = world.house
    house.broker.declare(QueueDefinition("q", dead_letter_queue="$dlq/q"))
    house.publish("q", "first", "second")
    inbox = house.consume("q")
    house.settle(REJECT, inbox.got[0])

    house.broker.delete("$dlq/q")
    house.settle(REJECT, inbox.got[1])

    assert texts(house, "$dlq/q") == ["second"]
    assert texts(world.restart(), "$dlq/q") == ["second"]


# -- listing, sending back, purging ------------------------------------------------------------------------------------


def buried(house: House, *payloads: str) -> None:
    house.broker.declare(QueueDefinition("jobs", dead_letter_queue="$dlq/jobs"))
    for payload in payloads:
        house.publish("$queue/jobs/key", payload)
    reject_all(house, "jobs")


def test_dead_letters_are_listed_by_queue_in_pages_without_being_taken(house: House) -> None:
    buried(house, *"abc")

    first = house.broker.dead_letters.list("jobs", limit=2)
    rest = house.broker.dead_letters.list("$dlq/jobs", offset=first[-1][0] + 1)

    assert [message.payload for _, message, _ in first + rest] == [b"a", b"b", b"c"]
    assert house.broker.queue("$dlq/jobs").messages == 3


def test_dead_letters_that_were_taken_are_not_listed(house: House) -> None:
    buried(house, *"abc")
    inbox = house.consume("$dlq/jobs", credit=2)
    house.settle(ACK, inbox.got[1])

    assert [message.payload for _, message, _ in house.broker.dead_letters.list("jobs")] == [b"a", b"c"]


def test_dead_letters_of_a_queue_that_is_not_there_are_not_found(house: House) -> None:
    letters = house.broker.dead_letters
    for call in (letters.list, letters.redrive, letters.purge):
        with pytest.raises(NotFound):
            call("missing")


def test_sending_back_keeps_the_order_and_lets_the_messages_begin_anew(world: World) -> None:
    buried(world.house, *"abc")

    assert world.house.broker.dead_letters.redrive("jobs") == 3

    house = world.restart()
    assert (texts(house, "jobs"), texts(house, "$dlq/jobs")) == (["a", "b", "c"], [])
    ((_, message),) = house.broker.queue("jobs").browse(0, 1)
    assert message.source.topic == "$queue/jobs/key"
    assert properties_of(message).headers == {}


def test_sending_back_is_one_commit(refused: House) -> None:
    buried(refused, *"abc")
    engine = refused.engine
    before = len(engine.committed)  # type: ignore[attr-defined]

    refused.broker.dead_letters.redrive("jobs")
    refused.run()

    with_messages = [commit for commit in engine.committed[before:] if commit.appends]  # type: ignore[attr-defined]
    assert len(with_messages) == 1
    assert with_messages[0].steps


def test_what_came_from_a_queue_that_is_gone_stays_where_it_is_in_its_order(house: House) -> None:
    for name in ("one", "two"):
        house.broker.declare(QueueDefinition(name, dead_letter_queue="$dlq/all"))
    for name in ("one", "two", "one", "two"):
        house.publish(name, name)
        reject_all(house, name)
    house.broker.delete("one")

    assert house.broker.dead_letters.redrive("$dlq/all") == 2
    house.run()

    assert (texts(house, "$dlq/all"), texts(house, "two")) == (["one", "one"], ["two", "two"])


def test_sending_back_stops_at_the_limit(house: House) -> None:
    buried(house, *"abc")

    assert house.broker.dead_letters.redrive("jobs", limit=2) == 2
    house.run()

    assert (texts(house, "jobs"), texts(house, "$dlq/jobs")) == (["a", "b"], ["c"])


def test_what_somebody_is_looking_at_is_not_sent_back(house: House) -> None:
    buried(house, *"ab")
    house.consume("$dlq/jobs", credit=1)

    assert house.broker.dead_letters.redrive("jobs") == 1
    house.run()

    assert texts(house, "jobs") == ["b"]


def test_dead_letters_of_an_exchange_go_back_to_the_queue_they_died_in(house: House) -> None:
    with_exchange(house)
    house.publish("work", "a")
    reject_all(house, "work")

    assert house.broker.dead_letters.redrive("dead") == 1
    house.run()

    ((_, message),) = house.broker.queue("work").browse(0, 1)
    assert (message.payload, message.source.exchange, message.source.topic) == (b"a", "", "work")
    assert properties_of(message).headers == {}


def test_a_message_that_is_sent_back_can_die_again(house: House) -> None:
    buried(house, "a")
    house.broker.dead_letters.redrive("jobs")
    house.run()

    reject_all(house, "jobs")

    assert texts(house, "$dlq/jobs") == ["a"]


def test_dead_letters_can_be_purged(house: House) -> None:
    buried(house, *"abc")

    assert house.broker.dead_letters.purge("jobs") == 3
    assert house.broker.dead_letters.list("jobs") == []


# -- which queue is meant ----------------------------------------------------------------------------------------------


def died_through_exchange(house: House, *payloads: str) -> None:
    """Letters of `work` in `parking`, by way of the default exchange."""
    arguments: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "parking"}
    house.broker.declare(declared("work", durable=True, arguments=arguments))
    house.broker.declare(declared("parking", durable=True))
    for payload in payloads:
        house.publish("work", payload)
    reject_all(house, "work")


@pytest.mark.parametrize("dead_letter_queue", ["$dlq/orders", "", "elsewhere"])
def test_a_live_queue_is_not_taken_for_its_dead_letters_when_it_has_none(house: House, dead_letter_queue: str) -> None:
    house.broker.declare(QueueDefinition("orders", dead_letter_queue=dead_letter_queue))
    house.publish("orders", "alive")
    letters = house.broker.dead_letters

    assert letters.grave_of("orders") is None
    assert (letters.list("orders"), letters.redrive("orders"), letters.purge("orders")) == ([], 0, 0)
    house.run()
    assert texts(house, "orders") == ["alive"]


def test_a_dead_letter_queue_that_is_not_there_is_not_found_by_its_name(house: House) -> None:
    house.broker.declare(QueueDefinition("orders", dead_letter_queue="$dlq/orders"))

    with pytest.raises(NotFound):
        house.broker.dead_letters.grave_of("$dlq/orders")


def test_dead_letters_behind_an_exchange_are_found_by_either_queue(world: World) -> None:
    died_through_exchange(world.house, "a", "b")

    for house in (world.house, world.restart()):
        letters = house.broker.dead_letters
        queues = house.broker.topology.queues
        assert [name for name in queues if letters.holds_letters(queues[name])] == ["parking"]
        assert letters.origin_in(queues["parking"]) == "work"
        for name in ("work", "parking"):
            assert [message.payload for _, message, _ in letters.list(name)] == [b"a", b"b"]


def test_a_queue_that_lost_its_dead_letters_holds_none(house: House) -> None:
    died_through_exchange(house, "a")
    letters, parking = house.broker.dead_letters, house.broker.queue("parking")
    assert letters.holds_letters(parking)

    house.publish("parking", "not a letter")
    letters.redrive("parking")
    house.run()

    assert not letters.holds_letters(parking)
    assert texts(house, "parking") == ["not a letter"]


def test_purging_dead_letters_leaves_other_messages_of_the_queue_where_they_are(house: House) -> None:
    died_through_exchange(house, "a", "b")
    house.publish("parking", "not a letter")

    assert house.broker.dead_letters.purge("parking") == 2
    house.run()

    assert texts(house, "parking") == ["not a letter"]
    assert house.broker.queue("parking").messages == 1


def test_dead_letters_of_one_queue_leave_those_of_another_in_the_same_place(house: House) -> None:
    for name in ("one", "two"):
        house.broker.declare(QueueDefinition(name, dead_letter_queue="shared"))
        house.publish(name, name)
        reject_all(house, name)
    house.broker.declare(QueueDefinition("aside"))
    letters = house.broker.dead_letters

    assert [message.payload for _, message, _ in letters.list("one")] == [b"one"]
    assert letters.purge("one") == 1
    house.run()
    assert texts(house, "shared") == ["two"]
    assert letters.redrive("one") == 0
    assert letters.redrive("shared") == 1


def test_a_message_that_came_back_to_where_it_died_is_no_dead_letter(house: House) -> None:
    work: dict[str, object] = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "later"}
    later: dict[str, object] = {
        "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work", "x-message-ttl": 1000,
    }  # fmt: skip
    house.broker.declare(declared("work", durable=True, arguments=work))
    house.broker.declare(declared("later", durable=True, arguments=later))
    house.publish("work", "a")
    reject_all(house, "work")
    house.advance(2000)

    letters = house.broker.dead_letters
    assert texts(house, "work") == ["a"]
    assert not letters.holds_letters(house.broker.queue("work"))
    assert (letters.list("work"), letters.purge("work")) == ([], 0)


def test_dead_letters_in_several_queues_are_to_be_named(house: House) -> None:
    with_exchange(house)
    house.exchange("events", "fanout")
    house.bind("events", "work")
    house.publish("orders.eu", "a", exchange="events")
    reject_all(house, "work")

    with pytest.raises(NotFound, match="'dead', 'dead-orders'"):
        house.broker.dead_letters.purge("work")


def test_a_stream_keeps_the_dead_letters_it_has(house: House) -> None:
    house.broker.declare(declared("log", durable=True, arguments={"x-queue-type": "stream"}))
    house.broker.declare(QueueDefinition("work", dead_letter_queue="log"))
    house.publish("work", "a")
    reject_all(house, "work")
    letters = house.broker.dead_letters

    assert [message.payload for _, message, _ in letters.list("log")] == [b"a"]
    for call in (letters.purge, letters.redrive):
        with pytest.raises(Refused, match="stream"):
            call("log")
    assert house.broker.queue("log").work_groups() == []


def test_a_call_looks_at_a_bounded_number_of_messages_and_says_where_to_go_on(house: House) -> None:
    died_through_exchange(house)
    house.broker.publish_all([house.message("x", "parking") for _ in range(10_300)])
    house.run()
    house.publish("work", "a")
    reject_all(house, "work")
    letters = house.broker.dead_letters
    grave = letters.grave_of("parking")
    assert grave is not None

    first = letters.drop(grave)
    assert first.next is not None
    rest = letters.drop(grave, first.next)

    assert (first.messages, rest.messages, rest.next) == (0, 1, None)

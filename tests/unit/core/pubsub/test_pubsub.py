"""Plain topics: the receivers of a message, with which assurance and how often."""

import pytest

from headrace.config.settings import REJECT_PUBLISH, MqttSettings
from headrace.core.pubsub.session import AT_LEAST_ONCE, BEST_EFFORT, EXACTLY_ONCE, Bounds, Subscription
from headrace.core.queue.definition import QueueDefinition, declared
from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.transaction import Publish
from headrace.errors import HeadraceError, Refused
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.listeners import RADIOS, Listener


def publish(house: House, topic: str, payload: str, assurance: int = AT_LEAST_ONCE, **options: object) -> int:
    count = house.broker.publish_topic(house.message(payload, topic), None, assurance, **options)  # type: ignore[arg-type]
    house.run()
    return count


def test_a_message_reaches_every_subscriber_whose_pattern_matches() -> None:
    house = House()
    one, other, third = Listener(house, "1"), Listener(house, "2"), Listener(house, "3")
    one.subscribe("a/+")
    other.subscribe("a/#")
    third.subscribe("b")

    assert publish(house, "a/b", "x") == 2

    assert (one.texts(), other.texts(), third.texts()) == (["x"], ["x"], [])


def test_a_message_that_matches_several_patterns_of_a_session_comes_once_with_all_their_identifiers() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a/+", BEST_EFFORT, identifier=7)
    listener.subscribe("a/b", EXACTLY_ONCE, identifier=3)

    publish(house, "a/b", "x", EXACTLY_ONCE)

    [(_, assurance, _, identifiers)] = listener.heard
    assert (assurance, identifiers) == (EXACTLY_ONCE, (3, 7))


@pytest.mark.parametrize(("said", "asked", "gets"), [(0, 2, 0), (1, 2, 1), (2, 1, 1), (2, 2, 2), (2, 0, 0)])
def test_the_lower_of_what_was_said_and_what_was_asked_for_counts(said: int, asked: int, gets: int) -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a", asked)

    publish(house, "a", "x", said)

    assert listener.heard[0][1] == gets


def test_subscribers_that_want_the_same_share_one_outlet() -> None:
    house = House()
    RADIOS.clear()
    for number in range(50):
        Listener(house, str(number)).subscribe("a")

    assert publish(house, "a", "x", BEST_EFFORT) == 50

    assert [radio.said for radio in RADIOS.values()] == [1]


def test_a_session_does_not_hear_itself_when_it_asks_not_to() -> None:
    house = House()
    one, other = Listener(house, "1"), Listener(house, "2")
    one.subscribe("a", no_echo=True)
    other.subscribe("a", no_echo=True)

    assert publish(house, "a", "x", BEST_EFFORT, publisher=one.own) == 1
    assert (one.texts(), other.texts()) == ([], ["x"])


def test_routes_follow_subscriptions_and_connections() -> None:
    house = House()
    one = Listener(house, "1")
    assert publish(house, "a", "before") == 0
    one.subscribe("a")
    publish(house, "a", "then")
    other = Listener(house, "2")
    other.subscribe("a")
    one.unsubscribe("a")
    publish(house, "a", "now")
    other.leave()
    assert publish(house, "a", "after") == 0

    assert (one.texts(), other.texts()) == (["then"], ["now"])


def test_a_session_that_lives_on_gets_later_what_should_arrive() -> None:
    house = House()
    Listener(house, "1", lifetime_s=60).subscribe("a", AT_LEAST_ONCE)
    house = House(house.engine, house.clock)  # and after a restart

    publish(house, "a", "lost", BEST_EFFORT)
    publish(house, "a", "first")
    publish(house, "a", "second", EXACTLY_ONCE)
    back = Listener(house, "1", lifetime_s=60)

    assert back.was_there
    assert back.kept() == ["first", "second"]


def test_what_was_not_acknowledged_comes_again_in_order_and_says_so() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    for text in ("1", "2", "3"):
        publish(house, "a", text)
    assert listener.kept(settle=False) == ["1", "2", "3"]
    listener.leave()
    publish(house, "a", "4")

    back = Listener(house, "1", lifetime_s=60)

    assert [delivery.redelivered for delivery in back.got] == [True, True, True, False]
    assert back.kept() == ["1", "2", "3", "4"]


def test_a_publish_is_confirmed_when_sessions_and_queues_have_it_stored() -> None:
    house = House()
    Listener(house, "1", lifetime_s=60).subscribe("a", AT_LEAST_ONCE)
    confirmed: list[HeadraceError | None] = []

    house.broker.publish_topic(house.message("x", "a"), confirmed.append)

    assert confirmed == []
    house.run()
    assert confirmed == [None]


def test_a_session_keeps_the_newest_when_too_much_waits() -> None:
    house = _bounded(MqttSettings(session_messages=3))
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()

    for number in range(10):
        publish(house, "a", str(number))

    assert Listener(house, "1", lifetime_s=60).kept() == ["7", "8", "9"]


def test_a_session_that_is_full_may_refuse_the_newest_and_the_publisher_hears_of_it() -> None:
    house = _bounded(MqttSettings(session_bytes=100, session_overflow=REJECT_PUBLISH))
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()

    heard: list[HeadraceError | None] = []
    for size in (60, 70, 20):
        house.broker.publish_topic(house.message(str(size).zfill(size), "a"), heard.append)
        house.run()

    assert [error is None for error in heard] == [True, False, True]
    assert [int(text) for text in Listener(house, "1", lifetime_s=60).kept()] == [60, 20]


def _bounded(settings: MqttSettings) -> House:
    house = House(MemoryEngine())
    house.broker = type(house.broker)(house.engine, house.clock, house._soon.append, bounds=Bounds(settings))
    return house


def test_queues_of_sessions_have_no_name_that_clients_can_use() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    publish(house, "a", "x")

    assert not house.broker.topology.queues
    for name in ("$session/1", "$share/g/a"):
        with pytest.raises(Refused):
            house.broker.declare(declared(name))
        with pytest.raises(Refused):
            house.broker.queue(name)
    with pytest.raises(Refused):
        publish(house, "$queue/$session/1/$ack", "x")


def test_a_message_with_an_end_does_not_outlive_it_in_a_session() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=3600)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()
    soon = house.clock.now_us() + 5_000_000
    house.broker.publish_topic(house.message("gone", "a", expires_us=soon))
    house.broker.publish_topic(house.message("there", "a"))
    house.run()

    house.advance(6)

    assert Listener(house, "1", lifetime_s=60).kept() == ["there"]


def test_plain_topics_and_the_topic_exchange_are_one() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a/+/c")
    house.broker.declare(declared("q", durable=True))
    house.broker.bind(Binding("amq.topic", "q", "a.#"))

    publish(house, "a/b/c", "from a device")
    house.publish("a.b.c", "from a service", exchange="amq.topic")

    assert listener.texts() == ["from a device", "from a service"]
    assert house.consume("q").texts() == ["from a device", "from a service"]


def test_what_comes_by_the_topic_exchange_reaches_subscribers_whichever_way_it_came() -> None:
    house = House()
    broker = house.broker
    live, kept = Listener(house, "1"), Listener(house, "2", lifetime_s=60)
    live.subscribe("a/#")
    kept.subscribe("a/#", AT_LEAST_ONCE)
    for name in ("first", "second", "elsewhere", "spare"):
        broker.declare_exchange(Exchange(name, "topic"))
    broker.bind(Binding("first", "second", "a.#", to_exchange=True))
    broker.bind(Binding("second", "amq.topic", "#.c", to_exchange=True))
    broker.declare_exchange(Exchange("picky", "direct", arguments={"alternate-exchange": "amq.topic"}))
    broker.bind(Binding("elsewhere", "spare", "#", to_exchange=True))

    for exchange, key in (
        ("first", "a.b.c"),
        ("first", "a.b"),
        ("first", "b.c"),
        ("second", "a.c"),
        ("elsewhere", "a.c"),
        ("picky", "a.x"),
    ):
        house.publish(key, f"{exchange} {key}", exchange=exchange)

    expected = ["first a.b.c", "second a.c", "picky a.x"]
    assert live.texts() == expected
    assert kept.kept() == expected
    broker.unbind(Binding("second", "amq.topic", "#.c", to_exchange=True))
    house.publish("a.b.c", "no more", exchange="first")
    assert live.texts() == []


def test_headers_may_decide_what_comes_by_the_topic_exchange() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a")
    house.broker.bind(Binding("amq.headers", "amq.topic", "", {"x-match": "all", "wanted": 1}, to_exchange=True))

    for wanted in (0, 1):
        house.broker.publish(house.message(str(wanted), "a", "amq.headers"), None, {"wanted": wanted})
    house.run()

    assert listener.texts() == ["1"]


def test_a_transaction_reaches_subscribers_of_an_exchange_that_leads_to_the_topic_exchange() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a/b")
    house.broker.bind(Binding("amq.fanout", "amq.topic", "", to_exchange=True))

    house.broker.transaction([Publish(house.message("x", "a.b", "amq.fanout"))], [])
    house.run()

    assert listener.texts() == ["x"]


def test_a_transaction_reaches_subscribers_when_it_is_stored_and_not_otherwise() -> None:
    house = House()
    live, kept = Listener(house, "1"), Listener(house, "2", lifetime_s=60)
    live.subscribe("a/#", AT_LEAST_ONCE)
    kept.subscribe("a/#", AT_LEAST_ONCE)
    house.broker.declare(declared("small", durable=True, arguments={"x-max-length": 0, "x-overflow": "reject-publish"}))
    house.run()
    messages = [Publish(house.message(text, "a.b", "amq.topic")) for text in ("1", "2")]

    house.broker.transaction(messages, [])
    assert live.texts() == []
    house.run()
    assert (live.texts(), kept.kept()) == (["1", "2"], ["1", "2"])

    with pytest.raises(Refused):
        house.broker.transaction([*messages, Publish(house.message("x", "small"))], [])
    house.run()
    assert (live.texts(), kept.kept()) == ([], [])


def test_other_exchanges_do_not_reach_subscribers() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("#")

    house.publish("a.b", "x", exchange="amq.direct")
    house.publish("a.b", "x")

    assert listener.texts() == []


def test_a_queue_that_captures_a_topic_gets_it_besides_subscribers() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("s/#")
    publish(house, "s/1", "before")
    house.broker.declare(QueueDefinition("all", topics=("s/#",), capture=True))

    publish(house, "s/1", "x", BEST_EFFORT)

    assert listener.texts() == ["before", "x"]
    assert house.consume("all").texts() == ["x"]


# -- shared subscriptions --------------------------------------------------------------------------------------------


def test_members_of_a_share_divide_the_messages() -> None:
    house = House()
    one, other, alone = Listener(house, "1"), Listener(house, "2"), Listener(house, "3")
    one.subscribe("$share/g/a/#", AT_LEAST_ONCE)
    other.subscribe("$share/g/a/#", AT_LEAST_ONCE)
    alone.subscribe("a/#")

    for number in range(6):
        publish(house, "a/x", str(number))

    first, second = one.dealt(), other.dealt()
    assert sorted(first + second) == ["0", "1", "2", "3", "4", "5"]
    assert len(first) == len(second) == 3
    assert len(alone.texts()) == 6


def test_what_a_member_did_not_acknowledge_goes_to_another() -> None:
    house = House()
    one, other = Listener(house, "1"), Listener(house, "2")
    one.subscribe("$share/g/a", AT_LEAST_ONCE)
    other.subscribe("$share/g/a", AT_LEAST_ONCE)
    for number in range(4):
        publish(house, "a", str(number))
    held = one.dealt(settle=False)
    other.dealt()

    one.leave()

    assert other.dealt() == held


def test_what_may_be_lost_goes_to_one_connected_member() -> None:
    house = House()
    one, other, gone = Listener(house, "1"), Listener(house, "2"), Listener(house, "3", lifetime_s=60)
    for listener in (one, other, gone):
        listener.subscribe("$share/g/a", AT_LEAST_ONCE)
    gone.leave()

    for number in range(10):
        publish(house, "a", str(number), BEST_EFFORT)

    assert sorted(one.texts() + other.texts()) == [str(number) for number in range(10)]


def test_a_share_keeps_messages_while_its_members_are_away_and_ends_with_the_last() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("$share/g/a", AT_LEAST_ONCE)
    listener.leave()
    publish(house, "a", "kept")
    house = House(house.engine, house.clock)
    publish(house, "a", "too")

    back = Listener(house, "1", lifetime_s=60)
    assert back.dealt() == ["kept", "too"]

    publish(house, "a", "held")
    assert back.dealt(settle=False) == ["held"]
    back.unsubscribe("$share/g/a")
    back.subscribe("$share/g/a", AT_LEAST_ONCE)
    assert back.dealt() == []
    back.unsubscribe("$share/g/a")
    assert publish(house, "a", "x") == 0
    assert [name for name in house.engine.logs() if name.startswith("$share")] == []


@pytest.mark.parametrize("pattern", ["$share/g", "$share//a", "$share/g+/a", "$share/g/", "$share/g/$queue/q"])
def test_a_share_without_group_or_filter_is_refused(pattern: str) -> None:
    house = House()
    listener = Listener(house, "1")
    with pytest.raises(Refused):
        listener.subscribe(pattern)
    assert listener.own.subscriptions == {}


def test_very_long_names_are_kept_too() -> None:
    house = House()
    listener = Listener(house, "c" * 5000, lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.subscribe("$share/g/" + "b" * 5000, AT_LEAST_ONCE)
    listener.leave()
    publish(house, "a", "x")
    publish(house, "b" * 5000, "y")

    house = House(house.engine, house.clock)
    back = Listener(house, "c" * 5000, lifetime_s=60)

    assert (back.kept(), back.dealt()) == (["x"], ["y"])


def test_asking_again_replaces_a_subscription() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE, identifier=1)
    listener.subscribe("a", BEST_EFFORT, identifier=2)

    publish(house, "a", "x")

    assert [identifiers for _, _, _, identifiers in listener.heard] == [(2,)]
    assert listener.kept() == []
    assert isinstance(listener.own.subscriptions["a"], Subscription)

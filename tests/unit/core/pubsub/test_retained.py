"""Retained messages: the last of each topic, found by pattern, bounded, removed at expiry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import MqttSettings
from headrace.core.batch import Batch
from headrace.core.pubsub.retained import Retained
from headrace.core.pubsub.session import Bounds, Envelope
from headrace.core.routing.topics import TopicFilter
from headrace.errors import HeadraceError, Refused
from headrace.model import Message, Source
from headrace.storage.api import RETAINED
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.listeners import Listener


def retain(house: House, topic: str, payload: str, **options: object) -> list[HeadraceError | None]:
    confirmed: list[HeadraceError | None] = []
    house.broker.publish_topic(house.message(payload, topic, "", **options), confirmed.append, 1, retain=True)
    house.run()
    return confirmed


def payload_of(house: House, topic: str) -> str | None:
    found = house.broker.pubsub.retained.get(topic, house.clock.now_us())
    return found.message.payload.decode() if found is not None else None


def test_the_last_message_of_a_topic_stays_also_after_a_restart() -> None:
    house = House()
    retain(house, "a/b", "old")
    assert retain(house, "a/b", "new", priority=3) == [None]

    house = House(house.engine, house.clock)

    assert Listener(house, "1").subscribe("a/+") == ["a/b"]
    assert payload_of(house, "a/b") == "new"


def test_a_subscriber_finds_what_is_not_stored_yet() -> None:
    house = House()
    house.broker.publish_topic(house.message("x", "a"), None, 0, retain=True)
    assert payload_of(house, "a") == "x"
    house.run()
    assert payload_of(house, "a") == "x"


def test_a_message_without_payload_clears_its_topic() -> None:
    house = House()
    retain(house, "a", "x")
    retain(house, "a", "")
    assert payload_of(house, "a") is None
    assert list(house.engine.items(RETAINED)) == []
    assert Listener(house, "1").subscribe("#") == []
    assert len(house.broker.pubsub.retained) == 0


@pytest.mark.parametrize(("wanted", "new", "again"), [(0, ["a"], ["a"]), (1, ["a"], []), (2, [], [])])
def test_a_subscription_says_whether_it_begins_with_what_is_retained(
    wanted: int, new: list[str], again: list[str]
) -> None:
    house = House()
    retain(house, "a", "x")
    listener = Listener(house, "1")
    assert listener.subscribe("a", retained=wanted) == new
    assert listener.subscribe("a", retained=wanted) == again


def test_a_shared_subscription_begins_with_nothing() -> None:
    house = House()
    retain(house, "a", "x")
    assert Listener(house, "1").subscribe("$share/g/a") == []


def test_what_is_retained_goes_when_its_time_is_over() -> None:
    house = House()
    retain(house, "a", "x", expires_us=house.clock.now_us() + 5_000_000)
    retain(house, "b", "x", expires_us=house.clock.now_us() + 5_000_000)
    retain(house, "b", "y")
    house.clock.advance(6)
    assert payload_of(house, "a") is None
    house.advance(0)
    assert [key for key, _ in house.engine.items(RETAINED)] == [b"/\0b"]
    assert payload_of(house, "b") == "y"


def test_a_retained_message_says_so_to_those_who_ask() -> None:
    house = House()
    plain, keeping = Listener(house, "1"), Listener(house, "2")
    plain.subscribe("a")
    keeping.subscribe("a", keeps_retain=True)
    retain(house, "a", "x")
    assert [flag for _, _, flag, _ in plain.heard + keeping.heard] == [False, True]


def test_too_many_are_refused_but_known_topics_can_change() -> None:
    retained = Retained(MemoryEngine(), "/", Bounds(MqttSettings(retained_messages=2, retained_bytes=1000)))
    retained.keep_volatile(
        Envelope(Message(Source("$SYS/own"), b"1", 1), 0, True)
    )  # the broker's own messages do not count
    turn = Batch()

    def keep(topic: str, size: int) -> None:
        retained.keep(turn, Envelope(Message(Source(topic), bytes(size), 1), 0, True))

    keep("a", 1)
    keep("b", 1)
    with pytest.raises(Refused, match="2 and 1000 at most"):
        keep("c", 1)
    keep("b", 500)
    with pytest.raises(Refused):
        keep("a", 600)
    retained.clear(turn, "b")
    keep("c", 600)
    assert retained.stored == 2


def test_refusing_to_retain_is_told_to_the_publisher() -> None:
    house = House()
    house.broker.pubsub.retained = Retained(house.engine, "/", Bounds(MqttSettings(retained_messages=0)))
    [refusal] = retain(house, "a", "x")
    assert isinstance(refusal, Refused)


_levels = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=4).map("/".join)
_patterns = st.one_of(
    _levels.filter(bool),
    st.lists(st.sampled_from(["a", "b", "+", "", "$x"]), max_size=3).map(lambda levels: "/".join([*levels, "#"])),
    st.lists(st.sampled_from(["a", "b", "+", ""]), min_size=1, max_size=4).map("/".join).filter(bool),
)


@given(st.sets(_levels.filter(bool), max_size=20), st.sets(_levels.filter(bool), max_size=5), _patterns)
def test_topics_are_found_as_patterns_match_them(topics: set[str], cleared: set[str], pattern: str) -> None:
    retained = Retained(MemoryEngine(), "/")
    turn = Batch()
    for topic in topics:
        retained.keep(turn, Envelope(Message(Source(topic), b"x", 1), 0, True))
    for topic in cleared:
        retained.clear(turn, topic)

    found = retained.match(pattern)

    assert sorted(found) == sorted([topic for topic in topics - cleared if TopicFilter(pattern).matches(topic)])
    for topic in topics:
        retained.clear(turn, topic)
    assert retained.size_bytes == 0
    assert not retained._root.below


@pytest.mark.parametrize("pattern", ["#", "+/+", "a/#", "+/b"])
def test_topics_are_found_one_by_one_while_others_come_and_go(pattern: str) -> None:
    retained, turn = Retained(MemoryEngine(), "/"), Batch()
    topics = [f"{first}/{second}" for first in "ab" for second in "abc"]

    def keep(topic: str) -> None:
        retained.keep(turn, Envelope(Message(Source(topic), b"x", 1), 0, True))

    for topic in topics:
        keep(topic)
    found = retained.match(pattern)
    seen = [next(found)]
    for topic in topics[2:]:
        retained.clear(turn, topic)
    keep("new/b")
    seen += found

    assert set(seen) <= {topic for topic in [*topics, "new/b"] if TopicFilter(pattern).matches(topic)}
    assert len(seen) == len(set(seen))

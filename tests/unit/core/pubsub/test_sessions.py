"""Sessions: resumed, taken over and ended, with their wills and unfinished exactly-once messages."""

import pytest

from headrace.core.pubsub.session import AT_LEAST_ONCE, BEST_EFFORT, FOREVER, Envelope, Will
from headrace.model import Message, Source
from headrace.storage.api import SESSIONS
from headrace.storage.memory import MemoryEngine
from tests.house import House
from tests.listeners import Listener


def restarted(house: House) -> House:
    return House(house.engine, house.clock)


def will(topic: str = "wills", delay_s: int = 0, retain: bool = False, expires_s: int = 0) -> Will:
    message = Message(Source(topic), b"gone", 1, b"")
    return Will(Envelope(message, AT_LEAST_ONCE, retain), delay_s, expires_s)


def watcher(house: House) -> Listener:
    listener = Listener(house, "watcher")
    listener.subscribe("wills", AT_LEAST_ONCE)
    return listener


def test_a_session_without_a_lifetime_ends_with_its_connection() -> None:
    house = House()
    listener = Listener(house, "1")
    listener.subscribe("a")
    listener.leave()

    assert len(house.broker.sessions) == 0
    assert not Listener(house, "1").was_there
    assert list(house.engine.items(SESSIONS)) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_a_session_with_a_lifetime_is_there_until_it_is_over(restarts: bool) -> None:
    house = House()
    first = Listener(house, "1", lifetime_s=60)
    first.subscribe("a", AT_LEAST_ONCE)
    first.leave()
    house = restarted(house) if restarts else house
    house.advance(59)
    second = Listener(house, "1", lifetime_s=60)
    assert second.was_there
    assert list(second.own.subscriptions) == ["a"]
    second.leave()
    house = restarted(house) if restarts else house

    house.advance(61)

    assert len(house.broker.sessions) == 0
    assert list(house.engine.items(SESSIONS)) == []


def test_a_session_ends_while_the_broker_is_down_and_what_waited_is_gone() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()
    house.broker.publish_topic(house.message("x", "a"))
    house.run()
    house.clock.advance(3600)

    house = restarted(house)
    house.advance(0)

    assert len(house.broker.sessions) == 0
    assert house.engine.logs() == []
    assert list(house.engine.items(SESSIONS)) == []


def test_a_session_may_live_for_ever() -> None:
    house = House()
    Listener(house, "1", lifetime_s=FOREVER).leave()
    house.advance(10 * 365 * 86400)
    assert Listener(house, "1").was_there


def test_a_session_that_was_connected_when_the_broker_failed_lives_on_from_then() -> None:
    house = House()
    Listener(house, "1", lifetime_s=60).subscribe("a", AT_LEAST_ONCE)
    house = restarted(house)
    house.advance(59)
    assert len(house.broker.sessions) == 1
    house.advance(2)
    assert len(house.broker.sessions) == 0


def test_a_clean_start_forgets_the_session_and_what_waits() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()
    house.broker.publish_topic(house.message("old", "a"))
    house.run()

    fresh = Listener(house, "1", lifetime_s=60, clean=True)
    assert not fresh.was_there
    fresh.subscribe("a", AT_LEAST_ONCE)
    house.broker.publish_topic(house.message("new", "a"))
    house.run()

    assert fresh.kept() == ["new"]
    fresh.leave()
    assert list(restarted(house).broker.sessions.get("1").subscriptions) == ["a"]  # type: ignore[union-attr]


def test_a_second_connection_takes_the_session_over() -> None:
    house = House()
    first = Listener(house, "1", lifetime_s=60)
    first.subscribe("a", AT_LEAST_ONCE)
    house.broker.publish_topic(house.message("x", "a"))
    house.run()

    second = Listener(house, "1", lifetime_s=60)
    first.leave()

    assert first.is_replaced
    assert second.was_there
    assert second.own is first.own
    assert second.kept() == ["x"]
    assert house.broker.sessions.connected == 1


def test_a_session_without_lifetime_is_not_taken_over_but_ended() -> None:
    house = House()
    first = Listener(house, "1")
    first.subscribe("a")
    second = Listener(house, "1")
    assert first.is_replaced
    assert not second.was_there
    assert second.own.subscriptions == {}


def test_the_lifetime_can_be_changed_while_connected() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    house.broker.sessions.set_lifetime(listener.own, 0)
    listener.leave()
    assert len(house.broker.sessions) == 0
    assert list(house.engine.items(SESSIONS)) == []


def test_a_session_resumed_without_lifetime_still_gets_what_waited_first() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()
    house.broker.publish_topic(house.message("1", "a"))
    house.run()

    back = Listener(house, "1", lifetime_s=0)
    house.broker.publish_topic(house.message("2", "a"))
    house.run()

    assert back.kept() == ["1", "2"]
    back.leave()
    assert len(house.broker.sessions) == 0
    assert house.engine.logs() == []


def test_a_session_is_not_there_for_another_user() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60, user="a")
    listener.subscribe("a", AT_LEAST_ONCE)
    listener.leave()
    house.broker.publish_topic(house.message("secret", "a"))
    house.run()
    house = restarted(house)

    other = Listener(house, "1", lifetime_s=60, user="b")

    assert not other.was_there
    assert other.kept() == []
    assert not Listener(house, "1", lifetime_s=60, user="a").was_there


# -- wills -----------------------------------------------------------------------------------------------------------


def test_a_will_is_published_when_the_connection_is_lost() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", will=will()).leave()
    assert watching.texts() == ["gone"]


def test_a_will_that_was_taken_back_is_not_published() -> None:
    house = House()
    watching = watcher(house)
    listener = Listener(house, "1", lifetime_s=60, will=will())
    listener.leave(with_will=False)
    house = restarted(house)
    house.advance(3600)
    assert watching.texts() == []
    assert list(house.engine.items(SESSIONS)) == []


def test_a_will_waits_for_its_delay() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s=60, will=will(delay_s=10)).leave()
    house.advance(9)
    assert watching.texts() == []
    house.advance(2)
    assert watching.texts() == ["gone"]
    house.advance(3600)
    assert watching.texts() == []


def test_a_will_waits_no_longer_than_its_session() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s=5, will=will(delay_s=100)).leave()
    house.advance(6)
    assert watching.texts() == ["gone"]


def test_a_client_that_is_back_in_time_has_no_will_published() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s=60, will=will(delay_s=10)).leave()
    Listener(house, "1", lifetime_s=60)
    house.advance(100)
    assert watching.texts() == []


def test_a_clean_start_does_not_stop_a_will() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s=60, will=will(delay_s=10)).leave()
    Listener(house, "1", lifetime_s=60, clean=True)
    house.run()
    assert watching.texts() == ["gone"]


@pytest.mark.parametrize("lifetime_s", [0, 60])
def test_a_will_without_delay_is_published_when_the_session_is_taken_over(lifetime_s: int) -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s, will=will())
    Listener(house, "1", lifetime_s)
    assert watching.texts() == ["gone"]


@pytest.mark.parametrize("lifetime_s", [0, 60])
def test_wills_of_clients_that_were_connected_when_the_broker_failed_are_published_after_it_is_back(
    lifetime_s: int,
) -> None:
    house = House()
    Listener(house, "1", lifetime_s, will=will(retain=True))

    house = restarted(house)
    house.advance(0)

    kept = house.broker.pubsub.retained.get("wills", house.clock.now_us())
    assert kept is not None
    assert kept.message.payload == b"gone"
    house = restarted(house)
    house.broker.pubsub.retained.clear(house.broker._pipeline.open(), "wills")
    house.advance(3600)
    assert house.broker.pubsub.retained.get("wills", house.clock.now_us()) is None


def test_the_time_of_a_will_begins_when_it_is_published() -> None:
    house = House()
    watching = watcher(house)
    Listener(house, "1", lifetime_s=3600, will=will(delay_s=100, expires_s=30)).leave()
    house.advance(101)
    [(message, _, _, _)] = watching.heard
    assert message.expires_us == house.clock.now_us() + 30_000_000


# -- exactly once ----------------------------------------------------------------------------------------------------


def test_what_is_half_done_is_known_after_a_restart() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    sessions = house.broker.sessions
    sessions.take(listener.own, 7)
    sessions.take(listener.own, 8)
    sessions.complete(listener.own, 9)
    sessions.complete(listener.own, 10)
    assert sessions.finish_taken(listener.own, 8)
    assert not sessions.finish_taken(listener.own, 8)
    assert sessions.finish_completing(listener.own, 10)
    house.run()

    again = Listener(restarted(house), "1", lifetime_s=60).own

    assert (again.taken, again.completing) == ({7}, {9})


def test_what_is_half_done_in_a_session_without_lifetime_is_not_stored() -> None:
    house = House()
    listener = Listener(house, "1")
    house.broker.sessions.take(listener.own, 7)
    house.broker.sessions.complete(listener.own, 7)
    house.run()
    assert list(house.engine.items(SESSIONS)) == []


def test_everything_of_a_subscription_is_kept() -> None:
    house = House()
    listener = Listener(house, "1", lifetime_s=60)
    listener.subscribe(
        "a/é", AT_LEAST_ONCE, identifier=5, no_echo=True, keeps_retain=True, retained=2, group="g", auto_commit=False
    )
    house.broker.sessions.subscribe(listener.own.subscriptions["a/é"])
    again = restarted(house).broker.sessions.get("1")
    assert again is not None
    found = again.subscriptions["a/é"]
    assert (found.assurance, found.identifier, found.no_echo, found.keeps_retain, found.retained) == (
        1,
        5,
        True,
        True,
        2,
    )
    assert (found.group, found.auto_commit) == ("g", False)


def test_sessions_of_one_host_are_not_those_of_another() -> None:
    engine = MemoryEngine()
    here, there = House(engine, host="/"), House(engine, host="other")
    Listener(here, "1", lifetime_s=60).subscribe("a", AT_LEAST_ONCE)
    listener = Listener(there, "1", lifetime_s=60)
    assert not listener.was_there
    here.broker.publish_topic(here.message("x", "a"))
    here.run()
    assert House(engine, host="other").broker.sessions.get("1") is not None
    assert Listener(House(engine, host="/"), "1", lifetime_s=60).kept() == ["x"]


def test_a_damaged_entry_is_left_out_and_the_rest_is_there() -> None:
    house = House()
    Listener(house, "1", lifetime_s=60).subscribe("a", BEST_EFFORT)
    commit = house.broker._pipeline.open().durable
    commit.put(SESSIONS, b"/\x001\x00fb", b"not json")
    commit.put(SESSIONS, b"/\x001\x00w", b"short")
    commit.put(SESSIONS, b"/\x001\x00?", b"")
    house.run()

    session = restarted(house).broker.sessions.get("1")

    assert session is not None
    assert list(session.subscriptions) == ["a"]

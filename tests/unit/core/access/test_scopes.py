"""Scopes of a token: their rights per virtual host; any other text allows nothing."""

import pytest

from headrace.core.access.permissions import CONFIGURE, EXCHANGE, MAX_SCOPES, QUEUE, READ, WRITE, Grants, Rights
from headrace.errors import AccessRefused


def grants(*words: str) -> Grants:
    return Grants("ann", "broker", words)


def rights(*words: str, host: str = "/") -> Rights:
    given = grants(*words)
    permission = given.permission(host)
    assert permission is not None
    permission.check()
    found = Rights("ann", host)
    found.grant(permission, given.topics(host))
    return found


def test_a_scope_allows_what_it_says_and_nothing_else() -> None:
    found = rights("broker.write:%2F/orders", "broker.read:%2F/results*")

    assert found.may(WRITE, "orders")
    assert found.may(READ, "results")
    assert found.may(READ, "results.eu")
    for what, name in ((READ, "orders"), (WRITE, "orders2"), (WRITE, "my orders"), (WRITE, "orders\n")):
        assert not found.may(what, name)
    assert not found.may(CONFIGURE, "orders")


def test_virtual_hosts_are_entered_by_name_or_by_pattern() -> None:
    given = grants("broker.read:eu-*/q", "broker.read:%2F/q")

    assert given.permission("eu-west") is not None
    assert given.permission("/") is not None
    assert given.permission("us") is None
    assert given.permission("my eu-west") is None


def test_signs_of_regular_expressions_are_plain_letters() -> None:
    found = rights("broker.write:%2F/a.b|c", "broker.write:%2F/%2A")

    assert found.may(WRITE, "a.b|c")
    assert not found.may(WRITE, "axb")
    assert not found.may(WRITE, "c")


def test_keys_bound_one_exchange_and_leave_others_alone() -> None:
    found = rights("broker.write:%2F/amq.topic/plant.*", "broker.write:%2F/free", "broker.read:%2F/*")

    found.check_publish("amq.topic", "plant.1")
    found.check_publish("free", "anything")
    found.check_topic_publish("plant/1")
    found.check_topic_subscribe("anything/#")
    for topic in ("house/1", "my/plant/1"):
        with pytest.raises(AccessRefused, match="topic"):
            found.check_topic_publish(topic)


def test_a_scope_without_keys_is_for_all_of_them() -> None:
    found = rights("broker.write:%2F/amq.topic/plant.*", "broker.write:%2F/amq.topic")

    found.check_topic_publish("house/1")


def test_keys_of_queue_addresses_are_what_follows_the_prefix() -> None:
    found = rights("broker.write:%2F/orders", "broker.write:%2F/$queue/orders%2Feu%2F*")

    found.check_topic_publish("$queue/orders/eu/7")
    with pytest.raises(AccessRefused):
        found.check_topic_publish("$queue/orders/us/7")


def test_names_in_braces_are_not_filled_in() -> None:
    found = rights("broker.write:%2F/amq.topic/{username}")

    with pytest.raises(AccessRefused):
        found.check_topic_publish("ann")
    found.check_topic_publish("{username}")


def test_tags_are_those_of_the_audience() -> None:
    assert grants("broker.tag:administrator", "other.tag:monitoring", "broker.tag:").tags == ("administrator",)


@pytest.mark.parametrize(
    "word",
    [
        "openid",
        "read:%2F/q",
        "other.read:%2F/q",
        "brokerread:%2F/q",
        "broker.read",
        "broker.read:",
        "broker.read:%2F",
        "broker.read:%2F/",
        "broker.read:/q",
        "broker.read:a/b/c/d",
        "broker.execute:%2F/q",
        "broker.write:%2F/*/key",
    ],
)
def test_what_is_written_otherwise_allows_nothing(word: str) -> None:
    assert grants(word).permission("/") is None
    assert grants(word).tags == ()


def test_there_is_an_end_to_scopes() -> None:
    found = rights(*[f"broker.read:%2F/q{number}" for number in range(MAX_SCOPES + 1)])

    found.check(READ, QUEUE, f"q{MAX_SCOPES - 1}")
    with pytest.raises(AccessRefused):
        found.check(READ, QUEUE, f"q{MAX_SCOPES}")
    with pytest.raises(AccessRefused):
        found.check(WRITE, EXCHANGE, "q0")

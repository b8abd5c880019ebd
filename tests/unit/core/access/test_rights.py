"""Rights of a user: RabbitMQ's rules for names, and for topics."""

import pytest

from headrace.core.access.permissions import (
    CONFIGURE,
    EXCHANGE,
    QUEUE,
    READ,
    WRITE,
    Permission,
    Rights,
    TopicPermission,
)
from headrace.core.queue.definition import QueueDefinition
from headrace.core.routing.exchange import Binding, Exchange
from headrace.errors import AccessRefused, Refused


def rights(configure: str = "", write: str = "", read: str = "", **topics: tuple[str, str]) -> Rights:
    """Rights of ann in the host `eu`; topics by exchange (with `_` for `.`) as patterns to write and to read."""
    given = Rights("ann", "eu")
    names = {name.replace("_", "."): patterns for name, patterns in topics.items()}
    given.grant(
        Permission("ann", "eu", configure, write, read),
        {name: TopicPermission("ann", "eu", name, *patterns) for name, patterns in names.items()},
    )
    return given


def test_a_pattern_is_searched_anywhere_in_a_name_unless_it_says_where() -> None:
    assert rights(write="orders").may(WRITE, "eu-orders-1")
    assert not rights(write="^orders$").may(WRITE, "eu-orders-1")
    assert rights(write="^(a|b)$").may(WRITE, "b")


def test_an_empty_pattern_allows_nothing_and_a_refusal_says_what_to_whom() -> None:
    with pytest.raises(AccessRefused, match=r"^configure access to queue 'q' in vhost 'eu' refused for user 'ann'$"):
        rights().check(CONFIGURE, QUEUE, "q")


def test_the_default_exchange_is_named_amq_default() -> None:
    rights(write=r"^amq\.default$").check(WRITE, EXCHANGE, "")
    with pytest.raises(AccessRefused, match=r"exchange 'amq\.default'"):
        rights(write="^orders$").check(WRITE, EXCHANGE, "")


def test_a_change_counts_at_once_for_what_was_allowed_before() -> None:
    given = rights(write=".*")
    given.check(WRITE, EXCHANGE, "x")
    assert "x" in given.writable

    given.grant(None, {})

    assert not given.writable
    with pytest.raises(AccessRefused):
        given.check(WRITE, EXCHANGE, "x")


def test_what_is_remembered_of_names_is_bounded() -> None:
    given = rights(write=".*")
    for number in range(10_000):
        given.check(WRITE, EXCHANGE, f"x{number}")
    assert len(given.writable) <= 4096


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (rights("^q$"), False),
        (rights("^q$", "^dlx$"), False),
        (rights("^q$", read="^q$"), False),
        (rights("^q$", "^dlx$", "^q$"), True),
    ],
)
def test_dead_letters_need_their_queue_read_and_their_exchange_written(given: Rights, allowed: bool) -> None:
    given.check_declare_queue(QueueDefinition("q"))
    definition = QueueDefinition("q", dead_letter_exchange="dlx")
    if allowed:
        given.check_declare_queue(definition)
    else:
        with pytest.raises(AccessRefused):
            given.check_declare_queue(definition)


def test_an_alternate_exchange_is_written_and_its_exchange_read() -> None:
    exchange = Exchange("x", "fanout", arguments={"alternate-exchange": "ae"})
    rights("^x$", "^ae$", "^x$").check_declare_exchange(exchange)
    for given in (rights("^x$", "^ae$"), rights("^x$", read="^x$"), rights("", "^ae$", "^x$")):
        with pytest.raises(AccessRefused):
            given.check_declare_exchange(exchange)


def test_binding_writes_the_destination_and_reads_the_source() -> None:
    rights(write="^q$", read="^x$").check_bind(Binding("x", "q"))
    for given in (rights(write="^q$"), rights(read="^x$")):
        with pytest.raises(AccessRefused):
            given.check_bind(Binding("x", "q"))


def test_names_that_the_server_gives_are_checked_too() -> None:
    rights(r"^amq\.gen-.+").check_declare_queue(QueueDefinition(""))
    with pytest.raises(AccessRefused, match=r"queue 'amq\.gen-"):
        rights("^mine").check_declare_queue(QueueDefinition(""))


def test_topics_matter_only_for_exchanges_that_have_permissions_about_them() -> None:
    given = rights(write=".*", read=".*", amq_topic=(r"^eu\.", r"^public\."))
    given.check_publish("amq.topic", "eu.orders")
    given.check_publish("other", "us.orders")
    with pytest.raises(AccessRefused, match=r"write access to topic 'us\.orders' in exchange 'amq\.topic' in vhost"):
        given.check_publish("amq.topic", "us.orders")
    with pytest.raises(AccessRefused, match=r"read access to topic 'eu\.#'"):
        given.check_bind(Binding("amq.topic", "q", "eu.#"))


def test_places_in_topic_patterns_are_filled_in_literally() -> None:
    given = Rights("a.b", "eu")
    topic = TopicPermission("a.b", "eu", "amq.topic", r"^{vhost}\.{username}\.{client_id}$")
    given.grant(Permission("a.b", "eu", write=".*"), {"amq.topic": topic})
    given.check_topic(WRITE, "amq.topic", "eu.a.b.c1", "c1")
    given.check_topic(WRITE, "amq.topic", "eu.a.b.c2", "c2")
    for key in ("eu.aXb.c1", "eu.a.b.c2"):
        with pytest.raises(AccessRefused):
            given.check_topic(WRITE, "amq.topic", key, "c1")


def test_a_plus_is_a_wildcard_only_as_a_whole_level_of_what_is_read() -> None:
    given = rights(write=".*", read=".*", amq_topic=(r"^a\+b\.(\*|\+)$", r"^a\+b\.(\*|\+)$"))

    given.check_topic_publish("a+b/+")
    given.check_topic_subscribe("a+b/+")
    assert not given.may_subscribe("+/+", "c")


def test_plain_topics_are_keys_of_amq_topic() -> None:
    given = rights(write=r"^amq\.topic$", read=r"^amq\.topic$", amq_topic=(r"^home\.", r"^home\.\*\.temperature$"))
    given.check_topic_publish("home/kitchen")
    given.check_topic_subscribe("home/+/temperature")
    with pytest.raises(AccessRefused):
        given.check_topic_publish("garden/shed")
    with pytest.raises(AccessRefused):
        given.check_topic_subscribe("#")
    with pytest.raises(AccessRefused, match=r"exchange 'amq\.topic'"):
        rights(write="^orders$").check_topic_publish("home/kitchen")


def test_an_address_needs_its_queue_and_settling_is_reading() -> None:
    given = rights(write=r"^amq\.default$|^orders$", read="^orders$")
    given.check_publish("", "$queue/orders/eu")
    given.check_topic_subscribe("$queue/orders/#")
    with pytest.raises(AccessRefused, match="write access to queue 'bills'"):
        given.check_publish("", "$queue/bills/eu")
    rights(read="^orders$").check_topic_publish("$queue/orders/$ack")
    with pytest.raises(AccessRefused, match="read access to queue 'orders'"):
        rights(write="^orders$").check_topic_publish("$queue/orders/$ack")


def test_topic_permissions_of_addresses_are_about_what_follows_queue() -> None:
    given = Rights("ann", "eu")
    topic = TopicPermission("ann", "eu", "$queue", "^orders/eu(/|$)", "^orders/")
    given.grant(Permission("ann", "eu", ".*", ".*", ".*"), {"$queue": topic})
    given.check_topic_publish("$queue/orders/eu/berlin")
    with pytest.raises(AccessRefused, match="topic 'orders/us'"):
        given.check_topic_publish("$queue/orders/us")


@pytest.mark.parametrize("pattern", ["(", "[a", "a**", "(?P<x>a)(?P<x>b)", "a{99999999999}"])
def test_patterns_that_make_no_sense_are_refused(pattern: str) -> None:
    with pytest.raises(Refused, match="is not a regular expression"):
        Permission("ann", "eu", pattern).check()
    with pytest.raises(Refused, match="is not a regular expression"):
        TopicPermission("ann", "eu", "x", read=pattern).check()


def test_reading_is_not_writing() -> None:
    with pytest.raises(AccessRefused, match=r"^write access"):
        rights(read=".*").check(WRITE, EXCHANGE, "x")
    with pytest.raises(AccessRefused, match=r"^read access"):
        rights(write=".*").check(READ, QUEUE, "x")

"""Routes through exchanges: by kind, from exchange to exchange, to alternates, from the cache."""

from itertools import pairwise

import pytest

from headrace.core.routing.exchange import Binding, Exchange
from headrace.core.routing.exchanges import Exchanges
from headrace.errors import AccessRefused, NotFound


def with_exchange(kind: str, internal: bool = False) -> Exchanges:
    exchanges = Exchanges()
    exchanges.declare(Exchange("x", kind, internal=internal))
    return exchanges


def topic_exchange(**keys: str) -> Exchanges:
    """A topic exchange `x` with a queue for each key."""
    exchanges = with_exchange("topic")
    for queue, key in keys.items():
        exchanges.bind(Binding("x", queue, key))
    return exchanges


# Route: the default exchange, direct, fanout


def test_the_default_exchange_routes_to_the_queue_named_by_the_key() -> None:
    assert Exchanges().route("", "my-stream") == ("my-stream",)


def test_a_direct_exchange_routes_by_the_exact_key() -> None:
    exchanges = with_exchange("direct")
    for queue, key in (("q", "a"), ("r", "b"), ("s", "a"), ("t", "a.#")):
        exchanges.bind(Binding("x", queue, key))

    assert exchanges.route("x", "a") == ("q", "s")


def test_a_fanout_exchange_routes_to_every_queue_whatever_the_key() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "q", "a"))
    exchanges.bind(Binding("x", "r"))

    assert exchanges.route("x", "whatever") == ("q", "r")


def test_a_queue_bound_twice_gets_the_message_once() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("x", "q", "a"))
    exchanges.bind(Binding("x", "q", "b"))

    assert exchanges.route("x", "a") == ("q",)


def test_a_message_without_a_matching_binding_goes_nowhere() -> None:
    assert with_exchange("direct").route("x", "a") == ()


def test_an_unknown_exchange_cannot_be_routed_through() -> None:
    with pytest.raises(NotFound, match="no exchange 'x'"):
        Exchanges().route("x", "k")


def test_extra_keys_route_as_further_routing_keys() -> None:
    exchanges = with_exchange("direct")
    for name in ("a", "b", "c", "d"):
        exchanges.bind(Binding("x", "q-" + name, name))

    assert exchanges.route("x", "a", None, ["c", "d", "a"]) == ("q-a", "q-c", "q-d")


def test_extra_keys_name_further_queues_on_the_default_exchange() -> None:
    assert Exchanges().route("", "a", None, ["b", "a"]) == ("a", "b")


def test_extra_keys_do_not_change_the_route_of_the_key_alone() -> None:
    exchanges = with_exchange("direct")
    exchanges.bind(Binding("x", "q", "a"))
    exchanges.bind(Binding("x", "r", "b"))

    exchanges.route("x", "a", None, ["b"])

    assert exchanges.route("x", "a") == ("q",)


# Route: topic


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("orders.#", "orders.eu.images", True),
        ("#", "tasks.dead", True),
        ("#", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "a", False),
        ("*.orange.*", "quick.orange.rabbit", True),
        ("*.orange.*", "quick.orange.male.rabbit", False),
        ("*.*.rabbit", "lazy.orange.rabbit", True),
        ("lazy.#", "lazy", True),
        ("lazy.#", "lazy.orange.male.rabbit", True),
        ("lazy.#", "lazybones", False),
        ("#.rabbit", "rabbit", True),
        ("#.rabbit", "lazy.orange.rabbit", True),
        ("#.rabbit", "lazy.rabbit.orange", False),
        ("a.#.b", "a.b", True),
        ("a.#.b", "a.b.b.b", True),
        ("a.#.b", "a.b.c", False),
        ("a.#.#.b", "a.x.b", True),
        ("#.*", "", False),
        ("#.*", "a", True),
        ("*.#", "a.b", True),
        ("#.a.#", "x.a.y", True),
        ("#.a.#.a.#", "x.a.y", False),
        ("a.*.b", "a..b", True),
        ("a..b", "a..b", True),
        ("a.b", "a..b", False),
        ("*.*", ".", True),
        ("a*", "ab", False),
        ("a*", "a*", True),
    ],
)
def test_a_topic_exchange_matches_word_by_word(pattern: str, key: str, expected: bool) -> None:
    assert topic_exchange(q=pattern).route("x", key) == (("q",) if expected else ())


def test_dead_letters_of_every_key_reach_a_queue_bound_with_a_hash() -> None:
    exchanges = Exchanges()
    exchanges.declare(Exchange("dlx", "topic"))
    exchanges.bind(Binding("dlx", "dead-letters", "#"))

    assert exchanges.route("dlx", "tasks.dead") == ("dead-letters",)


@pytest.mark.timeout(20)
def test_many_hashes_do_not_multiply_the_work() -> None:
    exchanges = topic_exchange(q=".".join(["#.a"] * 60), r=".".join(["#"] * 120), s=".".join(["*.#"] * 60) + ".b")

    assert exchanges.route("x", ".".join(["a"] * 128)) == ("q", "r")


@pytest.mark.timeout(20)
def test_a_key_of_thirty_thousand_words_is_routed() -> None:
    exchanges = topic_exchange(q="#.a.#", r="a.#.b", s="#.*")

    assert sorted(exchanges.route("x", ".".join(["a"] * 30_000))) == ["q", "s"]


# Route: exchange to exchange, alternates


def test_a_message_follows_bindings_from_exchange_to_exchange() -> None:
    exchanges = with_exchange("fanout", internal=True)
    exchanges.bind(Binding("amq.topic", "x", "orders.#", to_exchange=True))
    exchanges.bind(Binding("amq.topic", "q", "orders.eu"))
    exchanges.bind(Binding("x", "r"))

    assert exchanges.route("amq.topic", "orders.eu") == ("q", "r")


def test_a_queue_reached_by_two_ways_gets_the_message_once() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("amq.fanout", "x", to_exchange=True))
    exchanges.bind(Binding("amq.fanout", "q"))
    exchanges.bind(Binding("x", "q"))

    assert exchanges.route("amq.fanout", "") == ("q",)


def test_a_cycle_of_exchanges_ends() -> None:
    exchanges = with_exchange("fanout")
    exchanges.bind(Binding("amq.fanout", "x", to_exchange=True))
    exchanges.bind(Binding("x", "amq.fanout", to_exchange=True))
    exchanges.bind(Binding("x", "x", to_exchange=True))
    exchanges.bind(Binding("x", "q"))

    assert exchanges.route("amq.fanout", "") == ("q",)


def alternates(*chain: str) -> Exchanges:
    """Direct exchanges, each with the next as its alternate; the last leads to the last name."""
    exchanges = Exchanges()
    for name, alternate in pairwise(chain):
        if name not in [exchange.name for exchange in exchanges.exchanges()]:
            exchanges.declare(Exchange(name, "direct", arguments={"alternate-exchange": alternate}))
    return exchanges


def test_what_nothing_matches_goes_to_the_alternate_exchange() -> None:
    exchanges = alternates("x", "amq.fanout")
    exchanges.bind(Binding("amq.fanout", "unrouted"))
    exchanges.bind(Binding("x", "q", "a"))

    assert (exchanges.route("x", "a"), exchanges.route("x", "b")) == (("q",), ("unrouted",))


def test_an_alternate_has_an_alternate_too() -> None:
    exchanges = alternates("x", "y", "z", "amq.fanout")
    exchanges.bind(Binding("amq.fanout", "unrouted"))

    assert exchanges.route("x", "b") == ("unrouted",)


def test_a_cycle_of_alternates_ends() -> None:
    assert alternates("x", "y", "x").route("x", "b") == ()


def test_an_alternate_that_does_not_exist_is_passed_over() -> None:
    assert alternates("x", "nowhere").route("x", "b") == ()


def test_an_alternate_counts_from_the_moment_it_is_declared() -> None:
    exchanges = alternates("x", "y")
    before = exchanges.route("x", "b")

    exchanges.declare(Exchange("y", "fanout"))
    exchanges.bind(Binding("y", "q"))

    assert (before, exchanges.route("x", "b")) == ((), ("q",))


def test_an_alternate_declared_later_passes_on_to_its_own() -> None:
    exchanges = alternates("x", "y")
    exchanges.bind(Binding("amq.fanout", "unrouted"))
    before = exchanges.route("x", "b")

    exchanges.declare(Exchange("y", "direct", arguments={"alternate-exchange": "amq.fanout"}))

    assert (before, exchanges.route("x", "b")) == ((), ("unrouted",))


def test_the_default_exchange_may_be_an_alternate() -> None:
    assert alternates("x", "").route("x", "orders") == ("orders",)


def test_an_alternate_is_not_used_when_an_exchange_matched_that_leads_nowhere() -> None:
    exchanges = alternates("x", "amq.fanout")
    exchanges.bind(Binding("amq.fanout", "unrouted"))
    exchanges.bind(Binding("x", "amq.direct", "a", to_exchange=True))

    assert exchanges.route("x", "a") == ()


def test_an_alternate_is_not_used_when_an_extra_key_matched() -> None:
    exchanges = alternates("x", "amq.fanout")
    exchanges.bind(Binding("amq.fanout", "unrouted"))
    exchanges.bind(Binding("x", "q", "a"))

    assert exchanges.route("x", "b", None, ["a"]) == ("q",)


def test_an_internal_exchange_is_not_for_clients() -> None:
    with pytest.raises(AccessRefused, match="cannot publish to internal exchange 'x'"):
        with_exchange("fanout", internal=True).check_publish("x")


def test_clients_may_publish_to_any_other_exchange() -> None:
    with_exchange("fanout").check_publish("x")


# The cache


def test_a_route_is_computed_once() -> None:
    exchanges = topic_exchange(q="a.#")

    assert exchanges.route("x", "a.b") is exchanges.route("x", "a.b")


@pytest.mark.parametrize("change", ["bind", "unbind", "queue", "delete"])
def test_a_change_of_topology_is_seen_by_the_next_message(change: str) -> None:
    exchanges = topic_exchange(q="a.#", r="a.*")
    exchanges.bind(Binding("x", "amq.fanout", "#", to_exchange=True))
    exchanges.declare(Exchange("y", "fanout"))
    exchanges.bind(Binding("amq.fanout", "y", to_exchange=True))
    exchanges.bind(Binding("y", "s"))
    assert sorted(exchanges.route("x", "a.b")) == ["q", "r", "s"]

    if change == "bind":
        exchanges.bind(Binding("amq.fanout", "t"))
    elif change == "unbind":
        exchanges.unbind(Binding("x", "r", "a.*"))
    elif change == "queue":
        exchanges.remove_queue("q")
    else:
        exchanges.delete("y")

    expected = {"bind": "qrts", "unbind": "qs", "queue": "rs", "delete": "qr"}
    assert sorted(exchanges.route("x", "a.b")) == sorted(expected[change])


def test_the_cache_is_bounded_in_keys() -> None:
    exchanges = topic_exchange(q="#")

    for number in range(60_000):
        exchanges.route("x", f"key.{number}")

    assert len(exchanges._routes["x"]) <= 25_000


def test_the_cache_is_bounded_in_queues_per_route() -> None:
    exchanges = with_exchange("fanout")
    for number in range(1_000):
        exchanges.bind(Binding("x", f"q{number}"))

    for number in range(1_000):
        exchanges.route("x", f"key.{number}")

    assert len(exchanges._routes["x"]) <= 200


def test_a_route_that_depends_on_headers_is_not_cached() -> None:
    exchanges = with_exchange("headers")
    exchanges.bind(Binding("x", "q", "", {"color": "red"}))
    exchanges.bind(Binding("amq.topic", "x", "#", to_exchange=True))

    routes = [exchanges.route("amq.topic", "k", {"color": color}) for color in ("red", "blue", "red")]

    assert routes == [("q",), (), ("q",)]

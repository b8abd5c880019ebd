"""Laws of routing: the trees agree with matchers too simple to be wrong, and the cache changes nothing."""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from hashlib import blake2b
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.routing.address import format_message_id, parse_address, parse_message_id, queue_topic
from headrace.core.routing.exchange import ALTERNATE, DELAYED, DELAYED_TYPE, KINDS, Binding, Exchange, routed_as
from headrace.core.routing.exchanges import Exchanges
from headrace.core.routing.topics import KeyTrie, TopicFilter, TopicTree
from headrace.errors import Refused
from headrace.names import check_filter, check_topic
from headrace.wire.properties import frozen

# Few different levels, so that random patterns and topics meet often.
LEVELS = st.sampled_from(["", "a", "b", "$x"])
TOPICS = st.lists(LEVELS, min_size=1, max_size=5).map("/".join).filter(bool)
PATTERNS = st.builds(
    lambda levels, rest: "/".join([*levels, *rest]),
    st.lists(st.one_of(LEVELS, st.just("+")), max_size=4),
    st.sampled_from([["#"], ["a"], [""]]),
).filter(bool)

WORDS = st.sampled_from(["", "a", "b"])
KEYS = st.lists(WORDS, max_size=6).map(".".join)
KEY_PATTERNS = st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), max_size=6).map(".".join)


def topic_matches(pattern: list[str], topic: list[str]) -> bool:
    if pattern[:1] == ["#"]:
        return True
    if not pattern or not topic:
        return not pattern and not topic
    return pattern[0] in ("+", topic[0]) and topic_matches(pattern[1:], topic[1:])


def naive_topic_match(pattern: str, topic: str) -> bool:
    if topic.startswith("$") and pattern[:1] in ("+", "#"):
        return False
    return topic_matches(pattern.split("/"), topic.split("/"))


def words_match(pattern: list[str], words: list[str]) -> bool:
    if not pattern:
        return not words
    if pattern[0] == "#":
        return words_match(pattern[1:], words) or (bool(words) and words_match(pattern, words[1:]))
    return bool(words) and pattern[0] in ("*", words[0]) and words_match(pattern[1:], words[1:])


def naive_key_match(pattern: str, key: str) -> bool:
    return words_match(pattern.split(".") if pattern else [], key.split(".") if key else [])


@given(st.lists(PATTERNS), st.lists(PATTERNS), TOPICS)
def test_the_topic_tree_is_a_list_of_patterns_only_faster(added: list[str], removed: list[str], topic: str) -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in added:
        tree.add(pattern, pattern)
    for pattern in removed:
        tree.remove(pattern, pattern)

    left = set(added) - set(removed)
    assert sorted(tree.match(topic)) == sorted(p for p in left if naive_topic_match(p, topic))
    assert len(tree) == len(left)


@given(PATTERNS, TOPICS)
def test_a_single_filter_agrees_with_the_naive_one(pattern: str, topic: str) -> None:
    assert TopicFilter(pattern).matches(topic) == naive_topic_match(pattern, topic)


@given(PATTERNS, TOPICS)
def test_a_filter_of_keys_is_the_rest_of_the_subscription(key_filter: str, key: str) -> None:
    whole = naive_topic_match(queue_topic("q", key_filter), queue_topic("q", key))

    assert TopicFilter(key_filter, for_keys=True).matches(key) == whole


@given(PATTERNS)
def test_a_filter_of_keys_sees_the_root_as_the_subscription_does(key_filter: str) -> None:
    whole = naive_topic_match(queue_topic("q", key_filter), queue_topic("q"))

    assert TopicFilter(key_filter, for_keys=True).matches("") == whole


@given(st.text())
def test_checks_of_any_text_pass_or_refuse(text: str) -> None:
    for check in (check_topic, check_filter, parse_address, parse_message_id):
        with suppress(Refused):
            check(text)


@given(st.text(min_size=1), st.integers(min_value=0, max_value=2**63 - 1))
def test_a_message_id_comes_back_whatever_the_queue_is_called(queue: str, offset: int) -> None:
    assert parse_message_id(format_message_id(queue, offset)) == (queue, offset)


@given(st.lists(KEY_PATTERNS), st.lists(KEY_PATTERNS), KEYS)
def test_the_word_tree_is_a_list_of_patterns_only_faster(added: list[str], removed: list[str], key: str) -> None:
    tree: KeyTrie[str] = KeyTrie()
    for pattern in added:
        tree.add(pattern, pattern)
    for pattern in removed:
        tree.remove(pattern, pattern)

    left = set(added) - set(removed)
    assert sorted(tree.match(key)) == sorted(p for p in left if naive_key_match(p, key))
    assert len(tree) == len(left)


NAMES = st.sampled_from(["x", "y", "z", "amq.topic", "amq.headers"])
QUEUES = st.sampled_from(["q", "r", "s"])
HEADERS = st.dictionaries(st.sampled_from(["h", "i", "x-j"]), st.sampled_from([1, True, "a", None]))
ARGUMENTS = st.builds(
    lambda mode, headers: {**mode, **headers},
    st.sampled_from([{}, *({"x-match": mode} for mode in ("all", "any", "all-with-x", "any-with-x"))]),
    HEADERS,
)
BINDINGS = st.one_of(
    st.builds(Binding, NAMES, QUEUES, KEY_PATTERNS, ARGUMENTS),
    st.builds(Binding, NAMES, NAMES, KEY_PATTERNS, ARGUMENTS, st.just(True)),
)
EXCHANGES = st.builds(
    lambda name, kind, auto_delete, alternate, inner: Exchange(
        name,
        kind,
        auto_delete=auto_delete,
        arguments={
            **({ALTERNATE: alternate} if alternate else {}),
            **({DELAYED_TYPE: inner} if kind == DELAYED else {}),
        },
    ),
    NAMES,
    st.sampled_from(KINDS),
    st.booleans(),
    st.one_of(st.none(), NAMES),
    st.sampled_from([kind for kind in KINDS if kind != DELAYED]),
)


class NoChance(Random):
    """Always chooses the first."""

    def random(self) -> float:
        return 0.0


CHANGES = st.one_of(
    st.tuples(st.just("declare"), EXCHANGES),
    st.tuples(st.just("delete"), NAMES),
    st.tuples(st.just("bind"), BINDINGS),
    st.tuples(st.just("bind"), BINDINGS),
    st.tuples(st.just("unbind"), BINDINGS),
    st.tuples(st.just("queue"), QUEUES),
)


def change(exchanges: Exchanges, what: tuple[str, object]) -> None:
    kind, subject = what
    with suppress(Refused):
        if isinstance(subject, Exchange):
            exchanges.declare(subject)
        elif isinstance(subject, Binding):
            if kind == "bind":
                exchanges.bind(subject)
            else:
                exchanges.unbind(subject)
        elif kind == "delete":
            exchanges.delete(str(subject))
        else:
            exchanges.remove_queue(str(subject))


def rebuilt(exchanges: Exchanges) -> Exchanges:
    """The same topology, rebuilt from its stored form."""
    fresh = Exchanges(chance=NoChance())
    for exchange in exchanges.exchanges()[6:]:
        fresh.declare(Exchange.from_json(json.loads(json.dumps(exchange.to_json()))))
    for binding in exchanges.bindings():
        fresh.bind(Binding.from_json(json.loads(json.dumps(binding.to_json()))))
    return fresh


def is_asked(binding: Binding, headers: Mapping[str, object]) -> bool:
    mode = str(binding.arguments.get("x-match", "all"))
    asked = [
        name in headers and (value is None or frozen(headers[name]) == frozen(value))
        for name, value in binding.arguments.items()
        if name != "x-match" and ("with-x" in mode or not name.startswith("x-"))
    ]
    return any(asked) if mode.startswith("any") else all(asked)


def naive_route(exchanges: Exchanges, start: str, keys: list[str], headers: Mapping[str, object]) -> set[str]:
    """Scan all bindings of each exchange that is reached."""
    known = {exchange.name: exchange for exchange in exchanges.exchanges()}
    queues: set[str] = set()
    reached = [start]
    for name in reached:
        if name not in known:
            continue
        kind = routed_as(known[name].kind, known[name].arguments)
        bound = [binding for binding in exchanges.bindings() if binding.source == name]
        taken = [
            binding
            for binding in bound
            if (
                kind == "fanout"
                or (kind == "direct" and binding.key in keys)
                or (kind == "topic" and any(naive_key_match(binding.key, key) for key in keys))
                or (kind == "headers" and is_asked(binding, headers))
            )
        ]
        if bound and kind == "x-random":
            taken = bound[:1]
        elif bound and kind == "x-modulus-hash":
            bound.sort(key=lambda binding: (binding.to_exchange, binding.destination, binding.key))
            taken = [bound[int.from_bytes(blake2b(keys[0].encode(), digest_size=6).digest(), "big") % len(bound)]]
        queues |= {binding.destination for binding in taken if not binding.to_exchange}
        onward = [binding.destination for binding in taken if binding.to_exchange]
        alternate = known[name].alternate
        if not taken and alternate is not None:
            onward.append(alternate)
        reached += [other for other in dict.fromkeys(onward) if other not in reached]
    return queues


MESSAGES = st.lists(st.tuples(KEYS, HEADERS), min_size=1, max_size=3)


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(CHANGES, max_size=25), MESSAGES)
def test_no_change_of_topology_leaves_an_old_route_in_the_cache(
    changes: list[tuple[str, object]], messages: list[tuple[str, dict[str, object]]]
) -> None:
    exchanges = Exchanges(chance=NoChance())
    for what in changes:
        change(exchanges, what)
        fresh = rebuilt(exchanges)
        for exchange in exchanges.exchanges()[1:]:
            for key, headers in messages * 2:
                route = exchanges.route(exchange.name, key, headers)
                assert len(set(route)) == len(route)
                assert set(route) == set(fresh.route(exchange.name, key, headers))


@settings(max_examples=2 * settings().max_examples)
@given(st.lists(CHANGES, max_size=25), MESSAGES, st.lists(KEYS, max_size=2))
def test_a_route_is_what_scanning_all_bindings_finds(
    changes: list[tuple[str, object]], messages: list[tuple[str, dict[str, object]]], extra_keys: list[str]
) -> None:
    exchanges = Exchanges(chance=NoChance())
    for what in changes:
        change(exchanges, what)
    for exchange in exchanges.exchanges()[1:]:
        for key, headers in messages:
            expected = naive_route(exchanges, exchange.name, [key, *extra_keys], headers)
            assert set(exchanges.route(exchange.name, key, headers, extra_keys)) == expected


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.floats(),
        st.text(),
        st.binary(),
        st.datetimes(timezones=st.sampled_from([None, UTC, timezone(timedelta(hours=-3))])),
        st.decimals(),
    ),
    lambda values: st.one_of(
        st.lists(values, max_size=3),
        st.dictionaries(st.one_of(st.text(), st.sampled_from(["$bytes", "$table"])), values, max_size=3),
    ),
    max_leaves=10,
)
TABLES = st.dictionaries(st.text(), VALUES, max_size=4)


def shape(value: object) -> object:
    """The value with all its types, written out; equal texts are equal values, NaN and -0.0 included."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return repr(value)


@given(st.text(), st.text(), st.text(), TABLES, st.booleans())
def test_a_binding_survives_json_exactly(
    source: str, destination: str, key: str, arguments: dict[str, object], to_exchange: bool
) -> None:
    binding = Binding(source, destination, key, arguments, to_exchange)

    again = Binding.from_json(json.loads(json.dumps(binding.to_json(), allow_nan=False)))

    assert again.identity == binding.identity
    assert shape(again.arguments) == shape(binding.arguments)


@given(st.text(), st.sampled_from(KINDS), st.booleans(), st.booleans(), st.booleans(), TABLES)
def test_an_exchange_survives_json_exactly(
    name: str, kind: str, durable: bool, auto_delete: bool, internal: bool, arguments: dict[str, object]
) -> None:
    exchange = Exchange(name, kind, durable, auto_delete, internal, {**arguments, ALTERNATE: "y"})

    again = Exchange.from_json(json.loads(json.dumps(exchange.to_json(), allow_nan=False)))

    again.check_equivalent(exchange)
    assert shape(again.arguments) == shape(exchange.arguments)
    assert again.name == name

"""Topic names, patterns, and the tree that finds values by topic."""

import pytest

from headrace.core.routing.topics import TopicFilter, TopicTree
from headrace.errors import Refused
from headrace.names import MAX_TOPIC_BYTES, check_filter, check_topic


def tree_of(*patterns: str) -> TopicTree[str]:
    tree: TopicTree[str] = TopicTree()
    for pattern in patterns:
        tree.add(pattern, pattern)
    return tree


# MQTT 5 [4.7.1], [4.7.2] and [4.7.3], with the examples given there, then the edges between them.
CASES = [
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/#", "sport", True),
    ("sport/#", "sports", False),
    ("#", "sport/tennis", True),
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+/tennis/#", "sport/tennis/x/y", True),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    ("#", "$SYS/monitor", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("$queue/#", "$queue/x", True),
    ("a/+", "a/$b", True),
    ("a/#", "a/$b/c", True),
    ("ACCOUNTS", "Accounts", False),
    ("a//b", "a//b", True),
    ("a/+/b", "a//b", True),
    ("a//b", "a/b", False),
    ("a/", "a", False),
    ("a/#", "a/", True),
    ("+/#", "a", True),
    ("+/#", "a/b/c", True),
    ("+/+/#", "a", False),
    ("+/+/#", "a/b", True),
]


@pytest.mark.parametrize(("pattern", "topic", "expected"), CASES)
def test_the_tree_matches_as_mqtt_says(pattern: str, topic: str, expected: bool) -> None:
    assert tree_of(pattern).match(topic) == ([pattern] if expected else [])


@pytest.mark.parametrize(("pattern", "topic", "expected"), CASES)
def test_a_single_filter_matches_as_mqtt_says(pattern: str, topic: str, expected: bool) -> None:
    assert TopicFilter(pattern).matches(topic) is expected


def test_a_publish_reaches_every_queue_whose_pattern_matches() -> None:
    tree: TopicTree[str] = TopicTree()
    tree.add("$queue/orders/#", "orders")
    tree.add("$queue/+/images/#", "images")
    tree.add("$queue/payments/#", "payments")

    assert sorted(tree.match("$queue/orders/images/resize")) == ["images", "orders"]


def test_the_landing_zone_takes_every_queue_topic() -> None:
    assert tree_of("$queue/#").match("$queue/orders/eu/images/resize") == ["$queue/#"]


def test_a_value_under_several_matching_patterns_is_found_once() -> None:
    tree: TopicTree[str] = TopicTree()
    for pattern in ("a/b", "a/+", "a/#", "#"):
        tree.add(pattern, "value")

    assert tree.match("a/b") == ["value"]


def test_values_under_one_pattern_are_found_in_the_order_they_were_added() -> None:
    tree: TopicTree[int] = TopicTree()
    for value in (3, 1, 2):
        tree.add("a", value)

    assert tree.match("a") == [3, 1, 2]


def test_adding_the_same_pair_again_changes_nothing() -> None:
    tree = tree_of("a/b")

    assert (tree.add("a/b", "a/b"), len(tree)) == (False, 1)


def test_the_size_counts_values_once_per_pattern() -> None:
    tree = tree_of("a", "a/#", "+")
    tree.add("a", "another")

    assert len(tree) == 4


def test_a_removed_value_is_not_found_any_more() -> None:
    tree = tree_of("a/+", "a/b")

    assert tree.remove("a/+", "a/+")

    assert (tree.match("a/b"), len(tree)) == (["a/b"], 1)


@pytest.mark.parametrize(("pattern", "value"), [("a/c", "a/b"), ("a/b", "x"), ("a", "a/b"), ("a/b/#", "a/b")])
def test_removing_what_is_not_there_changes_nothing(pattern: str, value: str) -> None:
    tree = tree_of("a/b")

    assert (tree.remove(pattern, value), len(tree)) == (False, 1)


def test_nothing_of_a_pattern_stays_behind_when_it_is_removed() -> None:
    tree = tree_of("a/b/+/c", "a/b/#", "+/x", "#")

    for pattern in ("a/b/+/c", "a/b/#", "+/x", "#"):
        tree.remove(pattern, pattern)

    assert (tree._root.is_empty(), len(tree)) == (True, 0)


def test_removing_a_pattern_keeps_the_longer_and_the_shorter_ones() -> None:
    tree = tree_of("a", "a/b", "a/b/c")

    tree.remove("a/b", "a/b")

    assert [tree.match(topic) for topic in ("a", "a/b", "a/b/c")] == [["a"], [], ["a/b/c"]]


def test_a_bad_pattern_is_refused_by_the_tree() -> None:
    with pytest.raises(Refused, match="must be the last"):
        tree_of("a/#/b")


def test_a_topic_of_thirty_thousand_levels_is_matched() -> None:
    topic = "/".join(["a"] * 30_000)
    tree = tree_of("a/#", topic, "+/#", "a/b")

    assert sorted(tree.match(topic)) == sorted(["a/#", "+/#", topic])


def test_a_pattern_of_thirty_thousand_levels_comes_and_goes() -> None:
    pattern = "/".join(["+"] * 30_000)
    tree = tree_of(pattern)

    assert tree.match("/".join(["a"] * 30_000)) == [pattern]
    assert tree.remove(pattern, pattern)
    assert tree._root.is_empty()


@pytest.mark.timeout(20)
def test_many_wildcards_do_not_multiply_the_work() -> None:
    # Every prefix of wildcards and names that these patterns share is one node, and is visited once.
    patterns = ["/".join("+" if bits >> n & 1 else "a" for n in range(10)) + "/#" for bits in range(1024)]
    tree = tree_of(*patterns)

    assert len(tree.match("/".join(["a"] * 30_000))) == 1024


@pytest.mark.parametrize("name", ["a", "/", "a/b c/ü", "$queue/orders/$ack", "x" * MAX_TOPIC_BYTES, "\U0001f600"])
def test_a_topic_name_may_be_any_other_text(name: str) -> None:
    check_topic(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "the topic is empty"),
        ("a/+/b", r"topic 'a/\+/b' has the wildcard '\+' in level 2, character 3"),
        ("sport/tennis#", "has the wildcard '#' in level 2, character 13"),
        ("a\0b", r"topic 'a\\x00b' has U\+0000 at character 2"),
        ("a/\ud800", "is not UTF-8 at character 3"),
        ("x" * (MAX_TOPIC_BYTES + 1), "has 65536 bytes, 65535 is the most"),
        ("ü" * 40_000, "has 80000 bytes, 65535 is the most"),
    ],
)
def test_a_bad_topic_name_is_refused_with_what_is_wrong_and_where(name: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_topic(name)


@pytest.mark.parametrize("pattern", ["#", "+", "+/+", "a/+/b/#", "/", "//#", "$share", "a b/ü/+"])
def test_a_filter_may_have_wildcards_as_whole_levels(pattern: str) -> None:
    check_filter(pattern)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "the topic filter is empty"),
        ("sport/tennis#", "has '#' beside other characters in level 2"),
        ("sport/tennis/#/ranking", "has '#' in level 3 of 4: .* must be the last"),
        ("a/b+", r"has '\+' beside other characters in level 2"),
        ("+a", r"has '\+' beside other characters in level 1"),
        ("+#", "beside other characters in level 1"),
        ("a\0/#", r"has U\+0000 at character 2"),
        ("\udfff/+", "is not UTF-8 at character 1"),
        ("+/" * 32_768, "has 65536 bytes, 65535 is the most"),
    ],
)
def test_a_bad_filter_is_refused_with_what_is_wrong_and_where(pattern: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        check_filter(pattern)


def test_a_very_long_name_is_cut_in_the_message() -> None:
    with pytest.raises(Refused) as refused:
        check_topic("x" * 100_000)

    assert len(str(refused.value)) < 250


# The worked examples of queue subscriptions: the part after the queue's name filters routing keys.
@pytest.mark.parametrize(
    ("key_filter", "key", "expected"),
    [
        ("images", "images", True),
        ("images", "images/png", False),
        ("images/#", "images/png", True),
        ("images/#", "images/resize/thumbnail", True),
        ("images/#", "images", True),
        ("images/#", "imagesque", False),
        ("+/images/#", "eu/images/resize", True),
        ("+/images/#", "us/images/png", True),
        ("+/images/#", "images/png", False),
        ("eu/#", "eu/images/resize", True),
        ("eu/#", "us/images/png", False),
        ("#", "eu/images/resize", True),
        ("#", "", True),
        ("+", "", False),
        ("+/#", "", False),
        ("#", "$internal/x", True),
        ("+/x", "$internal/x", True),
    ],
)
def test_a_group_filter_is_held_against_routing_keys(key_filter: str, key: str, expected: bool) -> None:
    assert TopicFilter(key_filter, for_keys=True).matches(key) is expected


def test_a_filter_of_an_invalid_pattern_cannot_be_made() -> None:
    with pytest.raises(Refused):
        TopicFilter("a/#/b")

"""Queue addresses, effective groups, dead-letter names and message ids."""

import pytest

from headrace.core.routing.address import (
    dead_letter_origin,
    dead_letter_queue,
    effective_group,
    format_message_id,
    group_of_client,
    is_address,
    is_addressable,
    parse_address,
    parse_message_id,
    queue_pattern,
    queue_topic,
)
from headrace.errors import Refused


@pytest.mark.parametrize(
    ("topic", "queue", "key", "verb"),
    [
        ("$queue/orders", "orders", "", ""),
        ("$queue/orders/created", "orders", "created", ""),
        ("$queue/orders/images/png", "orders", "images/png", ""),
        ("$queue/orders/eu/images/resize", "orders", "eu/images/resize", ""),
        ("$queue/orders/123", "orders", "123", ""),
        ("$queue/orders/#", "orders", "#", ""),
        ("$queue/orders/images/#", "orders", "images/#", ""),
        ("$queue/orders/+/images/#", "orders", "+/images/#", ""),
        ("$queue/orders/$ack", "orders", "", "ack"),
        ("$queue/orders/$nack", "orders", "", "nack"),
        ("$queue/orders/$reject", "orders", "", "reject"),
        ("$queue/my-stream/$commit", "my-stream", "", "commit"),
        ("$queue/orders/images/$ack", "orders", "images", "ack"),
        ("$queue/tasks/image-processing/$nack", "tasks", "image-processing", "nack"),
        ("$queue/tasks/a/b/$reject", "tasks", "a/b", "reject"),
        ("$queue/orders/", "orders", "", ""),
        ("$queue/orders//x", "orders", "/x", ""),
        ("$queue/orders/$acknowledge", "orders", "$acknowledge", ""),
        ("$queue/orders/ack", "orders", "ack", ""),
        ("$queue/orders.eu:1/$ack", "orders.eu:1", "", "ack"),
    ],
)
def test_an_address_is_queue_key_and_verb(topic: str, queue: str, key: str, verb: str) -> None:
    address = parse_address(topic)

    assert (address.queue, address.key, address.verb) == (queue, key, verb)


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("orders/created", "is no queue address"),
        ("$queue", "is no queue address"),
        ("$queues/orders", "is no queue address"),
        ("$queue/", "the level after '\\$queue' is empty"),
        ("$queue//orders", "the level after '\\$queue' is empty"),
        ("$queue/#", "without wildcards"),
        ("$queue/+/images", "without wildcards"),
        ("$queue/$ack", "follows a name"),
        ("$queue/$ack/orders", "follows a name"),
        ("$queue/orders/$ack/images", "has '\\$ack' in level 3: a verb must be the last level"),
        ("$queue/orders/images/$nack/$nack", "has '\\$nack' in level 4"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(topic: str, message: str) -> None:
    with pytest.raises(Refused, match=message):
        parse_address(topic)


@pytest.mark.parametrize(("topic", "expected"), [("$queue/orders", True), ("$queue", False), ("sensors/temp", False)])
def test_the_prefix_alone_tells_queue_topics_from_plain_ones(topic: str, expected: bool) -> None:
    assert is_address(topic) is expected


@pytest.mark.parametrize(
    ("queue", "expected"),
    [("orders", True), ("amq.gen-x:1", True), ("", False), ("a/b", False), ("c++", False), ("$ack", False)],
)
def test_a_queue_is_addressable_when_its_name_is_one_plain_level(queue: str, expected: bool) -> None:
    assert is_addressable(queue) is expected


@pytest.mark.parametrize(("key", "topic"), [("", "$queue/orders"), ("eu/images", "$queue/orders/eu/images")])
def test_an_address_is_written_as_it_is_read(key: str, topic: str) -> None:
    assert queue_topic("orders", key) == topic


def test_every_queue_has_its_own_pattern() -> None:
    assert queue_pattern("orders") == "$queue/orders/#"


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("$queue/demo-events/#", "demo-workers@#"),
        ("$queue/demo-events/orders/+", "demo-workers@orders/+"),
        ("$queue/demo-events", "demo-workers"),
    ],
)
def test_a_group_keeps_its_progress_per_filter(topic: str, group: str) -> None:
    assert effective_group("demo-workers", parse_address(topic).key) == group


@pytest.mark.parametrize(
    ("client_id", "group"),
    [("workers-1", "workers"), ("workers-eu-1", "workers"), ("workers", "workers"), ("-1", "-1")],
)
def test_numbered_clients_share_a_group(client_id: str, group: str) -> None:
    assert group_of_client(client_id) == group


def test_dead_letters_have_a_queue_named_after_their_origin() -> None:
    assert dead_letter_queue("orders") == "$dlq/orders"


@pytest.mark.parametrize(
    ("name", "origin"), [("$dlq/orders", "orders"), ("$dlq/a/b", "a/b"), ("orders", ""), ("$dlq", "")]
)
def test_the_origin_of_dead_letters_is_read_from_the_name(name: str, origin: str) -> None:
    assert dead_letter_origin(name) == origin


def test_a_message_id_is_queue_and_offset() -> None:
    assert format_message_id("orders", 42) == "orders:42"


@pytest.mark.parametrize(
    ("text", "queue", "offset"),
    [
        ("orders:42", "orders", 42),
        ("orders:eu:0", "orders:eu", 0),
        ("$queue/orders/x:7", "$queue/orders/x", 7),
        ("17", "", 17),
        ("5:17", "5", 17),
        (f"orders:{2**63 - 1}", "orders", 2**63 - 1),
    ],
)
def test_a_message_id_is_read_from_its_last_colon(text: str, queue: str, offset: int) -> None:
    assert parse_message_id(text) == (queue, offset)


@pytest.mark.parametrize(
    "text", ["", "orders", "orders:", ":5", "orders:-1", "orders:1.0", "orders: 1", "orders:\u0663"]
)
def test_a_bad_message_id_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="neither <queue>:<offset> nor an offset"):
        parse_message_id(text)


@pytest.mark.parametrize("digits", [str(2**63), "9" * 20, "9" * 60_000])
def test_an_offset_that_no_log_can_have_is_refused(digits: str) -> None:
    with pytest.raises(Refused, match="an offset above 9223372036854775807"):
        parse_message_id("orders:" + digits)

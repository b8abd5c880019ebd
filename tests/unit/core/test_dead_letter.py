"""The history that a dead letter carries: `x-death` as RabbitMQ documents it, `_dlq_*` for queue users."""

from datetime import UTC, datetime

import pytest

from headrace.core.queue.dead_letters import (
    add_death,
    add_queue_history,
    birth_of,
    forget_deaths,
    is_cycle,
    is_dead_elsewhere,
)
from headrace.core.queue.group import DELIVERY_LIMIT, EXPIRED, MAXLEN, REJECTED, Death
from headrace.model import Message, Source
from headrace.wire.properties import Properties

MESSAGE = Message(Source("order.created", "events"), b"", 0)
NOON_US = 1_767_268_800_000_000


def die(properties: Properties, queue: str, reason: str, seconds: int = 0) -> None:
    add_death(properties, MESSAGE, Death(queue, reason, "default", 1, 7, NOON_US + seconds * 1_000_000))


def deaths(properties: Properties) -> list[tuple[object, object, object]]:
    found = properties.headers["x-death"]
    assert isinstance(found, list)
    return [(entry["queue"], entry["reason"], entry["count"]) for entry in found]


def test_a_death_says_where_why_when_and_how_it_had_been_published() -> None:
    properties = Properties()

    die(properties, "orders", REJECTED)

    assert properties.headers["x-death"] == [
        {
            "count": 1,
            "reason": "rejected",
            "queue": "orders",
            "time": datetime(2026, 1, 1, 12, tzinfo=UTC),
            "exchange": "events",
            "routing-keys": ["order.created"],
        }
    ]


def test_deaths_in_another_queue_or_of_another_reason_come_first_in_the_list() -> None:
    properties = Properties()

    die(properties, "a", REJECTED)
    die(properties, "b", REJECTED)
    die(properties, "b", EXPIRED)

    assert deaths(properties) == [("b", "expired", 1), ("b", "rejected", 1), ("a", "rejected", 1)]


def test_the_same_death_again_is_counted_and_moves_to_the_front() -> None:
    properties = Properties()

    for queue in ("a", "b", "a", "a"):
        die(properties, queue, REJECTED)

    assert deaths(properties) == [("a", "rejected", 3), ("b", "rejected", 1)]


def test_the_time_of_a_death_that_repeats_is_that_of_the_first() -> None:
    properties = Properties()

    die(properties, "a", REJECTED)
    die(properties, "a", REJECTED, seconds=60)

    found = properties.headers["x-death"]
    assert isinstance(found, list)
    assert found[0]["time"] == datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_the_first_death_is_remembered_and_the_last_one_too() -> None:
    properties = Properties()

    die(properties, "a", EXPIRED)
    die(properties, "b", MAXLEN)

    headers = properties.headers
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == ("a", "expired")
    assert (headers["x-last-death-queue"], headers["x-last-death-reason"]) == ("b", "maxlen")
    assert headers["x-first-death-exchange"] == headers["x-last-death-exchange"] == "events"


def test_the_expiration_is_taken_out_and_written_down() -> None:
    properties = Properties()
    properties.expiration = "5000"

    die(properties, "a", EXPIRED)

    found = properties.headers["x-death"]
    assert isinstance(found, list)
    assert (properties.expiration, found[0]["original-expiration"]) == ("", "5000")


def test_further_routing_keys_are_written_down() -> None:
    properties = Properties({"CC": ["copy", 5], "BCC": ["blind"]})

    die(properties, "a", REJECTED)

    found = properties.headers["x-death"]
    assert isinstance(found, list)
    assert found[0]["routing-keys"] == ["order.created", "copy"]


def test_a_header_of_that_name_that_is_no_history_is_replaced() -> None:
    properties = Properties({"x-death": "once"})

    die(properties, "a", REJECTED)

    assert deaths(properties) == [("a", "rejected", 1)]


def test_going_back_to_a_queue_it_expired_in_is_a_cycle() -> None:
    properties = Properties()
    die(properties, "a", EXPIRED)
    die(properties, "b", MAXLEN)

    assert is_cycle(properties, "a")
    assert is_cycle(properties, "b")
    assert not is_cycle(properties, "c")


def test_a_cycle_in_which_somebody_rejected_it_is_none() -> None:
    properties = Properties()
    die(properties, "a", EXPIRED)
    die(properties, "b", REJECTED)

    assert not is_cycle(properties, "a")
    assert not is_cycle(properties, "b")


def test_a_rejection_before_the_circle_began_does_not_break_it() -> None:
    properties = Properties()
    die(properties, "start", REJECTED)
    die(properties, "a", EXPIRED)
    die(properties, "b", DELIVERY_LIMIT)

    assert is_cycle(properties, "a")


def test_the_queue_history_says_what_sending_back_needs() -> None:
    properties = Properties()

    add_queue_history(properties, MESSAGE, Death("orders", REJECTED, "billing", 3, 17, NOON_US + 250_000))

    assert properties.headers == {
        "_dlq_original_queue": "orders",
        "_dlq_original_topic": "order.created",
        "_dlq_original_id": "orders:17",
        "_dlq_group": "billing",
        "_dlq_delivery_count": 3,
        "_dlq_moved_at": "2026-01-01T12:00:00.250000Z",
        "_dlq_reason": "rejected",
    }


def test_where_a_dead_letter_of_an_exchange_came_from_is_its_last_death() -> None:
    properties = Properties()
    die(properties, "a", EXPIRED)
    die(properties, "b", REJECTED)

    assert birth_of(properties, Message(Source("dead", "dlx"), b"", 0)) == ("b", "events", "order.created")


def test_a_message_that_never_died_came_from_nowhere() -> None:
    assert birth_of(Properties(), MESSAGE) == ("", "", "")


def test_a_message_that_goes_back_forgets_its_deaths_and_nothing_else() -> None:
    properties = Properties({"x-mine": 1})
    die(properties, "a", EXPIRED)
    add_queue_history(properties, MESSAGE, Death("a", REJECTED, "g", 3, 17, NOON_US))

    forget_deaths(properties)

    assert properties.headers == {"x-mine": 1}


@pytest.mark.parametrize("text", ["", "[", "{}", "7", '["a"]', '"x"', "[" * 100_000])
def test_a_history_that_is_no_history_is_none(text: str) -> None:
    assert not is_dead_elsewhere(Properties({"x-death": text}), "q")


def test_a_history_as_text_is_read_and_goes_on() -> None:
    text = '[{"count": 1, "reason": "expired", "queue": "work", "exchange": "", "routing-keys": ["work"]}]'
    properties = Properties({"x-death": text})

    assert is_dead_elsewhere(properties, "parking")
    assert not is_dead_elsewhere(properties, "work")
    assert is_cycle(properties, "work")
    assert birth_of(properties, Message(Source("dead"), b"", 1)) == ("work", "", "work")

"""Destinations by RabbitMQ's names."""

import pytest

from headrace.errors import Refused
from headrace.protocols.stomp.destinations import format_destination, parse_destination


@pytest.mark.parametrize(
    ("text", "kind", "exchange", "key"),
    [
        ("/queue/orders", "queue", "", "orders"),
        ("/queue/a%2Fb%25", "queue", "", "a/b%"),
        ("orders", "queue", "", "orders"),
        ("/amq/queue/amq.gen-1", "amq/queue", "", "amq.gen-1"),
        ("/topic/stocks.*.#", "topic", "amq.topic", "stocks.*.#"),
        ("/exchange/logs", "exchange", "logs", ""),
        ("/exchange/logs/warn", "exchange", "logs", "warn"),
        ("/temp-queue/foo", "temp-queue", "", "foo"),
        ("/reply-queue/a/b", "reply-queue", "", "a/b"),
        ("$queue/orders/eu", "$queue", "", "$queue/orders/eu"),
    ],
)
def test_a_destination_names_a_queue_or_an_exchange_with_a_key(text: str, kind: str, exchange: str, key: str) -> None:
    found = parse_destination(text)

    assert (found.kind, found.exchange, found.key) == (kind, exchange, key)


@pytest.mark.parametrize(
    "text",
    ["", "/", "/queue", "/queue/", "/queue/a/b", "/topic/a/b", "/exchange/", "/exchange//key", "/exchange/a/b/c",
     "/nothing/a", "/amq/queue/", "/amq/other/a", "a/b", "/reply-queue/"],
)  # fmt: skip
def test_any_other_text_is_refused_with_what_there_is(text: str) -> None:
    with pytest.raises(Refused, match="/queue/NAME"):
        parse_destination(text)


@pytest.mark.parametrize(
    ("exchange", "key", "text"),
    [
        ("", "a/b%", "/queue/a%2Fb%25"),
        ("amq.topic", "a.b", "/topic/a.b"),
        ("logs", "warn", "/exchange/logs/warn"),
        ("", "$queue/orders/eu", "$queue/orders/eu"),
    ],
)
def test_a_message_says_where_it_was_sent(exchange: str, key: str, text: str) -> None:
    assert format_destination(exchange, key) == text
    assert parse_destination(text).key == key

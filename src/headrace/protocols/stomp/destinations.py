"""Destinations: the texts by which STOMP clients name queues, topics and exchanges, as RabbitMQ has them. No broker.

/queue/NAME          a queue, declared where there is none        NAME    the same, for sending and subscribing
/amq/queue/NAME      a queue that another client declared
/topic/KEY           the exchange amq.topic, by key
/exchange/NAME[/KEY] an exchange, by key
/temp-queue/NAME     a queue of this connection, for replies
/reply-queue/NAME    a queue of another connection that waits for replies
$queue/NAME[/KEY]    an address: a queue with a consumer group, as for every protocol
"""

from typing import Final, final
from urllib.parse import quote, unquote

from headrace.core.routing.address import is_address
from headrace.core.routing.topology import TOPIC_EXCHANGE
from headrace.errors import Refused

QUEUE: Final = "queue"
DECLARED: Final = "amq/queue"
TOPIC: Final = "topic"
EXCHANGE: Final = "exchange"
TEMPORARY: Final = "temp-queue"
REPLY: Final = "reply-queue"
ADDRESS: Final = "$queue"

_REPLY_PREFIX: Final = f"/{REPLY}/"
_QUEUES: Final = (QUEUE, TEMPORARY)


@final
class Destination:
    """A destination: a queue, or an exchange with a key."""

    __slots__ = ("exchange", "key", "kind", "text")

    def __init__(self, kind: str, text: str, key: str, exchange: str = "") -> None:
        self.kind = kind
        self.text = text
        self.key = key
        """The routing key; for queues their name."""
        self.exchange = exchange
        """The exchange; "" for the default one, which leads to queues."""

    @property
    def is_queue(self) -> bool:
        """True if it names one queue; otherwise a subscription needs a queue of its own."""
        return self.kind in (QUEUE, DECLARED, REPLY, TEMPORARY)


def parse_destination(text: str) -> Destination:
    """Raises Refused for a text that names nothing."""
    if is_address(text):
        return Destination(ADDRESS, text, text)
    if text.startswith(_REPLY_PREFIX) and len(text) > len(_REPLY_PREFIX):
        return Destination(REPLY, text, text[len(_REPLY_PREFIX) :])
    parts = [unquote(part) for part in text.split("/")]
    if len(parts) == 1 and text:
        return Destination(QUEUE, text, parts[0])
    if parts[0] or len(parts) < 3 or not parts[-1]:
        raise _unknown(text)
    kind, rest = parts[1], parts[2:]
    if kind == "amq" and rest[0] == "queue":
        kind, rest = DECLARED, rest[1:]
    if kind == EXCHANGE and len(rest) <= 2 and rest[0]:
        return Destination(EXCHANGE, text, rest[1] if len(rest) == 2 else "", rest[0])
    if len(rest) != 1:
        raise _unknown(text)
    if kind == TOPIC:
        return Destination(TOPIC, text, rest[0], TOPIC_EXCHANGE)
    if kind in _QUEUES or kind == DECLARED:
        return Destination(kind, text, rest[0])
    raise _unknown(text)


def _unknown(text: str) -> Refused:
    return Refused(
        f"{text[:128]!r} is no destination: there are /queue/NAME, /topic/KEY, /exchange/NAME/KEY, /amq/queue/NAME, "
        "/temp-queue/NAME and /reply-queue/NAME; a slash within a name is %2F"
    )


def format_destination(exchange: str, key: str) -> str:
    """The destination of a message for its receiver."""
    if not exchange:
        return key if is_address(key) else f"/{QUEUE}/{_quoted(key)}"
    if exchange == TOPIC_EXCHANGE:
        return f"/{TOPIC}/{_quoted(key)}"
    return f"/{EXCHANGE}/{_quoted(exchange)}/{_quoted(key)}"


def format_reply(queue: str) -> str:
    """The destination of the queue that waits for replies."""
    return _REPLY_PREFIX + queue


def _quoted(name: str) -> str:
    return quote(name, safe=" !\"#$&'()*+,:;<=>?@[]^`{|}~\\")

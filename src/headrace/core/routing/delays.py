"""Messages that exchanges of the type `x-delayed-message` delay. Which queues these are is in exchanges.py.

A delayed message is in its queues at once, as one that may not be delivered before its time: it survives what they
survive. In RabbitMQ a plugin keeps it, and routes it when it is due.
"""

from collections.abc import Container, Mapping
from decimal import Decimal
from math import isfinite
from typing import Final, final

from headrace.errors import Refused
from headrace.model import Message
from headrace.wire.encodings import encode_properties, properties_of

DELAY: Final = "x-delay"
MAX_DELAY_MS: Final = (1 << 32) - 1
"""The longest delay in RabbitMQ: a message with a longer one is not delayed."""


@final
class Later:
    """A message that some of its queues get later."""

    __slots__ = ("_at_once", "message")

    def __init__(self, message: Message, at_once: Container[str]) -> None:
        self.message = message
        """The message as those queues get it."""
        self._at_once = at_once

    def is_for(self, queue: str) -> bool:
        return queue not in self._at_once


def delay_of(headers: Mapping[str, object] | None) -> int:
    """Return the delay in milliseconds that headers ask for; 0 for none. Negative ones were delayed before."""
    value = headers.get(DELAY) if headers else None
    if isinstance(value, str):
        value = int(value) if value.isascii() and value.isdecimal() and len(value) <= len(str(MAX_DELAY_MS)) else 0
    elif isinstance(value, float | Decimal):
        value = int(value) if isfinite(value) else 0
    if isinstance(value, bool) or not isinstance(value, int):
        return 0
    return value if 0 < value <= MAX_DELAY_MS else 0


def delayed(message: Message, delay_ms: int, now_us: int) -> Message:
    """Return the message for when its delay is over; its time to live begins then. The header tells that it was."""
    raw = message.properties
    try:
        properties = properties_of(message)
        properties.headers[DELAY] = -delay_ms
        raw = encode_properties(message.source.encoding, properties)
    except Refused:
        pass
    delay_us = delay_ms * 1000
    expires_us = message.expires_us + delay_us if message.expires_us else 0
    due_us = max(now_us + delay_us, message.not_before_us)
    return Message(message.source, message.payload, message.timestamp_us, raw, message.priority, expires_us, due_us)

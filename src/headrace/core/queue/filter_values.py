"""Filter values: words that publishers give to messages of a stream, so that readers may ask for some words alone."""

from typing import Final, final

from headrace.errors import Refused
from headrace.model import Message
from headrace.wire.encodings import decode_headers
from headrace.wire.properties import FILTER_VALUE

_BYTES: Final = FILTER_VALUE.encode()


def filter_value(message: Message) -> str | None:
    """Return the filter value of a message of any protocol; None if it has none."""
    if _BYTES not in message.properties:
        return None
    try:
        value = decode_headers(message.source.encoding, message.properties).get(FILTER_VALUE)
    except Refused:
        return None
    return value if isinstance(value, str) else None


def read_values(given: object) -> frozenset[str]:
    """Return the values that a client asks for: one text or a list of them. Raises Refused."""
    values = [given] if isinstance(given, str) else given
    if not isinstance(values, list) or not all([isinstance(value, str) for value in values]):
        raise Refused("must be a string or a list of strings")
    return frozenset([str(value) for value in values])


@final
class ValueFilter:
    """The filter values that a reader wants."""

    __slots__ = ("_admits_others", "_values", "text")

    def __init__(self, values: frozenset[str], admits_others: bool) -> None:
        self._values = values
        self._admits_others = admits_others
        """True if messages without a value are wanted too."""
        self.text = f"the filter values {sorted(values)}{' and messages without one' if admits_others else ''}"

    def admits(self, message: Message) -> bool:
        value = filter_value(message)
        return self._admits_others if value is None else value in self._values

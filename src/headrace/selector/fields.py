"""Message fields that a selector may name, their columns, and the reading of headers. No evaluation.

A frame that runs a selector in Spark has the columns named here; times are microseconds since 1970 UTC in the broker
and timestamps in Spark.

Spark holds headers as map<string,string>, so a header is its text here too, whatever type its protocol gave it.
"""

import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Final, final

HeaderValue = str | int | float | bool | Decimal | bytes | None

# Numbers are compared as DECIMAL(38,18): 20 digits before the point hold every 64-bit integer, signed or not.
DIGITS_BEFORE_POINT: Final = 20
DIGITS_AFTER_POINT: Final = 18
NUMBER_LIMIT: Final = 10**DIGITS_BEFORE_POINT

# Valid, with one meaning, for Python's `re` and for Java: no \Z, \z or $, which differ at a final newline.
NUMBER_TEXT: Final = "(?s)^[+-]?[0-9]{1,20}([.][0-9]{1,40})?([eE][+-]?[0-9]{1,2})?(?!.)"

_number_text: Final = re.compile(NUMBER_TEXT)
_EXACTLY: Final = Context(prec=64, traps=[])
_STEP: Final = Decimal((0, (1,), -DIGITS_AFTER_POINT))
# No traps: a result too long for 38 digits becomes NaN instead of an exception.
_DECIMAL_38: Final = Context(prec=38, rounding=ROUND_HALF_UP, traps=[])


def literal_number(text: str) -> int | Decimal | None:
    """The number of a literal, an int when it is whole; None when DECIMAL(38,18) cannot hold it exactly."""
    if text[:2] in ("0x", "0X"):
        number = int(text, 16)
        return number if number < NUMBER_LIMIT else None
    if len(text) > 64 or len(text.lower().partition("e")[2]) > 4:
        return None
    exact = Decimal(text).normalize(_EXACTLY)
    _, digits, exponent = exact.as_tuple()
    if not isinstance(exponent, int) or exponent < -DIGITS_AFTER_POINT or len(digits) + exponent > DIGITS_BEFORE_POINT:
        return None
    return int(exact) if exponent >= 0 else exact


def header_text(value: object) -> str | None:
    """The header as Spark's map holds it; None for values without a text: nested ones and bytes not in UTF-8."""
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    try:
        if type(value) is int or type(value) is float or type(value) is Decimal:
            return str(value)
        if type(value) is bytes:
            return value.decode()
    except ValueError:  # not UTF-8, or an integer of more than 4300 digits, which Python refuses to write
        pass
    return None


def header_number(value: object) -> int | Decimal | None:
    """The number that a header's text spells, rounded to DECIMAL(38,18); None when it spells none that fits."""
    if type(value) is int:
        return value if -NUMBER_LIMIT < value < NUMBER_LIMIT else None
    if type(value) is str:
        # The common case without a Decimal: 0.15 us against 0.8.
        if len(value) <= DIGITS_BEFORE_POINT and value.isascii() and value.isdigit():
            return int(value)
        return _decimal(value)
    if type(value) is bool:
        return None
    text = header_text(value)
    return None if text is None else _decimal(text)


def header_truth(value: object) -> bool | None:
    """True or False for the texts `true` and `false`, None for any other."""
    if type(value) is bool:
        return value
    text = header_text(value)
    if text == "true":
        return True
    return False if text == "false" else None


def _decimal(text: str) -> Decimal | None:
    if _number_text.match(text) is None:
        return None
    number = Decimal(text)
    # Spark gives up on more than 38 digits before the point even for a zero such as 0e50.
    if number.adjusted() >= 38:
        return None
    rounded = number.quantize(_STEP, context=_DECIMAL_38)
    return None if rounded.is_nan() else rounded


NOW: Final = "UTC()"
"""The time at which a message is looked at."""
TEXT: Final = "text"
EXACT: Final = "a number"


@final
class FieldSpec:
    """One name: the row's field that it reads, its kind in comparisons, and its Spark SQL.

    `convert` turns the field's integer into the name's value; None if the field is the value.
    """

    __slots__ = ("column", "convert", "kind", "spark")

    def __init__(
        self,
        column: str,
        kind: str,
        spark: str = "",
        convert: Callable[[int], str | int | None] | None = None,
    ) -> None:
        self.column = column
        self.kind = kind
        self.spark = spark or f"`{column}`"
        self.convert = convert


def _milliseconds(microseconds: int) -> int:
    return microseconds // 1000


FIELDS: Final[dict[str, FieldSpec]] = {
    "queue": FieldSpec("queue", TEXT),
    "offset": FieldSpec("offset", EXACT),
    "timestamp": FieldSpec("timestamp", EXACT, "unix_micros(`timestamp`)"),
    "expires_at": FieldSpec("expires_at", EXACT, "unix_micros(`expires_at`)"),
    "topic": FieldSpec("topic", TEXT),
    "routing_key": FieldSpec("routing_key", TEXT),
    "exchange": FieldSpec("exchange", TEXT),
    "priority": FieldSpec("priority", EXACT),
    "content_type": FieldSpec("content_type", TEXT),
    "content_encoding": FieldSpec("content_encoding", TEXT),
    "message_id": FieldSpec("message_id", TEXT),
    "correlation_id": FieldSpec("correlation_id", TEXT),
    "reply_to": FieldSpec("reply_to", TEXT),
    "message_type": FieldSpec("message_type", TEXT),
    "delivery_mode": FieldSpec("delivery_mode", EXACT),
    # Times of AMQP 1.0 are milliseconds since 1970 UTC.
    "properties.creation_time": FieldSpec("sent_at", EXACT, "unix_millis(`sent_at`)", _milliseconds),
    "properties.absolute_expiry_time": FieldSpec("expires_at", EXACT, "unix_millis(`expires_at`)", _milliseconds),
    NOW: FieldSpec("now", EXACT, "unix_millis(current_timestamp())", _milliseconds),
    # JMS gives these two another unit and another type than their fields.
    "JMSTimestamp": FieldSpec("timestamp", EXACT, "unix_millis(`timestamp`)", _milliseconds),
    "JMSDeliveryMode": FieldSpec(
        "delivery_mode",
        TEXT,
        "CASE `delivery_mode` WHEN 1 THEN 'NON_PERSISTENT' WHEN 2 THEN 'PERSISTENT' END",
        {1: "NON_PERSISTENT", 2: "PERSISTENT"}.get,
    ),
}

SECTIONS: Final = {
    "header": "header",
    "h": "header",
    "properties": "properties",
    "p": "properties",
    "application_properties": "application_properties",
    "a": "application_properties",
}
"""Names in front of a dot, as RabbitMQ has them for the sections of an AMQP 1.0 message."""
APPLICATION: Final = "application_properties"
IN_SECTIONS: Final = {
    "header": {"priority": "priority"},
    "properties": {
        "message_id": "message_id",
        "user_id": "headers.JMSXUserID",
        "subject": "message_type",
        "reply_to": "reply_to",
        "correlation_id": "correlation_id",
        "content_type": "content_type",
        "content_encoding": "content_encoding",
        "absolute_expiry_time": "properties.absolute_expiry_time",
        "creation_time": "properties.creation_time",
        "group_id": "headers.JMSXGroupID",
        "group_sequence": "headers.JMSXGroupSeq",
    },
}
"""The field that each name in a section stands for, or the header behind `headers.`."""
IN_HEADERS: Final = "headers."

ALIASES: Final[dict[str, str]] = {
    "JMSPriority": "priority",
    "JMSMessageID": "message_id",
    "JMSCorrelationID": "correlation_id",
    "JMSType": "message_type",
}

JMS_NAMES: Final = tuple(sorted([*ALIASES, *[name for name in FIELDS if name.startswith("JMS")]]))


def is_unknown_jms_name(name: str) -> bool:
    """True for names that JMS reserves and does not define: typing errors, not headers."""
    return name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in JMS_NAMES

"""The message fields a selector may name, and the columns they are. A name that is not here is a header's.

A frame that runs a selector in Spark has the columns named here; times are microseconds since 1970 UTC in the
broker and timestamps in Spark.
"""

from collections.abc import Callable
from typing import Final, final

TEXT: Final = "text"
EXACT: Final = "a number"


@final
class FieldSpec:
    """One name: the row's field it reads, what it is compared as, and the same in Spark SQL.

    `convert` turns the field's integer into what the name means; None when the field is meant as it is.
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
    # JMS gives these two another unit and another type than the fields they are read from.
    "JMSTimestamp": FieldSpec("timestamp", EXACT, "unix_millis(`timestamp`)", _milliseconds),
    "JMSDeliveryMode": FieldSpec(
        "delivery_mode",
        TEXT,
        "CASE `delivery_mode` WHEN 1 THEN 'NON_PERSISTENT' WHEN 2 THEN 'PERSISTENT' END",
        {1: "NON_PERSISTENT", 2: "PERSISTENT"}.get,
    ),
}

ALIASES: Final[dict[str, str]] = {
    "JMSPriority": "priority",
    "JMSMessageID": "message_id",
    "JMSCorrelationID": "correlation_id",
    "JMSType": "message_type",
}

JMS_NAMES: Final = tuple(sorted([*ALIASES, *[name for name in FIELDS if name.startswith("JMS")]]))


def is_unknown_jms_name(name: str) -> bool:
    """A name JMS reserves that is none of its selector fields: a typing error, not a header."""
    return name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in JMS_NAMES

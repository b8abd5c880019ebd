"""What a log may drop, and how far. A decision, no state: disposal.py carries it out."""

from headrace.core.definition import Retention
from headrace.storage.api import Log


def is_over(log: Log, retention: Retention) -> bool:
    """Whether the log is longer or larger than retention wants it; age is looked at now and then."""
    count = log.next_offset - log.first_offset
    return bool(
        (retention.max_messages and count > retention.max_messages)
        or (retention.max_bytes and log.size_bytes > retention.max_bytes)
    )


def truncation_point(log: Log, retention: Retention, floor: int, now_us: int) -> int:
    """The offset below which everything may go by age, size or number; never beyond `floor`, what is still needed."""
    point = log.first_offset
    count = log.next_offset - log.first_offset
    if retention.max_messages and count > retention.max_messages:
        point = max(point, log.next_offset - retention.max_messages)
    if retention.max_bytes and count and log.size_bytes > retention.max_bytes:
        # Messages are taken to be of one size; where they are not, the next look corrects it.
        kept = count * retention.max_bytes // log.size_bytes
        point = max(point, log.next_offset - kept)
    if retention.max_age_ms:
        point = max(point, log.find(now_us - retention.max_age_ms * 1000))
    return min(point, floor)

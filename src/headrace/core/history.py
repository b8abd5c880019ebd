"""Who claimed a message, when, and how it ended: what a queue keeps of what is gone. Where it is kept is queues.py's.

The done, failed and attempts records of OpenData-Queue, as JSON messages of a stream that forgets by age.
"""

import json
from typing import Final, final

from headrace.model import Message, Source

HISTORY_PREFIX: Final = "$history/"
DONE: Final = "done"
"""How a message that was acknowledged ended; one that failed has the reason of its death instead."""
_SOURCE: Final = Source("$history")


@final
class History:
    """The attempts at messages that have not ended, and the words for those that do."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._attempts: dict[tuple[str, int], list[tuple[str, int]]] = {}

    def claimed(self, group: str, offset: int, consumer: str, now_us: int) -> None:
        self._attempts.setdefault((group, offset), []).append((consumer, now_us))

    def forget(self, group: str, offset: int) -> None:
        self._attempts.pop((group, offset), None)

    def end(self, group: str, offset: int, message: Message, deliveries: int, outcome: str, now_us: int) -> Message:
        """What is kept of a message that ended so in this group."""
        claims = self._attempts.pop((group, offset), [])
        entry = {
            "queue": self._queue,
            "group": group,
            "offset": offset,
            "topic": message.source.topic,
            "exchange": message.source.exchange,
            "published_at_us": message.timestamp_us,
            "outcome": outcome,
            "deliveries": deliveries,
            "attempts": [{"consumer": consumer, "claimed_at_us": time_us} for consumer, time_us in claims],
            "ended_at_us": now_us,
        }
        return Message(_SOURCE, json.dumps(entry, ensure_ascii=False, separators=(",", ":")).encode(), now_us)


def read_entry(message: Message) -> dict[str, object]:
    """The entry that `end` wrote."""
    entry = json.loads(message.payload)
    return entry if isinstance(entry, dict) else {}

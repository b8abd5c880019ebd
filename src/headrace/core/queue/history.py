"""How messages ended: the history that a dead letter carries, and the record a queue keeps of claims. No routing.

The done, failed and attempts records of OpenData-Queue, as JSON messages of a stream that forgets by age.
"""

import json
from datetime import UTC, datetime
from typing import Final, final

from headrace.core.properties import Properties
from headrace.model import Message, Source

REJECTED: Final = "rejected"
EXPIRED: Final = "expired"
MAXLEN: Final = "maxlen"
DELIVERY_LIMIT: Final = "delivery_limit"
_DEATH_HEADERS: Final = ("_dlq_", "x-death", "x-first-death-", "x-last-death-")


@final
class Death:
    """How a message died: where, why, in which group, after how many deliveries, and when."""

    __slots__ = ("attempts", "group", "offset", "queue", "reason", "time_us")

    def __init__(self, queue: str, reason: str, group: str, attempts: int, offset: int, time_us: int) -> None:
        self.queue = queue
        self.reason = reason
        self.group = group
        self.attempts = attempts
        self.offset = offset
        self.time_us = time_us


def add_death(properties: Properties, message: Message, death: Death) -> None:
    """Write the death into the headers: one entry per queue and reason, the latest first, with a count."""
    headers = properties.headers
    entry: dict[str, object] = {
        "count": 1,
        "reason": death.reason,
        "queue": death.queue,
        "time": datetime.fromtimestamp(death.time_us // 1_000_000, UTC),
        "exchange": message.source.exchange,
        "routing-keys": [message.source.topic, *routes_of(properties)],
    }
    if properties.expiration:
        entry["original-expiration"] = properties.expiration
        properties.expiration = ""  # or it would expire again where it goes
    others: list[object] = []
    for former in _deaths(headers):
        if former.get("queue") == death.queue and former.get("reason") == death.reason:
            count = former.get("count")
            entry = {**former, "count": (count if isinstance(count, int) else 0) + 1}
        else:
            others.append(former)
    headers["x-death"] = [entry, *others]
    headers.setdefault("x-first-death-queue", death.queue)
    headers.setdefault("x-first-death-reason", death.reason)
    headers.setdefault("x-first-death-exchange", message.source.exchange)
    headers["x-last-death-queue"] = death.queue
    headers["x-last-death-reason"] = death.reason
    headers["x-last-death-exchange"] = message.source.exchange


def add_queue_history(properties: Properties, message: Message, death: Death) -> None:
    """Write where it came from, for `$dlq/` queues: what re-driving it needs."""
    moved_at = datetime.fromtimestamp(death.time_us / 1_000_000, UTC).isoformat().replace("+00:00", "Z")
    properties.headers.update(
        {
            "_dlq_original_queue": death.queue,
            "_dlq_original_topic": message.source.topic,
            "_dlq_original_id": f"{death.queue}:{death.offset}",
            "_dlq_group": death.group,
            "_dlq_delivery_count": death.attempts,
            "_dlq_moved_at": moved_at,
            "_dlq_reason": death.reason,
        }
    )


def routes_of(properties: Properties | None) -> list[str]:
    """The further routing keys a message was published with, besides its own."""
    keys = properties.headers.get("CC") if properties is not None else None
    return [key for key in keys if isinstance(key, str)] if isinstance(keys, list) else []


def birth_of(properties: Properties, letter: Message) -> tuple[str, str, str]:
    """The queue a dead letter died in last, and the exchange and the key it had been published with."""
    headers = properties.headers
    queue = headers.get("_dlq_original_queue")
    if isinstance(queue, str):
        return queue, letter.source.exchange, str(headers.get("_dlq_original_topic", letter.source.topic))
    for entry in _deaths(headers):
        keys = entry.get("routing-keys")
        key = keys[0] if isinstance(keys, list) and keys else letter.source.topic
        return str(entry.get("queue", "")), str(entry.get("exchange", "")), str(key)
    return "", "", ""


def forget_deaths(properties: Properties) -> None:
    """Let a message that goes back begin anew."""
    for name in [name for name in properties.headers if name.startswith(_DEATH_HEADERS)]:
        del properties.headers[name]


def is_cycle(properties: Properties, target: str) -> bool:
    """Whether going to this queue closes a circle that nobody rejected: it would go round for ever."""
    for entry in _deaths(properties.headers):
        if entry.get("reason") == REJECTED:
            return False
        if entry.get("queue") == target:
            return True
    return False


def is_dead_elsewhere(properties: Properties, queue: str) -> bool:
    """Whether a message in this queue died in another, and never in this one: it did not come back here to be tried."""
    deaths = _deaths(properties.headers)
    return bool(deaths) and all([entry.get("queue") != queue for entry in deaths])


def _deaths(headers: dict[str, object]) -> list[dict[str, object]]:
    found = headers.get("x-death")
    if isinstance(found, str):  # the headers of MQTT are texts
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            return []
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


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

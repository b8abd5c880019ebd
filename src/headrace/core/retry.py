"""What becomes of a message whose delivery failed. A decision, no state: group.py carries it out."""

from typing import Final

from headrace.core.definition import QueueDefinition

DEAD: Final = -1
"""The answer that says: give it up."""


def next_attempt_us(definition: QueueDefinition, attempts: int, delayed: bool, now_us: int) -> int:
    """When a message that was delivered `attempts` times may be delivered again; DEAD when never.

    `delayed` says whether the queue's backoff applies: it does after a failure, not when a consumer just went away.
    """
    limit = definition.delivery_limit
    if limit is None and definition.retry is not None:
        limit = definition.retry.max_retries
    if limit is not None and attempts > limit:
        return DEAD
    retry = definition.retry
    if not delayed or retry is None:
        return now_us
    # The power may be far too large for a float long before the bound is looked at.
    steps = min(attempts - 1, 64)
    backoff_ms = min(retry.initial_backoff_ms * retry.multiplier**steps, retry.max_backoff_ms)
    return now_us + round(backoff_ms * 1000)

"""What becomes of a message whose delivery failed. A decision, no state: work.py carries it out."""

from typing import Final

from headrace.core.definition import QueueDefinition, Retry

DEAD: Final = -1
"""The answer that says: give it up."""


def next_attempt_us(definition: QueueDefinition, attempts: int, delayed: bool, now_us: int) -> int:
    """When a message that was delivered `attempts` times may be delivered again; DEAD when never.

    A limit of n allows n tries beyond the first, a negative one any number. `delayed` says whether the queue's backoff
    applies: it does after a failure, not when a consumer just went away.
    """
    limit = definition.delivery_limit
    if limit is None and definition.retry is not None:
        limit = definition.retry.max_retries
    if limit is not None and 0 <= limit < attempts:
        return DEAD
    retry = definition.retry
    if not delayed or retry is None:
        return now_us
    return now_us + round(1000 * _backoff_ms(retry, attempts))


def _backoff_ms(retry: Retry, attempts: int) -> float:
    try:
        return min(retry.initial_backoff_ms * retry.multiplier ** (attempts - 1), retry.max_backoff_ms)
    except OverflowError:
        return retry.max_backoff_ms

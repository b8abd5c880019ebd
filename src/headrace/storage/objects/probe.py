"""Proves that a store honours conditional writes, without which two brokers could own it. Nothing else is looked at."""

from typing import Final
from uuid import uuid4

from headrace.clock import Clock
from headrace.errors import Fenced, Unavailable
from headrace.storage.objects.database import Database, Tuning, remove
from headrace.storage.objects.location import Location

_HOUR_MS: Final = 3_600_000


def prove_fencing(url: str, clock: Clock, timeout_ms: int) -> None:
    """Open a database twice and see that the first opener cannot write any more.

    That takes a store which refuses to create an object that is there already. Raises Unavailable where it does not,
    and Refused when the URL is wrong.
    """
    location = Location(url)
    name = f"probe-{uuid4().hex}"
    # The first must not learn of the second by looking, however long that takes: only its own write may fail.
    tuning = Tuning(1, timeout_ms, manifest_poll_ms=_HOUR_MS, compaction_poll_ms=_HOUR_MS)
    first = Database(location, name, tuning, clock)
    try:
        second = Database(location, name, tuning, clock)
        try:
            first.store([(b"probe", b"first")])
        except Fenced:
            return
        finally:
            second.close()
    finally:
        first.close()
        remove(location, name, clock, timeout_ms)
    raise Unavailable(
        f"the store {location.url} does not honour conditional writes (if there is nothing yet), so nothing would "
        f"keep two brokers from writing to it at once; use a store that does"
    )

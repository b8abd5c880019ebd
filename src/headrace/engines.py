"""Which engine keeps the messages: a directory's, an object store's, or memory. What they do is in storage/."""

import importlib
from collections.abc import Callable

from headrace.clock import SystemClock
from headrace.config.settings import Settings, StorageSettings
from headrace.errors import Unavailable
from headrace.storage.api import Engine, Wake
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.memory import MemoryEngine

OpenEngine = Callable[[Settings, Wake], Engine]


def open_engine(chosen: Settings, wake: Wake) -> Engine:
    """The engine over a data directory, in an object store, or in memory."""
    settings = chosen.storage
    if settings.memory:
        return MemoryEngine(wake)
    if settings.store:
        return open_store(chosen, wake)
    sizes = LocalSettings(
        checkpoint_bytes=settings.checkpoint_bytes,
        tail_bytes=settings.tail_bytes,
        segment_bytes=settings.segment_bytes,
        cache_bytes=settings.cache_bytes,
    )
    try:
        return LocalEngine(settings.data, wake, sizes)
    except OSError as error:
        raise Unavailable(
            f"the data directory {settings.data} cannot be opened: {error.strerror or error}; "
            f"make it writable, or choose another with --data"
        ) from error


def load_store() -> None:
    """Load what an object store takes, before it is needed in a hurry. Raises Unavailable where it is not installed."""
    try:
        importlib.import_module("headrace.storage.objects.engine")
    except ImportError as error:
        raise Unavailable(f"--store needs slatedb ({error}): pip install 'headrace[objects]'") from error


def open_store(chosen: Settings, wake: Wake, is_proven: bool = False) -> Engine:
    """The engine over the database of the broker's group.

    Raises Unavailable where slatedb is not installed, and where the store cannot keep two brokers apart.

    That it can is not proven again where it was proven before.
    """
    load_store()
    from headrace.storage.objects.database import prove_fencing
    from headrace.storage.objects.engine import ObjectEngine, ObjectSettings

    settings = chosen.storage
    if not is_proven:
        prove_fencing(settings.store, SystemClock(), settings.store_timeout)
    sizes = ObjectSettings(
        flush_interval_ms=settings.flush_interval,
        timeout_ms=settings.store_timeout,
        tail_bytes=settings.tail_bytes,
        cache_bytes=settings.cache_bytes,
        done_retention_ms=settings.done_retention,
    )
    return ObjectEngine(settings.store, wake, sizes, group=chosen.cluster.group)


def name_of(settings: StorageSettings) -> str | None:
    """The store or the directory that everything is kept in; None for memory."""
    return settings.store or (None if settings.memory else str(settings.data.resolve()))

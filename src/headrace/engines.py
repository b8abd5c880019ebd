"""The choice of the engine: a data directory, an object store, or memory. The engines are in storage/."""

import importlib
from collections.abc import Callable

from headrace.clock import SystemClock
from headrace.config.settings import Settings, StorageSettings
from headrace.errors import Unavailable, missing_extra
from headrace.storage.api import Engine, Wake
from headrace.storage.local.engine import LocalEngine, LocalSettings
from headrace.storage.local.staging import Keeper
from headrace.storage.memory import MemoryEngine

OpenEngine = Callable[[Settings, Wake], Engine]


def open_engine(chosen: Settings, wake: Wake) -> Engine:
    """Open the engine that the settings name. Raises Unavailable."""
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
    """Load the modules of an object store in advance. Raises Unavailable where slatedb is not installed."""
    try:
        importlib.import_module("headrace.storage.objects.engine")
    except ImportError as error:
        raise missing_extra("--store", "objects", error) from error


def open_store(chosen: Settings, wake: Wake, is_proven: bool = False) -> Engine:
    """Open the engine over the database of the broker's replication group.

    Raises Unavailable where slatedb is not installed, and where the store cannot fence a second broker. `is_proven`
    skips the test of fencing.
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


def open_keeper(chosen: Settings) -> Keeper:
    """Return the place in the store for bulk transactions that are stored part by part."""
    from headrace.storage.objects.parts import StoredParts

    return StoredParts(chosen.storage.store, chosen.cluster.group, chosen.storage.store_timeout)


def name_of(settings: StorageSettings) -> str | None:
    """Return the URL of the store or the path of the data directory; None for memory."""
    return settings.store or (None if settings.memory else str(settings.data.resolve()))

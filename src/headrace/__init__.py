"""Headrace: a durable message broker whose log is ready for Spark."""

import importlib
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.queue.definition import QueueDefinition, Retry
    from headrace.core.queue.queue import Queue
    from headrace.embedded import EmbeddedBroker as Broker
    from headrace.embedded import OpenBroker, QueueArguments, Received, Transaction
    from headrace.synchronous import SyncBroker, SyncReceived

__all__ = [
    "Broker",
    "HeadraceError",
    "Queue",
    "QueueArguments",
    "QueueDefinition",
    "Received",
    "Retry",
    "SyncBroker",
    "SyncReceived",
    "Transaction",
    "__version__",
    "open",
    "open_sync",
]

_LOADED_ON_USE: Final = {
    "Broker": ("headrace.embedded", "EmbeddedBroker"),
    "Queue": ("headrace.core.queue.queue", "Queue"),
    "QueueArguments": ("headrace.embedded", "QueueArguments"),
    "QueueDefinition": ("headrace.core.queue.definition", "QueueDefinition"),
    "Received": ("headrace.embedded", "Received"),
    "Retry": ("headrace.core.queue.definition", "Retry"),
    "SyncBroker": ("headrace.synchronous", "SyncBroker"),
    "SyncReceived": ("headrace.synchronous", "SyncReceived"),
    "Transaction": ("headrace.embedded", "Transaction"),
}
"""Exported classes: a program that opens no broker loads none of their modules."""


def __getattr__(name: str) -> object:
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LOADED_ON_USE[name]
    return getattr(importlib.import_module(module), attribute)


def open(data: "str | Path | None" = "data") -> "OpenBroker":  # noqa: A001
    """Open a broker in this process: `async with headrace.open("./data") as broker`. None keeps it in memory."""
    from headrace.embedded import open_broker

    return open_broker(data)


def open_sync(data: "str | Path | None" = "data") -> "SyncBroker":
    """Open a broker for programs without an event loop: `with headrace.open_sync("./data") as broker`.

    Every thread may use it. Raises Unavailable when another process has the directory, and Corrupt when it is damaged.
    """
    from headrace.synchronous import SyncBroker

    return SyncBroker(data)

"""Headrace: a durable message broker whose log is ready for Spark."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.embedded import OpenBroker

__version__ = "0.1.0"


def open(data: "str | Path | None" = "data") -> "OpenBroker":  # noqa: A001
    """A broker in this process: `async with headrace.open("./data") as broker`; with None it is kept in memory."""
    from headrace.embedded import open_broker  # only those who open a broker load one

    return open_broker(data)

"""Headrace: a durable message broker whose log is ready for Spark."""

from typing import TYPE_CHECKING

from headrace.version import __version__ as __version__

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.embedded import OpenBroker


def open(data: "str | Path | None" = "data") -> "OpenBroker":  # noqa: A001
    """Open a broker in this process: `async with headrace.open("./data") as broker`. None keeps it in memory."""
    from headrace.embedded import open_broker  # a program that opens no broker loads none

    return open_broker(data)

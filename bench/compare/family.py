"""The parts of a protocol in a measurement: preparing a broker, publishers, consumers. The list is in families.py."""

from abc import ABC, abstractmethod

from bench.compare.consumer import Consumer
from bench.compare.counters import Counters
from bench.compare.load import Endpoint, Job, Load
from bench.compare.publisher import Publisher
from bench.compare.wire import Wire


class FamilyDriver(ABC):
    """One protocol, seen from a client."""

    @abstractmethod
    def prepare(self, endpoint: Endpoint, load: Load) -> None:
        """Make what the load needs, empty. Raises Unsupported when the broker has no such thing."""

    @abstractmethod
    def clear(self, endpoint: Endpoint, load: Load) -> None:
        """Remove what `prepare` made."""

    @abstractmethod
    def depth(self, endpoint: Endpoint, load: Load) -> int | None:
        """Number of messages that wait in the queues; None where that cannot be asked."""

    @abstractmethod
    def publisher(self, job: Job, number: int, counters: Counters) -> Publisher:
        """Connected, and ready to publish."""

    @abstractmethod
    def consumer(self, job: Job, number: int) -> Consumer:
        """Connected, and not yet subscribed."""

    @abstractmethod
    def idle(self, endpoint: Endpoint, number: int) -> Wire:
        """A connection that is there and does nothing."""

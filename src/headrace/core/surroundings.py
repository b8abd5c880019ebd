"""What a queue asks of the broker around it. Nothing is done here: queues.py answers."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from headrace.core.dead_letter import Death
from headrace.core.given import Given
from headrace.core.statistics import Statistics
from headrace.core.turn import Turn
from headrace.model import Message

if TYPE_CHECKING:
    from headrace.core.queue import Queue


class Surroundings(ABC):
    """The rest of the broker, as a queue sees it."""

    statistics: Statistics
    given: Given | None
    """Where it is noted what consumers of durable queues get; None where each claim is stored at once."""
    auto_commit_us: int
    """How often the progress of stream readers that commit by themselves is stored."""

    @abstractmethod
    def dead_letter(self, turn: Turn, queue: "Queue", message: Message, death: Death) -> None:
        """Send a message that was given up to where the queue's dead letters go, in the same commit."""

    @abstractmethod
    def history_of(self, turn: Turn, queue: "Queue") -> "Queue":
        """The stream in which it is kept how this queue's messages ended."""

    @abstractmethod
    def wake_at(self, queue: "Queue", time_us: int) -> None:
        """Have the queue's `on_time` called then."""

    @abstractmethod
    def pump_soon(self, queue: "Queue") -> None:
        """Have the queue's `pump` called in this turn."""

    @abstractmethod
    def grew(self, queue: "Queue") -> None:
        """There is more in a stream from which other queues are filled."""

    @abstractmethod
    def has_room(self, queue: "Queue") -> None:
        """The queue takes messages again that wait for it in the stream from which it is filled."""

    @abstractmethod
    def drop(self, queue: "Queue") -> None:
        """Take the queue away."""

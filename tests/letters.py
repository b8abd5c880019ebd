"""Dead letters by the name of a queue, over the calls of the HTTP API."""

from headrace.core.broker import Broker
from headrace.core.properties import Properties
from headrace.core.queue.dead_letters import LOOKS, Grave
from headrace.model import Message


def listed(broker: Broker, name: str, offset: int = 0, limit: int = 100) -> list[tuple[int, Message, Properties]]:
    """Return dead letters of a queue, oldest first."""
    grave = broker.dead_letters.grave_of(name)
    if grave is None:
        return []
    found, _ = broker.dead_letters.browse(grave, offset, limit, looks=max(limit, LOOKS))
    return [(at, message, broker.codecs.decode(message)) for at, message in found]


def redrive(broker: Broker, name: str, limit: int = 10_000, start: int = 0) -> int:
    """Send dead letters back to where they died; returns how many."""
    grave = broker.dead_letters.grave_of(name)
    return 0 if grave is None else broker.dead_letters.send_back(grave, limit, start).messages


def transfer(broker: Broker, name: str, target: str, limit: int = 10_000, start: int = 0) -> int:
    """Send all messages of a queue to another; returns how many."""
    return broker.dead_letters.hand_on(Grave(broker.queue(name), is_whole=True), target, limit, start).messages


def purge(broker: Broker, name: str) -> int:
    """Drop the dead letters of a queue; returns how many."""
    grave = broker.dead_letters.grave_of(name)
    dropped, at = 0, 0
    while grave is not None:
        done = broker.dead_letters.drop(grave, at)
        dropped += done.messages
        if done.next is None:
            break
        at = done.next
    return dropped

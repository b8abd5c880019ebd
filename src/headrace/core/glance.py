"""Looking ahead: what is about to be needed comes from memory for many queues at once. Nothing is decided here.

With a message in each of ten thousand queues, what a message looks at has left the processor's caches since the last
one for that queue, and is waited for line by line. A loop that only looks hardly waits: while one line is on its way
it is at the next queue already: 4 to 7 % of what a message costs there, in commits of a thousand and more. Interpreted,
looking takes longer than that saves. The sums mean nothing; they are there because the compiler leaves out what is not
used.
"""

from typing import TYPE_CHECKING, Final

from headrace.core.delivery import Delivery
from headrace.version import IS_COMPILED

if TYPE_CHECKING:
    from headrace.core.queue import Queue

AT_A_TIME: Final = 64
"""What so many need fits into the second of the caches."""


def glance_at_queues(queues: "list[Queue]") -> int:
    """These are about to deliver."""
    if not IS_COMPILED:
        return 0
    seen = 0
    for queue in queues:
        seen += queue.glance()
    return seen


def glance_at_deliveries(deliveries: list[Delivery]) -> int:
    """These are about to be settled."""
    if not IS_COMPILED:
        return 0
    seen = 0
    for delivery in deliveries:
        seen += delivery.group.glance() + len(delivery.message.payload)
    return seen

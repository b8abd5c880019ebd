"""Messages that are moved, sent back or dropped by the thousand: in steps, each of which is one commit."""

import asyncio
from collections.abc import Callable
from typing import Final

from headrace.admin.pages import Call
from headrace.core.broker import Broker
from headrace.core.queue.dead_letters import LOOKS, REDRIVE_BYTES, Moved
from headrace.errors import Refused

AT_ONCE: Final = 250
"""How many messages are looked at and moved between two looks at the event loop: one takes up to 0.03 ms."""
BYTES_AT_ONCE: Final = 4 << 20

Step = Callable[[int, int], Moved]
"""Moves up to so many messages from an offset on."""


async def moved_in_steps(call: Call, broker: Broker, step: Step, limit: int, start: int) -> Moved:
    """How many messages went in all steps, each of which is stored before the next, and where to go on.

    Raises what a step raises; when some messages went before, the error says how many. They stay where they went.
    """
    whole = Moved(0, start)
    while whole.next is not None and whole.messages < limit and whole.looks < LOOKS:
        try:
            done = step(min(limit - whole.messages, AT_ONCE), whole.next)
        except Refused as error:
            if whole.messages:
                raise type(error)(f"{error}; {whole.messages:,} messages went before and stay there") from error
            raise
        whole.messages += done.messages
        whole.size_bytes += done.size_bytes
        whole.looks += done.looks
        whole.next = done.next
        if done.messages:
            await call.stored(broker)
        else:
            await asyncio.sleep(0)
        if whole.size_bytes >= REDRIVE_BYTES:
            break
    return whole

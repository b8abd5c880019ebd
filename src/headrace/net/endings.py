"""Ends of connections, a few in each turn: thousands may be lost at once, and all others are to be served meanwhile."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, final
from weakref import WeakKeyDictionary

AT_ONCE: Final = 50
"""How many connections end in one turn: the end of one takes up to 0.1 ms."""


@final
class Endings:
    """What is left to do for connections that were lost, in the order in which they were."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._room = AT_ONCE
        """How many more may end in this turn."""
        self._is_due = False

    def add(self, end: Callable[[], None]) -> None:
        """Have a connection end: now, or in a later turn when many do."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._go_on)
        if self._room and not self._waiting:
            self._room -= 1
            end()
        else:
            self._waiting.append(end)

    def _go_on(self) -> None:
        """Another turn has begun."""
        count = min(len(self._waiting), AT_ONCE)
        self._is_due = count > 0
        self._room = AT_ONCE - count
        if count:
            asyncio.get_running_loop().call_soon(self._go_on)
        for _ in range(count):
            self._waiting.popleft()()


_ENDINGS: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, Endings]] = WeakKeyDictionary()


def endings_of(loop: asyncio.AbstractEventLoop) -> Endings:
    """Those of all connections of an event loop."""
    found = _ENDINGS.get(loop)
    if found is None:
        found = _ENDINGS[loop] = Endings()
    return found

"""Long work in slices, so that the event loop serves everybody else in between. What the work is, pages say."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from heapq import merge
from typing import Any, Final, TypeVar

Item = TypeVar("Item")

AT_ONCE: Final = 50
"""How many things are worked on between two looks at the event loop: a row of a list takes up to 0.1 ms."""
_RUN: Final = 1000
"""How many things are sorted at once."""


async def sliced(items: Iterable[Item], at_once: int = AT_ONCE) -> AsyncIterator[Item]:
    """The same items; after each slice of them others are served. A collection that may change must be a copy."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            await asyncio.sleep(0)


async def ordered(
    items: Iterable[Item], key: Callable[[Item], Any] = lambda item: item, reverse: bool = False
) -> list[Item]:
    """The items as `sorted` has them."""
    runs: list[list[Item]] = []
    run: list[Item] = []
    async for item in sliced(items, _RUN):
        run.append(item)
        if len(run) == _RUN:
            run.sort(key=key, reverse=reverse)
            runs.append(run)
            run = []
    run.sort(key=key, reverse=reverse)
    if not runs:
        return run
    return [item async for item in sliced(merge(*runs, run, key=key, reverse=reverse), _RUN)]

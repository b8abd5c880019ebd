"""Long work in slices, so the event loop serves others in between. Pages bring the work."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from heapq import merge
from typing import Any, Final, TypeVar

Item = TypeVar("Item")

AT_ONCE: Final = 50
"""Items of a slice: a row of a list takes up to 0.1 ms."""
_RUN: Final = 1000
"""Items that are sorted at once."""


async def sliced(items: Iterable[Item], at_once: int = AT_ONCE) -> AsyncIterator[Item]:
    """Yield the items, with other work after each slice. Pass a copy of a collection that may change."""
    for number, item in enumerate(items, 1):
        yield item
        if number % at_once == 0:
            await asyncio.sleep(0)


async def ordered(
    items: Iterable[Item], key: Callable[[Item], Any] = lambda item: item, reverse: bool = False
) -> list[Item]:
    """Return the items in the order of `sorted`."""
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

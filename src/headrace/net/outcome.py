"""Waiting for what is told by a callback, where a library wants something to await. Nothing else waits in here."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
Told = TypeVar("Told")


async def outcome(start: Callable[[Callable[[Exception | None], None]], Result]) -> Result:
    """Start something that tells when it is done; returns then what starting it returned. Raises what it tells."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell(error: Exception | None) -> None:
        if future.done():  # nobody waits any more
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    result = start(tell)
    await future
    return result


async def answer(ask: Callable[[Callable[[Told], None]], None]) -> Told:
    """Ask something that is answered by a callback; returns the answer."""
    future: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
    ask(lambda told: None if future.done() else future.set_result(told))
    return await future

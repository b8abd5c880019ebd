"""Lost connections: a few end at once, very many a bounded number per turn of the event loop."""

import asyncio

from headrace.net.connection import ENDINGS_AT_ONCE as AT_ONCE
from headrace.net.connection import Endings, endings_of

COUNT = 5 * AT_ONCE + 3


async def turn() -> None:
    await asyncio.sleep(0)


def test_a_few_connections_end_at_once() -> None:
    async def run() -> None:
        ended: list[int] = []
        endings = Endings()
        for number in range(AT_ONCE):
            endings.add(lambda number=number: ended.append(number))  # type: ignore[misc]
        assert ended == list(range(AT_ONCE))

    asyncio.run(run())


def test_very_many_connections_end_in_order_a_bounded_number_in_each_turn() -> None:
    async def run() -> None:
        ended: list[int] = []
        endings = Endings()
        for number in range(COUNT):
            endings.add(lambda number=number: ended.append(number))  # type: ignore[misc]
        counts = [len(ended)]
        while len(ended) < COUNT:
            await turn()
            counts.append(len(ended))
        assert max([now - before for before, now in zip([0, *counts], counts, strict=False)]) <= AT_ONCE
        assert ended == list(range(COUNT))

        await turn()
        await turn()
        endings.add(lambda: ended.append(COUNT))
        assert ended[-1] == COUNT

    asyncio.run(run())


def test_a_connection_that_ends_another_lets_it_end() -> None:
    async def run() -> None:
        ended: list[int] = []
        endings = Endings()

        def first() -> None:
            endings.add(lambda: ended.append(2))
            ended.append(1)

        for _ in range(AT_ONCE):
            endings.add(lambda: None)
        endings.add(first)
        for _ in range(4):
            await turn()
        assert sorted(ended) == [1, 2]

    asyncio.run(run())


def test_an_event_loop_has_one_list_of_endings() -> None:
    async def run() -> Endings:
        loop = asyncio.get_running_loop()
        assert endings_of(loop) is endings_of(loop)
        return endings_of(loop)

    assert asyncio.run(run()) is not asyncio.run(run())

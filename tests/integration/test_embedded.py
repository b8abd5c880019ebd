"""The broker inside a program of one's own: real files, a real event loop, nothing in between."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import headrace
from headrace.core.queue.definition import QueueDefinition, Retry
from headrace.embedded import Received
from headrace.errors import Refused, Unavailable


async def first(broker: "headrace.embedded.EmbeddedBroker", queue: str, count: int = 1) -> list[Received]:
    """The next messages of a queue, acknowledged."""
    got: list[Received] = []
    async with broker.consume(queue) as messages:
        async for message in messages:
            message.ack()
            got.append(message)
            if len(got) == count:
                return got
    raise AssertionError("the queue ended")


def test_what_is_published_is_consumed_in_order_with_its_headers(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path) as broker:
            await broker.declare("orders")
            for number in range(5):
                assert await broker.publish("orders", b"%d" % number, headers={"number": number}) == 1
            got = await first(broker, "orders", 5)
            assert [message.payload for message in got] == [b"0", b"1", b"2", b"3", b"4"]
            assert [message.headers["number"] for message in got] == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_what_was_published_and_not_acknowledged_is_there_after_reopening(tmp_path: Path) -> None:
    async def publish() -> None:
        async with headrace.open(tmp_path) as broker:
            await broker.declare("orders")
            await broker.publish("orders", b"kept")
            async with broker.consume("orders") as messages:
                async for message in messages:
                    assert message.attempts == 1
                    break

    async def consume() -> None:
        async with headrace.open(tmp_path) as broker:
            (message,) = await first(broker, "orders")
            assert (message.payload, message.attempts) == (b"kept", 2)

    asyncio.run(publish())
    asyncio.run(consume())


def test_a_publish_that_returned_survives_a_kill(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal, headrace\n"
        "async def main():\n"
        f"    async with headrace.open({str(tmp_path)!r}) as broker:\n"
        "        await broker.declare('orders')\n"
        "        for number in range(100):\n"
        "            await broker.publish('orders', b'%d' % number)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    subprocess.run([sys.executable, "-c", program], check=False)

    async def consume() -> None:
        async with headrace.open(tmp_path) as broker:
            got = await first(broker, "orders", 100)
            assert [message.payload for message in got] == [b"%d" % number for number in range(100)]

    asyncio.run(consume())


def test_a_transaction_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path) as broker:
            await broker.declare("in")
            await broker.declare("out")
            await broker.publish("in", b"work")
            async with broker.consume("in") as messages:
                work = await anext(messages)
                with pytest.raises(ZeroDivisionError):
                    await fail_halfway(broker, work)
                async with broker.transaction() as tx:
                    tx.publish("out", b"whole")
                    tx.ack(work)
            assert [message.payload for message in await first(broker, "out")] == [b"whole"]
            assert broker.core.queue("in").messages == 0

    asyncio.run(main())


async def fail_halfway(broker: "headrace.embedded.EmbeddedBroker", work: Received) -> None:
    async with broker.transaction() as tx:
        tx.publish("out", b"half")
        tx.ack(work)
        raise ZeroDivisionError


def test_a_message_that_keeps_failing_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path) as broker:
            await broker.declare(
                QueueDefinition("jobs", retry=Retry(1, 10, 10), dead_letter_queue="$dlq/jobs"),
            )
            await broker.publish("jobs", b"poison")
            async with broker.consume("jobs") as messages:
                for _ in range(2):
                    (await anext(messages)).nack()
            (letter,) = await first(broker, "$dlq/jobs")
            assert letter.headers["_dlq_original_queue"] == "jobs"

    asyncio.run(main())


def test_a_directory_in_use_is_refused_with_the_holder_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with headrace.open(tmp_path):
            with pytest.raises(Unavailable, match="process"):
                async with headrace.open(tmp_path):
                    pass

    asyncio.run(main())


def test_a_message_to_a_full_queue_is_refused_to_its_publisher() -> None:
    async def main() -> None:
        async with headrace.open(None) as broker:
            await broker.declare("small", max_length=1, overflow="reject-publish")
            await broker.publish("small", b"fits")
            with pytest.raises(Refused, match="full"):
                await broker.publish("small", b"does not")

    asyncio.run(main())

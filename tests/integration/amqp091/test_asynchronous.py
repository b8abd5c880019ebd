"""aio-pika and pika's asyncio adapter: many channels, confirms in flight, robust connections, binary headers."""

import asyncio
from datetime import UTC, datetime

import aio_pika
import pika
import pytest
from aio_pika.exceptions import ChannelClosed, DeliveryError
from pika.adapters.asyncio_connection import AsyncioConnection

from tests.servers import Server


def test_aio_pika_publishes_with_confirms_and_consumes_in_order(server: Server, name: str) -> None:
    async def run() -> list[int]:
        connection = await aio_pika.connect_robust(server.url)
        async with connection:
            channel = await connection.channel()
            await channel.set_qos(prefetch_count=50)
            queue = await channel.declare_queue(name, durable=True)
            await asyncio.gather(
                *[
                    channel.default_exchange.publish(
                        aio_pika.Message(b"%d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT), name
                    )
                    for number in range(500)
                ]
            )
            got: list[int] = []
            async with queue.iterator(timeout=60) as messages:
                async for message in messages:
                    async with message.process():
                        got.append(int(message.body))
                    if len(got) == 500:
                        break
            return got

    assert asyncio.run(run()) == list(range(500))


def test_aio_pika_headers_of_every_kind_come_back(server: Server, name: str) -> None:
    headers = {
        "text": "Größe",
        "number": 1 << 40,
        "flag": True,
        "none": None,
        "float": 1.5,
        "when": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "list": [1, "two", {"three": 3}],
        "table": {"nested": {"deep": "yes"}},
    }

    async def run() -> aio_pika.abc.AbstractIncomingMessage:
        async with await aio_pika.connect(server.url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue(name)
            sent = aio_pika.Message(
                b"body",
                headers=headers,  # type: ignore[arg-type]
                content_type="text/plain",
                content_encoding="utf-8",
                priority=3,
                correlation_id="correlation",
                reply_to="reply",
                expiration=60,
                message_id="message",
                timestamp=datetime(2026, 1, 1, tzinfo=UTC),
                type="kind",
                app_id="app",
            )
            await channel.default_exchange.publish(sent, name)
            return await queue.get(no_ack=True)

    message = asyncio.run(run())

    assert message.headers == headers
    assert (message.content_type, message.content_encoding, message.priority) == ("text/plain", "utf-8", 3)
    assert (message.correlation_id, message.reply_to, message.message_id) == ("correlation", "reply", "message")
    assert (message.type, message.app_id, message.expiration) == ("kind", "app", 60)
    assert message.timestamp == datetime(2026, 1, 1, tzinfo=UTC)


def test_aio_pika_is_told_of_refusals(server: Server, name: str) -> None:
    async def run() -> None:
        async with await aio_pika.connect(server.url) as connection:
            channel = await connection.channel(on_return_raises=True)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b""), "nowhere", mandatory=True)
            await channel.declare_queue(name, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
            await channel.default_exchange.publish(aio_pika.Message(b""), name)
            with pytest.raises(DeliveryError):
                await channel.default_exchange.publish(aio_pika.Message(b""), name)
            with pytest.raises(ChannelClosed):
                await channel.declare_queue(name, arguments={"x-max-length": 2})

    asyncio.run(run())


def test_aio_pika_uses_hundreds_of_channels_at_once(server: Server, name: str) -> None:
    async def one(connection: aio_pika.abc.AbstractConnection, number: int) -> bytes:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"%d" % number), queue.name)
        message = await queue.get(timeout=60, fail=False)
        while message is None:
            message = await queue.get(timeout=60, fail=False)
        await message.ack()
        return message.body

    async def run() -> list[bytes]:
        async with await aio_pika.connect(server.url) as connection:
            return await asyncio.gather(*[one(connection, number) for number in range(300)])

    assert asyncio.run(run()) == [b"%d" % number for number in range(300)]


def test_pikas_asyncio_adapter_gets_confirms_with_multiple(server: Server, name: str) -> None:
    async def run() -> tuple[int, bool]:
        done: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()
        seen = {"to": 0, "multiple": False}

        def on_confirm(frame: pika.frame.Method) -> None:
            seen["to"] = max(seen["to"], frame.method.delivery_tag)
            seen["multiple"] = seen["multiple"] or frame.method.multiple
            if seen["to"] == 200:
                done.set_result((seen["to"], bool(seen["multiple"])))

        def on_declared(channel: pika.channel.Channel) -> None:
            channel.confirm_delivery(on_confirm)
            for number in range(200):
                channel.basic_publish("", name, b"%d" % number)

        def on_channel(channel: pika.channel.Channel) -> None:
            channel.queue_declare(name, callback=lambda frame: on_declared(channel))

        connection = AsyncioConnection(
            pika.ConnectionParameters("127.0.0.1", server.port),
            on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        )
        result = await asyncio.wait_for(done, 60)
        closed = asyncio.Event()
        connection.add_on_close_callback(lambda *arguments: closed.set())
        connection.close()
        await asyncio.wait_for(closed.wait(), 10)
        return result

    assert asyncio.run(run()) == (200, True)

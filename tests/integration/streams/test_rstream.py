"""rstream, the Python client of RabbitMQ's stream protocol, unmodified."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rstream import (
    AMQPMessage,
    CompressionType,
    Consumer,
    ConsumerOffsetSpecification,
    OffsetType,
    Producer,
    RouteType,
    SuperStreamProducer,
    amqp_decoder,
)
from rstream.exceptions import PreconditionFailed, StreamAlreadyExists, StreamDoesNotExist
from rstream.superstream import SuperStreamCreationOption
from rstream.superstream_consumer import SuperStreamConsumer

from tests.servers import Server

SECONDS = 60.0
_FIRST = ConsumerOffsetSpecification(OffsetType.FIRST)
_names = itertools.count(1)

Got = list[tuple[int, Any]]


def _name() -> str:
    return f"stream-{next(_names)}"


def _producer(server: Server) -> Producer:
    return Producer("127.0.0.1", server.ports["stream"], username="guest", password="guest")


def _consumer(server: Server) -> Consumer:
    return Consumer("127.0.0.1", server.ports["stream"], username="guest", password="guest")


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not is_so():
            await asyncio.sleep(0.01)


async def _read(server: Server, stream: str, count: int, **options: Any) -> Got:
    """The first messages that a subscription gets, with their offsets."""
    consumer = _consumer(server)
    found: Got = []
    async with asyncio.timeout(SECONDS):
        await consumer.start()

        async def take(message: Any, context: Any) -> None:
            found.append((context.offset, message))

        options.setdefault("offset_specification", _FIRST)
        await consumer.subscribe(stream, take, **options)
        await _until(lambda: len(found) >= count)
        await consumer.close()
    return found


def _run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), SECONDS))


def test_messages_are_confirmed_and_read_from_everywhere(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream)
            bodies = [f"message {number}".encode() for number in range(2000)]
            confirmed: list[Any] = []
            for at in range(0, 2000, 250):
                await producer.send_batch(stream, bodies[at : at + 250], on_publish_confirm=confirmed.append)
            await _until(lambda: len(confirmed) == 2000)
            assert all(each.is_confirmed for each in confirmed)

        assert await _read(server, stream, 2000) == list(enumerate(bodies))
        there = ConsumerOffsetSpecification(OffsetType.OFFSET, 1500)
        assert (await _read(server, stream, 500, offset_specification=there))[0] == (1500, bodies[1500])
        last = ConsumerOffsetSpecification(OffsetType.LAST)
        assert (await _read(server, stream, 1, offset_specification=last))[-1] == (1999, bodies[-1])

    _run(work)


def test_properties_and_bodies_of_amqp_come_back_as_they_were(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream)
            message = AMQPMessage(body=b"hello", application_properties={"number": 5, "text": "x"})
            await producer.send_wait(stream, message)
        ((offset, got),) = await _read(server, stream, 1, decoder=amqp_decoder)
        assert (offset, b"".join(got.body) if isinstance(got.body, list) else got.body) == (0, b"hello")
        assert got.application_properties == {b"number": 5, b"text": b"x"}

    _run(work)


def test_batches_in_one_entry_have_an_offset_for_each_message(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream)
            for compression in (CompressionType.No, CompressionType.Gzip):
                bodies = [f"{compression} {number}".encode() for number in range(10)]
                await producer.send_sub_entry(stream, compression_type=compression, sub_entry_messages=bodies)
        found = await _read(server, stream, 20)
        assert [offset for offset, _ in found] == list(range(20))
        assert found[-1][1] == bodies[-1]

    _run(work)


async def _send_ten(server: Server, stream: str) -> None:
    """Send the numbers 1 to 10 as a publisher with a name."""
    async with _producer(server) as producer:
        messages = [AMQPMessage(body=b"%d" % number) for number in range(1, 11)]
        for number, message in enumerate(messages, 1):
            message.publishing_id = number
        confirmed: list[Any] = []
        await producer.send_batch(stream, messages, publisher_name="once", on_publish_confirm=confirmed.append)
        await _until(lambda: len(confirmed) == 10)


def test_a_named_publisher_stores_each_id_once(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream)
        for _ in range(2):
            await _send_ten(server, stream)
        async with _producer(server) as producer:
            await producer.send_wait(stream, b"after")
        found = await _read(server, stream, 11)
        assert [offset for offset, _ in found] == list(range(11))
        assert found[-1][1] == b"after"

    _run(work)


def test_offsets_are_kept_by_name(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream)
            await producer.send_batch(stream, [b"%d" % number for number in range(100)])
        await _read(server, stream, 100)
        consumer = _consumer(server)
        await consumer.start()
        await consumer.store_offset(stream, "reader", 41)
        assert await consumer.query_offset(stream, "reader") == 41
        await consumer.close()

    _run(work)


def test_streams_that_exist_or_do_not_raise_what_the_client_knows(server: Server) -> None:
    async def work() -> None:
        stream = _name()
        async with _producer(server) as producer:
            await producer.create_stream(stream, arguments={"max-length-bytes": 1_000_000})
            with pytest.raises(StreamAlreadyExists):
                await producer.create_stream(stream, arguments={"max-length-bytes": 1_000_000})
            with pytest.raises(PreconditionFailed):
                await producer.create_stream(stream)
            assert await producer.stream_exists(stream)
            await producer.delete_stream(stream)
            assert not await producer.stream_exists(stream)
            with pytest.raises(StreamDoesNotExist):
                await producer.delete_stream(stream)

    _run(work)


def test_a_super_stream_spreads_messages_that_one_consumer_of_all_partitions_gets(server: Server) -> None:
    async def work() -> None:
        name = _name()
        options = SuperStreamCreationOption(n_partitions=3)

        async def key_of(message: AMQPMessage) -> str:
            return str(message.application_properties["id"])

        async with SuperStreamProducer(
            "127.0.0.1",
            server.ports["stream"],
            username="guest",
            password="guest",
            routing_extractor=key_of,
            routing=RouteType.Hash,
            super_stream=name,
            super_stream_creation_option=options,
        ) as producer:
            for number in range(60):
                message = AMQPMessage(body=b"%d" % number, application_properties={"id": f"{number}"})
                await producer.send(message)
        consumer = SuperStreamConsumer(
            "127.0.0.1", server.ports["stream"], username="guest", password="guest", super_stream=name
        )
        found: set[bytes] = set()
        streams: set[str] = set()

        async def take(message: Any, context: Any) -> None:
            found.add(bytes(message.body if isinstance(message.body, bytes) else b"".join(message.body)))
            streams.add(context.stream)

        await consumer.start()
        await consumer.subscribe(callback=take, decoder=amqp_decoder, offset_specification=_FIRST)
        await _until(lambda: len(found) == 60)
        assert streams == {f"{name}-{partition}" for partition in range(3)}
        await consumer.close()

    _run(work)

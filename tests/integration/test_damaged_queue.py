"""A queue whose file is damaged: all who consume it are told so, whatever they speak, and nobody waits for ever."""

import asyncio
import contextlib
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from proton import Message
from proton.utils import BlockingConnection, LinkDetached

import headrace
from headrace.core.queue.definition import STREAM, QueueDefinition
from headrace.errors import Corrupt, NotFound
from headrace.storage.local.engine import LocalEngine, LocalSettings
from tests.house import House
from tests.paho_helpers import Paho, wait_for
from tests.servers import Server, serving

COUNT = 120
PARTS = 3
NAMES = ["damaged", "damaged-too", "damaged-again", "damaged-still", "damaged-log"]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the later segments of some queues are damaged, and one queue is whole."""
    data = tmp_path_factory.mktemp("original") / "data"
    small = LocalSettings(
        journal_file_bytes=16 << 10, checkpoint_bytes=16 << 10, tail_bytes=4 << 10, segment_bytes=8 << 10
    )
    for part in range(PARTS):
        engine = LocalEngine(data, settings=small)
        house = House(engine)
        for name in [*NAMES, "whole"]:
            if not part:
                house.broker.declare(QueueDefinition(name, STREAM if name == "damaged-log" else "classic"))
            house.publish(name, *["x" * 200 for _ in range(COUNT // PARTS)])
        house.broker.drain()
        house.run()
        engine.close()
    for name in NAMES:
        segments = sorted(data.glob(f"queues/{name}/segments/*.seg"))
        assert len(segments) > 2, sorted(data.rglob("*.seg"))
        with segments[1].open("r+b") as file:
            file.seek(120)
            file.write(b"damage")
    return data


@pytest.fixture
def data(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "data"))


@pytest.fixture
def server(data: Path) -> Iterator[Server]:
    with serving(Server(data.parent)) as server:
        yield server


@pytest.mark.parametrize("name", ["damaged", "damaged-log"])
def test_an_embedded_consumer_gets_an_error(data: Path, name: str) -> None:
    async def consume() -> int:
        got = 0
        async with headrace.open(data) as broker:
            async with broker.consume(name) as messages:
                with contextlib.suppress(Corrupt):
                    async for message in messages:
                        message.ack()
                        got += 1
            with pytest.raises(Corrupt, match=r"\.seg is damaged"):
                await broker.consume(name).__aenter__()
            async with broker.consume("whole") as messages:
                async for message in messages:
                    message.ack()
                    break
        return got

    assert asyncio.run(asyncio.wait_for(consume(), 60)) < COUNT


def test_an_embedded_consumer_of_a_queue_that_is_deleted_gets_an_error(tmp_path: Path) -> None:
    async def consume() -> None:
        async with headrace.open(tmp_path / "data") as broker:
            await broker.declare("q")
            async with broker.consume("q") as messages:
                await broker.delete("q")
                with pytest.raises(NotFound, match="was deleted"):
                    await anext(messages)

    asyncio.run(asyncio.wait_for(consume(), 60))


def test_all_who_consume_are_told_and_the_log_has_an_error_for_each_queue(server: Server) -> None:
    cancelled: list[object] = []
    channel = server.connect().channel()
    channel.add_on_cancel_callback(cancelled.append)
    channel.basic_consume("damaged", lambda *_: None, auto_ack=True)
    while not cancelled:
        channel.connection.process_data_events(0.1)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is damaged at byte"):
        channel.basic_consume("damaged", lambda *_: None)

    connection = BlockingConnection(f"amqp://guest:guest@127.0.0.1:{server.port}", timeout=60)
    with pytest.raises(LinkDetached, match="is damaged at byte"):
        _receive_all(connection, "damaged-too")
    connection.create_sender("whole").send(Message(body="fine"))
    connection.close()

    reader = Paho(server.mqtt_port, "reader")
    reader.subscribe("$queue/damaged-log", 0)
    wait_for(lambda: reader.connections > 1)  # it was disconnected, and has come back
    reader.close()
    again = Paho(server.mqtt_port, "again")
    assert again.subscribe("$queue/damaged-log", 1)[0].value == 0x83
    again.close()

    with pytest.raises(urllib.error.HTTPError) as caught:
        _consume_over_http(server, "damaged-still")
    assert caught.value.code == 503
    assert b"is damaged at byte" in caught.value.read()

    getter = server.connect().channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="is damaged at byte"):
        _get_all(getter, "damaged-again")

    errors = [line for line in server.log().splitlines() if "error" in line.lower() and "is refused" in line]
    assert sorted(name for name in NAMES for line in errors if f"queue={name} " in f"{line} ") == sorted(NAMES)


def _receive_all(connection: BlockingConnection, queue: str) -> None:
    receiver = connection.create_receiver(queue, credit=10)
    while True:
        receiver.receive(60)
        receiver.accept()


def _get_all(channel: BlockingChannel, queue: str) -> None:
    while channel.basic_get(queue, auto_ack=True)[0] is not None:
        pass


def _consume_over_http(server: Server, queue: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/api/v1/queues/%2F/{queue}/consume",
        b'{"limit": 20, "wait_ms": 2000}',
        {"content-type": "application/json", "authorization": "Basic Z3Vlc3Q6Z3Vlc3Q=", "x-requested-with": "test"},
    )
    while urllib.request.urlopen(request, timeout=60).read() != b'{"items":[]}':
        pass

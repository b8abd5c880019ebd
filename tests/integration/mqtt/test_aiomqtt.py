"""aiomqtt against a real server."""

import asyncio

import aiomqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.servers import Server


def test_a_request_and_its_answer(server: Server) -> None:
    async def answer(client: aiomqtt.Client) -> None:
        await client.subscribe("requests", qos=1)
        async for message in client.messages:
            assert message.properties is not None
            topic: str = message.properties.ResponseTopic  # type: ignore[attr-defined]
            assert isinstance(message.payload, bytes)
            await client.publish(topic, message.payload.upper(), qos=1)
            return

    async def run() -> bytes:
        v5 = aiomqtt.ProtocolVersion.V5
        service = aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="service", protocol=v5)
        async with service, aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="asker", protocol=v5) as asker:
            serving = asyncio.create_task(answer(service))
            await asker.subscribe("answers/#", qos=1)
            await asyncio.sleep(0.2)
            about = Properties(PacketTypes.PUBLISH)
            about.ResponseTopic = "answers/1"
            await asker.publish("requests", b"hello", qos=1, properties=about)
            async for message in asker.messages:
                await serving
                assert isinstance(message.payload, bytes)
                return message.payload
        raise AssertionError("no answer")

    assert asyncio.run(asyncio.wait_for(run(), 20)) == b"HELLO"


def test_many_clients_in_all_qualities(server: Server) -> None:
    async def run() -> list[int]:
        async def read(number: int) -> int:
            async with aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier=f"many-{number}") as client:
                await client.subscribe("many", qos=number % 3)
                ready.release()
                count = 0
                async for _ in client.messages:
                    count += 1
                    if count == 50:
                        return count
            return count

        ready = asyncio.Semaphore(0)
        readers = [asyncio.create_task(read(number)) for number in range(12)]
        for _ in readers:
            await ready.acquire()
        async with aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="one") as writer:
            for number in range(50):
                await writer.publish("many", str(number), qos=2)
            return await asyncio.gather(*readers)

    assert asyncio.run(asyncio.wait_for(run(), 60)) == [50] * 12

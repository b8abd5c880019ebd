"""Subscribers of one topic that ask for it in different ways, each of which gets what it asked for."""

import pytest

from tests.paho_helpers import Paho
from tests.servers import Server

ORDERS = [(0, 1, 2), (2, 1, 0), (1, 2, 0)]


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("order", ORDERS)
def test_each_gets_the_quality_it_asked_for(server: Server, version: int, order: tuple[int, ...]) -> None:
    topic = f"quality/{version}/{order[0]}/{order[1]}"
    readers = {qos: Paho(server.mqtt_port, f"quality{qos}", version) for qos in order}
    for qos, reader in readers.items():
        reader.subscribe(topic, qos)
    writer = Paho(server.mqtt_port, "writer", version)
    for published in (0, 1, 2):
        writer.publish(topic, str(published), published)
    for qos, reader in readers.items():
        reader.wait(3)
        got = {int(message.payload): message.qos for message in reader.messages}
        assert got == {published: min(published, qos) for published in (0, 1, 2)}
        reader.close()
    writer.close()


@pytest.mark.parametrize("asks", [(True, False), (False, True)])
def test_each_is_told_that_a_message_is_retained_if_it_asked(server: Server, asks: tuple[bool, bool]) -> None:
    topic = f"retained/{asks[0]}"
    readers = [Paho(server.mqtt_port, f"retained{number}") for number in (0, 1)]
    for reader, asked in zip(readers, asks, strict=True):
        reader.subscribe(topic, retainAsPublished=asked)
    readers[0].sure(topic, "kept", retain=True)
    readers[0].sure(topic, "passing")
    for reader, asked in zip(readers, asks, strict=True):
        reader.wait(2)
        assert [bool(message.retain) for message in reader.messages] == [asked, False]
        reader.close()


@pytest.mark.parametrize("asks", [(True, False), (False, True)])
def test_each_gets_its_own_messages_unless_it_asked_not_to(server: Server, asks: tuple[bool, bool]) -> None:
    topic = f"own/{asks[0]}"
    readers = [Paho(server.mqtt_port, f"own{number}") for number in (0, 1)]
    for reader, asked in zip(readers, asks, strict=True):
        reader.subscribe(topic, noLocal=asked)
    for number, reader in enumerate(readers):
        reader.sure(topic, str(number))
    other = Paho(server.mqtt_port, "other")
    other.sure(topic, "end")
    for number, (reader, asked) in enumerate(zip(readers, asks, strict=True)):
        wanted = [b"0", b"1", b"end"]
        if asked:
            wanted.remove(str(number).encode())
        assert reader.wait(len(wanted)) == wanted
        reader.close()
    other.close()

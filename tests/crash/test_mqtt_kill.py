"""kill -9 under MQTT load with a foreign client: nothing acknowledged is lost, what is exactly once comes once."""

import threading
import time
from pathlib import Path

import pytest

from tests.pahos import Paho, wait_for
from tests.servers import Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    server = Server(tmp_path)
    server.start()
    return server


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_acknowledged_is_in_every_place_it_matched(server: Server, qos: int) -> None:
    server.connect().channel().queue_declare("q", durable=True)
    readers = [Paho(server.mqtt_port, f"reader{number}", 4, clean=False) for number in range(2)]
    for reader in readers:
        reader.subscribe("load", 2)
        reader.close()
    load, plain = Paho(server.mqtt_port, "load", 4), Paho(server.mqtt_port, "plain", 4)
    acked: dict[str, set[int]] = {"$queue/q/load": set(), "load": set()}
    stop = threading.Event()

    def run(client: Paho, topic: str) -> None:
        mids: dict[int, int] = {}
        number = 0
        while not stop.is_set():
            mids[client.publish(topic, str(number), qos)] = number
            number += 1
            if number % 100 == 0:
                time.sleep(0.002)
        acked[topic] = {mids[mid] for mid in list(client.acked) if mid in mids}

    pairs = [(load, "$queue/q/load"), (plain, "load")]
    threads = [threading.Thread(target=run, args=pair) for pair in pairs]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(load.acked) > 500 and len(plain.acked) > 500)
    server.kill()
    stop.set()
    for thread in threads:
        thread.join()
    for client, _ in pairs:
        client.drop()
    server.start()

    worker = Paho(server.mqtt_port, "worker", 4)
    worker.subscribe("$queue/q", 1)
    back = [Paho(server.mqtt_port, f"reader{number}", 4, clean=False) for number in range(2)]
    wait_for(lambda: acked["$queue/q/load"] <= {int(message.payload) for message in worker.messages})
    for reader in back:
        assert reader.present
        wait_for(lambda reader=reader: acked["load"] <= {int(m.payload) for m in reader.messages})  # type: ignore[misc]
        found = [int(message.payload) for message in reader.messages]
        assert found == sorted(set(found))
    for client in [worker, *back]:
        client.close()
    server.close_connections()
    server.stop()


def test_what_a_client_publishes_exactly_once_is_delivered_once_across_crashes(server: Server) -> None:
    reader = Paho(server.mqtt_port, "reader", 4, clean=False)
    reader.subscribe("load", 2)
    reader.close()
    writer = Paho(server.mqtt_port, "writer", 4, clean=False, inflight=50)
    writer.client.reconnect_delay_set(1, 1)
    port = server.mqtt_port
    total = 3000
    mids = [writer.publish("load", str(number), 2) for number in range(total)]
    for share in (0.2, 0.6):
        wait_for(lambda share=share: len(writer.acked) >= total * share)  # type: ignore[misc]
        server.kill()
        server.start(port)
    wait_for(lambda: all(mid in writer.acked for mid in mids), 60)

    back = Paho(server.mqtt_port, "reader", 4, clean=False)
    back.wait(total)
    assert [int(message.payload) for message in back.messages] == list(range(total))
    for client in (writer, back):
        client.close()
    server.stop()


def test_what_a_client_is_sent_exactly_once_comes_once_across_crashes(server: Server) -> None:
    port = server.mqtt_port
    first = Paho(port, "reader", 4, clean=False)
    first.subscribe("load", 2)
    first.close()
    writer = Paho(port, "writer", 4)
    total = 3000
    mids = [writer.publish("load", str(number), 2) for number in range(total)]
    wait_for(lambda: all(mid in writer.acked for mid in mids), 60)
    writer.close()

    reader = Paho(port, "reader", 4, clean=False)
    reader.client.reconnect_delay_set(1, 1)
    for share in (0.2, 0.6):
        wait_for(lambda share=share: len(reader.messages) >= total * share)  # type: ignore[misc]
        server.kill()
        server.start(port)
    reader.wait(total)
    time.sleep(0.5)
    assert [int(message.payload) for message in reader.messages] == list(range(total))
    reader.close()
    server.stop()


def test_sessions_subscriptions_wills_and_retained_messages_survive(server: Server) -> None:
    kept = Paho(server.mqtt_port, "kept", clean=False, expiry_s=3600)
    kept.subscribe("a/#", 1)
    kept.subscribe("$share/g/b", 1)
    Paho(server.mqtt_port, "lost", will=("a/wills", "gone", 1, True))
    writer = Paho(server.mqtt_port, "writer")
    writer.sure("r/1", "retained", 1, retain=True)
    kept.close()
    writer.sure("a/1", "waits", 1)
    writer.sure("b", "shared", 1)

    server.kill()
    server.start()

    back = Paho(server.mqtt_port, "kept", clean=False, expiry_s=3600)
    assert back.present
    back.wait(3)
    assert sorted(message.payload for message in back.messages) == [b"gone", b"shared", b"waits"]
    watcher = Paho(server.mqtt_port, "watcher")
    watcher.subscribe("#")
    watcher.wait(2)
    assert {message.topic: bytes(message.payload) for message in watcher.messages} == {
        "r/1": b"retained",
        "a/wills": b"gone",
    }
    for client in (back, watcher):
        client.close()
    server.stop()

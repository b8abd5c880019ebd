"""kill -9 under MQTT load with a foreign client: nothing acknowledged is lost, what is exactly once comes once."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.pahos import Paho, wait_for
from tests.servers import Server

_WRITERS = 3
_READERS = 2
_EACH = 800
_MOST_UNDER_WAY = 400


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path)
    server.start()
    yield server
    server.kill()


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
            if number - len(client.acked) < _MOST_UNDER_WAY:
                mids[client.publish(topic, str(number), qos)] = number
                number += 1
            else:
                time.sleep(0.001)
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


@pytest.mark.parametrize("qos", [1, 2])
def test_what_clients_publish_is_delivered_across_crashes_and_once_if_it_is_to_be(server: Server, qos: int) -> None:
    load = Load(server)
    load.read(1, 2)
    load.leave()
    load.write(qos)

    load.crash(0.2, lambda: sum(len(writer.acked) for writer in load.writers) / _WRITERS)
    load.crash(0.6, lambda: sum(len(writer.acked) for writer in load.writers) / _WRITERS)

    load.read(1)
    load.check(qos)


@pytest.mark.parametrize("qos", [1, 2])
def test_what_clients_are_sent_comes_across_crashes_and_once_if_it_is_to_be(server: Server, qos: int) -> None:
    load = Load(server)
    load.read(_READERS, qos)
    load.leave()
    load.write(2)
    load.finish_writing()
    load.read(_READERS)

    load.crash(0.2, lambda: min(len(reader.messages) for reader in load.readers) / _WRITERS)
    load.crash(0.6, lambda: min(len(reader.messages) for reader in load.readers) / _WRITERS)

    load.check(qos)


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_lost_of_a_load_that_goes_on_both_ways_across_crashes(server: Server, qos: int) -> None:
    load = Load(server)
    load.read(_READERS, qos)
    load.write(qos)

    load.crash(0.2, lambda: min(len(reader.messages) for reader in load.readers) / _WRITERS)
    load.crash(0.6, lambda: min(len(reader.messages) for reader in load.readers) / _WRITERS)

    load.check(qos)


class Load:
    """Clients that publish and read at once, with sessions that are kept, while the server goes and comes."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._up = threading.Event()
        self._up.set()
        self.writers: list[Paho] = []
        self.readers: list[Paho] = []

    def write(self, qos: int) -> None:
        """Have several clients publish, whatever becomes of the server meanwhile."""
        self.writers = [self._client(f"writer{number}") for number in range(_WRITERS)]
        for number, writer in enumerate(self.writers):
            for at in range(_EACH):
                writer.publish(f"load/{number}", str(at), qos)

    def finish_writing(self) -> None:
        wait_for(lambda: all(len(writer.acked) == _EACH for writer in self.writers), 60)

    def read(self, count: int, qos: int | None = None) -> None:
        """Have so many clients read; they subscribe unless they did before."""
        self.readers = [self._client(f"reader{number}") for number in range(count)]
        for reader in self.readers:
            if qos is not None:
                reader.subscribe("load/#", qos)

    def leave(self) -> None:
        for reader in self.readers:
            reader.close()
        self.readers = []

    def _client(self, name: str) -> Paho:
        client = Paho(self._server.mqtt_port, name, 4, clean=False, inflight=50, gate=self._up)
        client.client.reconnect_delay_set(1, 1)
        return client

    def crash(self, share: float, done: Callable[[], float]) -> None:
        """Kill the server when that share is done, have it back where it was, and wait until all have gone on."""
        wait_for(lambda: done() >= share * _EACH, 60)
        port = self._server.mqtt_port
        clients = [(client, client.connections) for client in (*self.writers, *self.readers)]
        self._up.clear()
        self._server.kill()
        self._server.start(port)
        self._up.set()
        wait_for(lambda: all(client.connections > count for client, count in clients), 60)
        writers = [(writer, len(writer.acked)) for writer in self.writers]
        wait_for(lambda: all(count == _EACH or len(writer.acked) > count for writer, count in writers), 60)

    def check(self, qos: int) -> None:
        """Every reader has all of each writer's messages, in order; exactly once at QoS 2, else at least once."""
        self.finish_writing()
        last = self._client("last")
        last.sure("load/end", "end", qos)
        for reader in self.readers:
            wait_for(lambda reader=reader: any(one.topic == "load/end" for one in reader.messages), 60)  # type: ignore[misc]
            found: dict[str, list[int]] = {f"load/{number}": [] for number in range(_WRITERS)}
            for message in reader.messages:
                if message.topic != "load/end":
                    found[message.topic].append(int(message.payload))
            for numbers in found.values():
                assert (numbers if qos == 2 else list(dict.fromkeys(numbers))) == list(range(_EACH))
        for client in (*self.writers, *self.readers, last):
            client.close()
        self._server.stop()


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

"""For how long does one call hold up everybody else? `python bench/loop_lag.py [queues] [rounds] [scenario ...]`.

A process of its own sends MQTT pings, one after the other, while another client makes the call. The longest round trip
is the time for which the event loop served nobody. Other programs on the machine make it longer, so the best of several
rounds counts, and beside it stands the most processor time that the broker's thread used within one round trip. "idle"
is the same without a call.
"""

import base64
import json
import multiprocessing
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

LOGIN = base64.b64encode(b"guest:guest").decode()
CONNECT = bytes((0x10, 16)) + b"\x00\x04MQTT\x04\x02\x00\x3c\x00\x04ping"
PINGREQ, PAUSE = b"\xc0\x00", 0.001


# -- the probe


def used(path: Path) -> int:
    """Nanoseconds that a thread has run."""
    return int(path.read_text().split()[0])


def probe(port: int, pid: int, wanted: Any, asked: Any) -> None:
    """Ping until asked for the longest round trip since it was asked before, and the most processor time, in ms."""
    spent = Path(f"/proc/{pid}/task/{pid}/schedstat")
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(CONNECT)
        assert client.recv(4)
        longest = most = 0.0
        while True:
            ran, before = used(spent), time.perf_counter()
            client.sendall(PINGREQ)
            assert client.recv(2)
            longest = max(longest, 1000 * (time.perf_counter() - before))
            most = max(most, (used(spent) - ran) / 1_000_000)
            if wanted.is_set():
                wanted.clear()
                asked.put((longest, most))
                longest = most = 0.0
            time.sleep(PAUSE)


# -- AMQP 0-9-1, as little of it as there must be


def method(channel: int, number: int, of: int, arguments: bytes = b"") -> bytes:
    payload = struct.pack(">HH", number, of) + arguments
    return struct.pack(">BHI", 1, channel, len(payload)) + payload + b"\xce"


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


class Amqp:
    """A connection that sends methods without waiting for their answers."""

    def __init__(self, port: int, host: str = "/") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self._buffer = b""
        self.socket.sendall(b"AMQP\x00\x00\x09\x01")
        self.wait(10, 10)
        login = b"\x00guest\x00guest"
        start = struct.pack(">I", 0) + short("PLAIN") + struct.pack(">I", len(login)) + login + short("en_US")
        self.socket.sendall(method(0, 10, 11, start))
        self.wait(10, 30)
        self.socket.sendall(method(0, 10, 31, struct.pack(">HIH", 2047, 131072, 0)))
        self.socket.sendall(method(0, 10, 40, short(host) + b"\x00\x00"))
        self.wait(10, 41)
        self.open(1)

    def open(self, channel: int) -> None:
        self.socket.sendall(method(channel, 20, 10, b"\x00"))
        self.wait(20, 11)

    def wait(self, number: int, of: int) -> None:
        """Read until this method comes."""
        while True:
            while len(self._buffer) >= 7:
                kind, _, size = struct.unpack_from(">BHI", self._buffer)
                if len(self._buffer) < size + 8:
                    break
                payload, self._buffer = self._buffer[7 : 7 + size], self._buffer[size + 8 :]
                if kind == 1 and struct.unpack_from(">HH", payload) == (number, of):
                    return
            data = self.socket.recv(1 << 20)
            assert data, "the connection was ended"
            self._buffer += data

    def declare(self, names: list[str], flags: int, arguments: bytes = b"") -> None:
        table = struct.pack(">I", len(arguments)) + arguments
        for start in range(0, len(names), 500):
            some = names[start : start + 500]
            frames = [method(1, 50, 10, b"\x00\x00" + short(name) + bytes((flags | 16,)) + table) for name in some]
            self.socket.sendall(b"".join(frames))
        self.settle()

    def consume(self, names: list[str], channel: int = 1) -> None:
        """Consume without waiting for the answers."""
        frames = [
            method(channel, 60, 20, b"\x00\x00" + short(name) + short(f"{channel}-{at}") + b"\x08" + bytes(4))
            for at, name in enumerate(names)
        ]
        self.socket.sendall(b"".join(frames))

    def publish(self, key: str, count: int, channel: int = 1, size: int = 1, exchange: str = "") -> None:
        head = struct.pack(">HHQH", 60, 0, size, 0)
        header = struct.pack(">BHI", 2, channel, len(head)) + head + b"\xce"
        body = struct.pack(">BHI", 3, channel, size) + b"x" * size + b"\xce"
        one = method(channel, 60, 40, b"\x00\x00" + short(exchange) + short(key) + b"\x00") + header + body
        at_once = max(1, 100_000 // len(one))
        for start in range(0, count, at_once):
            self.socket.sendall(one * min(at_once, count - start))
        self.settle()

    def settle(self) -> None:
        """Return when all that was sent is done."""
        self.socket.sendall(method(1, 20, 20, b"\x01"))
        self.wait(20, 21)


# -- a broker and its calls


class Bench:
    def __init__(self, directory: str) -> None:
        self.queues = 0
        self._ready = Path(directory) / "ready.json"
        self.configuration = Path(directory) / "headrace.yaml"
        self.configuration.write_text("{}")
        ports = ["--amqp", "0", "--http", "0", "--ws", "off", "--mqtt", "0"]
        words = ["serve", *ports, "--data", f"{directory}/data", "--ready-file", str(self._ready)]
        words += ["--config", str(self.configuration)]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "headrace", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while not self._ready.exists():
            time.sleep(0.05)
        self.ports = json.loads(self._ready.read_text())["ports"]
        context = multiprocessing.get_context("spawn")
        self._wanted, self._asked = context.Event(), context.Queue()
        self._probe = context.Process(
            target=probe, args=(self.ports["mqtt"], self.server.pid, self._wanted, self._asked), daemon=True
        )
        self._probe.start()

    def longest(self) -> tuple[float, float]:
        self._wanted.set()
        found: tuple[float, float] = self._asked.get(timeout=60)
        return found

    def http(self, path: str, method_: str = "GET", body: object = None) -> bytes:
        url = f"http://127.0.0.1:{self.ports['http']}{path}"
        data = None if body is None else json.dumps(body).encode()
        asked = urllib.request.Request(url, data, {"authorization": f"Basic {LOGIN}"}, method=method_)
        try:
            with urllib.request.urlopen(asked, timeout=300) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{method_} {path}: {error.code} {error.read()[:200]!r}") from error

    def amqp(self, host: str = "/") -> Amqp:
        return Amqp(self.ports["amqp"], host)

    def close(self) -> None:
        self._probe.terminate()
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(120)


Call = Callable[[], object]
Prepare = Callable[[Bench, int], Call]


def then_wait(call: Call, seconds: float) -> None:
    """Make a call whose work goes on after it."""
    call()
    time.sleep(seconds)


def get(path: str) -> Prepare:
    return lambda bench, _: lambda: bench.http(path)


def definitions(host: str, count: int) -> dict[str, object]:
    names = [f"queue-{number:05}" for number in range(count)]
    queues = [
        {"name": name, "vhost": host, "durable": True, "auto_delete": False, "arguments": {"x-max-length": 10}}
        for name in names
    ]
    bindings = [
        {"source": "amq.topic", "vhost": host, "destination": name, "destination_type": "queue",
         "routing_key": f"{name}.#", "arguments": {}} for name in names
    ]  # fmt: skip
    permissions = [{"user": "guest", "vhost": host, "configure": ".*", "write": ".*", "read": ".*"}]
    return {"vhosts": [{"name": host}], "permissions": permissions, "queues": queues, "bindings": bindings}


def bring_in(bench: Bench, number: int) -> Call:
    body = definitions(f"in-{number}", bench.queues // 2)
    return lambda: bench.http("/api/definitions", "POST", body)


def delete_host(bench: Bench, number: int) -> Call:
    bench.http("/api/definitions", "POST", definitions(f"gone-{number}", bench.queues // 2))
    return lambda: then_wait(lambda: bench.http(f"/api/vhosts/gone-{number}", "DELETE"), 1)


def names(number: int, count: int) -> list[str]:
    return [f"mine-{number}-{each}" for each in range(count)]


def close_exclusive(bench: Bench, number: int) -> Call:
    client = bench.amqp()
    client.declare(names(number, bench.queues // 2), 4)
    return lambda: then_wait(client.socket.close, 2)


def expire(bench: Bench, number: int) -> Call:
    client = bench.amqp()
    client.declare(names(number, bench.queues // 2), 2, short("x-expires") + b"I" + struct.pack(">i", 6000))
    return lambda: time.sleep(8)


def close_consumers(bench: Bench, number: int) -> Call:
    client = bench.amqp()
    found = names(number, 10_000)
    client.declare(found, 4)
    client.consume(found)
    client.settle()
    return lambda: then_wait(client.socket.close, 2)


def close_channels(bench: Bench, _: int) -> Call:
    client = bench.amqp()
    for channel in range(2, 2047):
        client.open(channel)
        client.consume(["queue-00001", "queue-00002"], channel)
    client.settle()
    return lambda: then_wait(client.socket.close, 2)


def close_unacked(bench: Bench, number: int) -> Call:
    client = bench.amqp()
    name = f"unacked-{number}"
    client.declare([name], 2)
    client.publish(name, 100_000)
    client.consume([name])
    client.settle()
    thread = threading.Thread(target=lambda: _drain(client.socket), daemon=True)
    thread.start()
    time.sleep(5)
    return lambda: then_wait(lambda: client.socket.shutdown(socket.SHUT_RDWR), 2)


def _drain(connected: socket.socket) -> None:
    while connected.recv(1 << 20):
        pass


def listen(path: str) -> Prepare:
    def prepare(bench: Bench, number: int) -> Call:
        client = bench.amqp()
        found = names(number, 10_000)
        client.declare(found, 4)
        client.consume(found)
        client.settle()
        for channel in range(2, 2047):
            client.open(channel)
        return lambda: (bench.http(path), client)

    return prepare


def purge(bench: Bench, number: int) -> Call:
    name = f"purged-{number}"
    client = bench.amqp()
    client.declare([name], 2)
    client.publish(name, 200_000)
    return lambda: bench.http(f"/api/queues/%2f/{name}/contents", "DELETE")


def checkpoint(bench: Bench, number: int) -> Call:
    name = f"checkpoint-{number}"
    client = bench.amqp()
    client.declare([name], 2)
    return lambda: then_wait(lambda: client.publish(name, 1600, size=50_000), 1)


def move(bench: Bench, number: int) -> Call:
    name = f"moved-{number}"
    client = bench.amqp()
    client.declare([name, f"to-{number}"], 2)
    client.publish(name, 10_000)
    return lambda: bench.http(f"/api/v1/queues/%2f/{name}/move", "POST", {"to": f"to-{number}"})


def sessions(bench: Bench, number: int) -> Call:
    clients = []
    for each in range(5000):
        name = f"s-{number}-{each}".encode()
        body = b"\x00\x04MQTT\x05\x00\x00\x3c\x05\x11" + struct.pack(">I", 4) + len(name).to_bytes(2) + name
        client = socket.create_connection(("127.0.0.1", bench.ports["mqtt"]))
        topic = b"a/" + name
        asked = b"\x00\x01\x00" + len(topic).to_bytes(2) + topic + b"\x01"
        client.sendall(bytes((0x10, len(body))) + body + bytes((0x82, len(asked))) + asked)
        clients.append(client)
    for client in clients:
        client.recv(100)

    def leave() -> None:
        for client in clients:
            client.close()
        time.sleep(7)

    return leave


def tables(*pairs: tuple[str, str]) -> bytes:
    found = b"".join([short(name) + b"S" + struct.pack(">I", len(value)) + value.encode() for name, value in pairs])
    return struct.pack(">I", len(found)) + found


def publish_to_headers(bench: Bench, number: int) -> Call:
    """One message to a headers exchange with 10,000 bindings that all want one of its headers."""
    client, exchange, name = bench.amqp(), f"headers-{number}", f"headed-{number}"
    client.socket.sendall(method(1, 40, 10, b"\x00\x00" + short(exchange) + short("headers") + b"\x10" + bytes(4)))
    client.declare([name], 2)
    binding = b"\x00\x00" + short(name) + short(exchange) + short("") + b"\x01"
    for start in range(0, 10_000, 500):
        some = range(start, start + 500)
        wanted = [tables(("colour", "red"), ("number", str(each))) for each in some]
        client.socket.sendall(b"".join([method(1, 50, 20, binding + each) for each in wanted]))
    client.settle()
    table = tables(("colour", "red"), ("number", "5000"))
    head = struct.pack(">HHQH", 60, 0, 1, 0x2000) + table
    one = method(1, 60, 40, b"\x00\x00" + short(exchange) + short("") + b"\x00")
    one += struct.pack(">BHI", 2, 1, len(head)) + head + b"\xce" + b"\x03\x00\x01\x00\x00\x00\x01x\xce"

    def publish() -> None:
        client.socket.sendall(one * 20)
        client.settle()

    return publish


def commit(bench: Bench, number: int) -> Call:
    client, name = bench.amqp(), f"committed-{number}"
    client.declare([name], 2)
    client.socket.sendall(method(1, 90, 10))
    client.publish(name, 50_000)

    def commit_all() -> None:
        client.socket.sendall(method(1, 90, 20))
        client.wait(90, 21)

    return commit_all


def ask_all(number: int, of: int, arguments: bytes) -> Prepare:
    """Settle 100,000 messages with one frame."""

    def prepare(bench: Bench, round_: int) -> Call:
        client, name = bench.amqp(), f"settled-{number}-{of}-{round_}"
        client.declare([name], 2)
        client.publish(name, 100_000)
        client.consume([name])
        client.settle()
        thread = threading.Thread(target=lambda: _drain(client.socket), daemon=True)
        thread.start()
        time.sleep(5)
        return lambda: then_wait(lambda: client.socket.sendall(method(1, number, of, arguments)), 5)

    return prepare


def purge_in_memory(bench: Bench, number: int) -> Call:
    name, client = f"memory-{number}", bench.amqp()
    client.declare([name], 0)
    client.publish(name, 200_000)
    return lambda: (bench.http(f"/api/queues/%2f/{name}/contents", "DELETE"), client)


def delete(bench: Bench, number: int) -> Call:
    name, client = f"deleted-{number}", bench.amqp()
    client.declare([name], 2)
    client.publish(name, 200_000)
    return lambda: then_wait(lambda: bench.http(f"/api/queues/%2f/{name}", "DELETE"), 1)


def join_group(bench: Bench, number: int) -> Call:
    """A new group of a queue with a limit in bytes."""
    name, client = f"joined-{number}", bench.amqp()
    client.declare([name], 2, short("x-max-length-bytes") + b"I" + struct.pack(">i", 1 << 30))
    client.publish(name, 200_000)
    arguments = tables(("x-consumer-group", "another"))

    def join() -> None:
        client.socket.sendall(method(1, 60, 10, bytes(4) + b"\x00\x01\x00"))
        client.socket.sendall(method(1, 60, 20, b"\x00\x00" + short(name) + short("t") + b"\x00" + arguments))
        client.settle()

    return join


def select(bench: Bench, number: int) -> Call:
    """A consumer whose selector matches none of 100,000 messages."""
    name, client = f"selected-{number}", bench.amqp()
    client.declare([name], 2)
    client.publish(name, 100_000)
    arguments = tables(("x-consumer-group", "another"), ("x-filter", "colour = 'red'"))

    def join() -> None:
        client.socket.sendall(method(1, 60, 20, b"\x00\x00" + short(name) + short("t") + b"\x00" + arguments))
        client.settle()
        time.sleep(2)

    return join


def expire_messages(bench: Bench, number: int) -> Call:
    name, client = f"expired-{number}", bench.amqp()
    client.declare([name], 2, short("x-message-ttl") + b"I" + struct.pack(">i", 6000))
    client.publish(name, 100_000)
    return lambda: time.sleep(8)


class Mqtt:
    """A connection of MQTT 5."""

    def __init__(self, bench: Bench, name: str, expiry_s: int = 0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", bench.ports["mqtt"]))
        client_id = name.encode()
        asked = b"\x05\x11" + struct.pack(">I", expiry_s)
        body = b"\x00\x04MQTT\x05\x02\x00\x00" + asked + len(client_id).to_bytes(2) + client_id
        self.send(0x10, body)
        self._buffer = b""
        self.wait(0x20)

    def send(self, kind: int, body: bytes) -> None:
        self.socket.sendall(self.packet(kind, body))

    def packet(self, kind: int, body: bytes) -> bytes:
        size, length = b"", len(body)
        while True:
            length, low = divmod(length, 128)
            size += bytes((low | (128 if length else 0),))
            if not length:
                return bytes((kind,)) + size + body

    def wait(self, kind: int, count: int = 1) -> None:
        """Read until so many packets of this kind came."""
        while True:
            while len(self._buffer) > 1:
                size, at, shift = 0, 1, 0
                while at < len(self._buffer) and self._buffer[at] & 128:
                    size, at, shift = size | (self._buffer[at] & 127) << shift, at + 1, shift + 7
                if at >= len(self._buffer):
                    break
                end = at + 1 + (size | (self._buffer[at] & 127) << shift)
                if len(self._buffer) < end:
                    break
                found, self._buffer = self._buffer[0], self._buffer[end:]
                count -= found & 0xF0 == kind
                if not count:
                    return
            data = self.socket.recv(1 << 16)
            assert data, "the connection was ended"
            self._buffer += data


def retain(bench: Bench, number: int) -> Call:
    """Subscribe to 100,000 retained messages."""
    client = Mqtt(bench, f"retains-{number}")
    for start in range(0, 100_000, 1000):
        topics = [f"retained-{number}/{each}/t".encode() for each in range(start, start + 1000)]
        client.socket.sendall(
            b"".join([client.packet(0x31, len(topic).to_bytes(2) + topic + b"\x00x") for topic in topics])
        )
    client.send(0xC0, b"")
    client.wait(0xD0)
    reader = Mqtt(bench, f"reads-{number}")
    pattern = f"retained-{number}/#".encode()

    def read() -> None:
        reader.send(0x82, b"\x00\x01\x00" + len(pattern).to_bytes(2) + pattern + b"\x00")
        reader.wait(0x30, 100_000)

    return read


def _filters(number: int) -> bytes:
    patterns = [f"many-{number}/{each}/+".encode() for each in range(10_000)]
    return b"".join([len(pattern).to_bytes(2) + pattern + b"\x01" for pattern in patterns])


def subscribe_many(bench: Bench, number: int) -> Call:
    """Subscribe to 10,000 topic filters with one packet."""
    client = Mqtt(bench, f"subscribes-{number}", 100)

    def subscribe() -> None:
        client.send(0x82, b"\x00\x01\x00" + _filters(number))
        client.wait(0x90)

    return subscribe


def return_many(bench: Bench, number: int) -> Call:
    """A session with 10,000 subscriptions ends."""
    subscribe_many(bench, number)()
    return lambda: then_wait(lambda: Mqtt(bench, f"subscribes-{number}"), 1)


def reload(bench: Bench, number: int) -> Call:
    """Read a configuration with 5,000 queues, of which all are new or changed."""
    queues = "".join([f"- {{name: configured-{each}, limits: {{max_depth: {10 + number}}}}}\n" for each in range(5000)])
    bench.configuration.write_text(f"queues:\n{queues}")
    return lambda: bench.http("/api/v1/reload", "POST")


def make_host(bench: Bench, number: int) -> Call:
    return lambda: bench.http(f"/api/vhosts/new-{number}", "PUT", {})


def get_pending(bench: Bench, number: int) -> Call:
    client = close_unacked(bench, number)
    return lambda: (bench.http(f"/api/v1/queues/%2f/unacked-{number}/groups/default"), client)


SCENARIOS: dict[str, Prepare] = {
    "idle": lambda _, __: lambda: time.sleep(3),
    "GET /api/queues": get("/api/queues"),
    "GET /api/queues, by page and sorted": get("/api/queues?page=2&page_size=100&sort=messages"),
    "GET /api/v1/queues": get("/api/v1/queues?limit=1000"),
    "GET /api/v1/dead-letters": get("/api/v1/dead-letters/%2f"),
    "GET /api/bindings": get("/api/bindings"),
    "GET /api/exchanges": get("/api/exchanges"),
    "GET /api/definitions": get("/api/definitions"),
    "GET /api/overview": get("/api/overview"),
    "GET /api/v1/overview": get("/api/v1/overview"),
    "GET /metrics": get("/metrics?queues=20000"),
    "POST /api/definitions, half as many": bring_in,
    "DELETE /api/vhosts, half as many": delete_host,
    "a connection with half as many exclusive queues ends": close_exclusive,
    "half as many queues expire": expire,
    "a connection with 10,000 consumers ends": close_consumers,
    "a connection with 2,045 channels and 4,090 consumers ends": close_channels,
    "a connection with 100,000 unacknowledged messages ends": close_unacked,
    "GET /api/consumers, 10,000": listen("/api/consumers"),
    "GET /api/v1/consumers, of 10,000": listen("/api/v1/consumers"),
    "GET /api/channels, 2,046": listen("/api/channels"),
    "purge of 200,000": purge,
    "move of 10,000": move,
    "80 MB are published, and checkpoints made": checkpoint,
    "5,000 MQTT sessions end": sessions,
    "20 messages to a headers exchange with 10,000 bindings": publish_to_headers,
    "tx.commit of 50,000": commit,
    "ack of 100,000 with one frame": ask_all(60, 80, bytes(8) + b"\x01"),
    "requeue of 100,000 with one frame": ask_all(60, 120, bytes(8) + b"\x03"),
    "reject of 100,000 with one frame": ask_all(60, 120, bytes(8) + b"\x01"),
    "recover of 100,000": ask_all(60, 110, b"\x01"),
    "purge of 200,000 in memory": purge_in_memory,
    "delete of a queue with 200,000": delete,
    "a group joins a queue of 200,000 with a limit in bytes": join_group,
    "a selector matches none of 100,000": select,
    "100,000 messages expire": expire_messages,
    "a subscription begins with 100,000 retained messages": retain,
    "SUBSCRIBE with 10,000 topic filters": subscribe_many,
    "a session with 10,000 subscriptions ends": return_many,
    "POST /api/v1/reload with 5,000 changed queues": reload,
    "PUT /api/vhosts": make_host,
    "GET a group with 100,000 pending": get_pending,
}


def main() -> None:
    words = sys.argv[1:]
    count = int(words.pop(0)) if words and words[0].isdecimal() else 20_000
    rounds = int(words.pop(0)) if words and words[0].isdecimal() else 3
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as directory:
        bench = Bench(directory)
        try:
            bench.queues = count
            bench.http("/api/definitions", "POST", definitions("/", count))
            time.sleep(2)
            print(f"round trip, and processor time within one, in ms; best of {rounds}, with {count} queues")
            for number, (name, prepare) in enumerate(SCENARIOS.items()):
                if words and not any(word in name for word in words):
                    continue
                found = []
                for round_ in range(rounds):
                    call = prepare(bench, number * 100 + round_)
                    time.sleep(0.5)
                    bench.longest()
                    call()
                    found.append(bench.longest())
                    del call
                    time.sleep(0.5)
                trip, ran = min(each[0] for each in found), min(each[1] for each in found)
                print(f"{trip:8.1f} {ran:8.1f}   {name}", flush=True)
        finally:
            bench.close()


if __name__ == "__main__":
    main()

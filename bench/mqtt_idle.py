"""Memory of an idle MQTT connection: `python -m bench.mqtt_idle [connections]`."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def connect_packet(number: int) -> bytes:
    name = f"idle-{number}".encode()
    body = b"\x00\x04MQTT\x04\x02\x00\x3c" + len(name).to_bytes(2) + name
    return bytes((0x10, len(body))) + body


def subscribe_packet(number: int) -> bytes:
    topic = f"devices/{number}/commands".encode()
    body = b"\x00\x01" + len(topic).to_bytes(2) + topic + b"\x01"
    return bytes((0x82, len(body))) + body


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def open_all(port: int, count: int) -> list[socket.socket]:
    """So many clients, each with a subscription of its own."""
    clients: list[socket.socket] = []
    for number in range(count):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(connect_packet(number) + subscribe_packet(number))
        clients.append(client)
        if number % 200 == 199:
            for other in clients[-200:]:
                assert other.recv(64)
    return clients


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as directory:
        ready = Path(directory) / "ready.json"
        server = subprocess.Popen(
            [sys.executable, "-m", "headrace", "serve", "--amqp", "off", "--http", "off", "--ws", "off", "--mqtt", "0",
             "--data", f"{directory}/data", "--ready-file", str(ready)],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        while not ready.exists():
            time.sleep(0.05)
        port = json.loads(ready.read_text())["ports"]["mqtt"]
        warm = open_all(port, 100)
        before = memory_bytes(server.pid)
        clients = open_all(port, count)
        time.sleep(1)
        after = memory_bytes(server.pid)
        print(json.dumps({"connections": count, "bytes_each": round((after - before) / count), "server_bytes": after}))
        for client in warm + clients:
            client.close()
        server.send_signal(signal.SIGTERM)
        server.wait(60)


if __name__ == "__main__":
    main()

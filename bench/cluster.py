"""Duration of a takeover, seen by a publisher that waits for confirms: from the end of the owner to the next one.

    python -m bench.cluster [--store URL] [--lease 2s] [--rounds 5]

Three nodes share the store, without --store a directory. In each round the owner is killed (SIGKILL) and started again,
then the next one is told to stop (SIGTERM) and started again. The publisher is connected to a node that stays.
"""

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pika

_NAMES = ("a", "b", "c")
_PORTS = [word for name in ("amqp", "mqtt", "ws", "http") for word in (f"--{name}", "0")]
_PAUSE_SECONDS = 0.01


class Node:
    """One broker process."""

    def __init__(self, name: str, store: str, lease: str, directory: Path) -> None:
        self._environment = {
            **os.environ,
            "HEADRACE_CLUSTER_NODE": name,
            "HEADRACE_CLUSTER_LISTEN": "127.0.0.1:0",
            "HEADRACE_CLUSTER_LEASE": lease,
        }
        self._store = store
        self._ready = directory / f"{name}.json"
        self._log = directory / f"{name}.log"
        self.ports: dict[str, int] = {}

    def start(self) -> None:
        command = [sys.executable, "-m", "headrace", "serve", "--store", self._store, *_PORTS]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--ready-file", str(self._ready)], env=self._environment, stdout=log, stderr=log
            )
        while not self._ready.exists():
            assert self._process.poll() is None, self._log.read_text()
            time.sleep(_PAUSE_SECONDS)
        self.ports = json.loads(self._ready.read_text())["ports"]

    def is_owner(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.ports["http"], timeout=10)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/ready")
            return bool(json.loads(connection.getresponse().read()).get("role") == "owner")
        return False

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait()
        self._ready.unlink(missing_ok=True)


def owner_of(nodes: list[Node]) -> Node:
    while True:
        for node in nodes:
            if node.is_owner():
                return node
        time.sleep(_PAUSE_SECONDS)


def confirm(port: int) -> None:
    """Return once a message was confirmed."""
    while True:
        with contextlib.suppress(pika.exceptions.AMQPError):
            connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
            with contextlib.closing(connection):
                channel = connection.channel()
                channel.queue_declare("takeovers", durable=True)
                channel.confirm_delivery()
                channel.basic_publish("", "takeovers", b"there", pika.BasicProperties(delivery_mode=2))
            return
        time.sleep(_PAUSE_SECONDS)


def takeover(nodes: list[Node], number: signal.Signals) -> float:
    """Seconds from the end of the owner to a confirm by the next."""
    owner = owner_of(nodes)
    other = next(node for node in nodes if node is not owner)
    confirm(other.ports["amqp"])
    started = time.monotonic()
    owner.end(number)
    confirm(other.ports["amqp"])
    took = time.monotonic() - started
    owner.start()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="")
    parser.add_argument("--lease", default="2s")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = given.store or f"file://{directory / 'store'}"
        nodes = [Node(each, store, given.lease, directory) for each in _NAMES]
        try:
            for node in nodes:
                node.start()
            found = {number: [takeover(nodes, number) for _ in range(given.rounds)] for number in _SIGNALS}
        finally:
            for node in nodes:
                node.end(signal.SIGKILL)
    for number, seconds in found.items():
        figures = f"median {statistics.median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f} s"
        print(f"{number.name}, lease {given.lease}: {figures} over {len(seconds)} takeovers")


_SIGNALS = (signal.SIGKILL, signal.SIGTERM)

if __name__ == "__main__":
    main()

"""Nodes of a cluster in this process, over memory instead of a store: who owns it is what the test says."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

import pika
from pika.adapters.blocking_connection import BlockingConnection

from headrace.app import _Program
from headrace.clock import SystemClock
from headrace.cluster.forwarding.frontend import Local
from headrace.cluster.lease import Node
from headrace.cluster.status import Ownership
from headrace.launch import Launch
from headrace.net.handler import Handler
from headrace.storage.memory import MemoryEngine

SECRET = b"only nodes of this cluster know this"
_SECONDS = 60.0
_TICK_SECONDS = 0.02
_FOREVER_US = 1 << 62
Value = TypeVar("Value")


class TestNode:
    """One node: all of the program but the process, the signals and the lease."""

    __test__ = False

    def __init__(self, name: str, policy: str, options: dict[str, str], secret: bytes) -> None:
        settings = {
            "storage.store": "file:///nowhere",
            "cluster.node": name,
            "cluster.listen": "127.0.0.1:0",
            "cluster.write_policy": policy,
            "cluster.lease": "10s",
            **{f"listeners.{protocol}": "0" for protocol in ("amqp", "mqtt", "ws", "http")},
            **options,
        }
        flags = {tuple(key.split(".")): (f"--{key}", value) for key, value in settings.items()}
        launch = Launch(flags=flags)  # type: ignore[arg-type]
        self.name = name
        self.program = _Program(launch, launch.read(), SystemClock(), lambda settings, wake: MemoryEngine(wake))
        self._secret = secret
        self._ticking: asyncio.Task[None] | None = None
        self.node = Node(name, "127.0.0.1:1", "0", 0)
        self.ownership = Ownership(self.node, secret, SystemClock())

    async def open(self) -> None:
        await self.program._listeners.open(self.program._frontend)
        ports = self.program._listeners.ports()
        listeners = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
        self.node = Node(self.name, listeners["cluster"], "0", 0, listeners)
        self.ownership = Ownership(self.node, self._secret, SystemClock())
        assert self.program._frontend is not None
        self.program._frontend.follow(self.ownership)

    async def serve(self) -> None:
        """Own a store of its own, empty at first."""
        await self.program._enter(MemoryEngine(self.program._wake))
        self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            assert self.program._service is not None
            self.program._service.tick()
            self.program._poll()
            await asyncio.sleep(_TICK_SECONDS)

    async def close(self) -> None:
        if self._ticking is not None:
            self._ticking.cancel()
        await self.program._close()

    async def reload(self) -> None:
        """As SIGHUP does."""
        self.program._reload()

    async def vanish(self) -> None:
        """End every connection and accept none any more, without a word, as a machine does that loses its power."""
        for listener in self.program._listeners._by_name.values():
            server = getattr(listener, "_server", None)
            if server is not None:
                server.close()
        for wire in self.program._listeners.wires():
            wire.abort()

    def impatient(self) -> None:
        """Have clients wait for an owner no longer than it takes to see that there is none."""
        assert self.program._frontend is not None
        self.program._frontend.patience_seconds = 0.0

    @property
    def ports(self) -> dict[str, int]:
        return self.program._listeners.ports()

    def port(self, listener: str) -> int:
        return self.ports[listener]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port('http')}"

    def has(self, peer: str) -> bool:
        """True if somebody is connected from there, as host:port."""
        return any(wire.peer == peer for wire in self.program._listeners.wires())

    @property
    def wires(self) -> int:
        return len(self.program._listeners.wires())


class Nodes:
    """Some nodes on one event loop, in a thread of its own."""

    def __init__(self, *names: str, policy: str = "forward", **options: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._epoch = 0
        self._connections: list[BlockingConnection] = []
        self._sockets: list[socket.socket] = []
        self._options = {key.replace("__", "."): value for key, value in options.items()}
        self._policy = policy
        self.nodes: dict[str, TestNode] = {}
        for name in names:
            self.add(name)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def __enter__(self) -> "Nodes":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for connection in self._connections:
            with contextlib.suppress(Exception):
                if connection.is_open:
                    connection.close()
        for opened in self._sockets:
            opened.close()
        for node in self.nodes.values():
            self.ask(node.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)

    def __getitem__(self, name: str) -> TestNode:
        return self.nodes[name]

    def ask(self, work: Coroutine[Any, Any, Value]) -> Value:
        """A call on the event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_SECONDS)

    def add(self, name: str, secret: bytes = SECRET) -> TestNode:
        async def opened() -> TestNode:
            node = TestNode(name, self._policy, self._options, secret)
            await node.open()
            return node

        node = self.nodes[name] = self.ask(opened())
        return node

    def own(self, name: str) -> None:
        """Have this node own the store, and all know it."""
        self.ask(self.nodes[name].serve())
        self.tell(name)

    def tell(self, name: str) -> None:
        """Have all nodes believe that this one owns the store, or nobody for ""."""
        self._epoch += 1

        async def told() -> None:
            owner = self.nodes[name].node if name else None
            for node in self.nodes.values():
                node.ownership.became(owner, self._epoch, _FOREVER_US)

        self.ask(told())

    def meet_by(self, name: str, handler: Callable[[], Handler]) -> None:
        """Have clients that are passed on to this node met by something else than its broker."""

        async def met() -> None:
            frontend = self.nodes[name].program._frontend
            assert frontend is not None
            frontend.local = Local(lambda protocol: handler(), lambda origin: asyncio.Protocol())

        self.ask(met())

    def tell_address(self, name: str, address: str) -> None:
        """Have all nodes believe that this one, the owner, is at another address."""
        self._epoch += 1

        async def told() -> None:
            owner = Node(name, address, "0", 0)
            for node in self.nodes.values():
                node.ownership.became(owner, self._epoch)

        self.ask(told())

    def connect(self, name: str, listener: str) -> socket.socket:
        """A bare connection to a node, closed at the end at the latest."""
        opened = socket.create_connection(("127.0.0.1", self.nodes[name].port(listener)), timeout=_SECONDS)
        self._sockets.append(opened)
        return opened

    def pika(self, name: str, **parameters: Any) -> BlockingConnection:
        """A connection of pika's to a node, closed at the end at the latest."""
        port = self.nodes[name].port("amqp")
        settings = {"connection_attempts": 1, "heartbeat": 0, **parameters}
        opened = BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, **settings))
        self._connections.append(opened)
        return opened

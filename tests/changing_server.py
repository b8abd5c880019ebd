"""An AMQP server in this process whose virtual hosts and users a test changes while clients are connected."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import pika
from pika.adapters.blocking_connection import BlockingConnection

from headrace.app import Threads
from headrace.clock import SystemClock
from headrace.core.access.access import Access
from headrace.core.access.permissions import Permission
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.hosts import Hosts
from headrace.errors import HeadraceError
from headrace.net.listener import Listener
from headrace.protocols.amqp091.connection import Connection
from headrace.protocols.amqp091.server import Server
from headrace.storage.api import Done, Engine
from headrace.storage.memory import MemoryEngine

_SECONDS = 60.0
_TICK_SECONDS = 0.02
Value = TypeVar("Value")


class ChangingServer:
    """Everything behind one port, on a loop in a thread of its own."""

    def __init__(
        self, open_engine: Callable[[Callable[[], None]], Engine] = MemoryEngine, flow: Callable[[], Flow] = Flow
    ) -> None:
        self._flow = flow
        self._loop = asyncio.new_event_loop()
        self._open_engine = open_engine
        self._connections: list[BlockingConnection] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._thread.start()
        assert self._ready.wait(_SECONDS)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        loop = self._loop

        def wake() -> None:
            loop.call_soon_threadsafe(lambda: engine.poll())

        engine = self._open_engine(wake)
        clock = SystemClock()

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        background = Threads()
        self.hosts = Hosts(engine, lambda name, is_new: Broker(engine, clock, soon, name, self._flow(), is_new=is_new))
        self.access = Access(engine, clock, background, self.hosts)
        server = Server(self.hosts, self.access, "test")
        listener = Listener(lambda: Connection(server, clock))
        await listener.open("127.0.0.1", 0)
        self.port = listener.port
        self._ready.set()
        while not self._stop.is_set():
            for broker in self.hosts.brokers():
                broker.tick()
            await asyncio.sleep(_TICK_SECONDS)
        await listener.close()
        background.close()
        for broker in self.hosts.brokers():
            broker.drain()
        engine.close()

    def close(self) -> None:
        for connection in self._connections:
            if connection.is_open:
                connection.close()
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_SECONDS)
        assert not self._thread.is_alive()

    def ask(self, call: Callable[[], Value]) -> Value:
        """Return the result of a call in the server's thread."""

        async def run() -> Value:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_SECONDS)

    def change(self, call: Callable[[Done], None]) -> None:
        """Make a change in the server's thread and wait until it is stored."""
        ended = threading.Event()
        errors: list[HeadraceError | None] = []

        def done(error: HeadraceError | None) -> None:
            errors.append(error)
            ended.set()

        self.ask(lambda: call(done))
        assert ended.wait(_SECONDS)
        assert errors == [None]

    def add_user(self, name: str, *tags: str) -> None:
        """A user whose password is the name."""
        self.change(lambda done: self.access.put_user(name, name, tags, done))

    def allow(self, user: str, host: str = "/", configure: str = ".*", write: str = ".*", read: str = ".*") -> None:
        permission = Permission(user, host, configure, write, read)
        self.change(lambda done: self.access.put_permission(permission, done))

    def connect(self, user: str = "guest", host: str = "/", **parameters: object) -> BlockingConnection:
        credentials = pika.PlainCredentials(user, user)
        settings = {"credentials": credentials, "connection_attempts": 1, **parameters}
        opened = BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, host, **settings))
        self._connections.append(opened)
        return opened

"""Every port of the program: opened, shut while another node serves, left to the next program. No protocols."""

import asyncio
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from headrace.admin.listener import HttpListener, Speaker
from headrace.config.settings import LOCAL_REFUSE, Settings
from headrace.net.connection import Gate, Wire
from headrace.net.datagrams import DatagramHandler, DatagramListener
from headrace.net.handler import Handler
from headrace.net.listener import Listener
from headrace.net.tls import Tls
from headrace.protocols import DATAGRAM_LISTENERS, LISTENERS, WEB_SOCKETS

if TYPE_CHECKING:
    from headrace.cluster.forwarding.frontend import Frontend

_WITH_TLS: Final = (*[name + "s" for name in LISTENERS], "https")
(_WEB_SOCKET,) = WEB_SOCKETS
"""The listener for WebSockets; one protocol has it."""


@final
class Listeners:
    """The ports that the settings ask for, by name."""

    def __init__(
        self,
        settings: Settings,
        tls: Tls | None,
        sockets: Iterable[tuple[str, int]],
        meet: Callable[[str], Handler],
        speaker: Callable[[], Speaker],
    ) -> None:
        """`sockets` are descriptors of those that this process listens on already; see `leave`."""
        self._settings = settings
        self._tls = tls
        self._sockets = dict(sockets)
        self._meet = meet
        self._speaker = speaker
        self._by_name: dict[str, Listener | HttpListener | DatagramListener] = {}
        self.web_sockets = Listener(lambda: meet(_WEB_SOCKET))
        """For clients that come over HTTP too."""
        self.inner_http = HttpListener(speaker)
        """For requests that other nodes pass on."""

    async def open(self, doorway: "Frontend | None") -> None:
        """Open every listener that was asked for; with one that cannot be had nothing is served.

        Nodes of a cluster have a doorway, and a port for each other.
        """
        settings = self._settings.listeners
        for plain in LISTENERS:
            for name in (plain, plain + "s"):
                await self._open(name, Listener(functools.partial(self._meet, plain)), getattr(settings, name))
        self._by_name[_WEB_SOCKET] = self.web_sockets
        if settings.ws is not None:
            await self.web_sockets.open(settings.host, settings.ws, None, self._left(_WEB_SOCKET))
        for name, port in (("http", settings.http), ("https", settings.https)):
            await self._open(name, HttpListener(self._speaker), port)
        if doorway is not None:
            await self._open_to_nodes(doorway)

    async def _open_to_nodes(self, doorway: "Frontend") -> None:
        """Open the port for other nodes; where clients are refused while another owns the store, close theirs."""
        from headrace.cluster.forwarding.gate import Gate as NodeGate

        tls = self._tls
        gate = Listener(lambda: NodeGate(doorway, b"" if tls is None else tls.fingerprint))
        host, _, port = self._settings.cluster.listen.rpartition(":")
        between = None if tls is None else tls.for_nodes()
        await gate.open(host.strip("[]"), int(port), between, self._left("cluster"))
        self._by_name["cluster"] = gate
        if doorway.policy == LOCAL_REFUSE:
            for listener in self._for_clients().values():
                listener.shut()

    async def open_again(self) -> None:
        """Open what was closed while another node owned the store."""
        for name, listener in self._for_clients().items():
            if not listener.is_open:
                await self._open(name, listener, listener.port)

    async def open_to_datagrams(self, start: Callable[[str], DatagramHandler]) -> None:
        """Open the listeners for datagrams that were asked for; `start` makes the handler of one."""
        for name in DATAGRAM_LISTENERS:
            port = getattr(self._settings.listeners, name)
            if port is not None:
                listener = self._by_name[name] = DatagramListener(start(name))
                await listener.open(self._settings.listeners.host, port)

    async def close(self) -> None:
        """Stop accepting, and say goodbye to all who are connected."""
        listeners = [*self._by_name.values(), self.inner_http]
        await asyncio.gather(*[listener.close() for listener in listeners])  # each takes its time

    def guard(self, gate: Gate) -> None:
        """Have the connections from now on write nothing while this says so."""
        for listener in self._by_name.values():
            if isinstance(listener, Listener):
                listener.gate = gate

    def refurnish(self) -> None:
        """Have HTTP requests from now on answered by who answers them now."""
        for listener in self._by_name.values():
            if isinstance(listener, HttpListener):
                listener.refurnish()

    def leave(self) -> tuple[tuple[str, int], ...]:
        """What is listened on, for the program that this process runs next."""
        listeners = {name: each for name, each in self._by_name.items() if not isinstance(each, DatagramListener)}
        left = [(name, listener.leave()) for name, listener in listeners.items()]
        return tuple([(name, descriptor) for name, descriptor in left if descriptor is not None])

    def wires(self) -> list[Wire]:
        """All connections but those of HTTP."""
        listeners = [listener for listener in self._by_name.values() if isinstance(listener, Listener)]
        return [wire for listener in listeners for wire in listener.wires]

    def refused(self) -> int:
        """Connections that were closed as they came, because there were too many."""
        return sum([each.refused for each in self._by_name.values() if not isinstance(each, DatagramListener)])

    def ports(self) -> dict[str, int]:
        return {name: listener.port for name, listener in self._by_name.items() if listener.port}

    def _for_clients(self) -> dict[str, Listener]:
        """All for clients that are open, or will be."""
        return {
            name: listener
            for name, listener in self._by_name.items()
            if isinstance(listener, Listener) and name != "cluster" and listener.port
        }

    async def _open(self, name: str, listener: Listener | HttpListener, port: int | None) -> None:
        """Open a listener if it was asked for."""
        if port is not None:
            tls = self._tls.context if self._tls is not None and name in _WITH_TLS else None
            await listener.open(self._settings.listeners.host, port, tls, self._left(name))
            self._by_name[name] = listener

    def _left(self, name: str) -> int | None:
        """The descriptor of a listener that this process has already, once."""
        return self._sockets.pop(name, None)

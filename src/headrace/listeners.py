"""Every port of the program: opened, shut while another node serves, handed to the next program. No protocols."""

import asyncio
import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, final

from headrace.admin.listener import HttpListener, Speaker
from headrace.config.settings import LOCAL_REFUSE, Settings
from headrace.errors import Unavailable
from headrace.net.connection import Gate, Wire
from headrace.net.datagrams import DatagramHandler, DatagramListener
from headrace.net.handler import Handler
from headrace.net.listener import Listener
from headrace.net.tls import Tls
from headrace.protocols import DATAGRAM_LISTENERS, LISTENERS, WEB_SOCKETS

if TYPE_CHECKING:
    from headrace.cluster.forwarding.frontend import Frontend

_WITH_TLS: Final = (*[name + "s" for name in LISTENERS], "https")
_CLUSTER: Final = "cluster"
_OPTIONAL: Final = (WEB_SOCKETS, *DATAGRAM_LISTENERS)
"""Listeners that a broker can do without."""
_log: Final = logging.getLogger("headrace")


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
        """`sockets` are descriptors that this process inherited and listens on already; see `leave`."""
        self._settings = settings
        self._tls = tls
        self._sockets = dict(sockets)
        self._meet = meet
        self._speaker = speaker
        self._by_name: dict[str, Listener | HttpListener | DatagramListener] = {}
        self.web_sockets = Listener(lambda: meet(WEB_SOCKETS))
        """Clients over WebSocket, those of the HTTP port included."""
        self.inner_http = HttpListener(speaker)
        """Requests that other nodes forward."""

    async def open(self, frontend: "Frontend | None") -> None:
        """Open every configured listener. Raises Unavailable with all that cannot be opened; optional ones are logged.

        Nodes of a cluster have a frontend, and a port for each other.
        """
        settings = self._settings.listeners
        listeners: dict[str, Listener | HttpListener] = {}
        for plain in LISTENERS:
            for name in (plain, plain + "s"):
                listeners[name] = Listener(functools.partial(self._meet, plain))
        self._by_name[WEB_SOCKETS] = listeners[WEB_SOCKETS] = self.web_sockets
        for name in ("http", "https"):
            listeners[name] = HttpListener(self._speaker)
        failed = [
            await self._try(name, self._open(name, listener, getattr(settings, name)))
            for name, listener in listeners.items()
        ]
        if frontend is not None:
            failed.append(await self._try(_CLUSTER, self._open_to_nodes(frontend)))
        if any(failed):
            raise Unavailable("\n".join(filter(None, failed)))

    async def _try(self, name: str, opening: Awaitable[None]) -> str:
        """Open a listener; returns why it cannot be opened, or "". An optional one is logged instead."""
        try:
            await opening
        except Unavailable as error:
            reason = f"{name} {error}; {_advice(name, error.__cause__)}"
            if name not in _OPTIONAL:
                return reason
            _log.warning("the broker serves without %s: %s", name, reason)
        return ""

    async def _open_to_nodes(self, frontend: "Frontend") -> None:
        """Open the port for other nodes; close those for clients where only the owner of the store serves them."""
        from headrace.cluster.forwarding.frontend import NodeGate

        tls = self._tls
        gate = Listener(lambda: NodeGate(frontend, b"" if tls is None else tls.fingerprint))
        host, _, port = self._settings.cluster.listen.rpartition(":")
        between = None if tls is None else tls.for_nodes()
        await gate.open(host.strip("[]"), int(port), between, self._left(_CLUSTER))
        self._by_name[_CLUSTER] = gate
        if frontend.policy == LOCAL_REFUSE:
            for listener in self._for_clients().values():
                listener.shut()

    async def open_again(self) -> None:
        """Open the ports that were closed while another node owned the store."""
        for name, listener in self._for_clients().items():
            if not listener.is_open:
                reason = await self._try(name, self._open(name, listener, listener.port))
                if reason:
                    raise Unavailable(reason)

    async def open_to_datagrams(self, start: Callable[[str], DatagramHandler]) -> None:
        """Open the listeners for datagrams that were asked for; `start` makes the handler of one."""
        for name in DATAGRAM_LISTENERS:
            port = getattr(self._settings.listeners, name)
            if port is not None:
                listener = self._by_name[name] = DatagramListener(start(name))
                await self._try(name, listener.open(self._settings.listeners.host, port))

    async def close(self) -> None:
        """Stop accepting, and close all connections."""
        listeners = [*self._by_name.values(), self.inner_http]
        await asyncio.gather(*[listener.close() for listener in listeners])  # each takes its time

    def guard(self, gate: Gate) -> None:
        """Let new connections write only while the gate allows it."""
        for listener in self._by_name.values():
            if isinstance(listener, Listener):
                listener.gate = gate

    def refurnish(self) -> None:
        """Let every HTTP listener ask for its handler again."""
        for listener in self._by_name.values():
            if isinstance(listener, HttpListener):
                listener.refurnish()

    def leave(self) -> tuple[tuple[str, int], ...]:
        """Return names and descriptors of all open listeners, for the next program of this process."""
        listeners = {name: each for name, each in self._by_name.items() if not isinstance(each, DatagramListener)}
        left = [(name, listener.leave()) for name, listener in listeners.items()]
        return tuple([(name, descriptor) for name, descriptor in left if descriptor is not None])

    def wires(self) -> list[Wire]:
        """Return all connections except those of HTTP."""
        listeners = [listener for listener in self._by_name.values() if isinstance(listener, Listener)]
        return [wire for listener in listeners for wire in listener.wires]

    def refused(self) -> int:
        """Return the number of connections that were closed at once because there were too many."""
        return sum([each.refused for each in self._by_name.values() if not isinstance(each, DatagramListener)])

    def ports(self) -> dict[str, int]:
        return {name: listener.port for name, listener in self._by_name.items() if listener.port}

    def _for_clients(self) -> dict[str, Listener]:
        """Return the listeners for clients, those that are shut included."""
        return {
            name: listener
            for name, listener in self._by_name.items()
            if isinstance(listener, Listener) and name != _CLUSTER and listener.port
        }

    async def _open(self, name: str, listener: Listener | HttpListener, port: int | None) -> None:
        """Open a listener unless its port is off."""
        if port is not None:
            tls = self._tls.context if self._tls is not None and name in _WITH_TLS else None
            await listener.open(self._settings.listeners.host, port, tls, self._left(name))
            self._by_name[name] = listener

    def _left(self, name: str) -> int | None:
        """Take the inherited descriptor of a listener, if there is one."""
        return self._sockets.pop(name, None)


def _advice(name: str, cause: BaseException | None) -> str:
    """Return the setting that helps: the port if it is taken or forbidden, else the address."""
    if name == _CLUSTER:
        return "cluster.listen in the configuration has another address"
    if not isinstance(cause, OSError) or cause.errno not in (errno.EADDRINUSE, errno.EACCES):
        return "--host takes another address"
    return f"--{name} PORT takes another port (0 a free one), and --{name} off does without {name}"

"""The table of wire protocols: their listeners, how a connection is recognised, and what serves it.

The rest of the program knows protocols by this table only. A new protocol is a folder, a row in `PROTOCOLS` and the
setting of its listener. CONTRIBUTING.md shows how.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, final

from headrace.clock import Clock
from headrace.config.settings import Settings
from headrace.core.access.access import Access
from headrace.core.hosts import Hosts
from headrace.errors import missing_extra
from headrace.net.datagrams import DatagramHandler
from headrace.net.handler import Handler
from headrace.net.handover import FindRedirect, Tracker
from headrace.protocols.greeting import Greeting, Recognise, anything, recognise_amqp10
from headrace.version import __version__


@final
@dataclass(frozen=True)
class Backend:
    """The broker that protocols serve: its virtual hosts, users and settings."""

    hosts: Hosts
    access: Access
    clock: Clock
    settings: Settings


def _nothing() -> None:
    return


def _unlimited() -> int:
    return 0


@final
@dataclass(frozen=True)
class Server:
    """A protocol that serves one broker."""

    connection: Callable[[], Handler]
    """Makes the handler of a new connection."""
    tick: Callable[[], None] = _nothing
    """Runs several times a second."""
    max_packet_bytes: Callable[[], int] = _unlimited
    """The largest packet inside a WebSocket; 0 for no limit."""


@final
@dataclass(frozen=True)
class WebSockets:
    """A protocol inside WebSockets."""

    paths: tuple[str, ...]
    subprotocols: tuple[str, ...]
    max_packet_bytes: Callable[[Settings], int]
    """The limit while another node of the cluster serves."""
    takes_text: bool = False
    """True if clients may send text messages."""


@final
@dataclass(frozen=True)
class Protocol:
    """A row of the table."""

    name: str
    listener: str
    """Its port in the settings `listeners`, where its default is; the port with TLS is the same name with an `s`."""
    recognise: Recognise = anything
    """Tells by the first bytes, where several protocols share a listener."""
    server: Callable[[Backend], Server] | None = None
    """Starts a protocol over streams."""
    datagrams: Callable[[Backend], DatagramHandler] | None = None
    """Starts a protocol over datagrams."""
    web_sockets: WebSockets | None = None
    tracker: Callable[[bytes], Tracker] | None = None
    """Follows a connection that a node of a cluster forwards, given its first bytes."""
    refusal: Callable[[FindRedirect], Handler] | None = None
    """Makes the handler that tells a client to go to another node."""


def _amqp10(backend: Backend) -> Server:
    from headrace.protocols.amqp10.connection import Connection
    from headrace.protocols.amqp10.server import Server as Amqp10Server

    server = Amqp10Server(backend.hosts, backend.access, backend.clock, __version__)
    return Server(lambda: Connection(server, backend.clock), server.tick)


def _amqp10_tracker(start: bytes) -> Tracker:
    from headrace.protocols.amqp10.handover import Amqp10Tracker

    return Amqp10Tracker()


def _amqp10_refusal(find_redirect: FindRedirect) -> Handler:
    from headrace.protocols.amqp10.handover import Amqp10Refusal

    return Amqp10Refusal(find_redirect)


def _amqp091(backend: Backend) -> Server:
    from headrace.protocols.amqp091.connection import Connection
    from headrace.protocols.amqp091.server import Server as Amqp091Server

    server = Amqp091Server(backend.hosts, backend.access, __version__)
    return Server(lambda: Connection(server, backend.clock))


def _amqp091_tracker(start: bytes) -> Tracker:
    from headrace.protocols.amqp091.handover import Amqp091Tracker

    return Amqp091Tracker()


def _amqp091_refusal(find_redirect: FindRedirect) -> Handler:
    from headrace.protocols.amqp091.handover import Amqp091Refusal

    return Amqp091Refusal(find_redirect, __version__)


def _mqtt(backend: Backend) -> Server:
    from headrace.protocols.mqtt.connection import Connection
    from headrace.protocols.mqtt.server import Server as MqttServer

    server = MqttServer(backend.hosts, backend.access, backend.clock, __version__, backend.settings.mqtt)
    return Server(lambda: Connection(server), server.tick, lambda: server.max_packet_bytes)


def _mqtt_tracker(start: bytes) -> Tracker:
    from headrace.protocols.mqtt.handover import MqttTracker, version_of

    return MqttTracker(version_of(start))


def _mqtt_refusal(find_redirect: FindRedirect) -> Handler:
    from headrace.protocols.mqtt.handover import MqttRefusal

    return MqttRefusal(find_redirect)


def _stream(backend: Backend) -> Server:
    from headrace.protocols.server import Server as StreamServer
    from headrace.protocols.streams.connection import Connection

    server = StreamServer(backend.hosts, backend.access, __version__)
    return Server(lambda: Connection(server, backend.clock))


def _stream_tracker(start: bytes) -> Tracker:
    from headrace.protocols.streams.handover import StreamTracker

    return StreamTracker()


def _stream_refusal(find_redirect: FindRedirect) -> Handler:
    from headrace.protocols.streams.handover import StreamRefusal

    return StreamRefusal(find_redirect)


def _stomp(backend: Backend) -> Server:
    from headrace.protocols.server import Server as StompServer
    from headrace.protocols.stomp.connection import Connection

    server = StompServer(backend.hosts, backend.access, __version__)
    return Server(lambda: Connection(server, backend.clock), max_packet_bytes=lambda: server.intake.largest_bytes)


def _stomp_tracker(start: bytes) -> Tracker:
    from headrace.protocols.stomp.handover import StompTracker

    return StompTracker()


def _stomp_refusal(find_redirect: FindRedirect) -> Handler:
    from headrace.protocols.stomp.handover import StompRefusal

    return StompRefusal(find_redirect)


def _coap(backend: Backend) -> DatagramHandler:
    """Raises Unavailable where aiocoap is not installed."""
    try:
        from headrace.protocols.coap.endpoint import Endpoint
    except ImportError as error:
        raise missing_extra("--coap", "coap", error) from error
    return Endpoint(backend.hosts, backend.access, backend.clock)


PROTOCOLS: Final = (
    Protocol(
        name="amqp10",
        listener="amqp",
        recognise=recognise_amqp10,
        server=_amqp10,
        tracker=_amqp10_tracker,
        refusal=_amqp10_refusal,
    ),
    Protocol(
        name="amqp091",
        listener="amqp",
        server=_amqp091,
        tracker=_amqp091_tracker,
        refusal=_amqp091_refusal,
    ),
    Protocol(
        name="mqtt",
        listener="mqtt",
        web_sockets=WebSockets(
            paths=("/", "/mqtt"),
            subprotocols=("mqtt", "mqttv3.1"),
            max_packet_bytes=lambda settings: settings.mqtt.max_packet_bytes,
        ),
        server=_mqtt,
        tracker=_mqtt_tracker,
        refusal=_mqtt_refusal,
    ),
    Protocol(
        name="stream",
        listener="stream",
        server=_stream,
        tracker=_stream_tracker,
        refusal=_stream_refusal,
    ),
    Protocol(
        name="stomp",
        listener="stomp",
        web_sockets=WebSockets(
            paths=("/stomp",),
            subprotocols=("v12.stomp", "v11.stomp", "v10.stomp"),
            max_packet_bytes=lambda settings: settings.mqtt.max_packet_bytes,
            takes_text=True,
        ),
        server=_stomp,
        tracker=_stomp_tracker,
        refusal=_stomp_refusal,
    ),
    Protocol(name="coap", listener="coap", datagrams=_coap),
)
"""On a listener that several protocols share, the first that recognises the client serves it; the last takes all."""

LISTENERS: Final = tuple(dict.fromkeys([each.listener for each in PROTOCOLS if each.server is not None]))
"""The listeners of protocols over streams."""
DATAGRAM_LISTENERS: Final = tuple([each.listener for each in PROTOCOLS if each.datagrams is not None])
WEB_SOCKETS: Final = "ws"
"""The listener for WebSockets; their paths tell which protocol is inside."""
WEB_SOCKET_PATHS: Final = tuple(
    [path for each in PROTOCOLS if each.web_sockets is not None for path in each.web_sockets.paths if path != "/"]
)
"""The paths of WebSockets on the HTTP port."""


def tracker(listener: str, start: bytes) -> Tracker:
    """The tracker of a forwarded connection that begins with these bytes."""
    return next(each.tracker(start) for each in _on(listener) if each.tracker is not None and each.recognise(start))


def refusal(listener: str, find_redirect: FindRedirect) -> Handler:
    """The handler of a connection that is told to go to another node."""

    def made(make: Callable[[FindRedirect], Handler]) -> Callable[[], Handler]:
        return lambda: make(find_redirect)

    return _greeted([(each.recognise, made(each.refusal)) for each in _on(listener) if each.refusal is not None])


def web_socket(make: Callable[[Protocol], tuple[Callable[[], Handler], int]]) -> Handler:
    """A WebSocket for any protocol; `make` gives the maker of a protocol's handler and its largest packet.

    The modules for that are loaded with the first client.
    """
    from headrace.net.websocket import Endpoint, WebSocket

    endpoints: dict[str, Endpoint] = {}
    for each in PROTOCOLS:
        inside = each.web_sockets
        if inside is not None:
            handler, max_packet_bytes = make(each)
            endpoint = Endpoint(handler, inside.subprotocols, max_packet_bytes, inside.takes_text)
            endpoints.update(dict.fromkeys(inside.paths, endpoint))
    return WebSocket(endpoints)


def _on(listener: str) -> list[Protocol]:
    return [each for each in PROTOCOLS if each.listener == listener]


def _greeted(choices: Sequence[tuple[Recognise, Callable[[], Handler]]]) -> Handler:
    return choices[0][1]() if len(choices) == 1 else Greeting(choices)


@final
class Protocols:
    """All protocols, serving one broker."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._servers: dict[str, Server] = {}
        """By name, those that had a client."""
        self._choices = {
            listener: [(each.recognise, partial(self._handler, each)) for each in _on(listener)]
            for listener in LISTENERS
        }

    def handler(self, listener: str) -> Handler:
        """The handler of a new connection."""
        if listener == WEB_SOCKETS:
            return web_socket(self._inside)
        return _greeted(self._choices[listener])

    def _server(self, protocol: Protocol) -> Server:
        """The server of a protocol, whose modules are loaded with its first client: each takes 1 to 2 MB."""
        server = self._servers.get(protocol.name)
        if server is None:
            assert protocol.server is not None
            server = self._servers[protocol.name] = protocol.server(self._backend)
        return server

    def _handler(self, protocol: Protocol) -> Handler:
        return self._server(protocol).connection()

    def _inside(self, protocol: Protocol) -> tuple[Callable[[], Handler], int]:
        server = self._server(protocol)
        return server.connection, server.max_packet_bytes()

    def datagrams(self, listener: str) -> DatagramHandler:
        """The handler of a listener for datagrams. Raises Unavailable where its package is not installed."""
        return next(each.datagrams(self._backend) for each in _on(listener) if each.datagrams is not None)

    def tick(self) -> None:
        """Run what is due in each protocol."""
        for server in self._servers.values():
            server.tick()

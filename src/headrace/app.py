"""Builds the program: the only module that knows every room. Opens, serves, stops; decides nothing about messages."""

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final, final

from headrace import logs
from headrace.admin.listener import Contribute, HttpListener
from headrace.admin.site import Site
from headrace.announcement import announce
from headrace.clock import Clock, SystemClock
from headrace.config.configuration import Configuration
from headrace.core.access import Access
from headrace.core.bounds import Bounds
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.hosts import Hosts
from headrace.core.properties import Codecs
from headrace.engines import OpenEngine, name_of, open_engine
from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.exits import EXIT_STOP_TOO_LONG
from headrace.launch import Launch
from headrace.model import AMQP091, AMQP10, MQTT5
from headrace.net.connection import Handler, Wire
from headrace.net.datagrams import DatagramHandler, DatagramListener
from headrace.net.listener import Listener
from headrace.net.tls import Tls
from headrace.protocols.amqp091.connection import Connection as Amqp091Connection
from headrace.protocols.amqp091.handshake import Server as Amqp091Server
from headrace.protocols.amqp091.properties import Amqp091Codec
from headrace.protocols.amqp10.connection import Connection as Amqp10Connection
from headrace.protocols.amqp10.peer import Server as Amqp10Server
from headrace.protocols.amqp10.properties import Amqp10Codec
from headrace.protocols.greeting import AmqpGreeting
from headrace.protocols.mqtt.connection import Connection as MqttConnection
from headrace.protocols.mqtt.properties import Mqtt5Codec
from headrace.protocols.mqtt.server import Server as MqttServer
from headrace.ready_file import ReadyFile
from headrace.reloading import Reloading, limit, tls_files
from headrace.storage.api import Engine
from headrace.storage.local.staging import StagingArea
from headrace.threads import Threads
from headrace.tokens import read_tokens
from headrace.version import __version__

_STAGED_BYTES: Final = 16 << 30
_WS_PATHS: Final = ("/", "/mqtt")
_WS_SUBPROTOCOLS: Final = ("mqtt", "mqttv3.1")
_WITH_TLS: Final = ("amqps", "mqtts", "https")
_TICK_SECONDS: Final = 0.05
_log: Final = logging.getLogger("headrace")


def serve(
    launch: Launch, configuration: Configuration, clock: Clock | None = None, opener: OpenEngine = open_engine
) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises Unavailable when the directory is in use, Corrupt when it is damaged and Refused when its queues cannot
    become what is configured, before anything is served; Fatal, at once and without tidying up, when the disk fails:
    nothing that is in memory can be promised any more.
    """
    log = configuration.settings.log
    logs.set_up(log.level, log.format)
    raise_file_limit()
    program = _Program(launch, configuration, clock or SystemClock(), opener)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(program.run())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: half the time per round trip."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def raise_file_limit() -> None:
    """Allow as many open files as the system lets this process have: each connection and journal file is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _web_socket(server: MqttServer) -> Handler:
    """MQTT over a WebSocket; what that takes is loaded when the first client comes that way."""
    from headrace.net.websocket import WebSocket

    return WebSocket(MqttConnection(server), _WS_SUBPROTOCOLS, _WS_PATHS, server.limits.max_packet_bytes)


def _coap_endpoint(hosts: Hosts, access: Access, clock: Clock) -> DatagramHandler:
    """Raises Unavailable where aiocoap is not installed."""
    try:
        from headrace.protocols.coap.endpoint import Endpoint
    except ImportError as error:
        raise Unavailable(f"--coap needs aiocoap ({error}): pip install 'headrace[coap]'") from error
    return Endpoint(hosts, access, clock)


@final
class _Program:
    def __init__(self, launch: Launch, configuration: Configuration, clock: Clock, opener: OpenEngine) -> None:
        self._launch = launch
        self._ready_file = ReadyFile(launch.ready_file)
        self._configuration = configuration
        self._settings = configuration.settings
        self._clock = clock
        self._opener = opener
        self._engine: Engine | None = None
        self._hosts: Hosts | None = None
        self._access: Access | None = None
        self._background = Threads()
        self._tls: Tls | None = None
        self._reloading: Reloading | None = None
        self._amqp10: Amqp10Server | None = None
        self._mqtt: MqttServer | None = None
        self._listeners: dict[str, Listener | HttpListener | DatagramListener] = {}
        self._stop = asyncio.Event()
        self._failure: Fatal | None = None
        self._poll_is_due = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        started_us = self._clock.monotonic_us()
        files = tls_files(self._settings.tls)
        self._tls = Tls(files) if files is not None else None
        tokens = read_tokens(self._settings.jwt)
        engine = self._engine = self._opener(self._settings.storage, lambda: self._wake(loop))
        try:
            hosts, access = self._open_hosts(engine, loop)
            access.use_tokens(tokens)
            self._reloading = Reloading(self._configuration, self._launch.read, hosts, access, self._tls)
            self._reloading.start()
            await self._listen()
            took_us = self._clock.monotonic_us() - started_us
            announce(engine, self._configuration, self._ports(), took_us)
            gc.collect()
            gc.freeze()  # what is there now stays: looking through all of it stopped everybody for 10 to 15 ms
            self._ready_file.write(name_of(self._settings.storage), self._ports())
            await self._serve()
            if self._failure is not None:
                raise self._failure
            _log.info("stopping: what was taken is being written down")
            with self._deadline():
                await self._close()
                engine.close()
        finally:
            self._ready_file.remove()

    def _open_hosts(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> tuple[Hosts, Access]:
        codecs, flow = Codecs(), Flow()
        codecs.add(AMQP091, Amqp091Codec())
        codecs.add(AMQP10, Amqp10Codec())
        codecs.add(MQTT5, Mqtt5Codec())

        def soon(call: Callable[[], None]) -> None:
            loop.call_soon(call)

        def broker(name: str) -> Broker:
            settings = self._settings if self._reloading is None else self._reloading.settings
            found = Broker(engine, self._clock, soon, name, codecs, flow, Bounds(settings.mqtt))
            limit(found, settings)
            return found

        hosts = self._hosts = Hosts(engine, broker)
        access = self._access = Access(engine, self._clock, self._background, hosts)
        return hosts, access

    def _brokers(self) -> list[Broker]:
        return [] if self._hosts is None else self._hosts.brokers()

    async def _listen(self) -> None:
        """Open every listener that was asked for; with one that cannot be had nothing is served."""
        assert self._hosts is not None
        assert self._access is not None
        hosts, access, settings = self._hosts, self._access, self._settings.listeners
        amqp = self._amqp(hosts, access)
        for name, port in (("amqp", settings.amqp), ("amqps", settings.amqps)):
            await self._open(name, Listener(amqp), port)
        mqtt = self._mqtt = MqttServer(hosts, access, self._clock, __version__, self._settings.mqtt)
        for name, port in (("mqtt", settings.mqtt), ("mqtts", settings.mqtts)):
            await self._open(name, Listener(lambda: MqttConnection(mqtt)), port)
        web = self._listeners["ws"] = Listener(lambda: _web_socket(mqtt))
        if settings.ws is not None:
            await web.open(settings.host, settings.ws)
        site = Site(hosts, access, self._wires, self._ports, self._trouble, self._clock, __version__, self._staging())
        reloading = self._reloading
        if reloading is not None:
            site.reload = lambda: asdict(reloading.reload())
        site.web_sockets["/mqtt"] = web.accept
        routes: list[Contribute] = []  # rooms outside admin/ add the functions here that give their routes
        for name, port in (("http", settings.http), ("https", settings.https)):
            await self._open(name, HttpListener(site, routes), port)
        if settings.coap is not None:
            coap = self._listeners["coap"] = DatagramListener(_coap_endpoint(hosts, access, self._clock))
            await coap.open(settings.host, settings.coap)

    def _amqp(self, hosts: Hosts, access: Access) -> Callable[[], AmqpGreeting]:
        """Handlers for both versions: the client's first bytes say which."""
        server = Amqp091Server(hosts, access, __version__)
        server_10 = self._amqp10 = Amqp10Server(hosts, access, self._clock, __version__)
        return lambda: AmqpGreeting(
            lambda: Amqp091Connection(server, self._clock), lambda: Amqp10Connection(server_10, self._clock)
        )

    async def _open(self, name: str, listener: Listener | HttpListener, port: int | None) -> None:
        """Open a listener if it was asked for."""
        if port is not None:
            tls = self._tls.context if self._tls is not None and name in _WITH_TLS else None
            await listener.open(self._settings.listeners.host, port, tls)
            self._listeners[name] = listener

    def _reload(self) -> None:
        """SIGHUP: have what the configuration says now, as far as that can change while the broker serves."""
        assert self._reloading is not None
        try:
            self._reloading.reload()
        except HeadraceError as error:
            _log.error("the configuration stays as it was: %s", error)

    def _wires(self) -> list[Wire]:
        listeners = [listener for listener in self._listeners.values() if isinstance(listener, Listener)]
        return [wire for listener in listeners for wire in listener.wires]

    def _staging(self) -> StagingArea:
        """Where bulk writes wait for their commit: with the data, or where temporary files are."""
        storage = self._settings.storage
        if storage.memory or storage.store:
            return StagingArea(Path(tempfile.gettempdir()) / f"headrace-{os.getpid()}-staging", _STAGED_BYTES)
        return StagingArea(storage.data / "staging", _STAGED_BYTES)

    def _trouble(self) -> str:
        """Why nothing can be published now, "" when it can."""
        if self._failure is not None or self._stop.is_set():
            return "the broker stops"
        held_up = [broker.topology.host for broker in self._brokers() if broker.is_held_up]
        return f"what is published to virtual host {held_up[0]!r} cannot be stored now" if held_up else ""

    async def _close(self) -> None:
        """Stop accepting, say goodbye, commit what came last."""
        await asyncio.gather(*[listener.close() for listener in self._listeners.values()])  # each takes its time
        self._background.close()
        for broker in self._brokers():
            broker.drain()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        """End the process when what is done in here takes too long: a disk that hangs must not hold up a restart."""
        settings = self._settings if self._reloading is None else self._reloading.settings
        seconds = settings.limits.stop / 1000
        watch = threading.Timer(seconds, self._give_up, (seconds,))
        watch.daemon = True
        watch.start()
        try:
            yield
        finally:
            watch.cancel()

    def _give_up(self, seconds: float) -> None:
        """In another thread, as this one's may hang in a system call for good."""
        _log.critical(
            "the stop was given up after %g s: the disk is too slow, or hangs. What was confirmed is in the journal, "
            "and the next start goes on from there; more time is limits.stop in the configuration",
            seconds,
        )
        self._ready_file.remove()
        os._exit(EXIT_STOP_TOO_LONG)

    async def _serve(self) -> None:
        while not self._stop.is_set():
            for broker in self._brokers():
                broker.tick()
            if self._amqp10 is not None:
                self._amqp10.tick()
            if self._mqtt is not None:
                self._mqtt.tick()
            if self._access is not None:
                self._access.tick()
            self._poll()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_SECONDS)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Called by the engine's threads: have its results taken in soon, once for all that arrive until then."""
        if not self._poll_is_due:
            self._poll_is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits for results
                loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        self._poll_is_due = False
        if self._engine is None or self._failure is not None:
            return
        try:
            self._engine.poll()
        except Fatal as failure:
            self._failure = failure
            self._stop.set()

    def _ports(self) -> dict[str, int]:
        return {name: listener.port for name, listener in self._listeners.items() if listener.port}

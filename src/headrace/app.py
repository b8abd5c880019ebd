"""Builds the program: the only module that knows every room. Opens, serves, stops; decides nothing about messages."""

import asyncio
import contextlib
import functools
import gc
import logging
import os
import resource
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, final

from headrace import logs
from headrace.admin.listener import Contribute, HttpListener, Speaker
from headrace.announcement import announce
from headrace.clock import Clock, SystemClock
from headrace.config.configuration import Configuration
from headrace.config.settings import LOCAL_REFUSE
from headrace.engines import OpenEngine, load_store, name_of, open_engine, open_store
from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.exits import EXIT_STOP_TOO_LONG
from headrace.launch import Launch
from headrace.net.connection import Wire
from headrace.net.datagrams import DatagramListener
from headrace.net.handler import Handler
from headrace.net.listener import Listener
from headrace.net.tls import Tls, to_nodes
from headrace.ready_file import ReadyFile
from headrace.reloading import reload_waiting, tls_files
from headrace.service import AMQP, MQTT, WEB_SOCKET, Premises, Service, web_socket
from headrace.storage.api import Engine
from headrace.storage.local.staging import StagingArea
from headrace.threads import Threads
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.cluster.forwarding.doorway import Doorway
    from headrace.cluster.seat import Seat

_STAGED_BYTES: Final = 16 << 30
_WEB_SOCKET_PATH: Final = "/mqtt"
_PROTOCOLS: Final = {"amqp": AMQP, "amqps": AMQP, "mqtt": MQTT, "mqtts": MQTT}
_WITH_TLS: Final = ("amqps", "mqtts", "https")
_TICK_SECONDS: Final = 0.05
_GOODBYE_US: Final = 1_000_000
"""How long clients may take to hear that they have to connect again."""
_log: Final = logging.getLogger("headrace")
_COLLECT_EVERY: Final = (50_000, 20, 20)
"""After how many objects the garbage collector looks through the youngest, and how often through more of them. What
messages are made of is freed without it: looking every 700 objects took 5 to 10 % of the time for filling or reading a
queue; half of it with 10,000 queues or 5,000 connections, all of which it went through every few thousand messages."""

StartOver = Callable[[Launch], NoReturn]
"""Has this process run the program anew."""


def serve(
    launch: Launch,
    configuration: Configuration,
    clock: Clock | None = None,
    opener: OpenEngine = open_engine,
    start_over: StartOver | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. A node of a cluster that loses the store starts over, to wait for its turn.

    Raises Unavailable when the directory is in use, Corrupt when it is damaged and Refused when its queues cannot
    become what is configured, before anything is served; Fatal, at once and without tidying up, when the disk fails:
    nothing that is in memory can be promised any more.
    """
    log = configuration.settings.log
    logs.set_up(log.level, log.format)
    raise_file_limit()

    async def run() -> None:
        program = _Program(launch, configuration, clock or SystemClock(), opener)
        if configuration.settings.cluster.node:
            assert start_over is not None
            await program.run_in_cluster(start_over)
        else:
            await program.run()

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run())


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


def _settle_memory() -> None:
    """What is there now stays: looking through all of it again and again stopped everybody for 10 to 15 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)


@final
class _Program:
    def __init__(self, launch: Launch, configuration: Configuration, clock: Clock, opener: OpenEngine) -> None:
        self._launch = launch
        self._ready_file = ReadyFile(launch.ready_file)
        self._configuration = configuration
        self._settings = configuration.settings
        self._clock = clock
        self._opener = opener
        self._loop = asyncio.get_running_loop()
        self._background = Threads()
        files = tls_files(self._settings.tls)
        self._tls = Tls(files) if files is not None else None
        self._service: Service | None = None
        """What serves clients; None while nothing does."""
        self._listeners: dict[str, Listener | HttpListener | DatagramListener] = {}
        self._sockets = dict(launch.sockets)
        self._web_sockets = Listener(lambda: self._handler(WEB_SOCKET))
        self._doorway = self._open_doorway()
        """What clients meet while another node owns the store; None for a broker on its own."""
        self._inner_http = HttpListener(self._speaker)
        self._seat: Seat | None = None
        """This node's place in a cluster; None for a broker on its own."""
        self._stop = asyncio.Event()
        self._failure: Fatal | None = None
        self._double: HeadraceError | None = None
        self._is_told_to_stop = False
        self._opening_us = 0
        self._poll_is_due = False

    def _heed_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self._halt)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)

    def _halt(self) -> None:
        """SIGINT, SIGTERM."""
        self._is_told_to_stop = True
        self._stop.set()

    async def run(self) -> None:
        """Open the data, serve, and stop when told to."""
        self._heed_signals()
        started_us = self._clock.monotonic_us()
        engine = self._opener(self._settings, self._wake)
        try:
            await self._enter(engine)
            took_us = self._clock.monotonic_us() - started_us
            announce(engine, self._configuration, self._ports(), took_us)
            _settle_memory()
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

    # -- in a cluster ------------------------------------------------------------------------------------------------

    async def run_in_cluster(self, start_over: StartOver) -> None:
        """Wait for the store to be this node's, serve, and stop when told to; or start over when it is lost."""
        self._heed_signals()
        await self._listen()
        seat = self._seat = await self._take_seat()
        assert self._doorway is not None
        self._doorway.follow(seat.ownership)
        try:
            announce(None, self._configuration, self._ports(), 0)
            self._ready_file.write(name_of(self._settings.storage), self._ports())
            await asyncio.to_thread(load_store)
            engine = await seat.turn(self._open_shared, self._stop)
            if engine is not None and not await self._serve_turn(seat, engine):
                await self._say_goodbye(seat)
                if not self._is_told_to_stop:
                    start_over(replace(self._launch, sockets=self._leave_sockets()))
                return
            _log.info("stopping: what was taken is being written down")
            with self._deadline():
                await self._close()
                if engine is not None:
                    engine.close()
                await seat.leave()
        finally:
            await seat.leave()
            self._ready_file.remove()
        if self._double is not None:
            raise self._double

    async def _serve_turn(self, seat: "Seat", engine: Engine) -> bool:
        """Serve until told to stop; False when the store was lost before that."""
        seat.is_serving = True  # from now on nothing leaves that the lease does not cover
        await self._enter(engine)
        announce(engine, self._configuration, self._ports(), self._clock.monotonic_us() - self._opening_us)
        _settle_memory()
        await self._serve()
        return self._failure is None and not seat.is_over

    async def _take_seat(self) -> "Seat":
        """Raises Unavailable where obstore is not installed."""
        try:
            from headrace.cluster.seat import Seat, describe
        except ImportError as error:
            raise Unavailable(f"a cluster needs obstore ({error}): pip install 'headrace[objects]'") from error
        settings = self._settings.cluster
        now_us = self._clock.now_us()
        me = describe(settings.node, settings.listen, settings.advertise, self._ports(), __version__, now_us)
        store = self._settings.storage.store
        seat = await Seat.take(store, settings.group, me, settings.lease, self._clock, self._on_double)
        for listener in self._listeners.values():
            if isinstance(listener, Listener):
                listener.gate = seat.may_write
        self._refurnish()
        return seat

    def _open_shared(self) -> Engine:
        self._opening_us = self._clock.monotonic_us()
        return open_store(self._settings, self._wake, is_proven=True)

    def _on_double(self, error: HeadraceError) -> None:
        """Another process is this node now."""
        self._double = error
        self._stop.set()

    async def _say_goodbye(self, seat: "Seat") -> None:
        """The store is lost: have everybody connect again, to the node that owns it."""
        why = self._failure or "its lease ran out"
        _log.warning("this node does not own the store any more and waits for its turn again: %s", why)
        for wire in self._wires():
            wire.dismiss()
        deadline_us = self._clock.monotonic_us() + _GOODBYE_US
        while self._wires() and self._clock.monotonic_us() < deadline_us:
            await asyncio.sleep(_TICK_SECONDS)
        await seat.leave()

    def _leave_sockets(self) -> tuple[tuple[str, int], ...]:
        """What is listened on, for the program that this process runs next."""
        listeners = {name: each for name, each in self._listeners.items() if not isinstance(each, DatagramListener)}
        left = [(name, listener.leave()) for name, listener in listeners.items()]
        return tuple([(name, descriptor) for name, descriptor in left if descriptor is not None])

    def _open_doorway(self) -> "Doorway | None":
        settings = self._settings.cluster
        if not settings.node:
            return None
        from headrace.cluster.forwarding.doorway import Doorway

        return Doorway(settings.node, settings.write_policy, settings.lease, to_nodes() if self._tls else None)

    def _premises(self) -> Premises:
        def soon(call: Callable[[], None]) -> None:
            self._loop.call_soon(call)

        return Premises(
            self._configuration,
            self._launch.read,
            self._clock,
            self._background,
            soon,
            self._tls,
            self._wires,
            self._ports,
            self._stopping,
            self._staging(),
        )

    async def _enter(self, engine: Engine) -> None:
        """Serve from now on, over this engine. Raises Refused when its queues cannot become what is configured."""
        service = Service(engine, self._premises())
        service.site.standing = self._seat
        self._service = service
        if not self._listeners:
            await self._listen()
        if self._doorway is not None:
            await self._open_again()
            self._admit(self._doorway, service)
        self._refurnish()
        settings = self._settings.listeners
        if settings.coap is not None:
            coap = self._listeners["coap"] = DatagramListener(service.coap())
            await coap.open(settings.host, settings.coap)

    def _refurnish(self) -> None:
        """Have HTTP requests from now on answered by who answers them now."""
        for listener in self._listeners.values():
            if isinstance(listener, HttpListener):
                listener.refurnish()

    def _admit(self, doorway: "Doorway", service: Service) -> None:
        from headrace.cluster.forwarding.doorway import Local

        doorway.admit(Local(service.handler, self._inner_http.accept))

    # -- who comes in ------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        """Open every listener that was asked for; with one that cannot be had nothing is served."""
        settings = self._settings.listeners
        for name, protocol in _PROTOCOLS.items():
            await self._open(name, Listener(functools.partial(self._handler, protocol)), getattr(settings, name))
        self._listeners["ws"] = self._web_sockets
        if settings.ws is not None:
            await self._web_sockets.open(settings.host, settings.ws, None, self._left("ws"))
        for name, port in (("http", settings.http), ("https", settings.https)):
            await self._open(name, HttpListener(self._speaker), port)
        if self._doorway is not None:
            await self._listen_to_nodes(self._doorway)

    async def _listen_to_nodes(self, doorway: "Doorway") -> None:
        """Open the port for other nodes; where clients are refused while another owns the store, close theirs."""
        from headrace.cluster.forwarding.gate import Gate

        tls = self._tls
        gate = Listener(lambda: Gate(doorway, b"" if tls is None else tls.fingerprint))
        host, _, port = self._settings.cluster.listen.rpartition(":")
        between = None if tls is None else tls.for_nodes()
        await gate.open(host.strip("[]"), int(port), between, self._left("cluster"))
        self._listeners["cluster"] = gate
        if doorway.policy == LOCAL_REFUSE:
            for listener in self._client_listeners().values():
                listener.shut()

    async def _open_again(self) -> None:
        """Open what was closed while another node owned the store."""
        for name, listener in self._client_listeners().items():
            if not listener.is_open:
                await self._open(name, listener, listener.port)

    def _client_listeners(self) -> dict[str, Listener]:
        """All for clients that are open, or will be."""
        return {
            name: listener
            for name, listener in self._listeners.items()
            if isinstance(listener, Listener) and name != "cluster" and listener.port
        }

    def _handler(self, protocol: str) -> Handler:
        """What a new connection is met by."""
        if self._service is not None:
            return self._service.handler(protocol)
        assert self._doorway is not None
        if protocol == WEB_SOCKET:
            return web_socket(self._doorway.handler(MQTT), self._settings.mqtt.max_packet_bytes)
        return self._doorway.handler(protocol)

    def _speaker(self) -> Speaker:
        """What speaks HTTP."""
        if self._service is None:
            from headrace.cluster.forwarding.pages import speaker

            assert self._doorway is not None
            return speaker(self._doorway, {_WEB_SOCKET_PATH: self._web_sockets.accept}, self._seat)
        routes: list[Contribute] = []  # rooms outside admin/ add the functions here that give their routes
        self._service.site.web_sockets[_WEB_SOCKET_PATH] = self._web_sockets.accept
        return self._service.speaker(routes)

    async def _open(self, name: str, listener: Listener | HttpListener, port: int | None) -> None:
        """Open a listener if it was asked for."""
        if port is not None:
            tls = self._tls.context if self._tls is not None and name in _WITH_TLS else None
            await listener.open(self._settings.listeners.host, port, tls, self._left(name))
            self._listeners[name] = listener

    def _left(self, name: str) -> int | None:
        """The descriptor of a listener that this process has already, once."""
        return self._sockets.pop(name, None)

    def _reload(self) -> None:
        """SIGHUP: have what the configuration says now, as far as that can change while the broker serves."""
        try:
            if self._service is not None:
                self._service.reload()
            else:
                self._configuration = reload_waiting(self._configuration, self._launch.read(), self._tls)
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

    def _stopping(self) -> str:
        return "the broker stops" if self._failure is not None or self._stop.is_set() else ""

    # -- serving and stopping ----------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Stop accepting, say goodbye, commit what came last."""
        listeners = [*self._listeners.values(), self._inner_http]
        await asyncio.gather(*[listener.close() for listener in listeners])  # each takes its time
        self._background.close()
        if self._service is not None:
            self._service.drain()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        """End the process when what is done in here takes too long: a disk that hangs must not hold up a restart."""
        settings = self._settings if self._service is None else self._service.settings
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
        while not self._stop.is_set() and not (self._seat is not None and self._seat.is_over):
            if self._service is not None:
                self._service.tick()
            self._poll()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_SECONDS)

    def _wake(self) -> None:
        """Called by the engine's threads: have its results taken in soon, once for all that arrive until then."""
        if not self._poll_is_due:
            self._poll_is_due = True
            with contextlib.suppress(RuntimeError):  # the loop has ended, nobody waits for results
                self._loop.call_soon_threadsafe(self._poll)

    def _poll(self) -> None:
        self._poll_is_due = False
        if self._service is None or self._failure is not None:
            return
        try:
            self._service.engine.poll()
        except Fatal as failure:
            self._failure = failure
            self._stop.set()

    def _ports(self) -> dict[str, int]:
        return {name: listener.port for name, listener in self._listeners.items() if listener.port}

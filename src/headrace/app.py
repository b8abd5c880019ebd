"""Builds the program: the only module that knows every room. Opens, serves, stops; decides nothing about messages."""

import asyncio
import contextlib
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
from headrace.admin.listener import Contribute, Speaker
from headrace.announcement import ReadyFile, announce
from headrace.clock import Clock, SystemClock
from headrace.config.configuration import Configuration
from headrace.engines import OpenEngine, load_store, name_of, open_engine, open_store
from headrace.errors import Fatal, HeadraceError, Unavailable
from headrace.exits import EXIT_STOP_TOO_LONG
from headrace.garbage import settle_memory
from headrace.launch import Launch
from headrace.listeners import Listeners
from headrace.net.handler import Handler
from headrace.net.tls import Tls, to_nodes
from headrace.protocols import WEB_SOCKETS
from headrace.reloading import reload_waiting, tls_files
from headrace.service import Environment, Service
from headrace.storage.api import Engine
from headrace.storage.local.staging import StagingArea
from headrace.threads import Threads
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.cluster.forwarding.frontend import Frontend
    from headrace.cluster.seat import Membership

_STAGED_BYTES: Final = 16 << 30
_WEB_SOCKET_PATH: Final = "/mqtt"
_TICK_SECONDS: Final = 0.05
_GOODBYE_US: Final = 1_000_000
"""How long clients may take to hear that they have to connect again."""
_log: Final = logging.getLogger("headrace")

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
        self._listeners = Listeners(self._settings, self._tls, launch.sockets, self._handler, self._speaker)
        self._doorway = self._open_doorway()
        """What clients meet while another node owns the store; None for a broker on its own."""
        self._seat: Membership | None = None
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
            announce(engine, self._configuration, self._listeners.ports(), took_us)
            settle_memory(self._clock)
            self._ready_file.write(name_of(self._settings.storage), self._listeners.ports())
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
        await self._listeners.open(self._doorway)
        seat = self._seat = await self._take_seat()
        assert self._doorway is not None
        self._doorway.follow(seat.ownership)
        try:
            announce(None, self._configuration, self._listeners.ports(), 0)
            self._ready_file.write(name_of(self._settings.storage), self._listeners.ports())
            await asyncio.to_thread(load_store)
            engine = await seat.turn(self._open_shared, self._stop)
            if engine is not None and not await self._serve_turn(seat, engine):
                await self._say_goodbye(seat)
                if not self._is_told_to_stop:
                    start_over(replace(self._launch, sockets=self._listeners.leave()))
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

    async def _serve_turn(self, seat: "Membership", engine: Engine) -> bool:
        """Serve until told to stop; False when the store was lost before that."""
        seat.is_serving = True  # from now on nothing leaves that the lease does not cover
        await self._enter(engine)
        announce(engine, self._configuration, self._listeners.ports(), self._clock.monotonic_us() - self._opening_us)
        settle_memory(self._clock)
        await self._serve()
        return self._failure is None and not seat.is_over

    async def _take_seat(self) -> "Membership":
        """Raises Unavailable where obstore is not installed."""
        try:
            from headrace.cluster.seat import Membership, describe
        except ImportError as error:
            raise Unavailable(f"a cluster needs obstore ({error}): pip install 'headrace[objects]'") from error
        settings = self._settings.cluster
        now_us = self._clock.now_us()
        me = describe(settings.node, settings.listen, settings.advertise, self._listeners.ports(), __version__, now_us)
        store = self._settings.storage.store
        seat = await Membership.take(store, settings.group, me, settings.lease, self._clock, self._on_double)
        self._listeners.guard(seat.may_write)
        self._listeners.refurnish()
        return seat

    def _open_shared(self) -> Engine:
        self._opening_us = self._clock.monotonic_us()
        return open_store(self._settings, self._wake, is_proven=True)

    def _on_double(self, error: HeadraceError) -> None:
        """Another process is this node now."""
        self._double = error
        self._stop.set()

    async def _say_goodbye(self, seat: "Membership") -> None:
        """The store is lost: have everybody connect again, to the node that owns it."""
        why = self._failure or "its lease ran out"
        _log.warning("this node does not own the store any more and waits for its turn again: %s", why)
        for wire in self._listeners.wires():
            wire.dismiss()
        deadline_us = self._clock.monotonic_us() + _GOODBYE_US
        while self._listeners.wires() and self._clock.monotonic_us() < deadline_us:
            await asyncio.sleep(_TICK_SECONDS)
        await seat.leave()

    def _open_doorway(self) -> "Frontend | None":
        settings = self._settings.cluster
        if not settings.node:
            return None
        from headrace.cluster.forwarding.frontend import Frontend

        return Frontend(settings.node, settings.write_policy, settings.lease, to_nodes() if self._tls else None)

    def _premises(self) -> Environment:
        def soon(call: Callable[[], None]) -> None:
            self._loop.call_soon(call)

        return Environment(
            self._configuration,
            self._launch.read,
            self._clock,
            self._background,
            soon,
            self._tls,
            self._listeners.wires,
            self._listeners.ports,
            self._stopping,
            self._staging(),
        )

    async def _enter(self, engine: Engine) -> None:
        """Serve from now on, over this engine. Raises Refused when its queues cannot become what is configured."""
        service = Service(engine, self._premises())
        service.site.standing = self._seat
        service.site.refused = self._listeners.refused
        self._service = service
        if self._doorway is None:
            await self._listeners.open(None)
        else:
            await self._listeners.open_again()
            self._admit(self._doorway, service)
        self._listeners.refurnish()
        await self._listeners.open_to_datagrams(service.datagrams)

    def _admit(self, doorway: "Frontend", service: Service) -> None:
        from headrace.cluster.forwarding.frontend import Local

        doorway.admit(Local(service.handler, self._listeners.inner_http.accept))

    # -- who comes in ------------------------------------------------------------------------------------------------

    def _handler(self, listener: str) -> Handler:
        """The handler of a new connection."""
        if self._service is not None:
            return self._service.handler(listener)
        assert self._doorway is not None
        inside = WEB_SOCKETS.get(listener)
        if inside is None or inside.web_sockets is None:
            return self._doorway.handler(listener)
        most_bytes = inside.web_sockets.max_packet_bytes(self._settings)
        return inside.web_sockets.enclose(self._doorway.handler(inside.listener), most_bytes)

    def _speaker(self) -> Speaker:
        """What speaks HTTP."""
        if self._service is None:
            from headrace.cluster.forwarding.pages import speaker

            assert self._doorway is not None
            return speaker(self._doorway, {_WEB_SOCKET_PATH: self._listeners.web_sockets.accept}, self._seat)
        routes: list[Contribute] = []  # rooms outside admin/ add the functions here that give their routes
        self._service.site.web_sockets[_WEB_SOCKET_PATH] = self._listeners.web_sockets.accept
        return self._service.speaker(routes)

    def _reload(self) -> None:
        """SIGHUP: have what the configuration says now, as far as that can change while the broker serves."""
        try:
            if self._service is not None:
                self._service.reload()
            else:
                self._configuration = reload_waiting(self._configuration, self._launch.read(), self._tls)
        except HeadraceError as error:
            _log.error("the configuration stays as it was: %s", error)

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
        await self._listeners.close()
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

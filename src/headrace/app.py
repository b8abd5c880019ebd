"""The broker's process: opens the rooms, serves, stops. The only module that knows every room; no message decisions.

`headrace serve` becomes this process once it has read its arguments. The libraries of the command line weigh as much as
an idle broker (48 MB with them, 34 MB without), and a broker needs none of them.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, final

from headrace import logs
from headrace.admin.listener import Contribute, Speaker
from headrace.announcement import ReadyFile, announce
from headrace.clock import Clock, SystemClock
from headrace.config.configuration import Configuration
from headrace.core.access.logins import Background, Result
from headrace.engines import OpenEngine, load_store, name_of, open_engine, open_keeper, open_store
from headrace.errors import Corrupt, Fatal, HeadraceError, Refused, Unavailable, missing_extra
from headrace.launch import Launch, become
from headrace.listeners import Listeners
from headrace.net.connection import turn_of
from headrace.net.handler import Handler
from headrace.net.tls import Tls, to_nodes
from headrace.process import (
    EXIT_DISK_FAILED,
    EXIT_PROBLEMS,
    EXIT_STOP_TOO_LONG,
    EXIT_USAGE,
    bound_heap,
    raise_file_limit,
    settle_memory,
)
from headrace.protocols import WEB_SOCKET_PATHS, WEB_SOCKETS, Protocol, web_socket
from headrace.reloading import reload_waiting, tls_files
from headrace.service import Environment, Service
from headrace.storage.api import Engine
from headrace.storage.local.staging import StagingArea
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.admin.site import TakeOver
    from headrace.cluster.forwarding.frontend import Frontend
    from headrace.cluster.membership import Membership

_STAGED_BYTES: Final = 16 << 30
_TICK_SECONDS: Final = 0.05
_GOODBYE_US: Final = 1_000_000
"""Longest wait for clients to close their connections after this node lost the store."""
_SEAT_SECONDS: Final = 1.0
"""Pause between two tries to join the cluster again."""
_PASSWORD_THREADS: Final = 2
_log: Final = logging.getLogger("headrace")


def run(launch: Launch, opener: OpenEngine = open_engine) -> int:
    """Serve until told to stop. Return the exit code, after a line on stderr where it is not 0."""
    try:
        configuration = launch.read()
    except Refused as error:
        return _failed(str(error), EXIT_USAGE)
    try:
        _serve(launch, configuration, opener)
    except Fatal as error:
        return _failed(str(error), EXIT_DISK_FAILED)
    except Corrupt as error:
        storage = configuration.settings.storage
        advice = "" if storage.store else f"; `headrace doctor {storage.data}` examines the whole directory"
        return _failed(f"{error}{advice}", EXIT_PROBLEMS)
    except HeadraceError as error:
        return _failed(str(error), EXIT_PROBLEMS)
    return 0


def _failed(message: str, code: int) -> int:
    print(f"headrace: {message}", file=sys.stderr)
    return code


def _serve(launch: Launch, configuration: Configuration, opener: OpenEngine) -> None:
    """Serve until SIGINT or SIGTERM. A node of a cluster that loses the store starts over and waits for its turn.

    Before it serves, raises Unavailable when the directory is in use, Corrupt when it is damaged, and Refused when its
    queues cannot become as configured. Raises Fatal when the disk fails: at once and without closing anything, because
    the broker can promise nothing of what is in memory.
    """
    log = configuration.settings.log
    logs.set_up(log.level, log.format)
    raise_file_limit()
    bound_heap()

    async def serve() -> None:
        program = _Program(launch, configuration, SystemClock(), opener)
        await (program.run_in_cluster() if configuration.settings.cluster.node else program.run())

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(serve())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory where it is installed: it takes half the time per round trip."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


@final
class Threads(Background):
    """Threads that check passwords beside the event loop; they start with the first check."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def run(self, work: Callable[[], Result], done: Callable[[Result], None]) -> None:
        loop = asyncio.get_running_loop()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_PASSWORD_THREADS, "passwords")
        task = loop.run_in_executor(self._pool, work)
        task.add_done_callback(lambda ended: None if ended.cancelled() else done(ended.result()))

    def later(self, delay_us: int, call: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_us / 1_000_000, call)

    def close(self) -> None:
        """Start no further work."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


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
        self._turn = turn_of(self._loop)
        self._thread = threading.get_ident()
        self._background = Threads()
        files = tls_files(self._settings.tls)
        self._tls = Tls(files) if files is not None else None
        self._service: Service | None = None
        """None while this node does not serve."""
        self._listeners = Listeners(self._settings, self._tls, launch.sockets, self._handler, self._speaker)
        self._frontend = self._open_frontend()
        """Serves clients while another node owns the store; None for a broker on its own."""
        self._membership: Membership | None = None
        """This node's membership of a cluster; None for a broker on its own."""
        self._reloads: set[asyncio.Task[None]] = set()
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
        """Handle SIGINT and SIGTERM."""
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

    async def run_in_cluster(self) -> None:
        """Wait until this node owns the store, serve, and stop when told to. Start over when the store is lost."""
        self._heed_signals()
        await self._listeners.open(self._frontend)
        membership = self._membership = await self._take_seat()
        if membership is None:
            await self._listeners.close()
            return
        assert self._frontend is not None
        self._frontend.follow(membership.ownership)
        try:
            announce(None, self._configuration, self._listeners.ports(), 0)
            self._ready_file.write(name_of(self._settings.storage), self._listeners.ports())
            await asyncio.to_thread(load_store)
            engine = await membership.turn(self._open_shared, self._stop)
            if engine is not None and not await self._serve_as_owner(membership, engine):
                await self._dismiss_clients(membership)
                if not self._is_told_to_stop:
                    become(replace(self._launch, sockets=self._listeners.leave()))
                return
            _log.info("stopping: what was taken is being written down")
            with self._deadline():
                await self._close()
                if engine is not None:
                    engine.close()
                await membership.leave()
        finally:
            await membership.leave()
            self._ready_file.remove()
        if self._double is not None:
            raise self._double

    async def _serve_as_owner(self, membership: "Membership", engine: Engine) -> bool:
        """Serve until told to stop. Return False when the store was lost before that."""
        membership.is_serving = True  # from now on the lease covers every byte that is sent
        await self._enter(engine)
        announce(engine, self._configuration, self._listeners.ports(), self._clock.monotonic_us() - self._opening_us)
        settle_memory(self._clock)
        await self._serve()
        return self._failure is None and not membership.is_over

    async def _take_seat(self) -> "Membership | None":
        """Join the cluster; a node that lost the store waits for it until it is told to stop, which returns None.

        Raises Unavailable at a first start, for which somebody waits: an address or a key may be wrong.
        """
        is_told = False
        while not self._stop.is_set():
            try:
                membership = await self._join()
            except Unavailable as error:
                if not self._launch.sockets:
                    raise
                if not is_told:
                    _log.warning("this node waits for the store and takes its seat again then: %s", error)
                is_told = True
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), _SEAT_SECONDS)
            else:
                if is_told:
                    _log.info("the store is there again")
                return membership
        return None

    async def _join(self) -> "Membership":
        """Join the cluster. Raises Unavailable where obstore is not installed."""
        try:
            from headrace.cluster.membership import Membership, describe
        except ImportError as error:
            raise missing_extra("a cluster", "objects", error) from error
        settings = self._settings.cluster
        now_us = self._clock.now_us()
        me = describe(settings.node, settings.listen, settings.advertise, self._listeners.ports(), __version__, now_us)
        store = self._settings.storage.store
        membership = await Membership.take(store, settings.group, me, settings.lease, self._clock, self._on_double)
        self._listeners.guard(membership.may_write)
        self._listeners.refurnish()
        return membership

    def _open_shared(self) -> Engine:
        self._opening_us = self._clock.monotonic_us()
        return open_store(self._settings, self._wake, is_proven=True)

    def _on_double(self, error: HeadraceError) -> None:
        """Stop, because another process runs under this node's name."""
        self._double = error
        self._stop.set()

    async def _dismiss_clients(self, membership: "Membership") -> None:
        """Close the connections of all clients, who connect again to the node that owns the store now."""
        why = self._failure or "its lease ran out"
        _log.warning("this node does not own the store any more and waits for its turn again: %s", why)
        for wire in self._listeners.wires():
            wire.dismiss()
        deadline_us = self._clock.monotonic_us() + _GOODBYE_US
        while self._listeners.wires() and self._clock.monotonic_us() < deadline_us:
            await asyncio.sleep(_TICK_SECONDS)
        await membership.leave()

    def _open_frontend(self) -> "Frontend | None":
        settings = self._settings.cluster
        if not settings.node:
            return None
        from headrace.cluster.forwarding.frontend import Frontend

        return Frontend(settings.node, settings.write_policy, settings.lease, to_nodes() if self._tls else None)

    def _environment(self) -> Environment:
        return Environment(
            self._configuration,
            self._launch.read,
            self._clock,
            self._background,
            self._turn.add,
            self._tls,
            self._listeners.wires,
            self._listeners.ports,
            self._stopping,
            self._staging(),
        )

    async def _enter(self, engine: Engine) -> None:
        """Serve over this engine from now on. Raises Refused when its queues cannot become as configured."""
        service = Service(engine, self._environment())
        service.site.cluster = self._membership
        service.site.refused = self._listeners.refused
        self._service = service
        if self._frontend is None:
            await self._listeners.open(None)
        else:
            await self._listeners.open_again()
            self._admit(self._frontend, service)
        self._listeners.refurnish()
        await self._listeners.open_to_datagrams(service.datagrams)

    def _admit(self, frontend: "Frontend", service: Service) -> None:
        from headrace.cluster.forwarding.frontend import Local

        frontend.admit(Local(service.handler, self._listeners.inner_http.accept))

    # -- connections --------------------------------------------------------------------------------------------------

    def _handler(self, listener: str) -> Handler:
        """Return the handler of a new connection."""
        if self._service is not None:
            return self._service.handler(listener)
        assert self._frontend is not None
        return web_socket(self._forwarded) if listener == WEB_SOCKETS else self._frontend.handler(listener)

    def _forwarded(self, protocol: Protocol) -> tuple[Callable[[], Handler], int]:
        """Return what forwards a client inside a WebSocket to the owner, and the largest packet."""
        inside, frontend = protocol.web_sockets, self._frontend
        assert inside is not None
        assert frontend is not None
        return lambda: frontend.handler(protocol.listener), inside.max_packet_bytes(self._settings)

    def _speaker(self) -> Speaker:
        """Return the handler of HTTP requests."""
        if self._service is None:
            from headrace.cluster.forwarding.pages import speaker

            assert self._frontend is not None
            return speaker(self._frontend, self._web_sockets(), self._membership)
        routes: list[Contribute] = []  # rooms outside admin/ add the functions here that give their routes
        self._service.site.web_sockets.update(self._web_sockets())
        return self._service.speaker(routes)

    def _web_sockets(self) -> "dict[str, TakeOver]":
        """Return what takes over a WebSocket on the HTTP port, by path."""
        return dict.fromkeys(WEB_SOCKET_PATHS, self._listeners.web_sockets.accept)

    def _reload(self) -> None:
        """Handle SIGHUP."""
        task = self._loop.create_task(self._reload_all())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    async def _reload_all(self) -> None:
        """Apply the settings of the configuration that may change while the broker serves."""
        try:
            if self._service is not None:
                await self._service.reload()
            else:
                newer = await asyncio.to_thread(self._launch.read)
                self._configuration = reload_waiting(self._configuration, newer, self._tls)
        except HeadraceError as error:
            _log.error("the configuration stays as it was: %s", error)

    def _staging(self) -> StagingArea:
        """Return the directory where bulk writes wait for their commit: beside the data, or a temporary one."""
        storage = self._settings.storage
        if storage.memory or storage.store:
            import tempfile  # it loads compressors: half a MB that no other broker needs

            temporary = Path(tempfile.gettempdir()) / f"headrace-{os.getpid()}-staging"
            return StagingArea(temporary, _STAGED_BYTES, open_keeper(self._settings) if storage.store else None)
        return StagingArea(storage.data / "staging", _STAGED_BYTES)

    def _stopping(self) -> str:
        return "the broker stops" if self._failure is not None or self._stop.is_set() else ""

    # -- serving and stopping ----------------------------------------------------------------------------------------

    async def _close(self) -> None:
        """Stop accepting, close connections, commit the last messages."""
        await self._listeners.close()
        self._background.close()
        if self._service is not None:
            self._service.drain()

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[None]:
        """End the process when the body takes too long: a disk that hangs must not hold up a restart."""
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
        """End the process from another thread: the main thread may hang in a system call."""
        _log.critical(
            "the stop was given up after %g s: the disk is too slow, or hangs. What was confirmed is in the journal, "
            "and the next start goes on from there; more time is limits.stop in the configuration",
            seconds,
        )
        self._ready_file.remove()
        os._exit(EXIT_STOP_TOO_LONG)

    async def _serve(self) -> None:
        while not self._stop.is_set() and not (self._membership is not None and self._membership.is_over):
            if self._service is not None:
                self._service.tick()
            self._poll()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), _TICK_SECONDS)

    def _wake(self) -> None:
        """Schedule one poll of the engine's results. The engine calls this, in any thread."""
        if self._poll_is_due:
            return
        self._poll_is_due = True
        if threading.get_ident() == self._thread:
            self._turn.add_last(self._poll)  # a sync here comes after what can leave before it
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, so nobody waits for results
                self._loop.call_soon_threadsafe(self._poll_now)

    def _poll_now(self) -> None:
        """Poll in a turn of its own, with the output that comes of it."""
        self._turn.add(self._poll)
        self._turn.run()

    def _poll(self) -> None:
        self._poll_is_due = False
        if self._service is None or self._failure is not None:
            return
        try:
            self._service.engine.poll()
        except Fatal as failure:
            self._failure = failure
            self._stop.set()


@final
class _NoPandas(MetaPathFinder):
    """Hides pandas from pyarrow, which imports it whenever it makes an array of a list.

    Where pandas is installed, as Spark wants it to be, the first bulk read of a queue stopped the broker for 0.25 s and
    took 55 MB of memory for good.
    """

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a broker does without pandas", name=fullname)


def _main() -> None:
    sys.meta_path.insert(0, _NoPandas())
    with os.fdopen(int(sys.argv.pop(1)), "rb") as pipe:  # written by `become`, nobody else has the other end
        launch = pickle.load(pipe)
    sys.exit(run(launch))


if __name__ == "__main__":
    _main()

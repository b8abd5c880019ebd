"""The broker while it serves: hosts, users, protocols and pages over one engine. No sockets and signals: see app.py."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, final

from headrace.admin.listener import Speaker
from headrace.admin.site import Site
from headrace.clock import Clock
from headrace.config.configuration import Configuration
from headrace.config.settings import Settings
from headrace.core.access.access import Access
from headrace.core.access.logins import Background
from headrace.core.broker import Broker
from headrace.core.flow import Flow
from headrace.core.hosts import Hosts
from headrace.core.pubsub.session import Bounds
from headrace.net.connection import Wire
from headrace.net.tls import Tls
from headrace.protocols import Backend, Protocols
from headrace.reloading import Reloaded, Reloading, limit
from headrace.storage.api import Engine
from headrace.storage.local.staging import EXPIRE_SECONDS, StagingArea
from headrace.tokens import read_tokens
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.admin.listener import Contribute

_SLOW_US: Final = 5_000_000
"""Longest time that storage may take, or publishers wait, while the broker counts as ready."""
_SWEEP_US: Final = 600 * 1_000_000
"""Time between two searches for files that dead jobs left behind."""
_QUIET_US: Final = 1_500_000
"""Time without trouble after which the broker is ready again; failed writes are tried again every second."""
_log: Final = logging.getLogger("headrace")


@final
@dataclass(frozen=True)
class Environment:
    """The parts of the process that stay while brokers come and go."""

    configuration: Configuration
    again: Callable[[], Configuration]
    """Reads the configuration again. Raises Refused."""
    clock: Clock
    background: Background
    soon: Callable[[Callable[[], None]], None]
    """Schedules a call at the end of this turn of the event loop."""
    tls: Tls | None
    wires: Callable[[], list[Wire]]
    ports: Callable[[], dict[str, int]]
    stopping: Callable[[], str]
    """Returns a sentence that says why the broker takes no messages, or ""."""
    staging: StagingArea


@final
class Readiness:
    """The reason why the broker takes no messages; logs one line when it begins and one when it ends."""

    def __init__(self, look: Callable[[], str], clock: Clock) -> None:
        self._look = look
        """Returns a sentence that says why nothing can be published, or ""."""
        self._clock = clock
        self._reason = ""
        self._seen_us = 0
        """The last time when the reason was true."""

    def reason(self) -> str:
        """Return why nothing can be published, now or within the last moments; "" while it can."""
        self.tick()
        return self._reason

    def tick(self) -> None:
        """Check for a change."""
        reason, now_us = self._look(), self._clock.monotonic_us()
        if reason:
            if not self._reason:
                _log.error("not ready, publishers are refused or wait: %s", reason)
            self._reason, self._seen_us = reason, now_us
        elif self._reason and now_us - self._seen_us >= _QUIET_US:
            _log.warning("ready again, publishing goes on; it was not because: %s", self._reason)
            self._reason = ""


@final
class Service:
    """Hosts, users, protocols and pages over one engine, from its opening to its end."""

    def __init__(self, engine: Engine, environment: Environment) -> None:
        """Raises Refused when its queues cannot become as configured."""
        self.engine = engine
        self._environment = environment
        self._clock = environment.clock
        self._reloading: Reloading | None = None
        self._sweep_due_us = 0
        self._flow = Flow()
        self._blocked_us = 0
        """Monotonic time since when publishers wait; 0 while they do not."""
        self._readiness = Readiness(self._look, self._clock)
        configuration = environment.configuration
        tokens = read_tokens(configuration.settings.jwt)
        self._hosts = self._open_hosts(configuration.settings)
        self._access = Access(engine, self._clock, environment.background, self._hosts)
        self._access.use_tokens(tokens)
        self._reloading = Reloading(configuration, environment.again, self._hosts, self._access, environment.tls)
        self._reloading.start()
        self._protocols = Protocols(Backend(self._hosts, self._access, self._clock, configuration.settings))
        self.handler = self._protocols.handler
        """Makes the handler of a new connection, by listener."""
        self.datagrams = self._protocols.datagrams
        self.site = self._open_site()

    def _open_hosts(self, settings: Settings) -> Hosts:
        flow = self._flow

        def broker(name: str, is_new: bool) -> Broker:
            current = settings if self._reloading is None else self._reloading.settings
            found = Broker(
                self.engine,
                self._clock,
                self._environment.soon,
                name,
                flow,
                Bounds(current.mqtt, current.limits.memory_bytes),
                current.cluster.group,
                is_new,
            )
            limit(found, current)
            return found

        return Hosts(self.engine, broker)

    def _open_site(self) -> Site:
        around = self._environment
        site = Site(
            self._hosts,
            self._access,
            around.wires,
            around.ports,
            self.trouble,
            self._clock,
            __version__,
            around.staging,
        )
        site.reload = self._reload
        return site

    async def _reload(self) -> dict[str, object]:
        """Reload to the end, even if the caller goes away."""
        return asdict(await asyncio.shield(asyncio.ensure_future(self.reload())))

    # -- connections -------------------------------------------------------------------------------------------------

    def speaker(self, contributions: "list[Contribute]") -> Speaker:
        """Return the handler of HTTP requests; the first call loads its modules."""
        from headrace.admin.stack import Stack

        return Stack.of_site(self.site, contributions)

    # -- upkeep ------------------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        assert self._reloading is not None
        return self._reloading.settings

    async def reload(self) -> Reloaded:
        """Apply the configuration as it is now, or raise Refused or Unavailable and change nothing."""
        assert self._reloading is not None
        return await self._reloading.reload()

    def tick(self) -> None:
        """Run the periodic work of all parts."""
        for broker in self._hosts.brokers():
            broker.tick()
        self._protocols.tick()
        self._access.tick()
        self._readiness.tick()
        self._sweep()

    def _sweep(self) -> None:
        """Remove files that dead jobs left behind, once per interval."""
        now_us = self._clock.now_us()
        if now_us >= self._sweep_due_us:
            self._sweep_due_us = now_us + _SWEEP_US
            staging, before_s = self._environment.staging, now_us / 1_000_000 - EXPIRE_SECONDS
            if staging.is_used:
                self._environment.background.run(lambda: staging.sweep_all(before_s), lambda _: None)

    def trouble(self) -> str:
        """Return why nothing can be published now; "" while it can."""
        return self._environment.stopping() or self._readiness.reason()

    def _look(self) -> str:
        """Return why nothing can be published at this moment."""
        trouble = self.engine.trouble
        if trouble:
            return trouble
        now_us, sent_us = self._clock.monotonic_us(), 0
        for broker in self._hosts.brokers():
            if broker.is_held_up:
                return f"what is published to virtual host {broker.topology.host!r} cannot be stored now"
            sent_us = min([each for each in (sent_us, broker.sent_us) if each], default=0)
        if sent_us and now_us - sent_us > _SLOW_US:
            seconds = (now_us - sent_us) / 1_000_000
            return f"what was sent to storage {seconds:.0f} s ago is not stored yet: it is too slow, or hangs"
        return self._look_at_flow(now_us)

    def _look_at_flow(self, now_us: int) -> str:
        flow = self._flow
        if not flow.blocked:
            self._blocked_us = 0
            return ""
        self._blocked_us = self._blocked_us or now_us
        if flow.is_out_of_memory:
            return (
                f"queues that are not stored have filled {flow.memory_high_bytes:,} bytes of memory, and publishers "
                f"wait until they are consumed; more is limits.memory_bytes in the configuration"
            )
        if now_us - self._blocked_us > _SLOW_US:
            return "publishers wait: more comes than storage takes"
        return ""

    def drain(self) -> None:
        """Commit the last messages."""
        for broker in self._hosts.brokers():
            broker.drain()

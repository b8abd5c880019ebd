"""The broker while it serves: hosts, users, protocols and pages over one engine. Sockets and signals are app.py's."""

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
from headrace.protocols import Backend, Protocols, codecs
from headrace.readiness import Readiness
from headrace.reloading import Reloaded, Reloading, limit
from headrace.storage.api import Engine
from headrace.storage.local.staging import EXPIRE_SECONDS, StagingArea
from headrace.tokens import read_tokens
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.admin.listener import Contribute

_SLOW_US: Final = 5_000_000
"""How long storage may take, and publishers wait, before that is trouble."""
_SWEEP_US: Final = 600 * 1_000_000
"""How often what dead jobs left behind is looked for."""


@final
@dataclass(frozen=True)
class Environment:
    """Where a broker serves: what is the same before it comes and after it has gone."""

    configuration: Configuration
    again: Callable[[], Configuration]
    """Reads the configuration anew. Raises Refused."""
    clock: Clock
    background: Background
    soon: Callable[[Callable[[], None]], None]
    """Has something called at the end of this turn of the event loop."""
    tls: Tls | None
    wires: Callable[[], list[Wire]]
    ports: Callable[[], dict[str, int]]
    stopping: Callable[[], str]
    """Why nothing is taken any more, in a sentence; "" while it is."""
    staging: StagingArea


@final
class Service:
    """All that clients are served with, from the opening of an engine to its end."""

    def __init__(self, engine: Engine, premises: Environment) -> None:
        """Raises Refused when its queues cannot become what is configured."""
        self.engine = engine
        self._premises = premises
        self._clock = premises.clock
        self._reloading: Reloading | None = None
        self._sweep_due_us = 0
        self._flow = Flow()
        self._blocked_us = 0
        """Since when publishers wait, by the monotonic clock; 0 while they do not."""
        self._readiness = Readiness(self._look, self._clock)
        configuration = premises.configuration
        tokens = read_tokens(configuration.settings.jwt)
        self._hosts = self._open_hosts(configuration.settings)
        self._access = Access(engine, self._clock, premises.background, self._hosts)
        self._access.use_tokens(tokens)
        self._reloading = Reloading(configuration, premises.again, self._hosts, self._access, premises.tls)
        self._reloading.start()
        self._protocols = Protocols(Backend(self._hosts, self._access, self._clock, configuration.settings))
        self.handler = self._protocols.handler
        """Makes the handler of a new connection, by listener."""
        self.datagrams = self._protocols.datagrams
        self.site = self._open_site()

    def _open_hosts(self, settings: Settings) -> Hosts:
        known, flow = codecs(), self._flow

        def broker(name: str) -> Broker:
            current = settings if self._reloading is None else self._reloading.settings
            found = Broker(
                self.engine,
                self._clock,
                self._premises.soon,
                name,
                known,
                flow,
                Bounds(current.mqtt, current.limits.memory_bytes),
                current.cluster.group,
            )
            limit(found, current)
            return found

        return Hosts(self.engine, broker)

    def _open_site(self) -> Site:
        front = self._premises
        site = Site(
            self._hosts, self._access, front.wires, front.ports, self.trouble, self._clock, __version__, front.staging
        )
        site.reload = lambda: asdict(self.reload())
        return site

    # -- who comes in ------------------------------------------------------------------------------------------------

    def speaker(self, contributions: "list[Contribute]") -> Speaker:
        """What speaks HTTP; its modules are loaded with the first call."""
        from headrace.admin.stack import Stack

        return Stack.of_site(self.site, contributions)

    # -- from first to last ------------------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """What counts now."""
        assert self._reloading is not None
        return self._reloading.settings

    def reload(self) -> Reloaded:
        """Apply what the configuration says now. Raises Refused, Unavailable and changes nothing then."""
        assert self._reloading is not None
        return self._reloading.reload()

    def tick(self) -> None:
        """Do what is due at intervals."""
        for broker in self._hosts.brokers():
            broker.tick()
        self._protocols.tick()
        self._access.tick()
        self._readiness.tick()
        self._sweep()

    def _sweep(self) -> None:
        """Have what dead jobs left behind removed, whether or not others write."""
        now_us = self._clock.now_us()
        if now_us >= self._sweep_due_us:
            self._sweep_due_us = now_us + _SWEEP_US
            staging, before_s = self._premises.staging, now_us / 1_000_000 - EXPIRE_SECONDS
            if staging.is_used:
                self._premises.background.run(lambda: staging.sweep(before_s), lambda _: None)

    def trouble(self) -> str:
        """Why nothing can be published now, "" when it can."""
        return self._premises.stopping() or self._readiness.reason()

    def _look(self) -> str:
        """Why nothing can be published at this moment."""
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
        """Commit what came last."""
        for broker in self._hosts.brokers():
            broker.drain()
